"""Three ways to the same states, in value and gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.errors import SettingsError
from lrurec.nn.scan import IMPLEMENTATIONS, scan, times

FAST = [name for name in IMPLEMENTATIONS if name != "steps"]


def case(
    lengths: list[int], channels: int, dtype: torch.dtype, radius: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    u = torch.randn(int(offsets[-1]), 2, channels, dtype=dtype, generator=generator) * 0.1
    angle = torch.rand(channels, dtype=dtype, generator=generator) * 6.3
    size = radius * torch.rand(channels, dtype=dtype, generator=generator) ** 0.1
    return u, torch.stack([size * angle.cos(), size * angle.sin()]), offsets


def outcome(name: str, u: Tensor, lam: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States, and the gradients of u and lambda for a fixed random gradient of the states."""
    u, lam = u.clone().requires_grad_(), lam.clone().requires_grad_()
    h = scan(u, lam, offsets, name)
    weights = torch.randn(h.shape, dtype=h.dtype, generator=torch.Generator().manual_seed(5))
    torch.autograd.backward((h * weights).sum())
    assert u.grad is not None
    return h.detach(), u.grad, lam.grad if lam.grad is not None else torch.zeros_like(lam)


def check_agreement(name: str, u: Tensor, lam: Tensor, offsets: Tensor, tolerance: float) -> None:
    for found, expected in zip(outcome(name, u, lam, offsets), outcome("steps", u, lam, offsets), strict=True):
        scale = 1 + (float(expected.abs().max()) if expected.numel() else 0.0)
        assert torch.allclose(found / scale, expected / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", FAST)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    channels=st.integers(1, 9),
    double=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_agreement(name: str, lengths: list[int], channels: int, double: bool, seed: int) -> None:
    dtype, tolerance = (torch.float64, 1e-10) if double else (torch.float32, 1e-5)
    check_agreement(name, *case([*lengths, 1], channels, dtype, 0.9999, seed), tolerance)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("lengths", [[1], [5000], [1, 2, 3, 4097, 0, 64], [1] * 50], ids=str)
def test_agreement_on_long_and_ragged(name: str, dtype: torch.dtype, tolerance: float, lengths: list[int]) -> None:
    check_agreement(name, *case(lengths, 3, dtype, 0.9999, 0), tolerance)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_nothing_in_nothing_out(name: str) -> None:
    u, lam, _ = case([], 4, torch.float32, 0.9, 0)
    assert scan(u, lam, torch.tensor([0]), name).shape == (0, 2, 4)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_gradcheck(name: str) -> None:
    u, lam, offsets = case([3, 1, 4], 2, torch.float64, 0.99, 0)
    torch.autograd.gradcheck(lambda a, b: scan(a, b, offsets, name), (u.requires_grad_(), lam.requires_grad_()))


def test_against_complex_arithmetic() -> None:
    u, lam, offsets = case([6], 3, torch.float64, 0.95, 1)
    z, w = torch.complex(u[:, 0], u[:, 1]), torch.complex(lam[0], lam[1])
    h = torch.zeros(3, dtype=torch.complex128)
    for k, state in enumerate(scan(u, lam, offsets)):
        h = w * h + z[k]
        assert torch.allclose(state, torch.stack([h.real, h.imag]))
    product = times(lam, u[0])
    assert torch.allclose(torch.complex(product[0], product[1]), w * z[0])


def test_threads_do_not_matter() -> None:
    u, lam, offsets = case([50, 3, 0, 90, 1, 70], 5, torch.float64, 0.99, 2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = outcome("packed", u, lam, offsets)
        torch.set_num_threads(5)
        five = outcome("packed", u, lam, offsets)
    finally:
        torch.set_num_threads(before)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(one, five, strict=True))


def test_unknown_implementation() -> None:
    with pytest.raises(SettingsError, match="did you mean 'packed'"):
        scan(*case([1], 1, torch.float32, 0.9, 0), "paked")
