"""The made-up world: exact sizes, same seed same log, and structure that rewards a memory."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import lrurec
from conftest import Run
from lrurec import Dataset, leave_last_out
from lrurec.data import synthetic
from lrurec.data.synthetic import PRESETS, THREADS, World, item_names, log, preset
from lrurec.errors import SettingsError

SAMPLE_HEAD = [(1635, 973, 1611868406), (2178, 812, 1623096171), (2091, 220, 1640985976)]
SAMPLE_SUM = 71_249_830


def frame(world: World) -> pl.DataFrame:
    return pl.concat(list(log(world)))


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 900), st.floats(0, 2), st.integers(0, 9))
def test_sizes_are_exact(users: int, items: int, more: int, spread: float, seed: int) -> None:
    world = World(users, items, users + more, seed, spread)
    made = frame(world)
    assert len(made) == world.events
    assert made["user_id"].n_unique() == users
    assert made["item_id"].is_between(1, items).all()
    if world.events >= 10 * items:
        assert made["item_id"].n_unique() == items


def test_same_seed_same_log(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(50, 40, 900, seed=3)
    assert frame(world).equals(frame(world))
    assert not frame(world).equals(frame(World(50, 40, 900, seed=4)))
    monkeypatch.setattr(synthetic, "_ROWS", 10)  # how rows are handed on does not matter
    assert frame(world).equals(frame(World(50, 40, 900, seed=3)))


def test_sample_is_the_log_it_was() -> None:
    """Numbers in the docs are made on this log: a change of it must be meant."""
    made = frame(PRESETS["sample"])
    assert made.shape == (120_000, 3)
    assert made.head(3).rows() == SAMPLE_HEAD
    assert int(made["item_id"].sum()) == SAMPLE_SUM


def test_xlong_has_the_shape_of_xlong() -> None:
    world = preset("xlong")
    assert (world.users, world.items, world.events) == (69_691, 2_122_932, 66_800_000)
    small = World(70, 2000, 67_000, world.seed, world.spread)
    lengths = frame(small).group_by("user_id").len()["len"]
    assert lengths.min() > 800 and lengths.max() < 1100  # type: ignore[operator]


@pytest.fixture(scope="module")
def sample() -> Dataset:
    return lrurec.load_events(frame(PRESETS["sample"]))


def test_popularity_has_a_long_tail(sample: Dataset) -> None:
    counts = np.sort(np.bincount(sample.items))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.3 * counts.sum()
    assert counts[len(counts) // 2 :].sum() < 0.3 * counts.sum()


def test_lengths_vary(sample: Dataset) -> None:
    lengths = np.diff(sample.offsets)
    assert lengths.min() >= 2 and np.percentile(lengths, 95) > 4 * np.percentile(lengths, 25)


def test_ids_say_nothing(sample: Dataset) -> None:
    """Neighbours ascend in id half of the time: nothing can be learned from the order of ids."""
    steps = np.diff(sample.items.astype(np.int64))
    inside = np.ones(len(steps), np.bool_)
    inside[sample.offsets[1:-1] - 1] = False
    share = (steps[inside] > 0).sum() / (steps[inside] != 0).sum()
    assert abs(share - 0.5) < 0.03


def recall(scores: "NDArray[np.float64]", history: "NDArray[np.int32]", answer: int, k: int = 10) -> bool:
    scores = scores.copy()
    scores[history] = -np.inf
    return bool((scores >= scores[answer]).sum() <= k) and bool(np.isfinite(scores[answer]))


def test_memory_beats_popularity_and_a_markov_chain(sample: Dataset) -> None:
    """Counts of `b follows a after THREADS steps` know what comes next; popularity and the last item do not."""
    split = leave_last_out(sample)
    n = sample.n_items
    popular = np.zeros(n)
    follows, continues = np.zeros((n, n)), np.zeros((n, n))
    for k in range(len(split.train)):
        h = split.train[k]
        np.add.at(popular, h, 1)
        np.add.at(follows, (h[:-1], h[1:]), 1)
        if len(h) > THREADS:
            np.add.at(continues, (h[:-THREADS], h[THREADS:]), 1)
    hits = np.zeros(3)
    for k in range(len(split.test)):
        h, answer = split.test.history(k), split.test.answer(k)
        memory = continues[h[-THREADS]] if len(h) >= THREADS else popular
        tie_break = 1e-9 * popular
        hits += [recall(s + tie_break, h, answer) for s in (popular, follows[h[-1]], memory)]
    by_popularity, by_markov, by_memory = hits / len(split.test)
    assert by_markov > by_popularity
    assert by_memory > 2.5 * by_markov


def test_taste_drifts(sample: Dataset) -> None:
    """The topics of a long history's first quarter differ from those of its last."""
    names = item_names(PRESETS["sample"]).sort("item_id")
    topic = names["topic"].rank("dense").to_numpy().astype(np.int64)
    near, far = [], []
    for u in range(sample.n_users):
        h = topic[sample.items[sample.offsets[u] : sample.offsets[u + 1]]]
        if len(h) >= 100:
            quarters = [set(q.tolist()) for q in np.array_split(h, 4)]
            near.append(len(quarters[0] & quarters[1]) / len(quarters[0] | quarters[1]))
            far.append(len(quarters[0] & quarters[3]) / len(quarters[0] | quarters[3]))
    assert np.mean(far) < np.mean(near)


def test_names(sample: Dataset) -> None:
    names = item_names(PRESETS["sample"])
    assert names["item_id"].to_list() == list(range(1, 1201))
    assert names["title"].n_unique() == 1200
    many = item_names(World(10, 30_000, 100))
    assert many["title"].n_unique() == 30_000


def test_commands(tmp_path: Path, run: Run) -> None:
    size = ["--users", "30", "--items", "20", "--events", "1e3", "--seed", "5"]
    made = {}
    for name in ("a.parquet", "a.csv", "a.csv.gz", "a.csv.zst", "a.tsv", "a.jsonl"):
        done = run("data", "synth", *size, "--out", tmp_path / name, "--names", tmp_path / "names.csv")
        assert done.code == 0 and "30 users, 20 items, 1,000 events" in done.out
        made[name] = lrurec.load_events(tmp_path / name, item_names=tmp_path / "names.csv").events()
    first = made.popitem()[1]
    assert len(first) == 1000 and all(other.equals(first) for other in made.values())
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "a.xlsx"], ".parquet, .csv, .tsv or .jsonl"),
        (["--out", "a.csv", "--preset", "smaple"], "did you mean 'sample'"),
        (["--out", "a.csv", "--events", "10"], "too few"),
        (["--out", "a.csv", "--users", "1.5"], "whole number"),
        (["--out", "a.csv", "--names", "./a.csv"], "same file"),
        (["--out", "a.csv", "--spread", "-1"], "between 0 and 5"),
        (["--out", "/proc/nowhere/a.csv"], "cannot be written"),
        (["--out", "/proc/nowhere/a.parquet"], "cannot be written"),
    ],
)
def test_wrong_words(run: Run, arguments: list[str], words: str) -> None:
    done = run("data", "synth", *arguments)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1


def test_impossible_worlds() -> None:
    with pytest.raises(SettingsError):
        World(0, 1, 1)
