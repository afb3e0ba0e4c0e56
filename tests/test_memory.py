"""The transition memory: counted, looked up, weighed, ranked with and served, each against a slow and obvious twin."""

import json
import math
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import lrurec
from conftest import Run
from lrurec.data.dataset import LogSize
from lrurec.data.split import Sequences, Split, Targets, leave_last_out
from lrurec.errors import FolderError, SettingsError
from lrurec.evaluation import ranking
from lrurec.evaluation.candidates import Candidates
from lrurec.kernels.recall import INPUTS
from lrurec.memory import transitions
from lrurec.memory.memory import Memory, Weights
from lrurec.memory.transitions import MemoryConfig, Transitions
from lrurec.models.base import Batch, Sizes
from lrurec.models.lrurec import LRURec, LRURecConfig
from lrurec.serving.service import Answer, Live
from lrurec.training.checkpoint import load_checkpoint
from lrurec.training.config import BEST, PASSES, config_for
from lrurec.training.learner import Learner, build
from lrurec.training.remembering import hold_back, remember
from lrurec.training.run import Run as RunFolder
from lrurec.training.trainer import BEST as BEST_FILE
from lrurec.training.trainer import LAST, MEMORY, Trainer, validations

logs = st.lists(st.lists(st.integers(0, 7), max_size=9), max_size=6)


def packed(log: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    ends = np.cumsum([len(s) for s in log]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(log)]
    return np.array([i for s in log for i in s], np.int32), starts, ends


def counted(log: list[list[int]], n: int = 8, **settings: float) -> Transitions:
    return Transitions.count(*packed(log), n, MemoryConfig(**settings))  # type: ignore[arg-type]


def pairs_of(log: list[list[int]], window: int, decay: float) -> dict[tuple[int, int], list[float]]:
    """(a, b) to after, before, around, by looking at every pair of places."""
    sums: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for s in log:
        for i, a in enumerate(s):
            for j, b in enumerate(s):
                if i != j and abs(i - j) <= window:
                    sums[a, b][0 if j > i else 1] += decay ** (abs(i - j) - 1)
                    sums[a, b][2] += 1
    counts = Counter(i for s in log for i in s)
    return {
        (a, b): [x / counts[a] ** 0.3, y / counts[b] ** 0.3, z / counts[a] ** 0.5] for (a, b), (x, y, z) in sums.items()
    }


@given(log=logs, window=st.integers(1, 4), together=st.integers(1, 40))
def test_counting_is_looking_at_every_pair(log: list[list[int]], window: int, together: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "_TOGETHER", together)
        found = counted(log, window=window, decay=0.5)
    assert found.counts.tolist() == [sum(s.count(i) for s in log) for i in range(8)]
    mine = {
        (a, int(found.items[k])): found.values[k].tolist()
        for a in range(8)
        for k in range(found.starts[a], found.starts[a + 1])
    }
    expected = pairs_of(log, window, 0.5)
    assert mine.keys() == expected.keys()
    for pair, values in expected.items():
        assert np.allclose(mine[pair], values, rtol=1e-5)


def test_a_row_keeps_its_heaviest_pairs_and_all_rows_a_bound() -> None:
    log = [[0, 1]] * 5 + [[0, 2]] * 3 + [[0, 3]] * 4 + [[0, 4]]
    for settings_ in ({"row": 2}, {"pairs": 16}):  # 8 items
        found = counted(log, **settings_)
        assert found.items[found.starts[0] : found.starts[1]].tolist() == [1, 3]
        assert np.diff(found.starts).max() <= 2
    assert counted([]).items.size == 0 and counted([[5]]).items.size == 0


def recalled(log: list[list[int]], history: list[int], window: int, decay: float) -> dict[int, list[float]]:
    pairs, counts = pairs_of(log, window, decay), Counter(i for s in log for i in s)
    found: dict[int, list[float]] = defaultdict(lambda: [0.0] * 7)
    for back, a in enumerate(reversed(history[-window:])):
        for (source, b), (after, before, around) in pairs.items():
            if source == a:
                found[b][0] += decay**back * after
                found[b][1] += decay**back * before
                found[b][2] += around
                found[b][3] += around / counts[a] ** 0.5
                if back < 3:
                    found[b][4 + back] += after
    return found


@given(log=logs, history=st.lists(st.integers(0, 7), max_size=8), window=st.integers(1, 4))
def test_a_history_brings_to_mind_what_its_last_items_do(log: list[list[int]], history: list[int], window: int) -> None:
    memory = counted(log, window=window, decay=0.7)
    expected = recalled(log, history, window, 0.7)
    for _ in range(2):  # the scratch is left as it was
        items, features = memory.recall(np.array(history, np.int64))
        assert sorted(items.tolist()) == sorted(expected)
        for item, values in zip(items.tolist(), features, strict=True):
            assert np.allclose(values, expected[item], rtol=1e-4)


def weights(seed: int = 0, units: int = 5) -> Weights:
    rng = np.random.default_rng(seed)
    return Weights(
        *(rng.normal(size=shape).astype(np.float32) for shape in ((INPUTS, units), (units,), (units,), (1,)))
    )


def added_to(
    memory: Memory,
    history: list[int],
    hidden: NDArray[np.float32],
    table: NDArray[np.float32],
    bias: NDArray[np.float32],
) -> NDArray[np.float64]:
    """[V]: what the memory adds, in plain numpy."""
    total = np.zeros(len(bias))
    w, t = memory.weights, memory.transitions
    last = history[-t.window :]
    items, features = t.recall(np.array(history, np.int64))

    def popular(b: int) -> float:
        return math.log(max(int(t.counts[b]), 1))

    def alike(a: int, b: int) -> float:
        return float(table[a] @ table[b] / np.sqrt((table[a] @ table[a]) * (table[b] @ table[b])))

    scores = table @ hidden + bias
    best = max((float(scores[b]) for b in items.tolist() if b not in last), default=None)
    for b, evidence in zip(items.tolist(), features, strict=True):
        near = [alike(a, b) for a in last[-10:]]
        x = [
            *(math.log(e + 1e-3) for e in evidence),
            popular(b),
            scores[b],
            0.0 if best is None else scores[b] - best,
            max(near),
            near[-1],
            math.log(len(last)),
            popular(last[-1]),
        ]
        total[b] = np.maximum(np.array(x) @ w.w1 + w.b1, 0) @ w.w2 + w.b2[0]
    return total


@given(log=logs, history=st.lists(st.integers(0, 7), max_size=8), seed=st.integers(0, 9))
def test_weighing_is_the_formula(log: list[list[int]], history: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, bias, hidden = (rng.normal(size=s).astype(np.float32) for s in ((8, 6), (8,), (6,)))
    memory = Memory(counted(log), weights(seed))
    items, scores, more = memory.added(np.array(history, np.int64), hidden, table, bias)
    expected = added_to(memory, history, hidden, table, bias)
    assert np.allclose(scores, table[items] @ hidden + bias[items], atol=1e-5)
    assert np.allclose(more, expected[items], rtol=1e-4, atol=1e-4)
    again = Memory.of(memory.arrays(), 8).added(np.array(history, np.int64), hidden, table, bias)
    assert all(np.array_equal(a, b) for a, b in zip((items, scores, more), again, strict=True))


@given(
    first=st.lists(st.tuples(st.integers(0, 30), st.integers(-3, 3)), unique_by=lambda p: p[0]),
    second=st.lists(st.tuples(st.integers(31, 60), st.integers(-3, 3), st.integers(-2, 2)), unique_by=lambda p: p[0]),
    gone=st.lists(st.integers(0, 60)),
    k=st.integers(1, 8),
)
def test_merging_is_sorting(
    first: list[tuple[int, int]], second: list[tuple[int, int, int]], gone: list[int], k: int
) -> None:
    memory = Memory(counted([[0]], n=61), weights())
    first = sorted((p for p in first if p[0] not in gone), key=lambda p: (-p[1], p[0]))[:k]
    left = [(i, s) for i, s in first] + [(i, s + m) for i, s, m in second if i not in gone]
    expected = sorted(left, key=lambda p: (-p[1], p[0]))[:k]
    for _ in range(2):  # the marks are left as they were
        items, scores = memory.best(
            (np.array([p[0] for p in first], np.int64), np.array([p[1] for p in first], np.float32)),
            (
                np.array([p[0] for p in second], np.int32),
                np.array([p[1] for p in second], np.float32),
                np.array([p[2] for p in second], np.float32),
            ),
            np.array(gone, np.int64),
            k,
        )
        assert list(zip(items.tolist(), scores.tolist(), strict=True)) == expected


def remembering(log: list[list[int]], n: int) -> LRURec:
    model = LRURec(Sizes(n), LRURecConfig(width=8, channels=4), torch.Generator().manual_seed(3))
    model.memory = Memory(counted(log, n), weights())
    return model


def targets_of(log: list[list[int]]) -> Targets:
    items, starts, stops = packed(log)
    return Targets(items, np.arange(len(log), dtype=np.int32), starts, stops - 1)


@settings(max_examples=30)
@given(log=st.lists(st.lists(st.integers(0, 19), min_size=2, max_size=9), min_size=1, max_size=6))
def test_every_way_to_rank_adds_the_same(log: list[list[int]]) -> None:
    model, targets = remembering(log, 20), targets_of(log)
    memory = model.memory
    assert memory is not None
    with torch.no_grad():
        table, bias = (t.numpy() for t in model.item_table())
    expected, best = [], []
    for s in log:
        history, answer = s[:-1], s[-1]
        with torch.no_grad():
            batch = Batch(torch.tensor(history) + 1, torch.tensor([0, len(history)]))
            hidden = model.last(batch)[0].numpy()
            assert np.allclose(
                model.scores(batch)[0].numpy(),
                table @ hidden + bias + added_to(memory, history, hidden, table, bias),
                atol=1e-3,
            )
            scores = model.scores(batch)[0].double().numpy()
        scores[history] = -np.inf
        expected.append(int((scores >= scores[answer] - 1e-5).sum()) - 1)
        best.append(set(np.argsort(-scores, kind="stable")[:2].tolist()))
    among = ranking.rank(model, targets, 50, candidates=Candidates(19, 0)).ranks
    vectors = ranking.vectors_of(model, targets, 50)
    again = ranking.rank(model, targets, 50, candidates=Candidates(19, 0), vectors=vectors).ranks
    assert (again == among).all()
    for large in (1 << 17, 1):  # score tables, tiles
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranking, "_LARGE", large)
            found = ranking.rank(model, targets, 50, top=2)
            again = ranking.rank(model, targets, 50, vectors=vectors).ranks
            assert (again == found.ranks).all()
        seen = np.array([s[-1] in s[:-1] for s in log])
        assert (np.abs(found.ranks - np.array(expected))[~seen] <= 0).all()
        assert [set(row.tolist()) for row in found.recommended] == best
        assert (np.abs(among - found.ranks)[~seen] <= len(log[0])).all()


def test_what_is_held_back_is_training_data_alone() -> None:
    rows = [(u, (3 * u + k * k) % 50) for u in range(60) for k in range(3 + u % 30)]
    dataset = lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"))
    split = leave_last_out(dataset)
    kept, held = hold_back(split.train, 0.1, 7)
    assert len(held) and len(held) <= 0.1 * split.train.n_events
    assert kept.n_events + len(held) == split.train.n_events
    last_trained = dict(zip(split.train.users.tolist(), split.train.stops.tolist(), strict=True))
    last_kept = dict(zip(kept.users.tolist(), kept.stops.tolist(), strict=True))
    for user, start, position in zip(held.users.tolist(), held.starts, held.positions, strict=True):
        assert last_kept[user] <= position < last_trained[user]
        assert last_kept[user] - start >= 2  # something is left to learn from
    again = hold_back(split.train, 0.1, 7)[1]
    assert np.array_equal(held.positions, again.positions)
    assert not np.array_equal(held.positions, hold_back(split.train, 0.1, 8)[1].positions)
    short = Sequences(dataset.items, split.train.users, split.train.starts, split.train.starts + 2)
    assert not len(hold_back(short, 0.5, 0)[1])


SMALL = [
    "model.width=16", "model.channels=16", "training.steps=8", "training.validate_every=4", "training.batch=16",
    "memory.use=true", "memory.held_back=0.2",
]  # fmt: skip


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 items in chains that people follow from anywhere: counts know it at once, a model after a long time."""
    rng = np.random.default_rng(0)
    rows = [(u, f"i{(at + k) % 400:03}") for u, at in enumerate(rng.integers(0, 400, 300)) for k in range(9)]
    folder = tmp_path_factory.mktemp("chains")
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=folder / "dataset")
    dataset = lrurec.Dataset.open(folder / "dataset")
    config = config_for("fast", None, SMALL)
    made = RunFolder.create(folder / "run", dataset, config)
    Trainer(dataset, leave_last_out(dataset), made.config, folder / "run").train()
    return folder


def test_it_knows_what_the_model_has_not_learned_yet(chains: Path) -> None:
    run = RunFolder.open(chains / "run")
    dataset = lrurec.Dataset.open(chains / "dataset")
    trainer = Trainer(dataset, leave_last_out(dataset), run.config, chains / "run")
    trainer.resume()
    result = trainer.result(run.model())
    assert result["test"]["recall@10"] > 0.9 > 0.3 > result["without_memory"]["test"]["recall@10"]
    assert result["valid"]["ndcg@10"] > result["without_memory"]["valid"]["ndcg@10"]
    for checkpoint in ("best", "last"):
        model = run.model(checkpoint)
        assert isinstance(model, LRURec) and model.memory is not None


def test_rare_answers_may_weigh_more() -> None:
    """After one of 20 items six of ten take the hub, four its own partner: whom to name first is a matter of what counts."""
    rng, hub = np.random.default_rng(0), 40
    first = rng.integers(0, 20, 2000)
    log = np.stack([rng.integers(41, 60, 2000), first, np.where(rng.random(2000) < 0.6, hub, first + 20)], 1)
    starts = np.arange(0, log.size, 3)
    train = Sequences(log.ravel().astype(np.int32), np.arange(2000, dtype=np.int32), starts, starts + 3)
    model = build(60, 2000, config_for("fast", None, SMALL))
    assert isinstance(model, LRURec)
    table, bias = (t.detach().numpy() for t in model.item_table())
    named = {}
    for rare in (0.0, 1.0):
        memory = remember(model, train, MemoryConfig(use=True, held_back=0.3, rare=rare), 50, 0)
        best = []
        for a in range(20):
            items, scores, more = memory.added(np.array([50, a]), np.zeros(16, np.float32), table, bias)
            best.append(int(items[np.argmax(scores + more)]) - a)
        named[rare] = best
    assert sum(b == 20 for b in named[1.0]) >= 18  # its partner
    assert sum(hub - b == a for a, b in enumerate(named[0.0])) >= 18  # the hub


def test_stopped_while_it_remembers_and_continued_is_the_same(chains: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(chains / "run", folder)
    (folder / MEMORY).unlink()
    run, dataset = RunFolder.open(folder), lrurec.Dataset.open(chains / "dataset")
    trainer = Trainer(dataset, leave_last_out(dataset), run.config, folder)
    trainer.resume()
    trainer.train()
    before, after = (load_checkpoint(f / MEMORY)[0] for f in (chains / "run", folder))
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)


FINISHED = [*SMALL, "training.finish=6", "training.finish_rate=0.01"]


def test_the_last_steps_learn_from_what_was_held_back(chains: Path) -> None:
    dataset = lrurec.Dataset.open(chains / "dataset")
    split = leave_last_out(dataset)
    kept, held = hold_back(split.train, 0.2, 0)
    config = config_for("fast", None, [*FINISHED, "training.steps=40"])
    learner = Learner(dataset.n_items, dataset.n_users, kept, config, split.train)
    assert learner.steps == 46 and len(held) > 50

    def learned_from(first: int, windows: int) -> int:
        batches = -(-windows // 16)
        return sum(learner.step(k)[1] for k in range(first, first + batches))

    assert learned_from(0, len(learner.windows)) == kept.n_events
    assert learner.whole is not None
    assert learned_from(40, len(learner.whole)) == split.train.n_events


@pytest.mark.parametrize("stops", [[5, 9], [8, 11]])
def test_a_finish_that_is_stopped_and_continued_is_the_same(chains: Path, tmp_path: Path, stops: list[int]) -> None:
    dataset = lrurec.Dataset.open(chains / "dataset")

    def train(folder: Path, stops: list[int]) -> None:
        folder.mkdir()
        for stop in [*stops, 1000]:
            trainer = Trainer(dataset, leave_last_out(dataset), config_for("fast", None, FINISHED), folder)
            if (folder / LAST).exists():
                trainer.resume()
            trainer.train(lambda p: setattr(trainer, "interrupted", p.step == stop))  # noqa: B023

    train(tmp_path / "whole", [])
    train(tmp_path / "part", stops)
    for file in (LAST, MEMORY):
        a, b = (load_checkpoint(tmp_path / name / file)[0] for name in ("whole", "part"))
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    steps = [row["step"] for row in validations(tmp_path / "part")]
    assert steps == [4, 8, 12, 14]


def test_it_is_served_as_it_ranks(chains: Path, tmp_path: Path, run: Run) -> None:
    assert run("export", chains / "run", "--out", tmp_path / "artifact").code == 0
    live = Live(tmp_path / "artifact", tmp_path / "store")
    assert live.artifact.memory is not None
    rec = lrurec.Recommender.of_run(chains / "run")
    some = [["i003", "i004"], ["i399"], ["i100", "i003", "i250", "i251"], ["i007"] * 3]
    for filter_seen in (True, False):
        frame = rec.recommend(histories=some, k=7, filter_seen=filter_seen, deny=["i252"])
        for k, history in enumerate(some):
            expected = frame.filter(pl.col("history") == k)
            found = live.recommend_for(history, 7, filter_seen=filter_seen, deny=["i252"])
            assert [r.item for r in found] == expected["item"].to_list()
            assert np.allclose([r.score for r in found], expected["score"].to_list(), atol=1e-4)
    only = live.recommend_for(["i003", "i004"], 7, allow=["i005", "i200"])
    assert {r.item for r in only} == {"i005", "i200"}
    for item in ("i003", "i004"):
        live.observe("ann", item)
    assert live.recommend("ann", 7) == live.recommend_for(["i003", "i004"], 7)
    queries = [live.query("ann", None, 7, True, None, None), live.query(None, some[2], 3, True, None, None)]
    answers = live.answer(queries)
    for answer, alone in zip(answers, (live.recommend("ann", 7), live.recommend_for(some[2], 3)), strict=True):
        assert isinstance(answer, Answer) and [r.item for r in answer.lines] == [r.item for r in alone]


def test_a_model_of_another_mixer_is_served_with_it(chains: Path, tmp_path: Path, run: Run) -> None:
    settings_ = [x for s in SMALL if "channels" not in s for x in ("--set", s)] + ["--set", "model.mixer=rwkv"]
    made = run("train", chains / "dataset", "--out", tmp_path / "run", *settings_)
    assert made.code == 0 and "without the memory" in made.out
    assert run("export", tmp_path / "run", "--out", tmp_path / "artifact").code == 0
    live, rec = (
        Live(tmp_path / "artifact", tmp_path / "store"),
        lrurec.Recommender.of_run(tmp_path / "run"),
    )
    history = [f"i{k:03}" for k in range(40)]  # long enough to be encoded, not stepped
    for some in (history, history[:3]):
        expected = rec.recommend(histories=[some], k=5)
        assert [r.item for r in live.recommend_for(some, 5)] == expected["item"].to_list()


def test_mistakes(chains: Path, tmp_path: Path, run: Run) -> None:
    for setting, words in (
        ("memory.window=0", "memory.window must lie between 1 and 100"),
        ("memory.decay=0", "memory.decay must lie above 0"),
        ("memory.row=0", "memory.row must be 1 or more"),
        ("memory.held_back=0.9", "memory.held_back must lie above 0"),
        ("memory.rare=2", "memory.rare must lie between 0 and 1"),
        ("memory.rare_below=-1", "memory.rare_below must lie between 0 and 1"),
        ("memory.wide=1", "unknown setting of memory 'wide'"),
        ("memory.use=1", "memory.use must be true or false"),
        ("training.finish=-5", "training.finish is a number of steps, 0 or more, not -5"),
    ):
        with pytest.raises(SettingsError, match=words):
            config_for("fast", None, [setting])
    with pytest.raises(
        SettingsError, match=r"memory.rare=0.5 does nothing without a memory; add --set memory.use=true"
    ):
        config_for("fast", None, ["memory.rare=0.5"])
    assert config_for("best", None, ["memory.rare=0.5"]).memory.rare == 0.5
    with pytest.raises(
        SettingsError, match="memory.rare=0.5 does nothing without a memory; leave out memory.use=false"
    ):
        config_for("best", None, ["memory.use=false", "memory.rare=0.5"])
    with pytest.raises(SettingsError, match="markov only counts, and takes no memory"):
        config_for("fast", None, ["memory.use=true"], "markov")
    shutil.copytree(chains / "run", tmp_path / "run")
    path = tmp_path / "run" / MEMORY
    path.write_bytes(path.read_bytes()[:-100])
    found = run("evaluate", tmp_path / "run")
    assert found.code == 2 and "memory.safetensors is damaged" in found.err
    with pytest.raises(FolderError, match="the memory lacks counts"):
        Memory.of({}, 3)
    with pytest.raises(FolderError, match="does not fit the model"):
        Memory.of(Memory(counted([[0, 1]]), weights()).arrays(), 9)


def test_a_run_stopped_before_its_memory_says_so(chains: Path, tmp_path: Path, run: Run) -> None:
    shutil.copytree(chains / "run", tmp_path / "run")
    (tmp_path / "run" / MEMORY).unlink()
    words = (
        f"was stopped before its memory was learned; go on with: lrurec train {(chains / 'dataset').resolve()} --out"
    )
    for command in (("evaluate",), ("recommend", "--history", "i003"), ("compare", tmp_path / "run")):
        found = run(command[0], tmp_path / "run", *command[1:])
        assert found.code == 0 and "this is the model alone" in found.err and words in found.err
    assert not run("evaluate", chains / "run").err
    for checkpoint in ("best", "last"):
        refused = run("export", tmp_path / "run", "--out", tmp_path / "artifact", "--checkpoint", checkpoint)
        assert refused.code == 2 and words in refused.err and not (tmp_path / "artifact").exists()


def test_a_memory_lost_behind_the_finish_is_not_learned_again(chains: Path, tmp_path: Path, run: Run) -> None:
    """By then the weights know what it is learned from."""
    folder, data = tmp_path / "run", chains / "dataset"
    assert run("train", data, "--out", folder, *(w for s in FINISHED for w in ("--set", s))).code == 0
    (folder / MEMORY).unlink()
    words = "is missing, and cannot be learned again"
    for command, code in ((("evaluate", folder), 0), (("export", folder, "--out", tmp_path / "artifact"), 2)):
        found = run(*command)
        assert found.code == code and words in found.err
    refused = run("train", data, "--out", folder, "--resume")
    assert refused.code == 2 and words in refused.err and not (folder / MEMORY).exists()


def test_where_nothing_can_be_held_back_the_memory_adds_nothing(tmp_path: Path, run: Run) -> None:
    """Everybody has three events: one to train on."""
    rows = [(u, f"i{(u + k) % 20:02}") for u in range(60) for k in range(3)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    few = [w for s in ("training.steps=4", "training.finish=2", "model.width=16") for w in ("--set", s)]
    done = run("train", tmp_path / "data", "--out", tmp_path / "run", "--recipe", "best", *few)
    assert done.code == 0 and "from 0 events held back" in done.err and "it will add nothing" in done.err
    assert run("export", tmp_path / "run", "--out", tmp_path / "artifact").code == 0
    with Live(tmp_path / "artifact", tmp_path / "store") as live:
        assert len(live.recommend_for(["i03"], 5)) == 5


def test_an_unfinished_run_says_so(chains: Path, tmp_path: Path, run: Run) -> None:
    config = config_for("fast", None, [*SMALL[:5], "training.validate_every=2"])
    folder, dataset = tmp_path / "run", lrurec.Dataset.open(chains / "dataset")
    for name, stop in (("run", 0), ("stopped", 4)):
        _, trainer = RunFolder.start(tmp_path / name, dataset, leave_last_out(dataset), config)
        trainer.train(lambda p: setattr(trainer, "interrupted", p.step == stop))  # noqa: B023
    assert not run("evaluate", folder).err
    t = config.training
    for command in (("evaluate", tmp_path / "stopped"), ("compare", folder, tmp_path / "stopped")):
        found = run(*command)
        assert found.code == 0 and f"stopped was stopped at step 4 of {t.steps}; go on with: lrurec train" in found.err
    exported = run("export", tmp_path / "stopped", "--out", tmp_path / "artifact")
    assert exported.code == 0 and "this is an unfinished run" in exported.err


def test_the_recipe_says_what_it_chose(chains: Path, tmp_path: Path, run: Run) -> None:
    few = [word for s in (*SMALL[:5], "training.finish=2") for word in ("--set", s)]
    for recipe, models in (("best", "2 models"), ("best-small", "one model")):
        done = run("train", chains / "dataset", "--out", tmp_path / recipe, "--recipe", recipe, *few)
        assert done.code == 0
        line = f"{recipe} for 9.0 events per user: {models}, cosines, full loss, windows of 50, 8 steps and 2 to finish, a memory"
        assert line in done.err


def log(per_user: float, items: int = 20_000, users: int = 1_000_000) -> LogSize:
    return LogSize(users, items, int(users * per_user))


def test_the_recipe_best_samples_where_there_are_many_items() -> None:
    few, many = (config_for("best", None, [], None, log(100, items)).training for items in (3000, 300_000))
    assert (few.loss, many.loss, many.shared_negatives) == ("full", "sampled", True)
    assert config_for("best", None, ["training.loss=full"], None, log(100, 300_000)).training.loss == "full"
    short = (config_for("best", None, [], None, log(8, items)).training.loss for items in (500, 20_000))
    assert tuple(short) == ("full", "sampled")


def test_the_recipe_best_goes_by_the_length_of_histories() -> None:
    sparse, dense, long = (config_for("best", None, [], None, log(n)) for n in (7.6, 165.0, 959.0))
    assert sparse.memory.use and dense.memory.use and long.memory.use
    assert (sparse.training.loss, dense.training.loss, long.training.max_length) == ("sampled", "full", 1000)
    assert sparse.model.dropout > dense.model.dropout
    assert config_for("best", None, ["memory.use=false"], None, log(7.6)).memory.use is False
    assert config_for("best", None, [], "sasrec", log(165.0)).memory.use  # what SASRec does not have is left out
    assert not config_for("best", None, [], "markov", log(165.0)).memory.use
    ahead = {m: config_for("best", None, [], m, log(7.6)).training.look_ahead for m in ("sasrec", "bert4rec", "mf")}
    assert ahead == {"sasrec": 0.4, "bert4rec": 0.0, "mf": 0.0}
    small = [config_for("best-small", None, [], None, log(n)) for n in (7.6, 165.0, 959.0)]
    assert sparse.model.copies == 2 and small == [replace(sparse, model=replace(sparse.model, copies=1)), dense, long]
    assert min(BEST) == 0 and BEST.keys() == PASSES.keys()


def test_the_recipe_best_makes_fewer_steps_on_a_small_log() -> None:
    def steps(per_user: float, users: int, *settings: str) -> tuple[int, int]:
        t = config_for("best", None, list(settings), None, log(per_user, 20_000, users)).training
        return t.steps, t.finish

    assert steps(7.6, 52_204) == steps(7.6, 10**7) == (6000, 2000)
    assert steps(165.5, 6_040) == (3500, 1000)
    assert steps(7.6, 6_400) == (1500, 500)
    dense = steps(105.0, 943)
    assert dense == (552, 158)
    assert steps(7.6, 100) == (500, 167)  # no fewer
    assert steps(7.6, 100, "training.steps=700") == (700, 167)
    assert steps(400.0, 943)[0] in (2 * dense[0], 2 * dense[0] + 1)  # a history of 400 is two windows of 200
    assert config_for("best", None, []).training.steps == 6000  # nothing is known of the log


def test_nothing_is_left_to_compile_for_the_first_user(chains: Path, tmp_path: Path, run: Run) -> None:
    assert run("export", chains / "run", "--out", tmp_path / "artifact").code == 0
    program = f"""
import sys
import numba
import lrurec
live = lrurec.Live({str(tmp_path / "artifact")!r}, {str(tmp_path / "store")!r})
kernels = {{
    f"{{name}}.{{key}}": value
    for name, module in list(sys.modules.items()) if name.startswith("lrurec.kernels")
    for key, value in vars(module).items() if isinstance(value, numba.core.registry.CPUDispatcher)
}}
before = {{name: len(kernel.signatures) for name, kernel in kernels.items()}}
assert sum(before.values()) > 5, before
for item in ("i003", "i004"):
    live.observe("ann", item)
    live.recommend("ann", k=3)
    live.recommend_for(["i003", item])
asked = [live.query("ann", None, 3, seen, None, None) for seen in (True, False)]
live.answer(asked)
live.recommend("ann", deny=["i005"])
print([name for name, kernel in kernels.items() if len(kernel.signatures) != before[name]])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_one_long_history_does_not_keep_the_others_from_being_held_back() -> None:
    """Its tail alone would be more than all that is wanted."""
    rows = [(0, k % 300) for k in range(5000)] + [(u, (7 * u + k) % 300) for u in range(1, 601) for k in range(8)]
    split = leave_last_out(lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row")))
    wanted = int(0.06 * split.train.n_events)
    for seed in range(6):
        held = hold_back(split.train, 0.06, seed)[1]
        assert 0.94 * wanted <= len(held) <= wanted
        assert (held.users == 0).sum() <= wanted / 20
    one = replace(split.train, users=split.train.users[:1], starts=split.train.starts[:1], stops=split.train.stops[:1])
    assert len(hold_back(one, 0.06, 0)[1]) == int(0.06 * one.n_events) // 20
    few = replace(one, stops=one.starts + 5)
    assert len(hold_back(few, 0.06, 0)[1]) == 1  # less than one by its share


def trained_with_finish(data: Path, folder: Path, *more: str) -> Trainer:
    config = config_for("fast", None, [*FINISHED, *more])
    dataset = lrurec.Dataset.open(data)
    _, trainer = RunFolder.start(folder, dataset, leave_last_out(dataset), config)
    trainer.train()
    return trainer


def test_the_finish_is_taken_if_it_is_better_with_the_memory(chains: Path, tmp_path: Path) -> None:
    """However the model does alone: what is shipped is chosen."""
    trainer = trained_with_finish(chains / "dataset", tmp_path / "run")
    assert trainer.best_step == 14 and trainer.to_beat is not None
    run = RunFolder.open(tmp_path / "run")
    kept, last = (load_checkpoint(tmp_path / "run" / f)[0] for f in (BEST_FILE, LAST))
    assert all(torch.equal(kept[name], last[name]) for name in kept)
    assert trainer.result(run.model())["valid"]["recall@10"] >= trainer.to_beat


def test_a_finish_that_does_harm_is_left_and_said(chains: Path, tmp_path: Path, run: Run) -> None:
    data, folder = chains / "dataset", tmp_path / "run"
    harm = [w for s in (*FINISHED, "training.finish_rate=30.0") for w in ("--set", s)]
    done = run("train", data, "--out", folder, *harm)
    assert done.code == 0 and "best at step 8" in done.out
    assert "the finish did not help in validation: the weights from before it are kept" in done.err
    with_memory = json.loads((folder / "result.json").read_text())["valid"]["recall@10"]
    trainer = Trainer(*split_of(data), RunFolder.open(folder).config, folder)
    trainer.resume()
    assert trainer.to_beat == with_memory and trainer.best_step == 8


def split_of(data: Path) -> tuple[lrurec.Dataset, Split]:
    dataset = lrurec.Dataset.open(data)
    return dataset, leave_last_out(dataset)


def test_before_the_finish_the_weights_that_are_best_beside_the_memory_are_taken(chains: Path, tmp_path: Path) -> None:
    """Alone, those of step 4 are better; beside the memory, those of step 8 are as good: the later ones are taken."""
    data, folder = chains / "dataset", tmp_path / "run"
    config = config_for("fast", None, FINISHED)
    _, trainer = RunFolder.start(folder, *split_of(data), config)
    trainer.train(lambda p: setattr(trainer, "interrupted", p.step == 8))
    assert trainer.step == 8 and not (folder / MEMORY).exists()
    trainer._remember()
    for value, expected in ((2.0, 4), (1.0, 8), (-1.0, 8)):
        again = Trainer(*split_of(data), config, folder)
        again.resume()
        again.best, again.best_step = {"recall@10": 0.5}, 4
        worth = {id(again.model): 1.0}  # of the weights of now; those of before get `value`
        again._with_memory = lambda model, w=worth, v=value: w.get(id(model), v)  # type: ignore[method-assign, misc]
        again._choose_before_finish()
        assert again.best_step == expected and again.to_beat == max(value, 1.0)


def test_nobody_to_validate_on_gives_the_last_weights(tmp_path: Path, run: Run) -> None:
    rows = [(u, f"i{(u + k) % 20:02}") for u in range(60) for k in range(2)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    few = [w for s in ("training.steps=6", "training.validate_every=2", "model.width=16") for w in ("--set", s)]
    done = run("train", tmp_path / "data", "--out", tmp_path / "run", *few)
    assert done.code == 0 and "best at step 6" in done.out


def test_a_memory_of_another_run_is_refused(chains: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "run"
    shutil.copytree(chains / "run", folder)
    other = trained_with_finish(chains / "dataset", tmp_path / "other", "training.seed=3")
    shutil.copy(other.folder / MEMORY, folder / MEMORY)
    words = f"{folder / MEMORY} is of another run (its config.training."
    for command in (("evaluate", folder), ("export", folder, "--out", tmp_path / "artifact")):
        refused = run(*command)
        assert refused.code == 2 and words in refused.err


def test_what_it_brings_is_told(chains: Path, run: Run) -> None:
    told = run("evaluate", chains / "run").out
    assert "without its memory" in told.splitlines()[2]
    report = json.loads(run("evaluate", chains / "run", "--json").out)
    assert report["without_memory"]["recall@10"] < 0.3 < 0.9 < report["metrics"]["recall@10"]["value"]
    page = chains / "run" / "report.html"
    assert run("report", chains / "run").code == 0 and "<th>without its memory</th>" in page.read_text()
    page.unlink()


def test_a_second_ctrl_c_gives_up_the_learning(chains: Path, tmp_path: Path) -> None:
    """The first one waits for it; --resume learns it anew."""
    folder, settings = tmp_path / "run", [w for s in FINISHED for w in ("--set", s)]
    slow = (
        "import sys, time; from lrurec.training import trainer; from lrurec.cli.main import main;"
        "own = trainer.remember;"
        "trainer.remember = lambda *a: (print('learning', flush=True), time.sleep(60), own(*a))[2];"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["train", str(chains / "dataset"), "--out", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", slow, *words, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "learning\n"
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "once more gives that up now" in line:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "--resume" in said and not (folder / MEMORY).exists()
    resumed = subprocess.run(
        [sys.executable, "-m", "lrurec.cli.main", *words, "--resume"], capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0 and "going on at step 8 of 14" in resumed.stderr, resumed.stderr
    whole = trained_with_finish(chains / "dataset", tmp_path / "whole")
    a, b = (load_checkpoint(f / MEMORY)[0] for f in (folder, whole.folder))
    assert all(torch.equal(a[k], b[k]) for k in a)
