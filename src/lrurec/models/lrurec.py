"""LRURec: linear recurrent units for sequential recommendation (Yue, Wang et al., WSDM 2024).

    x   = LayerNorm(Dropout(Embedding(items)))
    block:  z = LayerNorm(Dropout(LRU(x)) + x)
            x = LayerNorm(PFFN(z) + z)
    scores  = E x + bias                            (E is the embedding: the prediction layer is tied)

Input 0 is the start of a history: a learned vector, from which the first item is predicted.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.errors import SettingsError
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.feedforward import PFFN
from lrurec.nn.fused import fused_block
from lrurec.nn.init import truncated_normal_
from lrurec.nn.lru import LRU
from lrurec.nn.parts import Weights


@dataclass(frozen=True)
class LRURecConfig:
    """The paper's model; the switches are those of its ablation."""

    width: int = 64
    channels: int = 128  # the paper doubles the width inside the recurrence
    blocks: int = 2
    dropout: float = 0.2
    layer_norm: bool = True
    residual: bool = True
    pffn: bool = True
    outer_gelu: bool = False  # the paper's equation has a second GELU, the authors' code has not
    scan: str = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"model.dropout must lie between 0 and 1, not {self.dropout}")
        if min(self.width, self.channels, self.blocks) < 1:
            raise SettingsError("model.width, model.channels and model.blocks must be 1 or more")


class Block(nn.Module):
    """One recurrence and one feed-forward network, each with its residual and its LayerNorm."""

    def __init__(self, config: LRURecConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.lru = LRU(config.width, config.channels, generator, config.scan)
        self.norm1 = nn.LayerNorm(config.width) if config.layer_norm else nn.Identity()
        self.pffn = PFFN(config.width, config.dropout, generator, config.outer_gelu) if config.pffn else None
        self.norm2 = nn.LayerNorm(config.width) if config.layer_norm and config.pffn else nn.Identity()

    def forward(self, x: Tensor, offsets: Tensor, keys: Keys | None, half: bool = False) -> Tensor:
        if self._is_plain and x.device.type == "cpu" and x.dtype == torch.float32:
            fused: Tensor = fused_block(x, offsets, self._weights(), self.config.dropout, keys, half)
            return fused
        return self._after(x, self.lru(x, offsets, half), keys, half)

    @property
    def _is_plain(self) -> bool:
        """The block as published: what the fused function computes."""
        c = self.config
        return c.layer_norm and c.residual and c.pffn and not c.outer_gelu and c.scan == "auto"

    def _weights(self) -> Weights:
        lru, pffn, first, second = self.lru, self.pffn, self.norm1, self.norm2
        assert pffn and isinstance(first, nn.LayerNorm) and isinstance(second, nn.LayerNorm)
        return Weights(
            lru.eigenvalues(), *lru.scaled(), lru.c_weight, lru.c_bias, first.weight, first.bias,
            pffn.w1, pffn.b1, pffn.w2, pffn.b2, second.weight, second.bias,
        )  # fmt: skip

    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state, y = self.lru.step(state, x)
        return state, self._after(x, y, None)

    def _after(self, x: Tensor, y: Tensor, keys: Keys | None, half: bool = False) -> Tensor:
        """Everything behind the recurrence, which looks at one position at a time."""
        y = dropout(y, self.config.dropout, keys)
        z: Tensor = self.norm1(y + x if self.config.residual else y)
        if self.pffn is None:
            return z
        out = self.pffn(z, keys, half)
        result: Tensor = self.norm2(out + z if self.config.residual else out)
        return result


class _Items(torch.autograd.Function):
    """A table without its first row; its gradient has a zero there, and is not filled with zeros before."""

    @staticmethod
    def forward(ctx: Any, table: Tensor) -> Tensor:
        return table[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        found = grad.new_empty(len(grad) + 1, *grad.shape[1:])
        found[0] = 0
        found[1:] = grad
        return found


class LRURec(nn.Module):
    """The whole model over a catalogue of `items`."""

    def __init__(self, items: int, config: LRURecConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.items, self.config = items, config
        self.embedding = nn.Parameter(truncated_normal_(torch.empty(items + 1, config.width), generator))
        self.norm = nn.LayerNorm(config.width) if config.layer_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, generator) for _ in range(config.blocks))
        self.bias = nn.Parameter(truncated_normal_(torch.empty(items), generator))

    def encode(self, inputs: Tensor, offsets: Tensor, keys: Keys | None = None, half: bool = False) -> Tensor:
        """The output at every position; with `half`, the products of the blocks are taken in bfloat16."""
        x = self._embed(inputs, keys)
        for block in self.blocks:
            x = block(x, offsets, keys, half)
        return x

    def forward(self, inputs: Tensor, offsets: Tensor, keys: Keys | None = None) -> Tensor:
        return self.encode(inputs, offsets, keys)

    def _embed(self, inputs: Tensor, keys: Keys | None) -> Tensor:
        x = dropout(F.embedding(inputs, self.embedding), self.config.dropout, keys)
        result: Tensor = self.norm(x)
        return result

    def item_table(self) -> tuple[Tensor, Tensor]:
        items: Tensor = _Items.apply(self.embedding)  # type: ignore[no-untyped-call]
        return items, self.bias

    def initial_state(self, batch: int = 1) -> Tensor:
        """[B, blocks, 2, C]: 2 KB per user at the paper's size."""
        c = self.config
        return self.embedding.new_zeros(batch, c.blocks, 2, c.channels)

    def step(self, state: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        x = self._embed(inputs, None)
        states = []
        for k, block in enumerate(self.blocks):
            new, x = block.step(state[:, k], x)  # type: ignore[operator]
            states.append(new)
        return torch.stack(states, 1), x

    @torch.no_grad()
    def eigenvalues(self) -> list[list[tuple[float, float]]]:
        """Every lambda of every block as (real part, imaginary part)."""
        found = [block.lru.eigenvalues().T.tolist() for block in self.blocks]  # type: ignore[operator, union-attr]
        return [[(real, imaginary) for real, imaginary in block] for block in found]

    def mean_abs_lambda(self) -> list[float]:
        """The average |lambda| of each block (the paper's Table 5)."""
        return [sum(math.hypot(*v) for v in block) / len(block) for block in self.eigenvalues()]
