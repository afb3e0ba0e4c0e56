"""The steps of a run: which windows, which negatives, the loss, the update. Knows sequences and a model, not files.

Nothing here keeps a hidden random state: the batch of step t, its dropout masks and its negatives are functions of
(seed, t). What it does keep is what `tensors` gives and `restore` takes.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from lrurec.data.batches import Lanes, PackedArrays, Sampler, Windows, pack_histories
from lrurec.data.negatives import Negatives
from lrurec.data.split import Sequences
from lrurec.errors import LrurecError, SettingsError
from lrurec.models.base import Batch, CarryingModel, CountingModel, Model, Sizes, TrainedModel, TrainingBatch
from lrurec.models.registry import model_class
from lrurec.nn.dropout import Keys
from lrurec.nn.loss import multiplies_half
from lrurec.training.config import RunConfig
from lrurec.training.steps import RowSteps, WholeSteps, steps_for


class TrainingFailed(LrurecError):
    """The loss is no number, or memory ran out; the message says what to do."""


def settled(config: RunConfig) -> RunConfig:
    """The config with `auto` decided for this machine, as a run records it: a resumed run goes on as it began."""
    t, model = config.training, model_class(config.name)
    precision, updates, device = t.precision, t.updates, _device(t.device)
    if precision == "auto":
        precision = "bfloat16" if multiplies_half(device) else "float32"
    tables = model.tables if issubclass(model, TrainedModel) else {}
    if updates == "auto":
        updates = "rows" if t.loss == "sampled" and tables else "dense"
    if updates == "rows" and not tables:
        raise SettingsError(f"{config.name} has no tables whose rows could be updated; leave out training.updates=rows")
    if t.carry_state and not (issubclass(model, CarryingModel) and model.carries(config.model)):
        raise SettingsError(
            "training.carry_state needs a model that goes on from a state (lrurec with model.mixer=lru);"
            f" leave it out for {config.name}{_mixer(config)}"
        )
    if t.look_ahead and not (issubclass(model, TrainedModel) and model.looks_ahead(config.model)):
        raise SettingsError(
            f"training.look_ahead needs a model that learns from every next item; leave it out for {config.name}"
        )
    return replace(config, training=replace(t, precision=precision, updates=updates))


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise SettingsError(f"training.device={name} is no device; known: cpu, cuda, cuda:1, ...") from None


def _mixer(config: RunConfig) -> str:
    mixer = getattr(config.model, "mixer", "lru")
    return "" if mixer == "lru" else f" with model.mixer={mixer}"


def build(items: int, users: int, config: RunConfig) -> Model:
    """The model of a config, initialised by its seed."""
    t = config.training
    try:
        torch.empty(0, device=_device(t.device))
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was made for the device
        why = str(error).splitlines()[0]
        raise SettingsError(f"training.device={t.device} is not here ({why}); leave it out for the processor") from None
    try:
        generator = torch.Generator().manual_seed(t.seed)
        return model_class(config.name)(Sizes(items, users, t.max_length), config.model, generator).to(t.device)
    except (MemoryError, RuntimeError, OverflowError) as error:
        said = str(error).splitlines()[0] if str(error) else ""
        if isinstance(error, RuntimeError) and not any(word in said for word in ("alloc", "memory", "overflow")):
            raise
        raise TrainingFailed(
            f"the model does not fit into memory ({items:,} items, {users:,} users); lower model.width and its like"
        ) from None


class Learner:
    """A model and how it learns from training sequences, step by step."""

    def __init__(
        self, items: int, users: int, train: Sequences, config: RunConfig, whole: Sequences | None = None
    ) -> None:
        """`whole` is what the last steps (training.finish) learn from: with what is held back from `train`."""
        config = settled(config)
        self.config, self.train, t = config, train, config.training
        self.windows = Windows.of(train, t.max_length, drop_rest=t.drop_rest)
        self.sampler: Lanes | Sampler = Sampler(len(self.windows), t.batch, t.seed)
        if t.carry_state:
            self.sampler = Lanes(self.windows, t.batch, t.seed)
        self.steps = (t.steps or t.epochs * self.sampler.steps_per_epoch) + t.finish
        self.whole = Windows.of(whole or train, t.max_length, drop_rest=t.drop_rest) if t.finish else None
        self.model = build(items, users, config)
        self.carried: Tensor | None = None  # the states behind the windows of the last step, where they are carried
        if t.carry_state:
            assert isinstance(self.model, CarryingModel)
            self.carried = self.model.initial_state(t.batch)
        self.negatives: Negatives | None = None
        log_q: Tensor | None = None
        if t.loss == "sampled":
            if t.negatives > max(items, 4096 if t.shared_negatives else 1000):
                whose = "for a step" if t.shared_negatives else "for each position"
                raise SettingsError(
                    f"training.negatives={t.negatives} {whose} are more than the {items:,} items there are;"
                    " lower it, or leave out training.loss=sampled"
                )
            popular = t.negatives_from == "popularity"
            counts = train.counts(items) if popular else None
            self.negatives = Negatives(items, t.negatives, t.seed, counts)
            if popular or t.shared_negatives:  # the paper's negatives, uniform ones of each position, are not corrected
                log_q = torch.from_numpy(self.negatives.log_q).float().to(t.device)
        self.updates: WholeSteps | RowSteps | None = None
        if isinstance(self.model, TrainedModel):
            self.updates = steps_for(self.model, t, log_q)
        else:
            self.steps = 1  # counting

    @property
    def parts(self) -> list["Learner"]:
        """Those that learn a model each (lrurec.training.together): this one."""
        return [self]

    def step(self, number: int) -> tuple[float, int]:
        """Step 0, 1, ...: its loss, and how many targets it learned from."""
        t = self.config.training
        if isinstance(self.model, CountingModel):
            self.model.count(whole_sequences(self.train, t.device))
            return 0.0, self.train.n_events
        assert self.updates is not None
        packed = self._packed(number)
        batch = TrainingBatch(
            torch.from_numpy(packed.inputs).to(t.device),
            torch.from_numpy(packed.offsets),
            torch.from_numpy(packed.users).to(t.device),
            targets=torch.from_numpy(packed.targets).to(t.device),
            windows=torch.from_numpy(packed.windows),
            half=t.precision == "bfloat16",
            carried=self._carried(number),
            look_ahead=t.look_ahead,
            gaps=None if packed.gaps is None else torch.from_numpy(packed.gaps).to(t.device),
        )
        drawn = None
        if self.negatives is not None:
            drawn = self.negatives.drawn(number, None if t.shared_negatives else len(batch))
        try:
            loss, ends = self.updates.loss(batch, Keys((t.seed << 32) + number), drawn)
        except (MemoryError, torch.OutOfMemoryError):
            raise TrainingFailed(
                f"out of memory at step {number}; train again with a lower training.batch or training.max_length"
            ) from None
        value = float(loss)
        if not math.isfinite(value):
            raise TrainingFailed(
                f"the loss at step {number} is {value}; train again with a lower training.learning_rate (it is"
                f" {t.learning_rate:g}) or a lower training.clip (it is {t.clip:g})"
            )
        self.updates.update(number)
        if self.carried is not None and ends is not None:
            self.carried[: len(ends)] = ends
        return value, len(batch)

    def _packed(self, number: int) -> PackedArrays:
        t = self.config.training
        if self.whole is None or number < t.steps:
            return self.windows.pack(self.sampler.chosen(number))
        return self.whole.pack(Sampler(len(self.whole), t.batch, t.seed).chosen(number - t.steps))

    def _carried(self, number: int) -> Tensor | None:
        """The states that the windows of a step go on from."""
        if self.carried is None or not isinstance(self.sampler, Lanes):
            return None
        go_on = torch.from_numpy(self.sampler.go_on(number)).to(self.carried.device)
        states = self.carried[: len(go_on)]
        return states.masked_fill(~go_on.view(-1, *[1] * (states.ndim - 1)), 0.0)

    def settle(self) -> None:
        """Bring all weights up to date."""
        if self.updates is not None:
            self.updates.settle()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside the weights."""
        found = self.updates.tensors() if self.updates else {}
        if self.carried is not None:
            found["carried"] = self.carried
        return found

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on behind a step, with what `tensors` gave there."""
        if self.updates is not None:
            self.updates.restore(tensors, step)
        if self.carried is not None:
            self.carried.copy_(tensors["carried"])


def whole_sequences(train: Sequences, device: str) -> Batch:
    """Training sequences as they are, not cut into windows."""
    kept = train.stops > train.starts
    longest = int((train.stops - train.starts).max())
    packed = pack_histories(train.items, train.starts[kept], train.stops[kept], longest, train.users[kept])
    inputs, users = (torch.from_numpy(a).to(device) for a in (packed.inputs, packed.users))
    return Batch(inputs, torch.from_numpy(packed.offsets), users)
