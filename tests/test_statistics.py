"""The numbers of `describe`, on a log where they can be counted by hand, and block by block."""

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrurec
from conftest import Run
from lrurec.data.dataset import Dataset, user_blocks
from lrurec.data.statistics import statistics

LOG = pl.DataFrame(
    {
        "user": [1, 1, 1, 1, 2, 2, 2, 3],
        "item": ["a", "a", "b", "a", "a", "b", "z", "a"],
        "time": [1, 1, 2, 3, 5, 6, 6, 9],
    }
)


def test_by_hand() -> None:
    s = statistics(lrurec.load_events(LOG))
    assert (s.users, s.items, s.interactions) == (3, 3, 8)
    assert s.mean_length == pytest.approx(8 / 3)
    assert s.density == pytest.approx(8 / 9)
    assert s.length_quantiles["max"] == 4 and s.popularity_quantiles["min"] == 1
    assert s.length_histogram == [(1, 1, 1), (2, 3, 1), (4, 7, 1)]
    assert s.popularity_histogram == [(1, 1, 1), (2, 3, 1), (4, 7, 1)]
    assert s.top_tenth_share == pytest.approx(5 / 8)
    assert s.repeat_share == pytest.approx(2 / 8)
    assert s.immediate_repeat_share == pytest.approx(1 / 5)
    assert s.tie_share == pytest.approx(2 / 5)
    assert (s.first_time, s.last_time) == (1_000_000, 9_000_000)
    assert (s.single_event_users, s.train_only_users, s.test_users) == (1, 1, 2)
    assert (s.cold_test_items, s.cold_test_share) == (1, 0.5)  # z never occurs in training


def test_without_times() -> None:
    s = statistics(lrurec.load_events(LOG.drop("time")))
    assert s.tie_share is None and s.first_time is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40))
def test_blocks_do_not_matter(rows: list[tuple[int, int, int]]) -> None:
    frame = pl.DataFrame([*rows, (0, 0, 0), (0, 1, 0)], schema=["user", "item", "time"], orient="row")
    dataset = lrurec.load_events(frame)
    whole = statistics(dataset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "user_blocks", lambda self: user_blocks(self.offsets, 3))
        assert statistics(dataset) == whole


def test_describe(tmp_path: Path, run: Run) -> None:
    lrurec.load_events(LOG, out=tmp_path / "d")
    told = run("data", "describe", tmp_path / "d")
    assert told.code == 0
    for words in (
        "users",
        "mean length",
        "density",
        "users by length",
        "cold test items: 1 of 2",
        "time ties: 40.0%",
    ):
        assert words in told.out
    assert json.loads(run("data", "describe", tmp_path / "d", "--json").out)["interactions"] == 8
    lrurec.load_events(LOG.drop("time"), out=tmp_path / "e")
    assert "the log has no times" in run("data", "describe", tmp_path / "e").out
