"""Time between events as an input of the model: what it is, where it goes, and that the answer's own never does."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import lrurec
from conftest import Run
from lrurec.data.batches import Windows, pack_histories
from lrurec.data.dataset import Dataset
from lrurec.data.split import gaps_between, gaps_of, leave_last_out
from lrurec.evaluation.ranking import histories
from lrurec.models.base import Batch, Sizes
from lrurec.models.lrurec import LRURec, LRURecConfig
from lrurec.training.run import Run as RunFolder

HOUR = 3600
SMALL = ["model.gaps=true", "model.width=8", "model.channels=8", "training.max_length=20", "training.steps=200"]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]


def frame(users: int = 60, events: int = 8) -> pl.DataFrame:
    """What comes next depends on the time since the event before alone: behind a short gap item 1, behind a long one item 0."""
    rng, rows = np.random.default_rng(0), []
    for user in range(users):
        now, item = 0, int(rng.integers(2))
        for _ in range(events):
            gap = HOUR * 1000 if rng.random() < 0.5 else 1
            now += gap
            rows.append((user, item, now))
            item = 0 if gap > 1 else 1
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


@pytest.fixture
def timed(tmp_path: Path) -> Dataset:
    lrurec.load_events(frame(), out=tmp_path / "timed")
    return Dataset.open(tmp_path / "timed")


def test_a_gap_is_the_power_of_two_of_its_seconds() -> None:
    seconds = np.array([0, 0, 1, 3, 6, 13, 13 + 2**20, 2**40])
    assert gaps_between(seconds * 1_000_000).tolist() == [0, 1, 2, 2, 3, 4, 21, 31]
    assert gaps_between(np.array([5, 400_000, 900_000])).tolist() == [0, 1, 1]
    assert gaps_between(np.zeros(0, np.int64)).tolist() == []


def test_gaps_are_those_of_each_person(timed: Dataset) -> None:
    gaps = gaps_of(timed)
    assert timed.times is not None
    for user in range(timed.n_users):
        span = slice(timed.offsets[user], timed.offsets[user + 1])
        assert gaps[span].tolist() == gaps_between(timed.times[span]).tolist()


def test_gaps_lie_beside_their_inputs(timed: Dataset) -> None:
    split = leave_last_out(timed).with_gaps(timed)
    gaps, windows = gaps_of(timed), Windows.of(split.train, 3)
    for w in range(len(windows)):
        packed = windows.pack(np.array([w]))
        wanted = gaps[max(windows.starts[w] - 1, 0) : windows.stops[w] - 1]
        if windows.opens[w]:  # the start of a history is no event
            wanted = np.concatenate([[0], gaps[windows.starts[w] : windows.stops[w] - 1]])
        assert packed.gaps is not None and packed.gaps.tolist() == wanted.tolist()
    batch = histories(split.test, 0, 3, 4, "cpu")
    ends = split.test.positions[:3]
    assert batch.gaps is not None
    assert batch.gaps.tolist() == np.concatenate([gaps[e - 4 : e] for e in ends]).tolist()


def test_an_empty_history_has_no_gap() -> None:
    packed = pack_histories(
        np.array([4, 5], np.int32), np.array([0, 2]), np.array([2, 2]), 5, None, np.array([7, 9], np.uint8)
    )
    assert packed.inputs.tolist() == [5, 6, 0] and packed.gaps is not None and packed.gaps.tolist() == [7, 9, 0]


def model(mixer: str = "lru") -> LRURec:
    made = LRURec(
        Sizes(9), LRURecConfig(width=8, gaps=True, mixer=mixer, dropout=0.0), torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        made.gaps.normal_(generator=torch.Generator().manual_seed(1))
    return made


@pytest.mark.parametrize("mixer", ["lru", "s4", "rwkv"])
def test_stepping_is_encoding(mixer: str) -> None:
    made, rng = model(mixer), torch.Generator().manual_seed(2)
    inputs, gaps = torch.randint(1, 10, (12,), generator=rng), torch.randint(0, 32, (12,), generator=rng)
    whole = made.encode(Batch(inputs, torch.tensor([0, 12]), gaps=gaps))
    state = made.initial_state(1)
    for k in range(12):
        state, hidden = made.step(state, inputs[k : k + 1], gaps[k : k + 1])
        assert torch.allclose(hidden[0], whole[k], atol=1e-5)
    without = made.encode(Batch(inputs, torch.tensor([0, 12])))
    zeros = made.encode(Batch(inputs, torch.tensor([0, 12]), gaps=torch.zeros_like(gaps)))
    assert torch.equal(without, zeros) and not torch.allclose(without, whole, atol=1e-2)


def test_no_position_sees_a_gap_behind_it() -> None:
    made = model()
    inputs, gaps = torch.arange(1, 8), torch.arange(7)
    before = made.encode(Batch(inputs, torch.tensor([0, 7]), gaps=gaps))
    gaps = gaps.clone()
    gaps[4] = 20
    after = made.encode(Batch(inputs, torch.tensor([0, 7]), gaps=gaps))
    assert torch.equal(before[:4], after[:4]) and not torch.allclose(before[4], after[4])


def test_the_time_of_the_answer_is_no_input(timed: Dataset) -> None:
    made, asked = model(), leave_last_out(timed).with_gaps(timed).test

    def scores() -> torch.Tensor:
        return made.scores(histories(asked, 0, len(asked), 20, "cpu"))

    first = scores()
    gaps = asked.gaps
    assert gaps is not None
    gaps[asked.positions] = 31  # answers happen at another time
    assert torch.equal(scores(), first)
    gaps[asked.positions - 1] = 31  # the newest event of each history does
    assert not torch.allclose(scores(), first)


def test_it_is_learned_evaluated_and_recommended_with(timed: Dataset, tmp_path: Path, run: Run) -> None:
    assert timed.path is not None
    out = tmp_path / "run"
    done = run("train", timed.path, "--out", out, "--recipe", "fast", *SETTINGS)
    assert done.code == 0, done.err
    opened = RunFolder.open(out)
    assert float(opened.model().gaps.detach().abs().max()) > 0.01  # type: ignore[operator]
    recommender = lrurec.Recommender.of_run(out)
    users = list(range(40))
    found = recommender.recommend(users, k=1, filter_seen=False)["item"].to_list()
    last = [gaps_between(timed.times[timed.offsets[u] : timed.offsets[u + 1]])[-1] for u in users]  # type: ignore[index]
    assert np.mean([f == (0 if g > 2 else 1) for f, g in zip(found, last, strict=True)]) > 0.95
    assert run("evaluate", out).code == 0 and run("compare", out, out).code == 0
    refused = run("export", out, "--out", tmp_path / "artifact")
    assert refused.code == 2 and "model.gaps" in refused.err and "Traceback" not in refused.err


def test_a_log_without_times_is_refused(tmp_path: Path, run: Run) -> None:
    lrurec.load_events(frame().drop("time"), out=tmp_path / "plain")
    done = run("train", tmp_path / "plain", "--out", tmp_path / "run", *SETTINGS)
    assert done.code == 2 and "no times" in done.err and not (tmp_path / "run").exists()
