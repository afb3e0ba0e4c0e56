"""RWKV-4 (Peng et al., Findings of EMNLP 2023): time mixing and channel mixing. Knows vectors, not users.

Time mixing, where the shift mixes each position with the one before it, and wkv (lrurec.nn.wkv) is an average of all
values so far, weighted by their keys and their age:

    r_t, k_t, v_t = W_r shift_r(x)_t, W_k shift_k(x)_t, W_v shift_v(x)_t        shift_m(x)_t = mu_m x_t + (1 - mu_m) x_{t-1}
    y_t           = W_o (sigmoid(r_t) * wkv_t),                                 with the decay w = exp(decay)

Channel mixing, which takes the place of the feed-forward network:

    y_t = sigmoid(W_r shift_r(x)_t) * W_v max(W_k shift_k(x)_t, 0)^2

mu, decay and bonus begin as published, in dependence of the channel and of the depth of the block. The matrices begin as
all others of the model do; the paper begins most of them with zeros. Residuals, LayerNorm and dropout are the block's.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.nn.channels import mixed
from lrurec.nn.init import truncated_normal_
from lrurec.nn.linear import product
from lrurec.nn.mixer import Mixer
from lrurec.nn.shift import shift
from lrurec.nn.wkv import nothing, wkv, wkv_step


class TimeMixing(Mixer):
    """Over positions, in block `number` of `blocks`, counted from 0."""

    recurrence = ("decay", "bonus", "mu")

    def __init__(self, width: int, generator: torch.Generator, number: int = 0, blocks: int = 1) -> None:
        super().__init__()
        self.state_shape = (4, width)  # the x before, numerator, denominator, maximum
        channels, depth = torch.arange(float(width)), number / max(blocks - 1, 1)
        ramp = _ramp(width, number, blocks)
        self.decay = nn.Parameter(-5 + 8 * (channels / max(width - 1, 1)) ** (0.7 + 1.3 * depth))
        self.bonus = nn.Parameter(math.log(0.3) + 0.5 * ((channels + 1) % 3 - 1))
        self.mu = nn.Parameter(torch.stack([0.5 * ramp, ramp, ramp + 0.3 * depth]))  # of r, k and v
        self.weight = nn.Parameter(truncated_normal_(torch.empty(3, width, width), generator))
        self.out_weight = nn.Parameter(truncated_normal_(torch.empty(width, width), generator))

    def forward(self, x: Tensor, offsets: Tensor, half: bool = False) -> Tensor:
        r, k, v = product(shift(x, self.mu, offsets), self.weight, half).to(x.dtype)
        opened = torch.sigmoid(r) * wkv(k, v, self.decay.exp(), self.bonus, offsets)
        return product(opened, self.out_weight, half).to(x.dtype)

    def initial_state(self, batch: int = 1) -> Tensor:
        before = self.decay.new_zeros(batch, len(self.decay))
        return torch.stack([before, *nothing(before)], 1)

    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        before, a, b, p = state.unbind(1)
        r, k, v = torch.bmm(torch.lerp(before, x, self.mu[:, None]), self.weight.mT)
        sums, y = wkv_step((a, b, p), k, v, self.decay.exp(), self.bonus)
        return torch.stack([x, *sums], 1), F.linear(torch.sigmoid(r) * y, self.out_weight)

    def eigenvalues(self) -> Tensor:
        """What one event leaves of the sums, exp(-w): [2, width]."""
        kept = torch.exp(-self.decay.exp())
        return torch.stack([kept, torch.zeros_like(kept)])


class ChannelMixing(Mixer):
    """Over channels, four times as wide inside."""

    recurrence = ("mu",)

    def __init__(self, width: int, generator: torch.Generator, number: int = 0, blocks: int = 1) -> None:
        super().__init__()
        self.state_shape = (1, width)  # the x before
        self.mu = nn.Parameter(_ramp(width, number, blocks).repeat(2, 1))  # of r and k
        self.r_weight = nn.Parameter(truncated_normal_(torch.empty(width, width), generator))
        self.k_weight = nn.Parameter(truncated_normal_(torch.empty(4 * width, width), generator))
        self.v_weight = nn.Parameter(truncated_normal_(torch.empty(width, 4 * width), generator))

    def forward(self, x: Tensor, offsets: Tensor, half: bool = False) -> Tensor:
        return mixed(shift(x, self.mu, offsets), self.r_weight, self.k_weight, self.v_weight, half)

    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.lerp(state[:, 0], x, self.mu[:, None])
        return x[:, None], mixed(both, self.r_weight, self.k_weight, self.v_weight)


def _ramp(width: int, number: int, blocks: int) -> Tensor:
    """The published mu: from 0 to almost 1 over the channels, nearer to 1 in later blocks."""
    found: Tensor = (torch.arange(float(width)) / width) ** (1 - number / blocks)
    return found
