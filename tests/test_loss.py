"""Losses against plain torch, values and gradients."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.nn import loss as module
from lrurec.nn.loss import cross_entropy, cross_entropy_reference, sampled_softmax


def case(
    n: int, items: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 8, dtype=dtype, generator=g).requires_grad_()
    table = torch.randn(items, 8, dtype=dtype, generator=g).requires_grad_()
    bias = torch.randn(items, dtype=dtype, generator=g).requires_grad_()
    return hidden, table, bias, torch.randint(0, items, (n,), generator=g)


def check(n: int, items: int, threads: int, seed: int, dtype: torch.dtype, tolerance: float) -> None:
    """Value and gradients against the whole score matrix in double precision."""
    h, e, b, y = case(n, items, dtype, seed)
    exact = tuple(t.detach().double().requires_grad_() for t in (h, e, b))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = cross_entropy(h, e, b, y)
    finally:
        torch.set_num_threads(before)
    expected = cross_entropy_reference(exact[0], exact[1], exact[2], y)
    assert torch.allclose(found.double(), expected, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(3 * found, (h, e, b)), torch.autograd.grad(3 * expected, exact)
    for a, c in zip(*gradients, strict=True):
        assert torch.allclose(a.double(), c, rtol=0, atol=tolerance)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 9))
@settings(max_examples=40)
def test_agrees_with_torch(n: int, items: int, seed: int) -> None:
    check(n, items, 2, seed, torch.float64, 1e-10)


@pytest.mark.parametrize("share", ["positions", "items"])
@given(n=st.integers(1, 300), items=st.integers(3, 50), tile=st.integers(1, 60), threads=st.integers(1, 3))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tiles_agree_with_torch(
    monkeypatch: pytest.MonkeyPatch, share: str, n: int, items: int, tile: int, threads: int
) -> None:
    """The compiled way, shared out by positions or by items, whatever the tiles, groups and threads."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "_TILE", tile)
        patch.setattr(module, "_FEW_ITEMS", 10**6 if share == "positions" else 0)
        patch.setattr(module, "group_rows", lambda items: 70)
        check(n, items, threads, n, torch.float32, 2e-5)


def test_a_real_catalogue_agrees_with_torch() -> None:
    check(150, 20_000, 2, 0, torch.float32, 2e-5)
    check(150, 3_416, 2, 0, torch.float32, 2e-5)


@pytest.mark.parametrize("items", [40, 20_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_half_precision_is_near(items: int, dtype: torch.dtype) -> None:
    """Products in bfloat16 keep 8 bits: the loss to 1%, the gradients in direction and size."""
    h, e, b, y = case(300, items, dtype)
    found, expected = cross_entropy(h, e, b, y, half=True), cross_entropy_reference(h, e, b, y)
    assert found.dtype == dtype
    assert torch.allclose(found, expected, rtol=0.01)
    gradients = torch.autograd.grad(found, (h, e, b)), torch.autograd.grad(expected, (h, e, b))
    for a, c in zip(*gradients, strict=True):
        assert float((a - c).norm() / c.norm()) < 0.02


def test_nothing_to_predict() -> None:
    h, e, b, y = case(0, 5, torch.float32)
    assert torch.isnan(cross_entropy(h, e, b, y))  # as in torch: a mean of nothing


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_shows(bad: float) -> None:
    """Training must notice that it has gone wrong."""
    h, e, b, y = case(40, 9, torch.float32)
    with torch.no_grad():
        h[3, 2] = bad
    assert not torch.isfinite(cross_entropy(h, e, b, y))


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
    work = module._in_blocks

    def spy(*arguments: Any) -> Any:
        asked.append(arguments[4])
        return work(*arguments)

    monkeypatch.setattr(module, "_in_blocks", spy)
    h, e, b, y = case(10, 5)
    with torch.no_grad():
        cross_entropy(h, e, b, y)
    cross_entropy(h, e, b, y)
    assert asked == [False, True]


def test_groups_grow_no_further_than_the_store() -> None:
    assert [module.group_rows(items) for items in (5, 3_416, 57_289, 200_000, 20_000_000)] == [128, 128, 256, 83, 64]


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
