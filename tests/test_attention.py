"""Attention on the packed run is that of torch; SASRec and BERT4Rec beyond what every model promises."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Sizes, TrainingBatch
from lrurec.models.bert4rec import MASK, BERT4Rec, BERT4RecConfig
from lrurec.models.sasrec import SASRec, SASRecConfig
from lrurec.nn.attend import Reach, attend, attend_reference
from lrurec.nn.dropout import Keys

CPU = torch.device("cpu")
ITEMS, LONGEST = 30, 12


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(out: Tensor, of: list[Tensor]) -> list[Tensor]:
    torch.autograd.backward((out * torch.arange(1.0, 1.0 + out.numel()).view_as(out).sin()).sum())
    return [t.grad if t.grad is not None else torch.zeros_like(t) for t in of]


def plain(qkv: Sequence[Tensor], asked: Tensor, seen: Tensor, heads: int, causal: bool) -> Tensor:
    """One sequence and one head after the other, from the formula."""
    rows = []
    for s in range(len(asked) - 1):
        parts = [x[a[s] : a[s + 1]].chunk(heads, 1) for x, a in zip(qkv, (asked, seen, seen), strict=True)]
        mixed = []
        for one, two, three in zip(*parts, strict=True):
            scores = one @ two.T / one.shape[1] ** 0.5
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
            mixed.append(scores.softmax(1) @ three)
        rows.append(torch.cat(mixed, 1))
    return torch.cat(rows)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.sampled_from([(8, 1), (8, 2), (12, 2), (5, 1), (14, 2)]),
    st.booleans(),
)
def test_all_rows_ask(lengths: list[int], size: tuple[int, int], causal: bool) -> None:
    width, heads = size
    offsets = offsets_of(lengths)
    reach = Reach(offsets, offsets, CPU, causal=causal)
    x = random(0, int(offsets[-1]), 3 * width).requires_grad_()
    exact = x.detach().double().requires_grad_()
    wanted = plain(exact.chunk(3, 1), offsets, offsets, heads, causal)
    q, k, v = exact.chunk(3, 1)
    twin = attend_reference(q, k, v, reach, heads)
    found = attend(x, None, reach, heads)
    assert torch.allclose(twin, wanted, atol=1e-9)
    assert torch.allclose(found.double(), wanted, atol=1e-5)
    assert torch.allclose(gradients(found, [x])[0].double(), gradients(wanted, [exact])[0], atol=1e-4)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=12))
def test_some_rows_ask(sizes: list[tuple[int, int]]) -> None:
    seen, asked = offsets_of([a for a, _ in sizes]), offsets_of([b for _, b in sizes])
    reach = Reach(asked, seen, CPU, causal=False)
    q, kv = random(1, int(asked[-1]), 8).requires_grad_(), random(2, int(seen[-1]), 16).requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (q, kv)]
    k, v = exact[1].chunk(2, 1)
    wanted = plain((exact[0], k, v), asked, seen, 2, False)
    assert torch.allclose(attend_reference(exact[0], k, v, reach, 2), wanted, atol=1e-9)
    found = attend(q, kv, reach, 2)
    assert torch.allclose(found.double(), wanted, atol=1e-5)
    for ours, right in zip(gradients(found, [q, kv]), gradients(wanted, exact), strict=True):
        assert torch.allclose(ours.double(), right, atol=1e-4)


def test_the_gradient_of_the_twin_is_right() -> None:
    offsets = offsets_of([3, 1, 4])
    for causal in (True, False):
        reach = Reach(offsets, offsets, CPU, causal=causal)
        q, k, v = parts = [random(seed, 8, 4).double().requires_grad_() for seed in range(3)]
        again = [t.detach().clone().requires_grad_() for t in parts]
        ours = gradients(attend_reference(q, k, v, reach, 2), parts)
        right = gradients(plain(again, offsets, offsets, 2, causal), again)
        assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(ours, right, strict=True))


def test_large_scores_are_no_trouble() -> None:
    offsets = offsets_of([6])
    x = (random(0, 6, 12) * 60).requires_grad_()
    found = attend(x, None, Reach(offsets, offsets, CPU, causal=True), 1)
    assert torch.isfinite(found).all() and torch.isfinite(gradients(found, [x])[0]).all()
    assert torch.allclose(found, plain(x.detach().chunk(3, 1), offsets, offsets, 1, True), atol=1e-3)


@pytest.mark.usefixtures("three_threads")
def test_threads_change_nothing() -> None:
    offsets = offsets_of([1, 30, 2, 2, 17, 40, 1])
    x, reach = random(0, 93, 24).requires_grad_(), Reach(offsets, offsets, CPU, causal=True)
    several = attend(x, None, reach, 2)
    d_several = gradients(several, [x])[0].clone()
    torch.set_num_threads(1)
    y = x.detach().clone().requires_grad_()
    alone = attend(y, None, reach, 2)
    assert torch.equal(several, alone) and torch.equal(d_several, gradients(alone, [y])[0])


def sasrec(**settings: int) -> SASRec:
    config = SASRecConfig(**{"width": 16, **settings})
    return SASRec(Sizes(ITEMS, 0, LONGEST), config, torch.Generator().manual_seed(0))


def bert4rec(**settings: float) -> BERT4Rec:
    config = BERT4RecConfig(width=16, **settings)  # type: ignore[arg-type]
    return BERT4Rec(Sizes(ITEMS, 0, LONGEST), config, torch.Generator().manual_seed(0))


def histories(lengths: list[int]) -> Batch:
    inputs = torch.randint(1, ITEMS + 1, (sum(lengths),), generator=torch.Generator().manual_seed(4))
    return Batch(inputs, offsets_of(lengths))


def windows(lengths: list[int]) -> TrainingBatch:
    batch = histories(lengths)
    return TrainingBatch(batch.inputs, batch.offsets, targets=batch.inputs - 1, windows=batch.offsets)


@pytest.mark.parametrize(
    "model",
    [sasrec(), sasrec(blocks=1), sasrec(heads=1), bert4rec()],
    ids=["sasrec", "one block", "one head", "bert4rec"],
)
def test_the_newest_vectors_are_those_of_all(model: SASRec | BERT4Rec) -> None:
    batch = histories([3, 12, 1, 7])
    with torch.no_grad():
        assert torch.allclose(model.last(batch), model.encode(batch)[batch.lasts], atol=1e-5)


@pytest.mark.parametrize("model", [sasrec(), bert4rec()], ids=["sasrec", "bert4rec"])
def test_in_double_precision_it_is_the_same(model: SASRec | BERT4Rec) -> None:
    """The loops of the CPU against torch's attention, through the whole model."""
    batch = histories([3, 12, 1, 7])
    with torch.no_grad():
        single = model.last(batch)
        double = model.double().last(batch)
        model.float()
    assert double.dtype == torch.float64
    assert torch.allclose(single.double(), double, atol=1e-4)


def test_order_matters_to_sasrec() -> None:
    """Only the newest item is alike: without places the order of the others could not show."""
    model = sasrec()
    one, two = torch.tensor([5, 9, 7]), torch.tensor([9, 5, 7])
    with torch.no_grad():
        first, second = (model.last(Batch(x, torch.tensor([0, 3]))) for x in (one, two))
    assert not torch.allclose(first, second, atol=1e-4)


def test_every_window_has_a_mask_and_shares_are_kept() -> None:
    model = bert4rec(mask_share=0.3, last_share=0.25)
    offsets = offsets_of([1, 2, 3, 50, 50] * 200)
    masked = model.masked(offsets, CPU, Keys(7))
    assert torch.equal(masked, model.masked(offsets, CPU, Keys(7)))
    assert not torch.equal(masked, model.masked(offsets, CPU, Keys(8)))
    pieces = [masked[a:b] for a, b in pairwise(offsets)]
    assert all(bool(piece.any()) for piece in pieces)
    long = [piece for piece in pieces if len(piece) == 50]
    only_newest = [piece for piece in long if bool(piece[-1]) and int(piece.sum()) == 1]
    assert abs(len(only_newest) / len(long) - 0.25) < 0.08
    others = torch.cat([piece for piece in long if int(piece.sum()) > 1])
    assert abs(float(others.float().mean()) - 0.3) < 0.02


def test_all_or_the_newest() -> None:
    offsets = offsets_of([4, 9])
    newest = torch.zeros(13, dtype=torch.bool)
    newest[[3, 12]] = True
    assert torch.equal(bert4rec(last_share=1.0).masked(offsets, CPU, Keys(0)), newest)
    assert bool(bert4rec(mask_share=1.0, last_share=0.0).masked(offsets, CPU, Keys(0)).all())


def test_the_cloze_never_shows_its_answer() -> None:
    """A masked item changes no vector; an item that is not masked changes those of its window, before and behind."""
    model, batch = bert4rec(dropout=0.0), windows([12, 12, 12])
    masked = model.masked(batch.windows, CPU, Keys(3))
    hidden, answers = model.examples(batch, Keys(3))
    assert torch.equal(answers, batch.targets[masked])
    whose = torch.repeat_interleave(torch.full((3,), 12))
    rows = masked.nonzero()[:, 0]
    for at in range(len(batch)):
        targets = batch.targets.clone()
        targets[at] = (targets[at] + 1) % ITEMS
        changed = TrainingBatch(batch.inputs, batch.offsets, targets=targets, windows=batch.windows)
        after, _ = model.examples(changed, Keys(3))
        moved = (hidden - after).abs().amax(1) > 1e-6
        assert torch.equal(moved, (whose[rows] == whose[at]) & ~masked[at])


def test_the_mask_is_behind_the_newest_items() -> None:
    model = bert4rec()
    batch = histories([3, LONGEST])
    asked = model.asked(Batch(torch.cat([batch.inputs, torch.tensor([MASK])]), torch.tensor([0, 3, 15, 16])))
    assert asked.offsets.tolist() == [0, 4, 4 + LONGEST, 5 + LONGEST]
    assert asked.inputs[:4].tolist() == [*batch.inputs[:3].tolist(), MASK]
    assert asked.inputs[4 : 4 + LONGEST].tolist() == [*batch.inputs[4:].tolist(), MASK]  # the oldest gives way
    assert asked.inputs[4 + LONGEST :].tolist() == [MASK]  # nobody: a window of one item, masked


def test_a_window_whose_newest_item_is_masked_is_a_question() -> None:
    """Training and asking agree: the history of all items but the last gives the vector that predicted the last."""
    model = bert4rec(last_share=1.0, dropout=0.0)
    batch = windows([5, 12, 1])
    hidden, _ = model.examples(batch, Keys(0))
    before = torch.cat([batch.targets[:4] + 1, batch.targets[5:16] + 1, torch.tensor([MASK])])
    with torch.no_grad():
        assert torch.allclose(model.last(Batch(before, torch.tensor([0, 4, 15, 16]))), hidden, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "model.heads must divide model.width"),
        ({"inner": 0}, "model.inner must be 1 or more"),
        ({"dropout": 1.0}, "model.dropout must lie between 0 and 1, not 1.0"),
        ({"mask_share": 0.0}, "model.mask_share must be above 0"),
        ({"last_share": 1.5}, "model.last_share must lie between 0 and 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BERT4RecConfig(**settings)  # type: ignore[arg-type]
