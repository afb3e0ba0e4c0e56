"""How parameters begin. Randomness is passed in."""

import math

import torch
from torch import Tensor

_TOGETHER = 1 << 24  # numbers drawn at once


def truncated_normal_(parameter: Tensor, generator: torch.Generator, std: float = 0.02) -> Tensor:
    """Normal with standard deviation `std`, cut at two of them."""
    flat = parameter.detach().view(-1)
    for part in torch.split(flat, _TOGETHER):  # torch's own draws again what lies outside, with several copies of all
        torch.nn.init.trunc_normal_(part, 0.0, std, -2 * std, 2 * std, generator=generator)
    return parameter


def ring(channels: int, generator: torch.Generator, inner: float = 0.8, outer: float = 0.99) -> Tensor:
    """(nu_log, theta_log, gamma_log) [3, C] of eigenvalues spread evenly over a ring of the unit disc.

    |lambda|^2 is uniform between the squares of the radii, the angle uniform on (0, 2 pi);
    gamma = sqrt(1 - |lambda|^2) keeps the size of the state that of the input.
    """
    radius_squared = inner**2 + torch.rand(channels, generator=generator) * (outer**2 - inner**2)
    nu = -0.5 * torch.log(radius_squared)
    theta = 2 * math.pi * (1 - torch.rand(channels, generator=generator))  # never 0, whose logarithm is no number
    gamma = torch.sqrt(1 - radius_squared)
    return torch.stack([nu.log(), theta.log(), gamma.log()])
