"""Ranks and metrics against brute force."""

from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lrurec
from lrurec.data.split import Split
from lrurec.evaluation import ranking
from lrurec.evaluation.metrics import interval, mrr, ndcg, recall, summary
from lrurec.evaluation.ranking import rank, ranks_of
from lrurec.evaluation.sanity import sanity_ranks
from lrurec.models.lrurec import LRURec, LRURecConfig


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
    model = LRURec(dataset.n_items, config, torch.Generator().manual_seed(seed))
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_EVENTS", events)
        found = rank(model, split.test, longest, filter_seen=seen, top=3)
        assert found.ranks.tolist() == brute_force(model, split, longest, seen)
        for k in np.flatnonzero(found.ranks < 3):
            assert split.test.answer(int(k)) in found.recommended[k]


def test_intervals_cover_the_mean() -> None:
    values = np.random.default_rng(0).random(500) < 0.3
    low, high = interval(values.astype(float))
    assert low < values.mean() < high
    # The width of a binomial interval is known.
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.3 * 0.7 / 500), rel=0.15)
    assert interval(np.ones(10)) == (1.0, 1.0)


@given(st.integers(0, 30), st.sampled_from([2, 50]))
@settings(max_examples=15)
def test_sanity_lines_agree_with_brute_force(seed: int, longest: int) -> None:
    rng = np.random.default_rng(seed)
    dataset = lrurec.load_events(pl.DataFrame(rng.integers(0, 7, (90, 2)), schema=["user", "item"]))
    split = lrurec.leave_last_out(dataset)
    found = sanity_ranks(split, split.test, dataset.n_items, longest)
    histories = [split.train[k].tolist() for k in range(len(split.train))]
    popular = Counter(i for h in histories for i in h)
    follows = Counter(pair for h in histories for pair in pairwise(h))
    for k in range(len(split.test)):
        history, answer = split.test.history(k)[-longest:].tolist(), split.test.answer(k)
        by_popularity = [(popular[i],) if i not in history else (-1,) for i in range(dataset.n_items)]
        by_markov = [
            (follows[history[-1], i], popular[i]) if i not in history else (-1, 0) for i in range(dataset.n_items)
        ]
        for name, scores in (("popularity", by_popularity), ("markov", by_markov)):
            assert found[name][k] == sum(s >= scores[answer] for i, s in enumerate(scores) if i != answer)
