"""Ranks and metrics against brute force."""

from collections import Counter

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lrurec
from lrurec.data.split import Split
from lrurec.evaluation import ranking, tiles
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.metrics import interval, mrr, ndcg, recall, summary
from lrurec.evaluation.ranking import rank, ranks_of
from lrurec.models.base import CountingModel, Sizes
from lrurec.models.lrurec import LRURec, LRURecConfig
from lrurec.training.config import config_for
from lrurec.training.learner import build, whole_sequences


def test_metrics_by_hand() -> None:
    ranks = np.array([0, 1, 9, 10])
    assert recall(ranks, 10).tolist() == [1, 1, 1, 0]
    assert ndcg(ranks, 10) == pytest.approx([1, 1 / np.log2(3), 1 / np.log2(11), 0])
    assert mrr(ranks, 10) == pytest.approx([1, 1 / 2, 1 / 10, 0])
    assert summary(ranks, [1])["recall@1"] == 0.25
    assert np.isnan(summary(np.zeros(0, np.int64))["recall@10"])


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=8), st.integers(0, 3))
def test_ties_count_against_the_model(scores: list[list[int]], answer: int) -> None:
    found = ranks_of(torch.tensor(scores).float(), torch.full((len(scores),), answer))
    for row, place in zip(scores, found.tolist(), strict=True):
        assert place == sum(s >= row[answer] for k, s in enumerate(row) if k != answer)


def test_a_score_that_is_no_number_is_no_hit() -> None:
    nan, low = float("nan"), float("-inf")
    scores = torch.tensor([[nan, nan, nan], [nan, 1.0, 0.0], [low, low, 0.0]])
    assert ranks_of(scores, torch.tensor([0, 1, 0])).tolist() == [2, 1, 2]


def brute_force(model: LRURec, split: Split, longest: int, seen: bool) -> list[int]:
    """One history at a time, one item at a time."""
    table, bias = model.item_table()
    places = []
    for k in range(len(split.test)):
        history = split.test.history(k)[-longest:]
        state, hidden = model.initial_state(), torch.zeros(1)
        for item in history:
            state, hidden = model.step(state, torch.tensor([int(item) + 1]))
        scores = (table @ hidden[0] + bias).tolist()
        answer = split.test.answer(k)
        if seen:
            for item in history:
                scores[item] = float("-inf")
        places.append(sum(s >= scores[answer] for i, s in enumerate(scores) if i != answer))
    return places


@pytest.mark.parametrize("seen", [True, False])
@given(st.integers(0, 20), st.sampled_from([2, 5, 50]), st.sampled_from([3, 1 << 15]))
@settings(max_examples=8)
def test_ranks_agree_with_brute_force(seen: bool, seed: int, longest: int, events: int) -> None:
    rng = np.random.default_rng(seed)
    log = pl.DataFrame(rng.integers(0, 9, (120, 2)), schema=["user", "item"])
    dataset = lrurec.load_events(log)
    split = lrurec.leave_last_out(dataset)
    config = LRURecConfig(width=8, channels=4)
    model = LRURec(Sizes(dataset.n_items), config, torch.Generator().manual_seed(seed))
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_EVENTS", events)
        found = rank(model, split.test, longest, filter_seen=seen, top=3)
        assert found.ranks.tolist() == brute_force(model, split, longest, seen)
        for k in np.flatnonzero(found.ranks < 3):
            assert split.test.answer(int(k)) in found.recommended[k]


@given(
    items=st.integers(1, 90),
    users=st.integers(1, 12),
    tile=st.integers(1, 40),
    top=st.integers(0, 5),
    copies=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_tiles_agree_with_all_scores(items: int, users: int, tile: int, top: int, copies: bool, seed: int) -> None:
    """Also where items have the same vectors, in whatever tile they are, and where answers are barred."""
    g = np.random.default_rng(seed)
    table, bias = g.normal(size=(items, 16)).astype(np.float32), g.normal(size=items).astype(np.float32)
    if copies:
        of = g.integers(0, max(1, items // 3), items)
        table, bias = table[of], bias[of]
    hidden, answers = torch.from_numpy(g.normal(size=(users, 16)).astype(np.float32)), g.integers(0, items, users)
    barred = g.integers(0, users, 40), g.integers(0, items, 40)
    top = min(top, items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_TILE", tile)
        found, best = tiles.rank_in_tiles(hidden, torch.from_numpy(table), torch.from_numpy(bias), answers, barred, top)
    scores = hidden.double().numpy() @ table.T.astype(np.float64) + bias  # of equal rows, exactly equal
    scores[barred] = -np.inf
    for row in range(users):
        own = scores[row, answers[row]]
        others = np.delete(scores[row], answers[row])
        near = 1e-5 if np.isfinite(own) else 0.0  # of different rows, too near to tell
        equal = (others == own).sum()
        assert (others > own + near).sum() + equal <= found[row] <= (others >= own - near).sum()
        kept = best[row][scores[row, best[row]] > -np.inf] if top else best[row]
        expected = np.sort(scores[row][scores[row] > -np.inf])[::-1][:top]
        assert np.allclose(scores[row, kept][: len(expected)], expected, atol=1e-5)


def test_large_catalogues_are_ranked_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `rank`, with histories that are cut, seen items and more users than meet the catalogue at once."""
    rng = np.random.default_rng(0)
    rows = [(u, int(rng.integers(0, 50))) for u in range(30) for _ in range(rng.integers(3, 12))]
    dataset = lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"))
    split = lrurec.leave_last_out(dataset)
    model = LRURec(Sizes(dataset.n_items), LRURecConfig(width=16, channels=16), torch.Generator().manual_seed(1))
    counted: list[int] = []
    for seen in (True, False):
        expected = rank(model, split.test, 4, filter_seen=seen, top=3)
        with monkeypatch.context() as patch:
            for name, value in (("_LARGE", 1), ("_TOGETHER", 7), ("_EVENTS", 20)):
                patch.setattr(ranking, name, value)
            patch.setattr(tiles, "_TILE", 16)
            found = rank(model, split.test, 4, filter_seen=seen, top=3, progress=counted.append)
        assert np.array_equal(found.ranks, expected.ranks)
        assert np.array_equal(found.recommended, expected.recommended)
    assert sum(counted) == 2 * len(split.test)


@given(st.integers(2, 400), st.integers(1, 400), st.integers(0, 9), st.integers(0, 9), st.data())
def test_candidates_are_distinct_and_never_the_answer(
    items: int, count: int, seed: int, number: int, data: st.DataObject
) -> None:
    answer = data.draw(st.integers(0, items - 1))
    rivals = Candidates(count, seed).beside(number, answer, items)
    assert len(rivals) == len(set(rivals.tolist())) == min(count, items - 1)
    assert set(rivals.tolist()) <= set(range(items)) - {answer}
    assert rivals.tolist() == Candidates(count, seed).beside(number, answer, items).tolist()


def test_candidates_are_uniform_and_new_for_each_target_and_seed() -> None:
    drawn = np.stack([Candidates(50, 0).beside(k, 7, 101) for k in range(4000)])
    counts = np.bincount(drawn.ravel(), minlength=101)
    assert counts[7] == 0
    others = np.delete(counts, 7)  # each 2,000 times in expectation, with a standard deviation of 32
    assert abs(others - 2000).max() < 5 * 32
    assert len({tuple(sorted(row)) for row in drawn.tolist()}) == 4000
    assert set(Candidates(50, 1).beside(0, 7, 101).tolist()) != set(drawn[0].tolist())


def random_case(seed: int, items: int = 9) -> tuple[int, Split, LRURec]:
    rng = np.random.default_rng(seed)
    dataset = lrurec.load_events(pl.DataFrame(rng.integers(0, items, (120, 2)), schema=["user", "item"]))
    model = LRURec(Sizes(dataset.n_items), LRURecConfig(width=8, channels=4), torch.Generator().manual_seed(seed))
    return dataset.n_items, lrurec.leave_last_out(dataset), model


@pytest.mark.parametrize("seen", [True, False])
@given(
    st.integers(0, 20), st.integers(1, 9), st.integers(0, 3), st.sampled_from([2, 50]), st.sampled_from([3, 1 << 15])
)
@settings(max_examples=10)
def test_ranks_among_candidates_agree_with_brute_force(
    seen: bool, seed: int, count: int, draw: int, longest: int, block: int
) -> None:
    """One target at a time from its scores of all items; the blocks of the real thing are small or large."""
    items, split, model = random_case(seed)
    drawn = Candidates(count, draw)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_EVENTS", block)
        patch.setattr(ranking, "_RIVALS", block)
        found = rank(model, split.test, longest, filter_seen=seen, candidates=drawn).ranks
        everything = rank(model, split.test, longest, filter_seen=seen).ranks
        table, bias = model.item_table()
        for k in range(len(split.test)):
            history, answer = split.test.history(k)[-longest:], split.test.answer(k)
            hidden = model.last(ranking.histories(split.test, k, k + 1, longest, "cpu"))[0]
            scores = (table @ hidden + bias).tolist()
            if seen:
                for item in history:
                    scores[item] = float("-inf")
            assert found[k] == sum(scores[r] >= scores[answer] for r in drawn.beside(k, answer, items))
            assert found[k] <= everything[k]
    if count >= items - 1:
        assert found.tolist() == everything.tolist()


@pytest.mark.parametrize("count", [3, 100])
def test_ties_among_candidates_count_against_the_model(count: int) -> None:
    """A model that gives every item the same score puts every target last."""
    items, split, model = random_case(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = rank(model, split.test, 50, filter_seen=False, candidates=Candidates(count)).ranks
    assert found.tolist() == [min(count, items - 1)] * len(split.test)


def test_intervals_cover_the_mean() -> None:
    values = np.random.default_rng(0).random(500) < 0.3
    low, high = interval(values.astype(float))
    assert low < values.mean() < high
    # The width of a binomial interval is known.
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.3 * 0.7 / 500), rel=0.15)
    assert interval(np.ones(10)) == (1.0, 1.0)


@given(st.integers(0, 30), st.sampled_from([2, 50]), st.sampled_from([None, 3]), st.sampled_from([1, 3]))
@settings(max_examples=20)
def test_counting_agrees_with_brute_force(seed: int, longest: int, count: int | None, window: int) -> None:
    rng = np.random.default_rng(seed)
    dataset = lrurec.load_events(pl.DataFrame(rng.integers(0, 7, (90, 2)), schema=["user", "item"]))
    split, items = lrurec.leave_last_out(dataset), dataset.n_items
    drawn = Candidates(count, seed) if count else None
    histories = [split.train[k].tolist() for k in range(len(split.train))]
    popular = Counter(i for h in histories for i in h)
    follows: Counter[tuple[int, int]] = Counter()
    for h in histories:
        for gap in range(1, window + 1):
            for pair in zip(h, h[gap:], strict=False):
                follows[pair] += 0.5 ** (gap - 1)  # type: ignore[assignment]
    found = {}
    for name, more in (("popularity", []), ("markov", [f"model.window={window}", "model.decay=0.5"])):
        model = build(items, dataset.n_users, config_for("paper", None, more, name))
        assert isinstance(model, CountingModel)
        model.count(whole_sequences(split.train, "cpu"))
        found[name] = rank(model, split.test, longest, candidates=drawn).ranks
    for k in range(len(split.test)):
        history, answer = split.test.history(k)[-longest:].tolist(), split.test.answer(k)
        newest = list(enumerate(reversed(history[-window:])))
        by_popularity, by_markov = [], []
        for i in range(items):
            after = sum(0.5**back * follows[h, i] / max(popular[h], 1) ** 0.5 for back, h in newest)
            by_popularity.append((popular[i],) if i not in history else (-1,))
            by_markov.append((round(after, 4), popular[i]) if i not in history else (-1, 0))
        for name, scores in (("popularity", by_popularity), ("markov", by_markov)):
            rivals = drawn.beside(k, answer, len(scores)).tolist() if drawn else {*range(len(scores))} - {answer}
            assert found[name][k] == sum(scores[i] >= scores[answer] for i in rivals)
