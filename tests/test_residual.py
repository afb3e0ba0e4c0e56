"""A residual with its LayerNorm in one pass against the same in plain torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lrurec.nn import residual as module
from lrurec.nn.dropout import Keys
from lrurec.nn.residual import add_and_norm, add_and_norm_reference


def check(rows: int, width: int, rate: float, threads: int, training: bool = True) -> None:
    g = torch.Generator().manual_seed(rows)
    given = [torch.randn(rows, width, generator=g) for _ in range(3)] + [
        torch.randn(width, generator=g) for _ in range(2)
    ]
    found = []
    before = torch.get_num_threads()
    for fast in (True, False):
        y, x, upstream, gain, shift = (t.clone() for t in given)
        norm = nn.LayerNorm(width)
        norm.weight, norm.bias = nn.Parameter(gain), nn.Parameter(shift)
        y.requires_grad_()
        x.requires_grad_()
        keys = Keys(3) if training else None
        torch.set_num_threads(threads)
        try:
            out = (
                add_and_norm(y, x, norm, rate, keys)
                if fast
                else add_and_norm_reference(y, x, norm.weight, norm.bias, rate, keys)
            )
            gradients = torch.autograd.grad(out, [y, x, norm.weight, norm.bias], upstream)
        finally:
            torch.set_num_threads(before)
        found.append([out.detach(), *gradients])
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= 5e-5 * max(1.0, float(b.abs().max()))


@given(
    rows=st.integers(1, 60),
    width=st.sampled_from([5, 16, 64]),
    rate=st.sampled_from([0.0, 0.3]),
    threads=st.integers(1, 3),
    training=st.booleans(),
)
@settings(max_examples=60)
def test_as_plain_torch(rows: int, width: int, rate: float, threads: int, training: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST", 7)
        check(rows, width, rate, threads, training)


def test_at_the_size_of_the_paper() -> None:
    check(9000, 64, 0.2, 2)


def test_nothing_in_the_batch() -> None:
    norm, y = nn.LayerNorm(4), torch.empty(0, 4, requires_grad=True)
    out = add_and_norm(y, torch.empty(0, 4), norm, 0.2, Keys(0))
    out.sum().backward()
    assert out.shape == (0, 4) and norm.weight.grad is not None and not norm.weight.grad.any()


def test_in_double_precision_it_is_plain_torch() -> None:
    norm = nn.LayerNorm(8).double()
    y, x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.equal(add_and_norm(y, x, norm, 0.0, None), norm(y + x))
