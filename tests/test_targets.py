"""Every table and figure, end to end on a small sample: one or two cells each, a few steps."""

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import lrurec
from conftest import Run
from lrurec.data.sources import KNOWN
from lrurec.data.synthetic import log, preset, resized
from lrurec.experiments import curves, eigenvalues, latency, sensitivity, tuning
from lrurec.experiments.cells import DONE
from lrurec.experiments.published import published
from lrurec.experiments.tables import order
from lrurec.training.run import write_json

SMALL = ["model.width=16", "model.channels=8", "training.batch=16", "training.steps=6"]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "tiny"
    lrurec.load_events(pl.concat(log(resized(preset("sample"), users=120, items=60, events=2400))), out=folder)
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: what one table has trained, the next one finds."""
    return tmp_path_factory.mktemp("out")


def started(err: str) -> list[str]:
    return [line.split()[-1] for line in err.splitlines() if line.startswith("started")]


def whole(out: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    return found


def test_significance(tiny: Path, tmp_path: Path, run: Run) -> None:
    """The numbers are those of `lrurec compare`; ranks are computed once, and again after --again."""
    out = tmp_path
    common = ("--datasets", tiny, "--out", out, *SETTINGS, "--models", "lrurec,popularity")
    done = run("reproduce", "significance", *common)
    assert done.code == 0, done.err
    (table,) = whole(out, "significance")["datasets"]
    (row,) = [row for row in table["against"] if row["row"] == "popularity"]
    cells = [out / f"main/tiny/{name}/seed-0" for name in ("lrurec", "popularity")]
    compared = json.loads(run("compare", *(cell / "run" for cell in cells), "--json").out)["metrics"]
    assert row["ndcg@10"] == compared["ndcg@10"] and row["recall@10"] == compared["recall@10"]
    assert all((cell / "ranks.npy").exists() for cell in cells)
    assert "ranking" not in run("reproduce", "significance", *common).err
    assert "| Popularity | 1 |" in (out / "significance.md").read_text()
    again = run(
        "reproduce", "significance", *common, "--set", "training.seed=0", "--set", "training.steps=7", "--again"
    )
    assert again.code == 2 or f"ranking {cells[0]}" in again.err


def test_the_order_of_the_paper() -> None:
    def row(name: str, ours: float | None, paper: float) -> dict[str, Any]:
        return {"title": name, "test": ours and {"ndcg@10": {"mean": ours}}, "published": {"ndcg@10": paper}}

    rows = [row("full", 0.19, 0.20), row("near", 0.21, 0.19), row("far", 0.2, 0.15), row("failed", None, 0.01)]
    found = order(rows)
    assert found is not None and found["pairs"] == 2 and found["turned"] == [("full", "far")]
    assert order(rows[:2]) is None


def test_ablation_and_lambda_share_the_main_cell(tiny: Path, out: Path, run: Run) -> None:
    common = ("--datasets", tiny, "--out", out, *SETTINGS)
    done = run("reproduce", "ablation", "--models", "lrurec,no-pffn", *common)
    assert done.code == 0 and started(done.err) == ["tiny/lrurec/seed-0", "ablation/tiny/no-pffn/seed-0"]
    (table,) = whole(out, "ablation")["datasets"]
    assert [row["title"] for row in table["rows"]] == ["without PFFN", "LRURec"]
    config = json.loads((out / "ablation/tiny/no-pffn/seed-0/cell.json").read_text())["config"]
    assert config["model"]["pffn"] is False and config["training"]["steps"] == 6
    done = run("reproduce", "lambda", *common)
    assert done.code == 0 and started(done.err) == ["lambda/tiny/no-decay/seed-0"]
    (table,) = whole(out, "lambda")["datasets"]
    assert {way: len(blocks) for way, blocks in table["lambda"].items()} == {"lrurec": 2, "no-decay": 2}
    assert all(0.7 < block["mean"] < 1 for blocks in table["lambda"].values() for block in blocks)
    assert "| tiny | 2 |" in (out / "lambda.md").read_text()
    told = run("reproduce", "all", "--list", *common).out  # what two tables need is there once
    assert told.count("  tiny/lrurec/seed-0") <= 1 and told.count("tiny/lrurec/seed-0   ") >= 1
    assert "ablation/tiny/s4/seed-0" in told and "sensitivity/tiny/dropout-0.2/seed-0" in told


def test_curves_and_sensitivity(tiny: Path, out: Path, run: Run) -> None:
    common = ("--datasets", tiny, "--out", out, *SETTINGS)
    copies = ("--results", out / "results", "--page", out / "docs/results.md")
    done = run("reproduce", "curves", "--models", "lrurec,gru4rec", *copies, *common)
    assert done.code == 0 and len(started(done.err)) == 2
    page = (out / "docs/results.md").read_text()
    assert "## Figure 1, left" in page and "![curves](../results/curves-tiny.png)" in page
    assert "- Table 4: long histories, ranked among 10,000 sampled items: `lrurec reproduce xlong`" in page
    (table,) = whole(out, "curves")["datasets"]
    assert [c["row"] for c in table["curves"]] == ["lrurec", "gru4rec"]
    assert table["curves"][0]["points"][-1]["step"] == 6
    (command,) = table["commands"]
    assert "--models lrurec,gru4rec " in command
    done = run("reproduce", "sensitivity", "--models", "dropout-0.4,dropout-0.6", *common)
    assert done.code == 0 and "sensitivity/tiny/dropout-0.4/seed-0" in started(done.err)
    assert "sensitivity/tiny/dropout-0.6/seed-0" not in started(done.err)  # it is the main table's
    (table,) = whole(out, "sensitivity")["datasets"]
    assert [p["value"] for p in table["dropout"]] == [0.4, 0.6] and [p["value"] for p in table["weight_decay"]] == [
        0.01
    ]
    (command,) = table["commands"]  # all points, that of the main table too, under both of its names
    assert "--models dropout-0.4,dropout-0.6,weight-decay-0.01 " in command
    for folder, name in ((out, "curves-tiny"), (out / "results", "curves-tiny"), (out, "sensitivity-tiny")):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{name}.svg").read_text()


def test_curves_with_the_settings_of_the_main_table(tiny: Path, tmp_path: Path, run: Run) -> None:
    """A curve is drawn from a run of its own, also where the user has it looked at as often as a table needs."""
    often = ("--set", "training.validate_every=3")
    done = run("reproduce", "curves", "--models", "lrurec", "--datasets", tiny, "--out", tmp_path, *SETTINGS, *often)
    assert done.code == 0 and started(done.err) == ["curves/tiny/lrurec/seed-0"]
    (table,) = whole(tmp_path, "curves")["datasets"]
    assert [p["step"] for p in table["curves"][0]["points"]] == [3, 6]


def test_tuning(tiny: Path, out: Path, tmp_path: Path, run: Run) -> None:
    """The same trials for every model; the main table's own is one of them, and is not trained twice."""
    small = [word for setting in SMALL if "channels" not in setting for word in ("--set", setting)]
    common = ("--datasets", tiny, "--out", out, *small)
    done = run("reproduce", "tuning", "--models", "mf,fism-double-rate", *common)
    assert done.code == 0, done.err
    assert started(done.err)[0] == "tiny/mf/seed-0" and len(started(done.err)) == 6
    (table,) = whole(out, "tuning")["datasets"]
    by_model = {model["model"]: model for model in table["models"]}
    trials = by_model["mf"]["trials"]
    centre = next(t for t in trials if t["main"])
    assert len(trials) == 5 and len({(t["dropout"], t["rate"]) for t in trials}) == 5
    assert {t["rate"] / centre["rate"] for t in trials} == {0.5, 1.0, 2.0}
    assert {round(t["dropout"] - centre["dropout"], 3) for t in trials} == {-0.1, 0.0, 0.1}
    best = max(t["valid"]["recall@10"] for t in trials)
    assert by_model["mf"]["behind"] == pytest.approx(1 - centre["valid"]["recall@10"] / best if best else 0)
    assert len(by_model["fism"]["trials"]) == 1 and "FISM" not in (out / "tuning.md").read_text()  # one says nothing
    results = tmp_path / "results"  # on another machine, which has the table but none of its cells
    assert run("reproduce", "tuning", "--models", "mf", *common, "--results", results).code == 0
    other = ("--datasets", tiny, "--out", tmp_path / "other", *small, "--results", results)
    assert run("reproduce", "tuning", "--models", "fism-half-rate,fism-double-rate", *other).code == 0
    (table,) = whole(results, "tuning")["datasets"]
    by_model = {model["model"]: model for model in table["models"]}
    several = [(m["model"], len(m["trials"])) for m in table["models"] if len(m["trials"]) > 1]
    assert several == [("fism", 2), ("mf", 5)] and by_model["mf"]["trials"] == trials
    assert "none of them the main table's" in (results / "tuning.md").read_text()
    assert not started(run("reproduce", "tuning", "--models", "mf", *common).err)
    short = ("--datasets", tiny, "--out", tmp_path / "short", *small, "--set", "training.steps=4", "--results", results)
    assert run("reproduce", "tuning", "--models", "fism-as-it-is,fism-half-rate", *short).code == 0
    (table,) = whole(results, "tuning")["datasets"]
    fism = next(m for m in table["models"] if m["model"] == "fism")
    assert [(t["steps"], t["main"]) for t in fism["trials"]] == [(4, False), (4, True), (6, False), (6, False)]
    (alone, own) = (t["valid"]["recall@10"] for t in fism["trials"][:2])
    assert fism["behind"] == pytest.approx(1 - own / max(alone, own))
    assert "--set training.steps=N" in (results / "tuning.md").read_text()
    wrong = run("reproduce", "tuning", "--models", "popularity", *common)
    assert wrong.code == 2 and "unknown row of tuning" in wrong.err


@pytest.mark.parametrize(
    ("main", "others", "told"),
    [
        (0.5, [0.4, 0.3], "has the best of 3 trials"),
        (0.4999, [0.5], "less than the luck of a seed"),
        (0.4, [0.5], "20.0% behind the best of 2 trials: **its settings should move.**"),
    ],
)
def test_what_is_said_of_a_tuned_model(main: float, others: list[float], told: str) -> None:
    def trial(recall: float, is_main: bool, rate: float) -> dict[str, Any]:
        valid = {"recall@10": recall}
        return {"main": is_main, "seed": 0, "steps": 9, "valid": valid, "dropout": 0.1, "rate": rate}

    trials = [trial(main, True, 1.0), *(trial(recall, False, 2.0 + k) for k, recall in enumerate(others))]
    model = {"title": "A", "trials": trials, "behind": tuning.behind(trials, 9)}
    assert told in tuning.remark(model)
    shorter = [{**t, "steps": 5, "valid": {"recall@10": 1 - t["valid"]["recall@10"]}} for t in trials]
    assert tuning.behind([*shorter, *trials], 7) == model["behind"]  # the longest decide
    assert tuning.behind([*shorter, *trials], 5) == tuning.behind(
        shorter, 5
    )  # unless others are as long as the main table's
    assert tuning.behind([*shorter, trials[0]], 9) == tuning.behind(shorter, 9)  # that can be compared


def test_datasets(tiny: Path, out: Path, run: Run) -> None:
    done = run("reproduce", "datasets", "--datasets", tiny, "--out", out)
    assert done.code == 0 and "not in the paper" in done.out
    row = whole(out, "datasets")["datasets"][0]
    assert row["users"] == 120 and math.isclose(row["density"], row["events"] / (row["users"] * row["items"]))
    for name, values in published("datasets").values.items():
        paper = KNOWN[name].paper
        assert paper is not None
        assert (values["dataset"]["users"], values["dataset"]["items"]) == (paper.users, paper.items)


def test_latency(out: Path) -> None:
    latency.measure(out, False, lambda text: None, steps=24)
    before = (out / latency.MEASURED).read_text()
    latency.measure(out, False, lambda text: None, steps=99)
    assert (out / latency.MEASURED).read_text() == before  # it is there
    found = latency.made(out)
    measured = found.whole["measured"]
    assert measured["lrurec"]["steps"] and measured["gru4rec"]["steps"] and not measured["sasrec"]["steps"]
    for name in latency.NAMES:
        times = measured[name]["cumulative"]
        assert len(times) == 24 and times == sorted(times) and measured[name]["examples_per_second"] > 0
    assert "the paper: 7.3 times" in found.text and set(found.figures) == {"latency"}


def test_stepping_predicts_what_encoding_predicts() -> None:
    """What is timed is the same work: the scores after each event, either way."""
    model = latency._model("lrurec", 9)
    history = latency._history(3, 9)
    with torch.no_grad():
        stepped = list(latency._predictions(model, history))
        for k in (0, 4, 8):
            assert float((stepped[k] - model.scores(latency._batch(history[:, : k + 1]))).abs().max()) < 1e-4


def test_xlong(tmp_path: Path, run: Run) -> None:
    """Long histories have a protocol of their own: ranked among sampled items, few of them negatives."""
    rows = [(u, (7 * u + 3 * k * k + k) % 700) for u in range(12) for k in range(520)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "xlong")
    small = ("--set", "training.steps=2", "--set", "model.width=16", "--set", "training.candidates=50")
    done = run(
        "reproduce", "xlong", "--datasets", tmp_path / "xlong", "--out", tmp_path / "out", "--models", "lrurec", *small
    )
    assert done.code == 0
    (table,) = whole(tmp_path / "out", "xlong")["datasets"]
    assert (
        table["dataset"] == "xlong" and table["kind"] == "long" and table["rows"][0]["published"]["ndcg@10"] == 0.34867
    )
    config = json.loads((tmp_path / "out/main/xlong/lrurec/seed-0/cell.json").read_text())["config"]["training"]
    assert (config["max_length"], config["batch"], config["negatives"], config["candidates"]) == (1000, 32, 100, 50)


def test_mistakes(tiny: Path, tmp_path: Path, run: Run) -> None:
    for words, hint in (
        (("curvs",), "did you mean 'curves'?"),
        (("ablation", "--models", "no-pfn"), "did you mean 'no-pffn'?"),
        (("latency", "--models", "lrurec"), "leave out --models"),
        (("latency",), "leave out --datasets and --budget"),
        (("all", "--models", "lrurec"), "leave it out for all"),
        (("main", "--page", "page.md"), "--results"),
    ):
        done = run("reproduce", *words, "--datasets", tiny, "--out", tmp_path / "out")
        assert done.code == 2 and hint in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def cell(out: Path, target: str, row: str, seed: int, points: list[tuple[int, float, float]], **more: Any) -> None:
    """A finished cell, made up."""
    folder = out / target / "ml-1m" / row / f"seed-{seed}"
    (folder / "run").mkdir(parents=True)
    lines = [json.dumps({"step": s, "seconds": t, "recall@10": r, "ndcg@10": r / 2}) for s, t, r in points]
    (folder / "run/metrics.jsonl").write_text("\n".join(lines) + "\n")
    record = {
        "format": "lrurec-cell", "version": 1, "target": target, "row": row, "model": more.pop("model", row), "seed": seed,
        "dataset": {"name": "ml-1m", "given": "ml-1m", "not_the_papers": None, "content_id": "x"}, "given": [], "state": DONE, "machine": "m", "threads": 1,
        "test": {"ndcg@10": points[-1][2] / 2, "recall@10": points[-1][2]}, "mean_abs_lambda": [0.5 + seed / 10, 0.7],
        "config": {"model": {"dropout": 0.2}, "training": {"weight_decay": 0.01}}, **more,
    }  # fmt: skip
    write_json(folder / "cell.json", record)


def test_what_the_pages_say(tmp_path: Path) -> None:
    cell(tmp_path, "curves", "sasrec", 0, [(100, 9.0, 0.10), (200, 18.0, 0.20)])
    cell(tmp_path, "curves", "lrurec", 0, [(100, 5.0, 0.19), (200, 10.0, 0.25), (300, 15.0, 0.26)])
    (table,) = curves.made(tmp_path).whole["datasets"]
    ours = {c["row"]: c for c in table["curves"]}
    assert ours["lrurec"]["passes_sasrec"] == {"step": 200, "seconds": 10.0} and ours["lrurec"]["best"] == 0.26
    assert ours["lrurec"]["near"] == {"step": 200, "seconds": 10.0} and ours["sasrec"]["passes_sasrec"] is None
    assert ours["lrurec"]["published"] == {"steps": 23000}
    cell(tmp_path, "main", "lrurec", 0, [(1, 1.0, 0.3)])
    cell(tmp_path, "main", "lrurec", 1, [(1, 1.0, 0.4)])
    (table,) = eigenvalues.made(tmp_path).whole["datasets"]
    assert table["lambda"]["lrurec"][0]["mean"] == pytest.approx(0.55) and table["published"]["block 1"] == 0.3927
    assert "| ml-1m | 1 | 0.5500 ± 0.0707 (2) | - | 0.3927 |" in eigenvalues.made(tmp_path).text
    config = {"model": {"dropout": 0.8}, "training": {"weight_decay": 0.01}}
    cell(tmp_path, "sensitivity", "dropout-0.8", 0, [(1, 1.0, 0.1)], model="lrurec", config=config)
    (table,) = sensitivity.made(tmp_path).whole["datasets"]
    assert [(p["value"], p["recall@10"]) for p in table["dropout"]] == [(0.2, pytest.approx(0.35)), (0.8, 0.1)]
    assert len(table["weight_decay"]) == 1


def test_other_settings_are_not_mixed_in(tiny: Path, tmp_path: Path, run: Run) -> None:
    """A table borrows LRURec of the main table only if nothing else differs; the command under it says what was given."""
    common = ("--datasets", tiny, "--out", tmp_path)
    assert run("reproduce", "main", "--models", "lrurec", *common, *SETTINGS).code == 0
    more = [*SETTINGS[:-1], "training.steps=7"]
    assert run("reproduce", "sensitivity", "--models", "dropout-0.4", *common, *more).code == 0
    (table,) = whole(tmp_path, "sensitivity")["datasets"]
    assert [p["value"] for p in table["dropout"]] == [0.4] and table["weight_decay"] == []
    assert "--models dropout-0.4" in table["commands"][0] and "--set training.steps=7" in table["commands"][0]
    assert run("reproduce", "ablation", "--models", "no-pffn", *common, *more).code == 0
    (table,) = whole(tmp_path, "ablation")["datasets"]
    assert [row["row"] for row in table["rows"]] == ["no-pffn"]
    assert run("reproduce", "lambda", "--models", "no-decay", *common, *SETTINGS).code == 0
    (table,) = whole(tmp_path, "lambda")["datasets"]
    assert set(table["lambda"]) == {"lrurec", "no-decay"} and "training.steps=6" in table["commands"][0]
    assert run("reproduce", "main", "--models", "mf", *common, "--set", "training.steps=7").code == 0
    (table,) = whole(tmp_path, "main")["datasets"]
    assert any("not all rows were given the same settings" in note for note in table["notes"])


def test_how_often_a_curve_is_looked_at(tiny: Path, tmp_path: Path, run: Run) -> None:
    common = ("--datasets", tiny, "--out", tmp_path, "--models", "lrurec", *SETTINGS, "--list", "--json")
    for given, expected in (((), 500), (("--set", "training.validate_every=2"), 2)):
        (cell,) = json.loads(run("reproduce", "curves", *common, *given).out)
        assert cell["config"]["training"]["validate_every"] == expected


def test_a_record_that_cannot_be_read_stops_nothing_halfway(tiny: Path, tmp_path: Path, run: Run) -> None:
    odd = tmp_path / "main/other/sasrec/seed-0"
    odd.mkdir(parents=True)
    (odd / "cell.json").write_text('{"state": "done"}')
    done = run("reproduce", "main", "--datasets", tiny, "--out", tmp_path, "--models", "popularity")
    assert done.code == 2 and "delete it to do the cell again" in done.err and not started(done.err)
