"""Two ways to the same convolution, in value and gradient."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.nn import causal
from lrurec.nn.causal import causal_convolution, convolved_packed
from lrurec.nn.transforms import convolved_spectral

Convolve = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_definition(x: Tensor, kernel: Tensor, offsets: Tensor) -> Tensor:
    """y_k = sum over j = 0..k of w_j x_{k-j}."""
    rows = [x[:0]]
    for start, stop in pairwise(offsets.tolist()):
        for k in range(start, stop):
            rows.append((kernel[: k - start + 1] * x[start : k + 1].flip(0)).sum(0)[None])
    return torch.cat(rows)


def case(lengths: list[int], width: int, dtype: torch.dtype, seed: int, more: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(int(offsets[-1]), width, dtype=dtype, generator=g)
    kernel = torch.randn(max(lengths) + more, width, dtype=dtype, generator=g)
    return x, kernel, offsets


def outcome(way: Convolve, x: Tensor, kernel: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values, and the gradients of both for a fixed random gradient."""
    x, kernel = x.clone().requires_grad_(), kernel.clone().requires_grad_()
    y = way(x, kernel, offsets)
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
    torch.autograd.backward((y * weights).sum())
    assert x.grad is not None and kernel.grad is not None
    return y.detach(), x.grad, kernel.grad


def check(way: Convolve, x: Tensor, kernel: Tensor, offsets: Tensor, tolerance: float) -> None:
    for found, expected in zip(
        outcome(way, x, kernel, offsets), outcome(by_definition, x, kernel, offsets), strict=True
    ):
        assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance * (1 + float(expected.abs().max())))


@pytest.mark.parametrize("way", [convolved_packed, convolved_spectral])
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    width=st.integers(1, 20),
    seed=st.integers(0, 99),
    more=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_agreement(way: Convolve, lengths: list[int], width: int, seed: int, more: int) -> None:
    check(way, *case([*lengths, 1], width, torch.float32, seed, more), 1e-5)


def test_other_precisions_are_taken_as_they_are() -> None:
    check(causal_convolution, *case([5, 1, 17], 3, torch.float64, 0), 1e-12)


@pytest.mark.parametrize(("lengths", "loops"), [([200, 7, 1], True), ([700, 2], False), ([700] + [1] * 9000, True)])
def test_long_sequences_go_through_spectra(lengths: list[int], loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, kernel, offsets = case(lengths, 3, torch.float32, 1)
    expected = convolved_spectral(x, kernel, offsets)
    used = []

    def noticed(*all_: Tensor) -> Tensor:
        used.append(True)
        result: Tensor = convolved_packed(*all_)
        return result

    monkeypatch.setattr(causal, "convolved_packed", noticed)
    assert torch.allclose(causal_convolution(x, kernel, offsets), expected, atol=1e-3)
    assert bool(used) is loops


def test_threads_share_the_sequences() -> None:
    x, kernel, offsets = case([9, 40, 1, 3, 25, 25, 2], 16, torch.float32, 2)
    alone = outcome(convolved_packed, x, kernel, offsets)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        shared = outcome(convolved_packed, x, kernel, offsets)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(alone, shared, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_no_sequences() -> None:
    for way in (causal_convolution, convolved_packed, convolved_spectral):
        assert way(torch.zeros(0, 4), torch.ones(3, 4), torch.tensor([0])).shape == (0, 4)
