"""S4 in its diagonal form (Gu, Goel, Re, ICLR 2022; S4D: Gu, Gupta, Goel, Re, NeurIPS 2022). Knows vectors, not users.

Each channel of the input has a diagonal complex system of its own, with a time step Delta of its own:

    A        = -exp(log_a) + j a_imag                        begins as S4D-Lin: -1/2 + j pi n
    lambda   = exp(Delta A),  Bbar = (lambda - 1) / A * B    zero-order hold
    h_k      = lambda h_{k-1} + Bbar x_k
    s_k      = 2 Re(C h_k) + D x_k                           the states stand for pairs of conjugates
    y_k      = GLU(W GELU(s_k) + b)

Whole sequences are convolved with the kernel K_l = 2 Re(sum_n C Bbar lambda^l); `step` is the recurrence. The published
layer has the GELU, the product and the GLU; its dropout in front of the product is left to the block.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.nn.causal import causal_convolution
from lrurec.nn.init import truncated_normal_
from lrurec.nn.mixer import Mixer

_SHORTEST, _LONGEST = 1e-3, 1e-1  # Delta begins between them, its logarithm uniform


class S4(Mixer):
    """A system of `state` pairs of complex states for each of `width` channels."""

    recurrence = ("log_dt", "log_a", "a_imag")

    def __init__(self, width: int, state: int, generator: torch.Generator) -> None:
        super().__init__()
        self.state_shape = (2, width, state)
        drawn = torch.rand(width, generator=generator)
        self.log_dt = nn.Parameter(math.log(_SHORTEST) + drawn * math.log(_LONGEST / _SHORTEST))
        self.log_a = nn.Parameter(torch.full((width, state), math.log(0.5)))
        self.a_imag = nn.Parameter(math.pi * torch.arange(float(state)).repeat(width, 1))
        self.b = nn.Parameter(torch.stack([torch.ones(width, state), torch.zeros(width, state)]))
        self.c = nn.Parameter(math.sqrt(0.5) * torch.randn(2, width, state, generator=generator))
        self.skip = nn.Parameter(torch.randn(width, generator=generator))
        self.out_weight = nn.Parameter(truncated_normal_(torch.empty(2 * width, width), generator))
        self.out_bias = nn.Parameter(truncated_normal_(torch.empty(2 * width), generator))

    def system(self) -> tuple[Tensor, Tensor]:
        """(Delta A, Bbar), complex [width, state], in double precision: powers of lambda multiply its error."""
        a = torch.complex(-self.log_a.double().exp(), self.a_imag.double())
        exponent = self.log_dt.double().exp()[:, None] * a
        return exponent, torch.expm1(exponent) / a * torch.complex(*self.b.double())

    def kernel(self, length: int) -> Tensor:
        """K: [length, width].

        lambda^l = lambda^(root i) lambda^j where l = root i + j: two short runs of powers and one product of both.
        """
        root = math.isqrt(max(length, 1) - 1) + 1
        exponent, b = self.system()
        powers = torch.arange(root, device=b.device)
        fine = torch.exp(exponent[..., None] * powers)
        coarse = (2 * b * torch.complex(*self.c.double()))[..., None] * torch.exp(exponent[..., None] * (root * powers))
        left, right = torch.cat([coarse.real, -coarse.imag], 1), torch.cat([fine.real, fine.imag], 1)
        return torch.bmm(left.mT, right).flatten(1)[:, :length].T.to(self.c.dtype)

    def outputs(self, s: Tensor, x: Tensor) -> Tensor:
        """What follows the recurrence."""
        return F.glu(F.linear(F.gelu(torch.addcmul(s, x, self.skip)), self.out_weight, self.out_bias))

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        if len(x) == 0:
            return x
        return self.outputs(causal_convolution(x, self.kernel(int(offsets.diff().max())), offsets), x)

    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        exponent, b = self.system()
        h = exponent.exp() * torch.complex(*state.double().unbind(1)) + b * x[..., None]
        s = 2 * (torch.complex(*self.c.double()) * h).real.sum(-1)
        return torch.stack([h.real, h.imag], 1).to(state.dtype), self.outputs(s.to(x.dtype), x)

    def eigenvalues(self) -> Tensor:
        """Every lambda of every channel as pairs: [2, width * state]."""
        lam = self.system()[0].exp().flatten()
        return torch.stack([lam.real, lam.imag]).to(self.c.dtype)
