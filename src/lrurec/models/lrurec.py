"""LRURec: linear recurrent units for sequential recommendation (Yue, Wang et al., WSDM 2024).

    x   = LayerNorm(Dropout(Embedding(items)))
    block:  z = LayerNorm(Dropout(LRU(x)) + x)
            x = LayerNorm(PFFN(z) + z)
    scores  = E x + bias                            (E is the embedding: the prediction layer is tied)

With a `temperature` T, the rows of E and x have length 1, and scores = E x / T + bias: no item is near everything because its
vector is long.

Input 0 is the start of a history: a learned vector, from which the first item is predicted.

With `gaps`, a learned vector of how long an event came after the one before it is added to x before the first block. It begins
as zero. When the answer comes is never an input.

With `copies`, several such models stand side by side, each with a part of the width of the embedding; their scores are averaged.
Each is trained as if it were alone (lrurec.training.together), with other batches and draws: what they agree on is less often
chance. `encode` gives their vectors one behind another, over their number, so that scores are E x + bias as ever.

What mixes the positions can be another recurrence in the same block (`mixer`): S4 in its diagonal form (lrurec.nn.s4), or
RWKV-4 (lrurec.nn.rwkv), whose channel mixing then takes the place of the PFFN.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.arrays import GAPS
from lrurec.config import unknown
from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, CarryingModel, Sizes
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.entry import entry
from lrurec.nn.feedforward import PFFN
from lrurec.nn.fused import fused_block
from lrurec.nn.init import truncated_normal_
from lrurec.nn.lru import LRU
from lrurec.nn.mixer import Mixer
from lrurec.nn.parts import Weights
from lrurec.nn.residual import add_and_norm
from lrurec.nn.rwkv import ChannelMixing, TimeMixing
from lrurec.nn.s4 import S4

MIXERS = ("lru", "s4", "rwkv")
SIZES = {"channels": "lru", "state": "s4"}  # settings that one mixer alone has


@dataclass(frozen=True)
class LRURecConfig:
    """The paper's model; the switches are those of its ablation."""

    width: int = 64
    mixer: str = "lru"  # or s4, rwkv
    channels: int = 128  # of lru: the paper doubles the width inside the recurrence
    state: int = 32  # of s4: complex states of a channel; they stand for twice as many
    blocks: int = 2
    dropout: float = 0.2
    layer_norm: bool = True
    residual: bool = True
    pffn: bool = True
    outer_gelu: bool = False  # the paper's equation has a second GELU, the authors' code has not
    scan: str = "auto"  # of lru
    gaps: bool = False  # whether it sees how much time lies between events
    copies: int = 1  # models side by side, whose scores are averaged
    temperature: float = 0.0  # 0: scores are products of vectors; above: cosines over it

    def __post_init__(self) -> None:
        if self.mixer not in MIXERS:
            raise unknown("model.mixer", self.mixer, MIXERS)
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"model.dropout must lie between 0 and 1, not {self.dropout}")
        if not 0 <= self.temperature < math.inf:
            raise SettingsError(f"model.temperature must be a number of 0 or more, not {self.temperature}")
        for name in ("width", "channels", "state", "blocks", "copies"):
            if getattr(self, name) < 1:
                raise SettingsError(f"model.{name} must be 1 or more, not {getattr(self, name)}")
        for name, owner in SIZES.items():
            if self.mixer != owner and getattr(self, name) != getattr(LRURecConfig, name):
                raise SettingsError(f"model.{name} is a size of model.mixer={owner}; leave it out for {self.mixer}")
        if self.scan != "auto" and self.mixer != "lru":
            raise SettingsError(f"model.scan chooses a way to run model.mixer=lru; leave it out for {self.mixer}")
        if self.outer_gelu and self.mixer == "rwkv":
            raise SettingsError("model.outer_gelu is part of the PFFN, which model.mixer=rwkv replaces; leave it out")


class Block(nn.Module):
    """One recurrence and one feed-forward network, each with its residual and its LayerNorm."""

    def __init__(self, config: LRURecConfig, generator: torch.Generator, number: int = 0) -> None:
        super().__init__()
        self.config = config
        self.mixer = _mixer(config, generator, number)
        self.norm1 = nn.LayerNorm(config.width) if config.layer_norm else nn.Identity()
        self.pffn = _feed_forward(config, generator, number) if config.pffn else None
        self.norm2 = nn.LayerNorm(config.width) if config.layer_norm and config.pffn else nn.Identity()

    def forward(self, x: Tensor, offsets: Tensor, keys: Keys | None, half: bool = False) -> Tensor:
        if self._is_fused(x):
            return self._fused(x, offsets, None, keys, half)[0]
        mixed = self.mixer(x, offsets) if isinstance(self.mixer, S4) else self.mixer(x, offsets, half)
        return self._behind(x, mixed, offsets, keys, half)

    def forward_from(
        self, x: Tensor, offsets: Tensor, states: Tensor, keys: Keys | None, half: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, each sequence going on from a state of the LRU [S, 2, C]; also the states that they end with."""
        if self._is_fused(x):
            out, ends = self._fused(x, offsets, states.flatten(1), keys, half)
            return out, ends.view_as(states)
        assert isinstance(self.mixer, LRU)
        mixed, states = self.mixer.forward_from(x, offsets, states, half)
        return self._behind(x, mixed, offsets, keys, half), states

    def _fused(
        self, x: Tensor, offsets: Tensor, begins: Tensor | None, keys: Keys | None, half: bool
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = fused_block(x, offsets, begins, self._weights(), self.config.dropout, keys, half)
        return found

    def _behind(self, x: Tensor, mixed: Tensor, offsets: Tensor, keys: Keys | None, half: bool) -> Tensor:
        """What follows the mixer, the feed-forward network included."""
        z = self._first(x, mixed, keys)
        match self.pffn:
            case None:
                return z
            case PFFN():
                return self._second(z, self.pffn(z, keys, half))
            case _:
                return self._second(z, self.pffn(z, offsets, half), keys)

    def _is_fused(self, x: Tensor) -> bool:
        """The block as published, or without its PFFN, which the fused function computes, where it can."""
        c = self.config
        plain = c.mixer == "lru" and c.layer_norm and c.residual and not c.outer_gelu and c.scan == "auto"
        return plain and x.device.type == "cpu" and x.dtype == torch.float32

    def _weights(self) -> Weights:
        lru, pffn, first, second = self.mixer, self.pffn, self.norm1, self.norm2
        assert isinstance(lru, LRU) and isinstance(first, nn.LayerNorm)
        mixed = *lru.in_use(), lru.c_weight, lru.c_bias, first.weight, first.bias
        if pffn is None:
            none, width = first.weight.new_empty(0), self.config.width
            return Weights(*mixed, none.view(0, width), none, none.view(width, 0), none, none, none)
        assert isinstance(pffn, PFFN) and isinstance(second, nn.LayerNorm)
        return Weights(*mixed, pffn.w1, pffn.b1, pffn.w2, pffn.b2, second.weight, second.bias)

    def initial_state(self, batch: int = 1) -> Tensor:
        """The mixer's, with that of the channel mixing behind it where there is one."""
        own = self.mixer.initial_state(batch)
        return torch.cat([own, self.pffn.initial_state(batch)], 1) if isinstance(self.pffn, Mixer) else own

    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.mixer.state_shape[0]
        own, more = state[:, :rows], state[:, rows:]
        own, y = self.mixer.step(own, x)
        z = self._first(x, y, None)
        match self.pffn:
            case None:
                return own, z
            case PFFN():
                return own, self._second(z, self.pffn(z))
            case _:
                more, y = self.pffn.step(more, z)
                return torch.cat([own, more], 1), self._second(z, y)

    def _first(self, x: Tensor, y: Tensor, keys: Keys | None) -> Tensor:
        """What follows the recurrence."""
        return self._added(y, x, self.norm1, keys)

    def _second(self, z: Tensor, y: Tensor, keys: Keys | None = None) -> Tensor:
        """What follows the feed-forward network; with keys, dropout, which the PFFN has inside, comes first."""
        return self._added(y, z, self.norm2, keys)

    def _added(self, y: Tensor, x: Tensor, norm: nn.Module, keys: Keys | None) -> Tensor:
        if self.config.residual and isinstance(norm, nn.LayerNorm):
            whole: Tensor = add_and_norm(y, x, norm, self.config.dropout, keys)
            return whole
        y = dropout(y, self.config.dropout, keys)
        result: Tensor = norm(y + x if self.config.residual else y)
        return result


def _mixer(config: LRURecConfig, generator: torch.Generator, number: int) -> Mixer:
    if config.mixer == "s4":
        return S4(config.width, config.state, generator)
    if config.mixer == "rwkv":
        return TimeMixing(config.width, generator, number, config.blocks)
    return LRU(config.width, config.channels, generator, config.scan)


def _feed_forward(config: LRURecConfig, generator: torch.Generator, number: int) -> PFFN | ChannelMixing:
    if config.mixer == "rwkv":
        return ChannelMixing(config.width, generator, number, config.blocks)
    return PFFN(config.width, config.dropout, generator, config.outer_gelu)


class Copy(nn.Module):
    """What a further model has beside its part of the embedding."""

    def __init__(self, config: LRURecConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width) if config.layer_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, generator, k) for k in range(config.blocks))


class LRURec(CarryingModel):
    """The whole model over a catalogue of items."""

    tables: ClassVar = {"embedding": "input", "bias": "item"}
    Config = LRURecConfig
    config: LRURecConfig
    card = Card("LRURec", 2024, "Yue, Wang et al., WSDM", "O(n d^2)", "O(d^2): one step of a recurrence")

    def __init__(self, sizes: Sizes, config: LRURecConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        self.copies, whole = config.copies, config.width * config.copies
        self.embedding = nn.Parameter(truncated_normal_(torch.empty(sizes.items + 1, whole), generator))
        self.norm = nn.LayerNorm(config.width) if config.layer_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, generator, k) for k in range(config.blocks))
        self.bias = nn.Parameter(truncated_normal_(torch.empty(sizes.items), generator))
        if config.gaps:
            self.gaps = nn.Parameter(torch.zeros(GAPS, whole))
        self.others = nn.ModuleList(Copy(config, generator) for _ in range(config.copies - 1))

    def stacks(self) -> list[tuple[nn.Module, nn.ModuleList]]:
        """Of each copy what comes in front of its blocks, and those."""
        others: Any = self.others
        return [(self.norm, self.blocks), *((other.norm, other.blocks) for other in others)]

    @torch.no_grad()
    def join(self, copies: Sequence["LRURec"]) -> None:
        """Take the weights of models that were trained apart."""
        for c, ((norm, blocks), one) in enumerate(zip(self.stacks(), copies, strict=True)):
            norm.load_state_dict(one.norm.state_dict())
            blocks.load_state_dict(one.blocks.state_dict())
            for mine, its in self._wide(c, one):
                mine.copy_(its)
        self.bias.copy_(torch.stack([one.bias for one in copies]).mean(0))

    @torch.no_grad()
    def part(self, copies: Sequence["LRURec"]) -> None:
        """Give the models their weights back, but for their biases, of which there is the mean alone."""
        for c, ((norm, blocks), one) in enumerate(zip(self.stacks(), copies, strict=True)):
            one.norm.load_state_dict(norm.state_dict())
            one.blocks.load_state_dict(blocks.state_dict())
            for mine, its in self._wide(c, one):
                its.copy_(mine)

    def _wide(self, copy: int, one: "LRURec") -> list[tuple[Tensor, Tensor]]:
        """Tensors of which a copy has some columns, and those of the copy."""
        span = slice(copy * self.config.width, (copy + 1) * self.config.width)
        found: list[tuple[Tensor, Tensor]] = [(self.embedding[:, span], one.embedding)]
        if self.config.gaps:
            found.append((self.gaps[:, span], one.gaps))
        return found

    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        return self(batch.inputs, batch.offsets, keys, batch.half, batch.gaps)  # type: ignore[no-any-return]

    def forward(
        self,
        inputs: Tensor,
        offsets: Tensor,
        keys: Keys | None = None,
        half: bool = False,
        gaps: Tensor | None = None,
    ) -> Tensor:
        found = []
        for c, (_, blocks) in enumerate(self.stacks()):
            x = self._embed(inputs, gaps, keys, c)
            for block in blocks:
                x = block(x, offsets, keys, half)
            found.append(x)
        return self._side_by_side(found)

    def _side_by_side(self, found: list[Tensor]) -> Tensor:
        if self.config.temperature:
            found = [F.normalize(x, dim=-1) / self.config.temperature for x in found]
        return found[0] if len(found) == 1 else torch.cat(found, 1) / len(found)

    @classmethod
    def carries(cls, config: LRURecConfig) -> bool:
        return config.mixer == "lru"

    def encode_from(self, batch: Batch, states: Tensor, keys: Keys | None = None) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        ends: list[Tensor] = []
        for c, (_, blocks) in enumerate(self.stacks()):
            x = self._embed(batch.inputs, batch.gaps, keys, c)
            for block in blocks:
                begin = states[:, len(ends)]
                x, end = block.forward_from(x, batch.offsets, begin, keys, batch.half)  # type: ignore[operator]
                ends.append(end)
            found.append(x)
        return self._side_by_side(found), torch.stack(ends, 1)

    def _embed(self, inputs: Tensor, gaps: Tensor | None, keys: Keys | None, copy: int) -> Tensor:
        rate, norm, width = self.config.dropout, self.stacks()[copy][0], self.config.width
        table, rows = self.embedding.view(-1, width), inputs * self.copies + copy  # a row for every copy of an item
        if self.config.temperature:  # those that are needed alone: there are far fewer than items
            table, rows = F.normalize(F.embedding(rows, table), dim=-1), torch.arange(len(rows), device=rows.device)
        x: Tensor
        if isinstance(norm, nn.LayerNorm):
            x = entry(table, rows, norm.weight, norm.bias, rate, keys)
        else:
            x = dropout(F.embedding(rows, table), rate, keys)
        if not self.config.gaps:
            return x
        own = self.gaps.view(-1, width)
        apart: Tensor = F.embedding((torch.zeros_like(inputs) if gaps is None else gaps) * self.copies + copy, own)
        return x + apart

    def vectors(self) -> Tensor:
        """The embedding as it is used: [V + 1, width of all copies], the start token first."""
        if not self.config.temperature:
            return self.embedding
        return F.normalize(self.embedding.view(-1, self.config.width), dim=-1).view_as(self.embedding)

    def answers(self) -> tuple[Tensor, Tensor]:
        return self.vectors(), self.bias

    def initial_state(self, batch: int = 1) -> Tensor:
        """[B, blocks of all copies, ...]; [B, blocks, 2, C] for the paper's recurrence: 2 KB per user at its size."""
        return torch.stack([block.initial_state(batch) for block in self._all_blocks()], 1)

    def _all_blocks(self) -> list[Block]:
        return [block for _, blocks in self.stacks() for block in blocks]  # type: ignore[misc]

    def step(self, state: Tensor, inputs: Tensor, gaps: Tensor | None = None) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        states: list[Tensor] = []
        for c, (_, blocks) in enumerate(self.stacks()):
            x = self._embed(inputs, gaps, None, c)
            for block in blocks:
                new, x = block.step(state[:, len(states)], x)  # type: ignore[operator]
                states.append(new)
            found.append(x)
        return torch.stack(states, 1), self._side_by_side(found)

    @torch.no_grad()
    def eigenvalues(self) -> list[list[tuple[float, float]]]:
        """Every lambda of every block as (real part, imaginary part): what an event leaves of the state before it."""
        found = [block.mixer.eigenvalues().T.tolist() for block in self._all_blocks()]
        return [[(real, imaginary) for real, imaginary in block] for block in found]

    def mean_abs_lambda(self) -> list[float]:
        """The average |lambda| of each block (the paper's Table 5)."""
        return [sum(math.hypot(*v) for v in block) / len(block) for block in self.eigenvalues()]

    def facts(self) -> dict[str, Any]:
        return {"mean_abs_lambda": self.mean_abs_lambda()}
