"""Splits are views, and no event of the future trains."""

from datetime import date, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrurec
from lrurec import Dataset, by_time, leave_last_out
from lrurec.data.dataset import user_blocks
from lrurec.errors import NothingLeftError, SettingsError

DAY = 86_400


def dataset(*histories: list[tuple[int, int]]) -> Dataset:
    rows = [(u, i, t * DAY) for u, h in enumerate(histories) for i, t in h]
    return lrurec.load_events(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"))


LOG = dataset(
    [(0, 1), (1, 2), (2, 3), (3, 4)],
    [(4, 1), (5, 9)],
    [(6, 8), (7, 9), (8, 10)],
    [(9, 1)],
)


def test_leave_last_out() -> None:
    split = leave_last_out(LOG)
    assert [split.train[k].tolist() for k in range(len(split.train))] == [[0, 1], [4, 5], [6], [9]]
    assert [(split.valid.history(k).tolist(), split.valid.answer(k)) for k in range(2)] == [
        ([0, 1], 2),
        ([6], 7),
    ]
    assert [(split.test.history(k).tolist(), split.test.answer(k)) for k in range(2)] == [
        ([0, 1, 2], 3),
        ([6, 7], 8),
    ]
    assert split.test.users.tolist() == [0, 2]
    assert split.train.n_events == 6


def test_views_do_not_copy() -> None:
    for split in (leave_last_out(LOG), by_time(LOG, "1970-01-05")):
        assert np.shares_memory(split.train[0], LOG.items)
        assert np.shares_memory(split.test.history(0), LOG.items)


def test_by_time() -> None:
    split = by_time(LOG, "1970-01-10")  # day 9
    assert [split.train[k].tolist() for k in range(len(split.train))] == [[0, 1, 2, 3], [4], [6], [9]]
    found = [
        (int(split.test.users[k]), split.test.history(k).tolist(), split.test.answer(k)) for k in range(len(split.test))
    ]
    assert found == [(1, [4], 5), (2, [6], 7), (2, [6, 7], 8)]
    assert len(split.valid) == 0
    once = by_time(LOG, "1970-01-10", first_only=True)
    assert once.test.answers().tolist() == [5, 7]


def test_by_time_with_validation() -> None:
    split = by_time(LOG, datetime(1970, 1, 10), "1970-01-04")
    assert [split.train[k].tolist() for k in range(len(split.train))] == [[0, 1], [4], [9]]
    assert [(split.valid.history(k).tolist(), split.valid.answer(k)) for k in range(len(split.valid))] == [
        ([0, 1], 2),
        ([0, 1, 2], 3),
    ]
    with pytest.raises(SettingsError, match="must not lie after"):
        by_time(LOG, "1970-01-04", "1970-01-10")


def test_by_time_needs_times_and_a_past() -> None:
    with pytest.raises(SettingsError, match="no times"):
        by_time(lrurec.load_events(pl.DataFrame({"user": [1, 1], "item": [1, 2]})), "2020-01-01")
    with pytest.raises(NothingLeftError, match="choose a later moment"):
        by_time(LOG, "1960-01-01")
    with pytest.raises(NothingLeftError, match="choose an earlier moment"):
        by_time(LOG, date(2030, 1, 1))
    with pytest.raises(SettingsError, match="is not a date"):
        by_time(LOG, 5)  # type: ignore[arg-type]


events = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 12)), min_size=2, max_size=50)


@given(events, st.integers(0, 13), st.integers(0, 5))
def test_no_event_of_the_future_trains(rows: list[tuple[int, int, int]], day: int, gap: int) -> None:
    rows = [*rows, (9, 0, 0), (9, 1, 1)]
    frame = pl.DataFrame([(u, i, t * DAY) for u, i, t in rows], schema=["user", "item", "time"], orient="row")
    log = lrurec.load_events(frame)
    assert log.times is not None
    test_from, valid_from = datetime(1970, 1, 1 + day), datetime(1970, 1, 1 + max(day - gap, 0))
    if day - gap <= 0 or max(t for _, _, t in rows) < day:
        with pytest.raises(NothingLeftError):
            by_time(log, test_from, valid_from)
        return
    split = by_time(log, test_from, valid_from)
    trained = {p for a, b in zip(split.train.starts, split.train.stops, strict=True) for p in range(a, b)}
    early = {int(p) for p in np.flatnonzero(log.times < (day - gap) * DAY * 10**6)}
    assert trained == early
    late = {int(p) for p in np.flatnonzero(log.times >= day * DAY * 10**6)} - set(log.offsets[:-1].tolist())
    assert set(split.test.positions.tolist()) == late
    middle = set(range(log.n_events)) - early - {int(p) for p in np.flatnonzero(log.times >= day * DAY * 10**6)}
    assert set(split.valid.positions.tolist()) == middle - set(log.offsets[:-1].tolist())


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 12))
def test_user_blocks_cover_everybody_once(lengths: list[int], size: int) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    found = list(user_blocks(offsets, size))
    assert [a for a, _ in found] == [0, *[b for _, b in found[:-1]]] and found[-1][1] == len(lengths)
    for first, last in found:
        assert offsets[last] - offsets[first] <= size or last == first + 1
