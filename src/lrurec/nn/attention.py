"""An encoder made of self-attention. Knows vectors of positions, not items.

    x   = LayerNorm(Dropout(x + P[place]))
    block:  z = LayerNorm(Dropout(W_O attend(W_Q x, W_K x, W_V x) + b_O) + x)
            x = LayerNorm(Dropout(W_2 Dropout(GELU(W_1 z + b_1)) + b_2) + z)

Everything but the softmax looks at one position at a time, and works on the packed run. Attention weights are not dropped
(a fused softmax has none to drop); what attention gives is.

Where only some rows are wanted behind the last block (the newest ones, the masked ones), only they ask there: all rows are
keys and values, and whatever follows is computed for the rows that asked.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.errors import SettingsError
from lrurec.nn.attend import Reach, attend
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.init import truncated_normal_
from lrurec.nn.residual import add_and_norm


@dataclass(frozen=True)
class AttentionConfig:
    """The size of an encoder."""

    width: int = 64
    blocks: int = 2
    heads: int = 2
    inner: int = 64  # the width inside the feed-forward networks
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"model.dropout must lie between 0 and 1, not {self.dropout}")
        if min(self.width, self.blocks, self.heads, self.inner) < 1:
            raise SettingsError("model.width, model.blocks, model.heads and model.inner must be 1 or more")
        if self.width % self.heads:
            raise SettingsError(f"model.heads must divide model.width, and {self.width} is no multiple of {self.heads}")


def projection(rows: int, columns: int, generator: torch.Generator) -> nn.Parameter:
    """A matrix that about halves the variance of what it is given.

    With the standard deviation of 0.02 that embeddings begin with, all attention weights would begin alike.
    """
    return nn.Parameter(truncated_normal_(torch.empty(rows, columns), generator, math.sqrt(0.5 / columns)))


class Block(nn.Module):
    """Attention and a feed-forward network, each with its residual and its LayerNorm."""

    def __init__(self, config: AttentionConfig, generator: torch.Generator) -> None:
        super().__init__()
        width, inner = config.width, config.inner
        self.heads, self.rate = config.heads, config.dropout
        self.qkv = projection(3 * width, width, generator)  # no biases here, as in the papers
        self.out = projection(width, width, generator)
        self.out_bias = nn.Parameter(torch.zeros(width))
        self.norm1 = nn.LayerNorm(width)
        self.w1 = projection(inner, width, generator)
        self.b1 = nn.Parameter(torch.zeros(inner))
        self.w2 = projection(width, inner, generator)
        self.b2 = nn.Parameter(torch.zeros(width))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, reach: Reach, rows: Tensor | None, keys: Keys | None) -> Tensor:
        """With rows, only those ask."""
        if rows is None:
            mixed = attend(F.linear(x, self.qkv), None, reach, self.heads)
        else:
            kv, x = F.linear(x, self.qkv[x.shape[1] :]), x.index_select(0, rows)
            mixed = attend(F.linear(x, self.qkv[: x.shape[1]]), kv, reach, self.heads)
        z = add_and_norm(F.linear(mixed, self.out, self.out_bias), x, self.norm1, self.rate, keys)
        inner = dropout(F.gelu(F.linear(z, self.w1, self.b1)), self.rate, keys)
        result: Tensor = add_and_norm(F.linear(inner, self.w2, self.b2), z, self.norm2, self.rate, keys)
        return result


class Encoder(nn.Module):
    """Vectors of items to vectors of positions."""

    def __init__(self, max_length: int, config: AttentionConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.rate = config.dropout
        self.places = nn.Parameter(truncated_normal_(torch.empty(max_length, config.width), generator))
        self.norm = nn.LayerNorm(config.width)
        self.blocks = nn.ModuleList(Block(config, generator) for _ in range(config.blocks))

    @torch.no_grad()
    def copy_at_first(self) -> None:
        """Let attention begin as an average of what it looks at."""
        for block in self.blocks:
            assert isinstance(block, Block)
            same = torch.eye(len(block.out))
            block.qkv[-len(same) :] = same
            block.out.copy_(same)

    def forward(
        self, x: Tensor, places: Tensor, offsets: Tensor, keys: Keys | None, *, causal: bool, rows: Tensor | None = None
    ) -> Tensor:
        """x [N, d] and the place of each row in its sequence to [N, d].

        With rows (ascending, at least one of each sequence; if causal, the newest ones) only theirs, [M, d].
        """
        reach = Reach(offsets, offsets, x.device, causal=causal)
        x = self.norm(dropout(x + F.embedding(places, self.places), self.rate, keys))
        for block in self.blocks[:-1]:
            x = block(x, reach, None, keys)
        if rows is not None:
            reach = Reach(torch.searchsorted(rows.cpu(), offsets), offsets, x.device, causal=False)
        result: Tensor = self.blocks[-1](x, reach, rows, keys)
        return result
