"""FMLP-Rec: an all-MLP model with learned filters (Zhou, Yu, Zhao, Wen; WWW 2022).

    x   = Dropout(LayerNorm(E[items] + P[positions]))
    block:  z = LayerNorm(Dropout(irfft(W * rfft(x))) + x)
            x = LayerNorm(Dropout(W2 GELU(W1 z + b1) + b2) + z)
    scores  = E x + bias

The published filter is a convolution around the circle of a window that is padded at its left to max_length: only its
last position is free of the future. The setting `filter` says what is made of that:

    circular   as published. Every prefix is a window of its own, of which the newest vector alone is used. Padded
               places hold no item (zeros) but their positions, and take part like all others. Training predicts
               the items behind `prefixes` rows of each window of a batch: the newest, and others by chance.
    causal     the same weights are the spectrum of a kernel of max_length, with which the items are convolved without
               going around: every position is free of the future, and all train at once, without padding.

Circular positions count from the newest item, so that all of them are met in training. Causal ones can only count from the
oldest, and a history longer than those of training meets a vector that nothing was learned for; the kernel knows the
order without them. So they are left out there, unless the setting `positions` asks for them.

Further departures: cross entropy over all items instead of one sampled negative; the scores have a bias; a history
that was cut into several windows lends a prefix only the items of its own window; input 0, the start of a history, has
a learned vector.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.config import unknown
from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, Sizes, TrainedModel, TrainingBatch
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.feedforward import PFFN
from lrurec.nn.init import truncated_normal_
from lrurec.nn.residual import add_and_norm
from lrurec.nn.spectral import SpectralFilter

FILTERS = ("causal", "circular")
_PLACES = 1 << 15  # of windows at a time, where nothing is trained


@dataclass(frozen=True)
class FMLPRecConfig:
    """The paper's sizes."""

    width: int = 64
    blocks: int = 2
    dropout: float = 0.5
    filter: str = "causal"  # or circular, as published: far slower
    positions: bool = False  # causal only: learned ones, counted from the oldest item. Circular always has positions
    prefixes: int = 4  # of each window in a step of training; circular only

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            raise unknown("model.filter", self.filter, FILTERS)
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"model.dropout must lie between 0 and 1, not {self.dropout}")
        if min(self.width, self.blocks, self.prefixes) < 1:
            raise SettingsError("model.width, model.blocks and model.prefixes must be 1 or more")


class Block(nn.Module):
    """One filter and one feed-forward network, each with its residual and its LayerNorm."""

    def __init__(self, length: int, config: FMLPRecConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.rate = config.dropout
        self.filter = SpectralFilter(length, config.width, generator)
        self.norm1 = nn.LayerNorm(config.width)
        self.pffn = PFFN(config.width, 0.0, generator)  # the paper has dropout behind it, not inside
        self.norm2 = nn.LayerNorm(config.width)

    def after(self, x: Tensor, y: Tensor, keys: Keys | None) -> Tensor:
        """Everything behind the filter, which looks at one position at a time."""
        z = add_and_norm(y, x, self.norm1, self.rate, keys)
        result: Tensor = add_and_norm(self.pffn(z), z, self.norm2, self.rate, keys)
        return result


class FMLPRec(TrainedModel):
    """The whole model over a catalogue of items."""

    tables: ClassVar = {"embedding": "input", "bias": "item"}
    Config = FMLPRecConfig
    config: FMLPRecConfig
    card = Card(
        "FMLP-Rec",
        2022,
        "Zhou, Yu et al., WWW",
        "O(n log(n) d + n d^2)",
        "O(n log(n) d + n d^2): the history again",
    )

    def __init__(self, sizes: Sizes, config: FMLPRecConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        self.embedding = nn.Parameter(truncated_normal_(torch.empty(sizes.items + 1, config.width), generator))
        self.positions: nn.Parameter | None = None
        if config.positions or config.filter == "circular":
            self.positions = nn.Parameter(truncated_normal_(torch.empty(sizes.max_length, config.width), generator))
        self.norm = nn.LayerNorm(config.width)
        self.blocks = nn.ModuleList(Block(sizes.max_length, config, generator) for _ in range(config.blocks))
        self.bias = nn.Parameter(torch.zeros(sizes.items))

    def answers(self) -> tuple[Tensor, Tensor]:
        return self.embedding, self.bias

    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        """Circular: a window per row, max_length times the work of causal. Made for checks: nothing here calls it."""
        if self.config.filter == "causal":
            return self._packed(batch, keys)
        return self._in_parts(batch, torch.arange(len(batch), device=batch.inputs.device), keys)

    @classmethod
    def looks_ahead(cls, config: FMLPRecConfig) -> bool:
        return config.filter == "causal"

    def examples(self, batch: TrainingBatch, keys: Keys) -> tuple[Tensor, Tensor]:
        if self.config.filter == "causal":
            return super().examples(batch, keys)
        rows = some_rows(batch.windows, self.config.prefixes, keys).to(batch.inputs.device)
        return self._newest(batch, rows, keys), batch.targets[rows]

    def last(self, batch: Batch) -> Tensor:
        if self.config.filter == "causal":
            return self._packed(batch, None, batch.lasts)
        return self._in_parts(batch, batch.lasts, None)

    def _packed(self, batch: Batch, keys: Keys | None, rows: Tensor | None = None) -> Tensor:
        """[N, d]: causal, all rows at once; or some of them, of which the last filter alone has to know the others."""
        x = F.embedding(batch.inputs, self.embedding)
        if self.positions is not None:
            x = x + F.embedding(batch.positions(), self.positions)
        x = dropout(self.norm(x), self.config.dropout, keys)
        for k, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            y = block.filter.causal(x, batch.offsets)
            if rows is not None and k == len(self.blocks) - 1:
                x, y = x[rows], y[rows]
            x = block.after(x, y, keys)
        return x

    def _in_parts(self, batch: Batch, rows: Tensor, keys: Keys | None) -> Tensor:
        """`_newest` of many rows, without the memory for all of their windows."""
        parts = torch.split(rows, max(1, _PLACES // self.sizes.max_length))
        return torch.cat([self._newest(batch, part, keys) for part in parts])

    def _newest(self, batch: Batch, rows: Tensor, keys: Keys | None) -> Tensor:
        """[P, d]: the vectors behind some rows, each the newest of its own window."""
        x = dropout(self.norm(self._windows(batch, rows)), self.config.dropout, keys)  # [P, max_length, d]
        *others, final = self.blocks
        for block in others:
            assert isinstance(block, Block)
            x = block.after(x, block.filter.circular(x), keys)
        assert isinstance(final, Block)
        return final.after(x[:, -1], final.filter.newest(x), keys)

    def _windows(self, batch: Batch, rows: Tensor) -> Tensor:
        """[P, max_length, d]: the items up to some rows at the right, nothing left of them; with their positions."""
        length, width = self.sizes.max_length, self.config.width
        place = rows[:, None] - torch.arange(length - 1, -1, -1, device=rows.device)  # [P, max_length]
        real = place >= (rows - batch.positions()[rows])[:, None]
        items = F.embedding(batch.inputs[place[real]], self.embedding)
        assert self.positions is not None
        windows = self.positions.expand(len(rows), -1, -1).reshape(-1, width)
        return windows.index_add(0, torch.nonzero(real.view(-1))[:, 0], items).view(len(rows), length, width)


def some_rows(windows: Tensor, count: int, keys: Keys) -> Tensor:
    """At most `count` rows of each window [W + 1], on the CPU: the newest, and others by chance."""
    bounds = windows.numpy()
    lengths = np.diff(bounds)
    chance = np.random.default_rng(keys.next()).random(bounds[-1])
    chance[bounds[1:] - 1] = -1.0  # comes first
    order = np.lexsort([chance, np.repeat(np.arange(len(lengths)), lengths)])
    place = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    return torch.from_numpy(np.sort(order[place < count]))
