"""The linear recurrent unit of the paper. Knows vectors, not users.

    Lambda = diag(exp(-exp(nu_log) + j exp(theta_log)))
    h_k    = Lambda h_{k-1} + exp(gamma_log) * B x_k
    y_k    = Re(C h_k)

B and C are complex, x and y real, so B x is one real product of width 2C and Re(C h) one real product from width
2C: no complex matrix product is ever needed. The residual (D = I) belongs to the block, not to the unit.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lrurec.nn.init import ring, truncated_normal_
from lrurec.nn.linear import linear
from lrurec.nn.mixer import Mixer
from lrurec.nn.scan import scan, times


def unlogged_reference(log: Tensor) -> tuple[Tensor, Tensor]:
    """Lambda as pairs [2, C] and gamma [C] of their logarithms [3, C]."""
    nu, theta, gamma = log.exp()
    radius = torch.exp(-nu)
    return torch.stack([radius * torch.cos(theta), radius * torch.sin(theta)]), gamma


class _Unlogged(torch.autograd.Function):
    """The same in numpy: for a hundred numbers torch wakes other threads, which takes longer than the work."""

    @staticmethod
    def forward(ctx: Any, log: Tensor) -> tuple[Tensor, Tensor]:
        with np.errstate(over="ignore", invalid="ignore"):  # a loss that is no number is told by the learner
            nu, theta, gamma = np.exp(log.detach().numpy().astype(np.float64))
            lam = np.exp(1j * theta - nu)
        arrays = nu, theta, np.stack([lam.real, lam.imag]), gamma
        nu, theta, pairs, gamma = (torch.from_numpy(a).to(log.dtype) for a in arrays)
        ctx.save_for_backward(nu, theta, pairs, gamma)
        return pairs, gamma

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_lam: Tensor, d_gamma: Tensor) -> Tensor:
        nu, theta, (real, imaginary), gamma = ctx.saved_tensors
        d_real, d_imaginary = d_lam
        d_nu = -nu * (d_real * real + d_imaginary * imaginary)
        d_theta = theta * (d_imaginary * real - d_real * imaginary)
        return torch.stack([d_nu, d_theta, gamma * d_gamma])


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def unlogged(log: Tensor) -> tuple[Tensor, Tensor]:
    """Lambda as pairs [2, C] and gamma [C] of their logarithms [3, C]."""
    if log.device.type != "cpu":
        return unlogged_reference(log)
    found: tuple[Tensor, Tensor] = _Unlogged.apply(log)  # type: ignore[no-untyped-call]
    return found


class LRU(Mixer):
    """A recurrence of `channels` complex channels between real vectors of `width`."""

    recurrence = ("log",)

    def __init__(self, width: int, channels: int, generator: torch.Generator, implementation: str = "auto") -> None:
        super().__init__()
        self.channels, self.implementation = channels, implementation
        self.state_shape = (2, channels)
        self.log = nn.Parameter(ring(channels, generator))  # nu, theta, gamma  [3, C]
        self.b_weight = nn.Parameter(truncated_normal_(torch.empty(2 * channels, width), generator))
        self.b_bias = nn.Parameter(truncated_normal_(torch.empty(2 * channels), generator))
        self.c_weight = nn.Parameter(truncated_normal_(torch.empty(width, 2 * channels), generator))
        self.c_bias = nn.Parameter(truncated_normal_(torch.empty(width), generator))

    def eigenvalues(self) -> Tensor:
        """Lambda as pairs: [2, C]."""
        return self.in_use()[0]

    def in_use(self) -> tuple[Tensor, Tensor, Tensor]:
        """Lambda, and exp(gamma_log) * B with its bias: scaling B costs less than scaling what comes out of it."""
        lam, gamma = unlogged(self.log)
        both = gamma.repeat(2)
        return lam, self.b_weight * both[:, None], self.b_bias * both

    def inputs(self, x: Tensor, half: bool = False) -> tuple[Tensor, Tensor]:
        """Lambda, and exp(gamma_log) * B x: [N, 2, C]."""
        lam, b, bias = self.in_use()
        return lam, linear(x, b, bias, half).view(-1, 2, self.channels)

    def outputs(self, h: Tensor, half: bool = False) -> Tensor:
        """Re(C h): [N, width]. The rows of `c_weight` hold the real and the negated imaginary parts."""
        return linear(h.flatten(-2), self.c_weight, self.c_bias, half)

    def forward(self, x: Tensor, offsets: Tensor, half: bool = False) -> Tensor:
        lam, u = self.inputs(x, half)
        h = scan(u, lam, offsets, self.implementation)
        return self.outputs(h, half)

    def forward_from(self, x: Tensor, offsets: Tensor, states: Tensor, half: bool = False) -> tuple[Tensor, Tensor]:
        """As `forward`, each sequence beginning with a state [S, 2, C]; also the states that they end with."""
        lam, u = self.inputs(x, half)
        filled = (offsets.diff() > 0).to(x.device)
        firsts, lasts = (bounds.to(x.device)[filled] for bounds in (offsets[:-1], offsets[1:] - 1))
        u = u.index_add(0, firsts, times(lam, states[filled]))
        h = scan(u, lam, offsets, self.implementation)
        return self.outputs(h, half), states.index_copy(0, filled.nonzero()[:, 0], h[lasts].detach())

    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        lam, u = self.inputs(x)
        state = times(lam, state) + u
        return state, self.outputs(state)
