"""The linear recurrent unit of the paper. Knows vectors, not users.

    Lambda = diag(exp(-exp(nu_log) + j exp(theta_log)))
    h_k    = Lambda h_{k-1} + exp(gamma_log) * B x_k
    y_k    = Re(C h_k)

B and C are complex, x and y real, so B x is one real product of width 2C and Re(C h) one real product from width
2C: no complex matrix product is ever needed. The residual (D = I) belongs to the block, not to the unit.
"""

import torch
from torch import Tensor, nn

from lrurec.nn.init import ring, truncated_normal_
from lrurec.nn.linear import linear
from lrurec.nn.mixer import Mixer
from lrurec.nn.scan import scan, times


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
        nu, theta, _ = self.log.exp()
        radius = torch.exp(-nu)
        return torch.stack([radius * torch.cos(theta), radius * torch.sin(theta)])

    def scaled(self) -> tuple[Tensor, Tensor]:
        """exp(gamma_log) * B and its bias: scaling B costs less than scaling what comes out of it."""
        gamma = self.log[2].exp().repeat(2)
        return self.b_weight * gamma[:, None], self.b_bias * gamma

    def inputs(self, x: Tensor, half: bool = False) -> Tensor:
        """exp(gamma_log) * B x: [N, 2, C]."""
        return linear(x, *self.scaled(), half).view(-1, 2, self.channels)

    def outputs(self, h: Tensor, half: bool = False) -> Tensor:
        """Re(C h): [N, width]. The rows of `c_weight` hold the real and the negated imaginary parts."""
        return linear(h.flatten(-2), self.c_weight, self.c_bias, half)

    def forward(self, x: Tensor, offsets: Tensor, half: bool = False) -> Tensor:
        h = scan(self.inputs(x, half), self.eigenvalues(), offsets, self.implementation)
        return self.outputs(h, half)

    def forward_from(self, x: Tensor, offsets: Tensor, states: Tensor, half: bool = False) -> tuple[Tensor, Tensor]:
        """As `forward`, each sequence beginning with a state [S, 2, C]; also the states that they end with."""
        u, lam = self.inputs(x, half), self.eigenvalues()
        filled = (offsets.diff() > 0).to(x.device)
        firsts, lasts = (bounds.to(x.device)[filled] for bounds in (offsets[:-1], offsets[1:] - 1))
        u = u.index_add(0, firsts, times(lam, states[filled]))
        h = scan(u, lam, offsets, self.implementation)
        return self.outputs(h, half), states.index_copy(0, filled.nonzero()[:, 0], h[lasts].detach())

    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = times(self.eigenvalues(), state) + self.inputs(x)
        return state, self.outputs(state)
