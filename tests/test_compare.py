"""Which of two runs is better, and whether that may be luck."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lrurec
from conftest import Run
from lrurec.evaluation.significance import chance, chance_reference, compare


@given(st.lists(st.sampled_from([-1.0, -0.63, -0.5, 0.0, 0.5, 0.63, 1.0]), min_size=1, max_size=11))
@settings(max_examples=40, deadline=None)
def test_chance_is_that_of_all_swaps(values: list[float]) -> None:
    difference = np.array(values)
    assert chance(difference, draws=40_000) == pytest.approx(chance_reference(difference), abs=0.015)


def test_the_same_values_differ_by_nothing() -> None:
    values = np.random.default_rng(0).random(50)
    found = compare(values, values)
    assert (found.mean, found.low, found.high, found.p, found.better, found.worse) == (0, 0, 0, 1, 0, 0)


def test_luck_and_merit() -> None:
    """Of 200 comparisons of equal models about 5% have p below 0.05; a model that is better is found out, its gain inside."""
    random = np.random.default_rng(0)
    base = random.random((200, 300))
    lucky = [compare(a, b, draws=1000).p < 0.05 for a, b in zip(base[:100], base[100:], strict=True)]
    assert 0 <= sum(lucky) <= 12
    found = compare(base[0] + random.normal(0.1, 0.2, 300), base[0])
    assert found.p < 0.001 and found.low < 0.1 < found.high and found.better > found.worse


def test_swapping_the_runs_turns_the_sign() -> None:
    a, b = np.random.default_rng(1).random((2, 80))
    there, back = compare(a, b), compare(b, a)
    assert there.mean == pytest.approx(-back.mean) and there.better == back.worse
    assert there.p == back.p


@pytest.fixture
def runs(tmp_path: Path, run: Run) -> Path:
    rows = [(u, (u + k) % 12) for u in range(40) for k in range(9)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    small = ("--set", "model.width=16", "--set", "model.channels=8", "--set", "training.steps=60")
    more = ("--set", "training.learning_rate=0.02", "--set", "training.batch=16")
    assert run("train", tmp_path / "data", "--out", tmp_path / "good", *small, *more).code == 0
    assert run("train", tmp_path / "data", "--out", tmp_path / "popular", "--model", "popularity").code == 0
    return tmp_path


def test_the_command(runs: Path, run: Run) -> None:
    told = run("compare", runs / "good", runs / "popular", "-k", "1")
    assert told.code == 0 and "ndcg@1: A is better" in told.out and "40 users, test split" in told.out
    assert "ndcg@1 by length of history" in told.out and "ndcg@1 by training count of the target" in told.out
    assert told.out.strip().endswith(", and in no slice surely worse")
    assert "ndcg@1: B is better" in run("compare", runs / "popular", runs / "good", "-k", "1").out
    assert "no difference" in run("compare", runs / "good", runs / "good").out
    sampled = json.loads(run("compare", runs / "good", runs / "popular", "-k", "1", "--candidates", "3", "--json").out)
    alone = json.loads(run("evaluate", runs / "good", "-k", "1", "--candidates", "3", "--json").out)
    assert sampled["metrics"]["ndcg@1"]["first"] == pytest.approx(alone["metrics"]["ndcg@1"]["value"])
    assert sampled["ranked"] == alone["ranked"] and "not comparable" in sampled["warning"]
    assert "rare targets" in told.out and "short histories" not in told.out  # all are of one length
    report = json.loads(run("compare", runs / "good", runs / "popular", "-k", "1", "--split", "valid", "--json").out)
    assert set(report["metrics"]) == {"recall@1", "ndcg@1", "mrr@1"}
    alone = json.loads(run("evaluate", runs / "good", "-k", "1", "--split", "valid", "--json").out)["metrics"]
    found = report["metrics"]["recall@1"]
    assert found["first"] == pytest.approx(alone["recall@1"]["value"])
    assert found["low"] <= found["mean"] <= found["high"] and found["p"] < 0.001


def test_for_whom(tmp_path: Path, run: Run) -> None:
    """Halves of the users, each with its own difference: together they are the whole."""
    rows = [(u, (u * u + k * k) % 11) for u in range(40) for k in range(5 + u // 8)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    for model in ("popularity", "markov"):
        assert run("train", tmp_path / "data", "--out", tmp_path / model, "--model", model).code == 0
    both = tmp_path / "markov", tmp_path / "popularity"
    report = json.loads(run("compare", *both, "-k", "3", "--json").out)
    names = ["short histories", "long histories", "rare targets", "popular targets"]
    assert [half["half"] for half in report["halves"]] == names
    for small, large in (report["halves"][:2], report["halves"][2:]):
        assert small["to"] < large["from"] and small["users"] + large["users"] == 40
        mean = (small["users"] * small["mean"] + large["users"] * large["mean"]) / 40
        assert mean == pytest.approx(report["metrics"]["ndcg@3"]["mean"])
        assert small["low"] <= small["mean"] <= small["high"]
    for ranges in (report["by_history_length"], report["by_target_popularity"]):
        assert sum(part["users"] for part in ranges) == 40
        mean = sum(part["users"] * part["mean"] for part in ranges) / 40
        assert mean == pytest.approx(report["metrics"]["ndcg@3"]["mean"])
        assert all(part["low"] <= part["mean"] <= part["high"] for part in ranges)
    told = run("compare", *both, "-k", "3").out
    assert "ndcg@3 by halves of the users" in told and all(name in told for name in names)


def test_the_slices_where_the_other_is_better_are_named(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many come to item 0, where others begin: popularity names it. Few walk along a chain, which Markov knows."""
    begin = [(u, i) for u in range(60) for i in (0, 100 + u, 200 + u)]
    come = [(u, i) for u in range(60, 120) for i in (20 + u % 40, 20 + (u + 7) % 40, 0)]
    walk = [(u, 20 + (u * 5 + k) % 40) for u in range(120, 136) for k in range(12)]
    frame = pl.DataFrame(begin + come + walk, schema=["user", "item"], orient="row")
    lrurec.load_events(frame, out=tmp_path / "data")
    for model in ("popularity", "markov"):
        assert run("train", tmp_path / "data", "--out", tmp_path / model, "--model", model).code == 0
    both = tmp_path / "popularity", tmp_path / "markov"
    report = json.loads(run("compare", *both, "-k", "1", "--json").out)
    assert report["metrics"]["ndcg@1"]["low"] > 0 > report["by_history_length"][-1]["high"]
    for paths, (better, other) in ((both, "AB"), (both[::-1], "BA")):
        last = run("compare", *paths, "-k", "1").out.strip().splitlines()[-1]
        assert last.startswith(f"ndcg@1: {better} is better (p = ") and f"; but {other} for " in last
        assert "history 8-15 (-100.0%)" in last and "history 2-3" not in last
    monkeypatch.setattr("lrurec.cli.compare.FEWEST", 17)  # there are 16 of them
    assert "history 8-15 (" not in run("compare", *both, "-k", "1").out


def test_several_runs_on_a_side(tmp_path: Path, run: Run) -> None:
    """What a user gets is the mean over the runs of a side, in every metric and slice."""
    rows = [(u, (u * u + k * k) % 11) for u in range(40) for k in range(5 + u // 8)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    for model in ("popularity", "markov"):
        assert run("train", tmp_path / "data", "--out", tmp_path / model, "--model", model).code == 0
    few = ("--set", "model.width=8", "--set", "model.channels=4", "--set", "training.steps=20", "--recipe", "fast")
    for seed in (0, 1):
        folder = tmp_path / f"seed-{seed}"
        assert run("train", tmp_path / "data", "--out", folder, *few, "--set", f"training.seed={seed}").code == 0
    seeds, popular, markov = [tmp_path / "seed-0", tmp_path / "seed-1"], tmp_path / "popularity", tmp_path / "markov"
    single = [json.loads(run("compare", one, popular, "-k", "3", "--json").out) for one in seeds]
    both = json.loads(run("compare", *seeds, "--against", popular, "-k", "3", "--json").out)
    assert single[0]["metrics"]["ndcg@3"]["mean"] != single[1]["metrics"]["ndcg@3"]["mean"]
    for group, own in (("metrics", "ndcg@3"), ("halves", 2), ("by_history_length", 0)):
        assert both[group][own]["first"] == pytest.approx(sum(one[group][own]["first"] for one in single) / 2)
        assert both[group][own]["second"] == pytest.approx(single[0][group][own]["second"])
    turned = json.loads(run("compare", popular, "--against", *seeds, "-k", "3", "--json").out)
    assert turned["metrics"]["ndcg@3"]["mean"] == pytest.approx(-both["metrics"]["ndcg@3"]["mean"])
    assert turned["second"] == [str(one) for one in seeds]
    told = run("compare", *seeds, "--against", markov, popular, "-k", "3")
    assert told.code == 0 and f"A: {seeds[0]}, {seeds[1]}\nB: {markov}, {popular}\n" in told.out


def test_runs_that_see_more_or_less(runs: Path, run: Run) -> None:
    short = ("--model", "popularity", "--set", "training.max_length=5")
    assert run("train", runs / "data", "--out", runs / "short", *short).code == 0
    told = run("compare", runs / "popular", runs / "short")
    assert told.code == 0 and "A sees the newest 50 items of a history, B the newest 5" in told.err


def test_mistakes(runs: Path, run: Run) -> None:
    rows = [(u, (u + k) % 9) for u in range(20) for k in range(9)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=runs / "other-data")
    assert run("train", runs / "other-data", "--out", runs / "other", "--model", "popularity").code == 0
    short = pl.DataFrame([(u, i) for u in range(9) for i in range(2)], schema=["user", "item"], orient="row")
    lrurec.load_events(short, out=runs / "short-data")
    assert run("train", runs / "short-data", "--out", runs / "short", "--model", "popularity").code == 0
    for arguments, words in (
        (("good", "other"), "different datasets"),
        (("good", "nowhere"), "nowhere"),
        (("good", "popular", "--seed", "-1"), "--seed"),
        (("good", "popular", "--against", str(runs / "other")), "different datasets"),
        (("good", "popular", str(runs / "good")), "3 runs are no pair"),
        (("good",), "one run is no pair"),
        (("short", "short"), "nobody in the dataset has three events"),
    ):
        paths = [a if a.startswith("-") else str(runs / a) for a in arguments[:2]]
        done = run("compare", *paths, *arguments[2:])
        assert done.code == 2 and words in done.err and done.err.count("\n") == 1
