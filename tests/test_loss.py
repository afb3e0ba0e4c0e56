"""Losses against plain torch, values and gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.nn import loss as module
from lrurec.nn.loss import block_rows, cross_entropy, cross_entropy_reference, sampled_softmax


def case(
    n: int, items: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 8, dtype=dtype, generator=g).requires_grad_()
    table = torch.randn(items, 8, dtype=dtype, generator=g).requires_grad_()
    bias = torch.randn(items, dtype=dtype, generator=g).requires_grad_()
    return hidden, table, bias, torch.randint(0, items, (n,), generator=g)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 3), st.integers(0, 9))
@settings(max_examples=40)
def test_agrees_with_torch(n: int, items: int, threads: int, seed: int) -> None:
    h, e, b, y = case(n, items, seed=seed)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found, expected = cross_entropy(h, e, b, y), cross_entropy_reference(h, e, b, y)
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(found, expected, atol=1e-10)
    for a, c in zip(
        torch.autograd.grad(3 * found, (h, e, b)), torch.autograd.grad(3 * expected, (h, e, b)), strict=True
    ):
        assert torch.allclose(a, c, rtol=0, atol=1e-10)


def test_gradcheck() -> None:
    h, e, b, y = case(5, 7)
    torch.autograd.gradcheck(lambda *x: cross_entropy(*x, y), (h, e, b))


def test_large_scores_do_not_overflow() -> None:
    h, e, b, y = case(40, 9, torch.float32)
    with torch.no_grad():
        h *= 1e4
    assert torch.allclose(cross_entropy(h, e, b, y), cross_entropy_reference(h, e, b, y), rtol=1e-5)


def test_without_gradients_none_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    work = module._work

    def spy(*arguments: Any) -> Any:
        asked.append(arguments[5])
        return work(*arguments)

    monkeypatch.setattr(module, "_work", spy)
    h, e, b, y = case(10, 5)
    with torch.no_grad():
        cross_entropy(h, e, b, y)
    cross_entropy(h, e, b, y)
    assert asked == [False, True]


def test_blocks_fit_the_cache() -> None:
    assert block_rows(3_416) * 3_416 * 4 <= 2 << 20
    assert (block_rows(5), block_rows(57_289), block_rows(1_000_000), block_rows(20_000_000)) == (256, 32, 8, 4)


@pytest.mark.parametrize("shared", [True, False])
def test_sampling_everything_is_the_full_softmax(shared: bool) -> None:
    """With every item once among the negatives, the target left out by itself: plain cross entropy."""
    h, e, b, y = case(12, 6)
    negatives = torch.arange(6) if shared else torch.arange(6).expand(12, 6)
    found, expected = sampled_softmax(h, e, b, y, negatives), cross_entropy_reference(h, e, b, y)
    assert torch.allclose(found, expected)
    for a, c in zip(torch.autograd.grad(found, (h, e, b)), torch.autograd.grad(expected, (h, e, b)), strict=True):
        assert torch.allclose(a, c)


def test_log_q_corrects_for_popular_negatives() -> None:
    """Many draws by popularity, corrected, give the full loss; uncorrected they do not."""
    h, e, b, y = case(200, 12)
    q = torch.linspace(1, 20, 12, dtype=torch.float64)
    q = q / q.sum()
    negatives = torch.multinomial(q, 40_000, replacement=True, generator=torch.Generator().manual_seed(0))
    # Left-out targets are drawn too often to ignore in such a small catalogue: compare with the same set.
    full = cross_entropy_reference(h, e, b, y)
    corrected = sampled_softmax(h, e, b, y, negatives, q.log())
    plain = sampled_softmax(h, e, b, y, negatives)
    assert abs(float(corrected.detach() - full.detach())) < 0.02
    assert abs(float(plain.detach() - full.detach())) > 1.0
