"""The contract every model keeps. Training, ranking and serving work from these methods alone.

    Model                scores of all items for some histories
      CountingModel      learns by counting, once: popularity, a Markov chain
      TrainedModel       hidden vectors and a table of items; learns by gradients
        RecurrentModel   a state of fixed size per user, one step per event
          CarryingModel  encodes sequences that go on from a state

A batch is packed: the items of all sequences in one run, and offsets. Item numbers are those of the dataset plus one;
0 is the start of a history. A model adds for itself what else it needs (positions, a mask).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lrurec.memory.memory import Memory
from lrurec.nn.dropout import Keys, hashes
from lrurec.nn.tiles import catalogue

_FURTHEST = 8  # items behind the next one that may stand for it


@dataclass(frozen=True)
class Sizes:
    """What a model is built for."""

    items: int
    users: int = 0
    max_length: int = 50  # no sequence is longer


@dataclass(frozen=True)
class Batch:
    """Packed sequences.

    inputs    [N]      item + 1, or 0 for the start of a history
    offsets   [S + 1]  sequence s is rows offsets[s] to offsets[s + 1]; always on the CPU
    users     [S]      user + 1, or 0 for somebody who did not train; None: nobody did
    half               whether a model may take its products in bfloat16
    gaps      [N]      how long before each event the one before it was, where a model wants that; 0: unknown
    """

    inputs: Tensor
    offsets: Tensor
    users: Tensor | None = None
    half: bool = False
    gaps: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> Tensor:
        """[S], on the CPU."""
        return self.offsets.diff()

    @property
    def lasts(self) -> Tensor:
        """[S]: the row of the newest item of each sequence."""
        return (self.offsets[1:] - 1).to(self.inputs.device)

    def user_rows(self) -> Tensor:
        """[N]: the user of every row."""
        if self.users is None:
            return torch.zeros_like(self.inputs)
        return self.users.repeat_interleave(self.lengths.to(self.users.device))

    def positions(self) -> Tensor:
        """[N]: 0 for the first row of a sequence, 1 for the next."""
        first = self.offsets[:-1].repeat_interleave(self.lengths)
        return (torch.arange(len(self.inputs)) - first).to(self.inputs.device)


@dataclass(frozen=True, kw_only=True)
class TrainingBatch(Batch):
    """Windows of histories, each position with its answer.

    A window that begins a history has its start token in a sequence of its own, which carries nothing into the rest:
    window w is rows windows[w] to windows[w + 1], and one or two sequences. Its items are `targets` of those rows.
    """

    targets: Tensor  # [N] item, the answer at each position
    windows: Tensor  # [W + 1], on the CPU
    carried: Tensor | None = None  # [W, ...], the states that windows go on from; None: each begins anew
    look_ahead: float = 0.0  # the chance that an answer is not the next item but one behind it

    def answers(self, keys: Keys) -> Tensor:
        """[N]: the answer at each position, drawn by the keys: the next item or, with `look_ahead`, one further ahead.

        Each item further is taken with that chance, up to a few, as far as the window reaches. What comes first stays first.
        """
        if not self.look_ahead:
            return self.targets
        device, count = self.targets.device, len(self)
        drawn = (hashes(count, keys.next(), device).double() + 0.5) / 2.0**32
        further = (drawn.log() / math.log(self.look_ahead)).long().clamp(max=_FURTHEST)
        here = torch.arange(count, device=device)
        left = self.windows[1:].repeat_interleave(self.windows.diff()).to(device) - 1 - here
        further[(further > left) | (self.inputs == 0)] = 0
        return self.targets[here + further]

    def begin(self, states: Tensor) -> Tensor:
        """The states that sequences begin with, [S, ...], of those that windows go on from; a start token has none."""
        whose = torch.searchsorted(self.windows, self.offsets[:-1], right=True) - 1
        return self._without_starts(states[whose.to(states.device)])

    def end(self, states: Tensor) -> Tensor:
        """The states that windows end with, [W, ...], of those of their sequences."""
        lasts = torch.searchsorted(self.offsets, self.windows[1:]) - 1
        return self._without_starts(states)[lasts.to(states.device)]

    def _without_starts(self, states: Tensor) -> Tensor:
        is_start = self.inputs[self.offsets[:-1].to(self.inputs.device)] == 0
        return states.masked_fill(is_start.view(-1, *[1] * (states.ndim - 1)), 0.0)

    def with_one_start(self) -> tuple[Batch, Tensor | None, Tensor]:
        """The batch with all start tokens as one sequence, its first; which row of it each answer is for; the answers.

        What comes first is asked of nothing but the start token, so its vector can be shared; its answers come first.
        A batch with few of them stays as it is, and its rows are None: each answer has its own.
        """
        is_start = self.inputs == 0
        others = (~is_start).nonzero()[:, 0]
        asked = is_start.nonzero()[:, 0]
        if 10 * len(asked) < len(self):  # not worth the copies
            return Batch(self.inputs, self.offsets, half=self.half, gaps=self.gaps), None, self.targets
        stays = ~is_start[self.offsets[:-1].to(is_start.device)].cpu()
        lengths = torch.cat([torch.ones(1, dtype=torch.int64), self.lengths[stays]])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        kept = torch.cat([asked[:1], others])
        gaps = None if self.gaps is None else self.gaps[kept]
        packed = Batch(self.inputs[kept], offsets, half=self.half, gaps=gaps)
        rows = torch.cat([torch.zeros_like(asked), torch.arange(1, len(others) + 1, device=others.device)])
        return packed, rows, self.targets[torch.cat([asked, others])]


def wants_gaps(config: Any) -> bool:
    """Whether a model with these settings looks at how much time lies between events."""
    return bool(getattr(config, "gaps", False))


@dataclass(frozen=True)
class Card:
    """What `lrurec models` says of a model. n: items of a history, d: width, V: items of the catalogue."""

    title: str
    year: int
    paper: str
    training: str  # the cost of one history in training, beside the loss
    update: str  # the cost of one more event


class Model(nn.Module, ABC):
    """Scores of all items for some histories."""

    Config: ClassVar[type]  # a frozen dataclass
    card: ClassVar[Card]
    reads_histories: ClassVar[bool] = True  # False: it looks at who somebody is, or at nothing

    def __init__(self, sizes: Sizes, config: Any, generator: torch.Generator) -> None:
        """Every model is built from these three; the generator is all the randomness there is."""
        super().__init__()
        self.sizes, self.config = sizes, config

    @abstractmethod
    def scores(self, batch: Batch) -> Tensor:
        """[S, V]: what comes after each sequence."""

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take the weights of a checkpoint; RuntimeError where they do not fit."""
        self.load_state_dict(tensors)

    def facts(self) -> dict[str, Any]:
        """What is worth recording of the trained weights."""
        return {}


class CountingModel(Model):
    """Learns by counting. What it knows are parameters without gradients, whose shape the data decides."""

    @abstractmethod
    def count(self, sequences: Batch) -> None:
        """Learn from whole training sequences; there are no start tokens in them."""

    def restore(self, tensors: dict[str, Tensor]) -> None:
        names = {name for name, _ in self.named_parameters()}
        if names != set(tensors):
            raise RuntimeError(f"expected {sorted(names)}, found {sorted(tensors)}")
        for name, tensor in tensors.items():
            self.keep(name, tensor)

    def keep(self, name: str, tensor: Tensor) -> None:
        """Put what was counted under a name, on the device that the model is on."""
        setattr(self, name, nn.Parameter(tensor.to(getattr(self, name).device), requires_grad=False))


class TrainedModel(Model):
    """Learns by gradients. The score of item v at a position is E[v] . hidden + bias[v]."""

    knows_users: ClassVar[bool] = False  # whether vectors differ by who somebody is, not by the history alone
    tables: ClassVar[dict[str, str]] = {}  # parameters with a row per "item", "input" (item + 1) or "user" (user + 1)
    memory: Memory | None = None  # what came near what, where a run has that

    @abstractmethod
    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        """Hidden vectors of all positions: [N, d]; none sees what comes after it. With keys, dropout is on."""

    @classmethod
    def looks_ahead(cls, config: Any) -> bool:
        """Whether it learns every next item with these settings, so that a later one may stand for it."""
        return True

    @abstractmethod
    def answers(self) -> tuple[Tensor, Tensor]:
        """(E, bias [V]). The last V rows of E are the items; what comes before (a start token) is never an answer."""

    def item_table(self) -> tuple[Tensor, Tensor]:
        """(E [V, d], bias [V]): the items alone."""
        table, bias = self.answers()
        return catalogue(table, bias), bias

    def examples(self, batch: TrainingBatch, keys: Keys) -> tuple[Tensor, Tensor]:
        """What the loss is taken from: hidden vectors [M, d] and their answers [M]. Here, every next item.

        Histories all start from the same token: it is encoded once, under one dropout, and the loss meets it once.
        """
        batch = replace(batch, targets=batch.answers(keys))
        if self.knows_users:
            return self.encode(batch, keys), batch.targets
        packed, rows, targets = batch.with_one_start()
        hidden = self.encode(packed, keys)
        return hidden if rows is None else hidden.index_select(0, rows), targets

    def last(self, batch: Batch) -> Tensor:
        """[S, d]: the vectors behind the newest items, from which the next ones are predicted."""
        return self.encode(batch)[batch.lasts]

    def remembered(self, batch: Batch, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """What the memory adds to the scores behind `last`, if there is one: sequences, items, numbers."""
        if self.memory is None:
            return None
        table, bias = (t.detach().cpu().numpy() for t in self.item_table())
        items, offsets = batch.inputs.cpu().numpy() - 1, batch.offsets.numpy()
        added = self.memory.added_to(items, offsets, hidden.detach().cpu().numpy(), table, bias)
        rows, what, more = (torch.from_numpy(a).to(hidden.device) for a in added)
        return rows, what, more

    def scores(self, batch: Batch) -> Tensor:
        return self.scored(batch, self.last(batch))

    def scored(self, batch: Batch, hidden: Tensor) -> Tensor:
        """[S, V]: the scores behind what `last` gave."""
        table, bias = self.item_table()
        scores = torch.addmm(bias, hidden, table.T)
        if (found := self.remembered(batch, hidden)) is not None:
            rows, items, more = found
            scores[rows, items] += more
        return scores


class RecurrentModel(TrainedModel):
    """Updates a state of fixed size per event: stepping through a history gives what encoding it gives."""

    @abstractmethod
    def initial_state(self, batch: int = 1) -> Tensor:
        """The states of users before anything happened: [B, ...]."""

    @abstractmethod
    def step(self, state: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """One event per user: (state, input [B]) to (state, hidden [B, d])."""


class CarryingModel(RecurrentModel):
    """Also encodes sequences that go on from a state, which training.carry_state needs."""

    @classmethod
    def carries(cls, config: Any) -> bool:
        """Whether it does so with these settings."""
        return True

    @abstractmethod
    def encode_from(self, batch: Batch, states: Tensor, keys: Keys | None = None) -> tuple[Tensor, Tensor]:
        """As `encode`, each sequence going on from a state [S, ...], to which no gradient goes; also the states behind."""
