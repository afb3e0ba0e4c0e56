"""Additive attention: compiled loops against plain torch, and both against the formula."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.nn import additive as room
from lrurec.nn.additive import additive, additive_last, additive_packed, additive_torch


def inputs(lengths: list[int], channels: int, width: int, scale: float = 1.0) -> tuple[list[Tensor], Tensor]:
    g = torch.Generator().manual_seed(4)
    rows = sum(lengths)
    shapes = (rows, channels), (rows, channels), (channels,), (rows, width)
    q, k, v, h = (torch.randn(*shape, generator=g) for shape in shapes)
    return [scale * q, scale * k, v, h], torch.tensor([0, *np.cumsum(lengths)])


def gradients(function: object, tensors: list[Tensor], offsets: Tensor) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in tensors]
    out = function(*leaves, offsets)  # type: ignore[operator]
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, g)]


def check(lengths: list[int], channels: int, width: int, threads: int = 1, scale: float = 1.0) -> None:
    tensors, offsets = inputs(lengths, channels, width, scale)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        packed = gradients(additive_packed, tensors, offsets)
    finally:
        torch.set_num_threads(before)
    exact = gradients(additive_torch, [t.double() for t in tensors], offsets)
    for a, b in zip(packed, exact, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * max(1.0, float(b.abs().max()))


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    channels=st.sampled_from([1, 7, 16]),
    width=st.sampled_from([1, 5, 16]),
    threads=st.integers(1, 3),
    block=st.sampled_from([1, 300, 1 << 20]),
)
@settings(max_examples=40)
def test_packed_is_torch(lengths: list[int], channels: int, width: int, threads: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_BLOCK", block)
        check(lengths, channels, width, threads)


@pytest.mark.parametrize("lengths", [[300], [1], [299, 1, 1, 77, 2], [1] * 30])
def test_at_the_usual_size(lengths: list[int]) -> None:
    check(lengths, 64, 32, 2)


@pytest.mark.parametrize("scale", [30.0, 1e3])
def test_far_out(scale: float) -> None:
    """Beyond the limit both ways are flat, and without a gradient."""
    check([12, 1, 7], 6, 5, scale=scale)


def test_it_is_the_formula() -> None:
    (q, k, v, h), offsets = inputs([3, 1, 5], 4, 2)
    found = additive(q, k, v, h, offsets)
    for start, stop in ((0, 3), (3, 4), (4, 9)):
        for t in range(start, stop):
            expected = [0.0, 0.0]
            for j in range(start, t + 1):
                w = sum(float(v[c]) / (1 + math.exp(-float(q[t, c] + k[j, c]))) for c in range(4))
                expected = [expected[c] + w * float(h[j, c]) for c in range(2)]
            assert found[t].tolist() == pytest.approx(expected, abs=1e-5)


def test_the_last_alone() -> None:
    (q, k, v, h), offsets = inputs([3, 1, 40, 2], 8, 6)
    lasts = offsets[1:] - 1
    assert torch.allclose(
        additive_last(q[lasts], k, v, h, offsets), additive(q, k, v, h, offsets)[lasts], atol=1e-5, rtol=1e-5
    )


def test_nothing_in_the_batch() -> None:
    (q, k, v, h), offsets = inputs([], 3, 2)
    for function in (additive_packed, additive_torch):
        assert function(q, k, v, h, offsets).shape == (0, 2)


def test_the_same_twice() -> None:
    """Bit for bit: resuming exactly depends on it."""
    tensors, offsets = inputs([200, 1, 31, 90], 16, 16)
    once, twice = (gradients(additive_packed, tensors, offsets) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
