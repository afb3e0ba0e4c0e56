"""The position-wise feed-forward network. Knows one position at a time.

PFFN(x) = W2 GELU(W1 x + b1) + b2            the form of the authors' code, which made the published numbers
PFFN(x) = GELU(W2 GELU(W1 x + b1) + b2)      the form of the paper's equation (`outer_gelu`)
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.init import truncated_normal_
from lrurec.nn.linear import linear


class PFFN(nn.Module):
    """Four times as wide inside."""

    def __init__(self, width: int, rate: float, generator: torch.Generator, outer_gelu: bool = False) -> None:
        super().__init__()
        self.rate, self.outer_gelu = rate, outer_gelu
        self.w1 = nn.Parameter(truncated_normal_(torch.empty(4 * width, width), generator))
        self.b1 = nn.Parameter(truncated_normal_(torch.empty(4 * width), generator))
        self.w2 = nn.Parameter(truncated_normal_(torch.empty(width, 4 * width), generator))
        self.b2 = nn.Parameter(truncated_normal_(torch.empty(width), generator))

    def forward(self, x: Tensor, keys: Keys | None = None, half: bool = False) -> Tensor:
        inner = dropout(F.gelu(linear(x, self.w1, self.b1, half)), self.rate, keys)
        out = linear(inner, self.w2, self.b2, half)
        result: Tensor = dropout(F.gelu(out) if self.outer_gelu else out, self.rate, keys)
        return result
