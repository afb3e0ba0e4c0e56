"""Losses against plain torch, values and gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from lrurec.data import negatives as negatives_module
from lrurec.data.negatives import Negatives
from lrurec.kernels.dot16 import has_dot16
from lrurec.nn import groups16, tiles
from lrurec.nn import loss as module
from lrurec.nn import sampled as sampled_module
from lrurec.nn.loss import cross_entropy, cross_entropy_reference
from lrurec.nn.sampled import sampled_softmax, sampled_softmax_reference


def case(
    n: int, items: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 8, dtype=dtype, generator=g).requires_grad_()
    items_alone = torch.randn(items, 8, dtype=dtype, generator=g)
    bias = torch.randn(items, dtype=dtype, generator=g).requires_grad_()
    targets = torch.randint(0, items, (n,), generator=g)
    front = torch.randn((n + items) % 3, 8, dtype=dtype, generator=g)  # rows that are no items
    return hidden, torch.cat([front, items_alone]).requires_grad_(), bias, targets


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
        patch.setattr(tiles.Group, "tile", tile)
        patch.setattr(tiles, "_FEW_ITEMS", 10**6 if share == "positions" else 0)
        patch.setattr(tiles.Group, "rows", lambda items: 70)
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


@pytest.mark.parametrize("items", [40, 20_000])
@pytest.mark.parametrize(("dtype", "half"), [(torch.float32, False), (torch.float32, True), (torch.float64, False)])
def test_positions_that_share_a_vector(
    items: int, dtype: torch.dtype, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They meet the catalogue once, and weigh as many as they are; equal first columns alone share nothing."""
    met = []
    for room, name in ((tiles, "_share_positions"), (tiles, "_share_items"), (module, "_in_blocks")):
        plain = getattr(room, name)

        def spy(*arguments: Any, work: Any = plain) -> Any:
            met.append(len(arguments[0]))
            return work(*arguments)

        monkeypatch.setattr(room, name, spy)
    h, e, b, _ = case(60, items, dtype)
    with torch.no_grad():
        h[:, 0] = 1
    counts = torch.randint(1, 30, (60,), generator=torch.Generator().manual_seed(2))
    rows = h.detach().repeat_interleave(counts, 0).requires_grad_()
    targets = torch.randint(0, items, (len(rows),), generator=torch.Generator().manual_seed(3))
    found, expected = cross_entropy(rows, e, b, targets, half=half), cross_entropy_reference(rows, e, b, targets)
    assert torch.allclose(found, expected, rtol=0.01 if half else 1e-5)
    for a, c in zip(*(torch.autograd.grad(2 * x, (rows, e, b)) for x in (found, expected)), strict=True):
        assert float((a - c).norm() / c.norm()) < (0.02 if half else 1e-5)
    cross_entropy(h, e, b, targets[:60])
    assert met == [60, 60]


@pytest.mark.parametrize("share", ["positions", "items"])
@given(n=st.integers(1, 300), items=st.integers(3, 700), rows=st.integers(1, 90), threads=st.integers(1, 3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_half_precision_by_the_instruction(
    monkeypatch: pytest.MonkeyPatch, share: str, n: int, items: int, rows: int, threads: int
) -> None:
    """Products of bfloat16, everything else in float32: the loss to 2e-4, the gradients to 1% and 0.005, twice the same."""
    if not has_dot16():
        pytest.skip("this processor has no instruction for it")
    g = torch.Generator().manual_seed(n)
    h, e, b = (
        torch.randn(n, 64, generator=g),
        0.3 * torch.randn(items + n % 3, 64, generator=g),  # a row or two in front that are no items
        torch.randn(items, generator=g),
    )
    y = torch.randint(0, items, (n,), generator=g)
    leaves = tuple(t.requires_grad_() for t in (h, e, b))
    before = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setattr(tiles, "_FEW_ITEMS", 10**6 if share == "positions" else 0)
        patch.setattr(tiles, "HalfGroup", None)  # not wanted here
        patch.setattr(groups16.DotGroup, "rows", lambda items: rows)
        try:
            torch.set_num_threads(threads)
            found, again = (cross_entropy(h, e, b, y, half=True) for _ in range(2))
        finally:
            torch.set_num_threads(before)
    expected = cross_entropy_reference(h, e, b, y)
    assert torch.allclose(found.double(), of_rounded(h, e, b, y), rtol=2e-4, atol=2e-4)
    made, twice, exact = (torch.autograd.grad(loss, leaves) for loss in (found, again, expected))
    for a, c, d in zip(made, twice, exact, strict=True):
        assert torch.equal(a, c)
        assert float((a - d).norm()) <= 0.01 * float(d.norm()) + 0.005


def of_rounded(hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The loss whose sums are of rounded vectors (positions times log2 e) and whose targets' scores are not, in double."""
    items, log2e = table[len(table) - len(bias) :], 1.4426950408889634
    rounded = (hidden * log2e).bfloat16().double() @ items.bfloat16().double().T / log2e + bias.double()
    own = (hidden.double() * items[targets].double()).sum(1) + bias[targets].double()
    return (rounded.logsumexp(1) - own).mean()


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_half_precision_of_large_scores(factor: float) -> None:
    """Beyond the range of powers the tiles with a largest score take over."""
    g = torch.Generator().manual_seed(0)
    h, e, b = factor * torch.randn(50, 64, generator=g), torch.randn(300, 64, generator=g), torch.zeros(300)
    y = torch.randint(0, 300, (50,), generator=g)
    assert groups16.DotGroup.suits(h, 0.1 * e / factor, b) == has_dot16()
    assert not groups16.DotGroup.suits(h, e, b)
    for odd in (float("nan"), float("inf")):
        assert not groups16.DotGroup.suits(torch.full_like(h, odd), 0.1 * e, b)
    assert torch.allclose(cross_entropy(h, e, b, y, half=True), cross_entropy_reference(h, e, b, y), rtol=0.01)


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
    sizes = (5, 3_416, 57_289, 200_000, 20_000_000)
    assert [tiles.Group.rows(items) for items in sizes] == [128, 128, 256, 83, 64]
    assert [tiles.HalfGroup.rows(items) for items in sizes] == [256, 256, 256, 167, 64]


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.sampled_from([64, 1 << 22]),
)
@settings(max_examples=60)
def test_sampled_agrees_with_torch(n: int, items: int, many: int, shared: bool, corrected: bool, block: int) -> None:
    """Values and gradients; blocks of one or few positions, or one block."""
    h, e, b, y = case(n, items)
    g = torch.Generator().manual_seed(1)
    negatives = torch.randint(0, items, (many,) if shared else (n, many), generator=g)
    log_q = torch.randn(items, dtype=torch.float64, generator=g) if corrected else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampled_module, "_GATHERED", block)
        found = sampled_softmax(h, e, b, y, negatives, log_q)
    expected = sampled_softmax_reference(h, e, b, y, negatives, log_q)
    assert torch.allclose(found, expected, atol=1e-12)
    for a, c in zip(
        torch.autograd.grad(3 * found, (h, e, b)), torch.autograd.grad(3 * expected, (h, e, b)), strict=True
    ):
        assert torch.allclose(a, c, rtol=0, atol=1e-12)


@given(st.integers(1, 300), st.integers(1, 90), st.integers(1, 90), st.booleans(), st.sampled_from([0.1, 1.0, 6.0]))
@settings(max_examples=60, deadline=None)
def test_shared_negatives_in_compiled_loops(n: int, items: int, many: int, corrected: bool, scale: float) -> None:
    """Against the obvious twin in double precision; some targets are among the negatives, again and again."""
    h, e, b, y = case(n, items, torch.float32, many)
    with torch.no_grad():
        h *= scale
    g = torch.Generator().manual_seed(1)
    negatives = torch.randint(0, items, (many,), generator=g)
    log_q = 9 * torch.randn(items, generator=g) if corrected else None  # some are hardly ever drawn
    exact = tuple(t.detach().double().requires_grad_() for t in (h, e, b))
    found = sampled_softmax(h, e, b, y, negatives, log_q)
    double_q = None if log_q is None else log_q.double()
    expected = sampled_softmax_reference(exact[0], exact[1], exact[2], y, negatives, double_q)
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-4)
    for a, c in zip(torch.autograd.grad(3 * found, (h, e, b)), torch.autograd.grad(3 * expected, exact), strict=True):
        assert torch.allclose(a.double(), c, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 300), st.integers(2, 90), st.integers(1, 300), st.booleans(), st.sampled_from([0.1, 1.0, 10.0]))
@settings(max_examples=60, deadline=None)
def test_shared_negatives_in_half_precision(n: int, items: int, many: int, corrected: bool, scale: float) -> None:
    """Wide enough for the instruction, and with scores that are too large for it; larger scores are off by more."""
    g = torch.Generator().manual_seed(n)
    h = scale * torch.randn(n, 64, generator=g)
    e, b = 0.1 * torch.randn(items + 1, 64, generator=g), torch.randn(items, generator=g)
    y, negatives = (torch.randint(0, items, (k,), generator=g) for k in (n, many))
    log_q = torch.randn(items, generator=g) if corrected else None
    h, e, b = (t.requires_grad_() for t in (h, e, b))
    found = sampled_softmax(h, e, b, y, negatives, log_q, half=True)
    expected = sampled_softmax_reference(h, e, b, y, negatives, log_q)
    wrong = 0.01 * max(1.0, scale)
    assert torch.allclose(found, expected, rtol=wrong, atol=wrong)
    for a, c in zip(torch.autograd.grad(found, (h, e, b)), torch.autograd.grad(expected, (h, e, b)), strict=True):
        assert float((a - c).norm()) <= 2 * wrong * float(c.norm()) + 1e-3


@pytest.mark.parametrize("shared", [True, False])
def test_sampled_gradcheck(shared: bool) -> None:
    h, e, b, y = case(5, 7)
    negatives = torch.randint(0, 7, (4,) if shared else (5, 4), generator=torch.Generator().manual_seed(2))
    log_q = torch.linspace(-3, -1, 7, dtype=torch.float64)
    torch.autograd.gradcheck(lambda *x: sampled_softmax(*x, y, negatives, log_q), (h, e, b))


def test_sampled_without_gradients_and_with_large_scores() -> None:
    h, e, b, y = case(40, 9, torch.float32)
    negatives = torch.randint(0, 9, (40, 5), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        h *= 1e4
        found = sampled_softmax(h, e, b, y, negatives)
        assert torch.allclose(found, sampled_softmax_reference(h, e, b, y, negatives), rtol=1e-5)
    assert not found.requires_grad and sampled_softmax(h, e, b, y, negatives).requires_grad


@pytest.mark.parametrize("shared", [True, False])
def test_sampling_everything_is_the_full_softmax(shared: bool) -> None:
    """With every item once among the negatives, the target left out by itself: plain cross entropy."""
    h, e, b, y = case(12, 6)
    negatives = torch.arange(6) if shared else torch.arange(6).expand(12, 6)
    found, expected = sampled_softmax(h, e, b, y, negatives), cross_entropy_reference(h, e, b, y)
    assert torch.allclose(found, expected)
    for a, c in zip(torch.autograd.grad(found, (h, e, b)), torch.autograd.grad(expected, (h, e, b)), strict=True):
        assert torch.allclose(a, c)


COUNTS = np.array([0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89] * 2)


def gradient_error(negatives: Negatives, corrected: bool, draws: int) -> float:
    """How far the gradient averaged over many draws is from that of the full softmax, relative to it."""
    h, e, b, y = case(4, len(COUNTS))
    again = torch.arange(4).repeat(draws)
    log_q = torch.from_numpy(negatives.log_q) if corrected else None
    drawn = torch.from_numpy(negatives.drawn(0, len(again)))
    found = torch.autograd.grad(sampled_softmax(h[again], e, b, y[again], drawn, log_q), (h, e, b))
    full = torch.autograd.grad(cross_entropy_reference(h, e, b, y), (h, e, b))
    return float(sum((f - c).norm() for f, c in zip(found, full, strict=True)) / sum(c.norm() for c in full))


@pytest.mark.parametrize("counts", [None, COUNTS], ids=["uniform", "popularity"])
def test_the_corrected_gradient_approaches_that_of_the_full_softmax(counts: NDArray[np.int64] | None) -> None:
    """Its error falls like 1 / negatives; without the correction it stays."""
    errors = [
        gradient_error(Negatives(len(COUNTS), many, 0, counts), True, draws=400_000 // many) for many in (10, 100, 1000)
    ]
    assert errors[1] < errors[0] / 4 and errors[2] < errors[1] / 3 and errors[2] < 0.01, errors
    plain = gradient_error(Negatives(len(COUNTS), 1000, 0, counts), False, draws=400)
    assert plain > 10 * errors[2], (plain, errors)


def test_negatives_follow_the_counts() -> None:
    for counts in (None, COUNTS):
        drawn = Negatives(len(COUNTS), 50, 0, counts)
        q = np.exp(drawn.log_q)
        assert q.sum() == pytest.approx(1.0)
        found = np.bincount(drawn.drawn(3, 4000).ravel(), minlength=len(COUNTS)) / 200_000
        assert abs(found - q).max() < 5 * np.sqrt(q.max() / 200_000)
    assert np.exp(drawn.log_q)[0] == np.exp(drawn.log_q)[1] > 0  # never seen: as often as seen once
    assert drawn.log_q[11] - drawn.log_q[1] == pytest.approx(np.log(89))


def test_negatives_are_a_function_of_seed_and_step() -> None:
    one = Negatives(1000, 20, 7)
    assert (one.drawn(5, 30) == Negatives(1000, 20, 7).drawn(5, 30)).all()
    assert one.drawn(5, None).shape == (20,)
    for other in (one.drawn(6, 30), Negatives(1000, 20, 8).drawn(5, 30)):
        assert (one.drawn(5, 30) != other).mean() > 0.99


def test_a_long_list_of_counts_is_scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives_module, "_SLOTS", 1000)
    drawn = Negatives(4, 10, 0, np.array([0, 10, 50_000, 150_000]))
    assert np.exp(drawn.log_q) == pytest.approx(np.array([1, 1, 250, 750]) / 1002, rel=0.01)
    assert np.bincount(drawn.drawn(0, 1000).ravel(), minlength=4)[3] == pytest.approx(7500, rel=0.05)
