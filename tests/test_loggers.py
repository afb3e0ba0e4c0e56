"""TensorBoard and MLflow: they get what metrics.jsonl has, once, and never stop a training."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

with warnings.catch_warnings(action="ignore"):
    import mlflow

import lrurec
from conftest import Run as Command
from lrurec.training import loggers as module
from lrurec.training.checkpoint import load_checkpoint
from lrurec.training.config import config_for
from lrurec.training.loggers import Loggers, Row, loggers_for
from lrurec.training.run import Run
from lrurec.training.schedule import learning_rate
from lrurec.training.trainer import LAST, METRICS, Trainer

OWN_WARNINGS = pytest.mark.filterwarnings("ignore")  # those of mlflow itself
SMALL = [
    "model.width=16",
    "model.channels=8",
    "training.steps=120",
    "training.validate_every=20",
    "training.batch=16",
    "training.learning_rate=0.02",
]
SETTINGS = [part for s in SMALL for part in ("--set", s)]
LOGGED = [20, 40, 50, 60, 80, 100, 120]  # every validation, and every 50 steps


@pytest.fixture
def cycle(tmp_path: Path) -> Path:
    rows = [(u, (u + k) % 12) for u in range(40) for k in range(9)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    return tmp_path / "data"


def trainer(cycle: Path, folder: Path, warned: list[str] | None = None) -> Trainer:
    """A trainer with its loggers, resumed if there is something to resume, as the command makes it."""
    dataset = lrurec.Dataset.open(cycle)
    run = Run.open(folder) if folder.exists() else Run.create(folder, dataset, config_for("fast", None, SMALL))
    t = Trainer(dataset, lrurec.leave_last_out(dataset), run.config, folder)
    if (folder / LAST).exists():
        t.resume()
    t.loggers = loggers_for(folder, run.manifest, t.step, (warned if warned is not None else []).append)
    return t


class Killed(Exception):
    pass


def train_until(t: Trainer, step: int) -> None:
    """What was logged up to a step has arrived, and then the process is gone."""

    def watch(progress: object) -> None:
        if t.step == step:
            t.loggers.flush()
            raise Killed

    with pytest.raises(Killed):
        t.train(watch)


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    # By step: two files of one second are read in the order of their names, "10" before "9".
    return {tag: sorted((e.step, e.value) for e in found.Scalars(tag)) for tag in found.Tags()["scalars"]}


def validations(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def same(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> bool:
    return [s for s, _ in found] == [s for s, _ in expected] and [v for _, v in found] == pytest.approx(
        [v for _, v in expected], rel=1e-6
    )


def test_tensorboard_has_what_the_run_folder_has(cycle: Path, run: Command) -> None:
    out = cycle.parent / "run"
    done = run("train", cycle, "--out", out, *SETTINGS, "--json")
    assert done.code == 0 and "lrurec:" not in done.err
    found, rows = events(out), validations(out)
    for name in ("recall@10", "ndcg@20", "mrr@10"):
        assert same(found[f"valid/{name}"], [(int(r["step"]), r[name]) for r in rows])
        assert same(found[f"test/{name}"], [(120, json.loads(done.out)["test"][name])])
    assert [s for s, _ in found["train/loss"]] == LOGGED
    at = dict(found["train/loss"])
    assert all(at[int(r["step"])] == pytest.approx(r["loss"]) for r in rows)
    config = Run.open(out).config.training
    assert same(found["train/learning_rate"], [(s, learning_rate(s - 1, config)) for s in LOGGED])
    assert all(v > 0 for _, v in found["train/items_per_second"])
    before = sorted((out / "tensorboard").iterdir())
    assert run("train", cycle, "--out", out, "--resume").code == 0  # it is done: nothing is added
    assert sorted((out / "tensorboard").iterdir()) == before


def test_tensorboard_after_a_kill_has_every_step_once(cycle: Path) -> None:
    whole, part = trainer(cycle, cycle.parent / "whole"), cycle.parent / "part"
    whole.train()
    whole.loggers.close()
    train_until(trainer(cycle, part), 13)  # before any checkpoint: it starts again
    train_until(trainer(cycle, part), 59)  # step 50 is logged, and will be again from step 40 on
    again = trainer(cycle, part)
    assert again.step == 40
    again.train()
    again.loggers.close()
    found, expected = events(part), events(cycle.parent / "whole")
    assert found.keys() == expected.keys()
    for tag in found.keys() - {"train/items_per_second"}:
        assert same(found[tag], expected[tag]), tag


class Broken:
    """Fails as often as it is told to, then takes rows."""

    def __init__(self, failures: int) -> None:
        self.failures, self.rows, self.outcome = failures, list[Row](), ""

    def write(self, rows: Any) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("no route\nto host " + 300 * "x")
        self.rows += rows

    def close(self, outcome: str) -> None:
        self.outcome = outcome


def test_a_logger_that_fails_warns_once_and_loses_nothing(cycle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    monkeypatch.setattr(module, "_WRITE_EVERY", 0.0)
    warned: list[str] = []
    broken, dead = Broken(3), Broken(10**6)
    weights = []
    for name in ("plain", "logged"):
        t = trainer(cycle, cycle.parent / name)
        t.loggers = Loggers({"Broken": lambda: broken, "Dead": lambda: dead} if name == "logged" else {}, warned.append)
        t.train()
        t.loggers.close()
        weights.append(load_checkpoint(cycle.parent / name / LAST)[0])
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
    assert sorted(w.split()[0] for w in warned) == ["Broken", "Dead"]
    assert all("\n" not in w and len(w) < 260 and "no route to host" in w for w in warned)
    assert [r.step for r in broken.rows if "train/loss" in r.values] == LOGGED
    assert broken.outcome == "FINISHED" and dead.rows == []


def test_a_logger_that_fails_is_tried_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now, monotonic=lambda: now))
    tried: list[float] = []

    def opener() -> Broken:
        tried.append(now)
        raise OSError

    loggers = Loggers({"Absent": opener})
    for now in range(0, 1000, 10):
        loggers.log(int(now), {"loss": 1.0, "nothing": float("nan")})
    loggers.close()
    assert tried == [0, 60, 180, 420, 900, 990]


def test_a_broken_tensorboard_is_one_line(cycle: Path, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise TypeError("Descriptors cannot be created directly")

    monkeypatch.setattr(module, "TensorBoard", broken)
    done = run("train", cycle, "--out", cycle.parent / "run", *SETTINGS)
    assert done.code == 0 and "test      Recall@10" in done.out
    assert [x for x in done.err.splitlines() if x.startswith("lrurec:")] == [
        "lrurec: TensorBoard does not take the metrics (Descriptors cannot be created directly);"
        " training goes on, and metrics.jsonl has them"
    ]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real MLflow that keeps its runs in a folder; gives its address."""
    address = f"file://{tmp_path}/mlflow"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    yield address
    mlflow.end_run()


def steps_of(address: str, run: Path, key: str) -> list[tuple[int, float]]:
    client = mlflow.MlflowClient(address)
    run_id = json.loads((run / "mlflow.json").read_text())["run_id"]
    return [(m.step, m.value) for m in client.get_metric_history(run_id, key)]


@OWN_WARNINGS
def test_mlflow_has_every_step_once_even_after_a_kill(cycle: Path, server: str) -> None:
    part = cycle.parent / "part"
    train_until(trainer(cycle, part), 59)
    before = json.loads((part / "mlflow.json").read_text())["run_id"]
    mlflow.end_run("KILLED")  # the process is gone
    again = trainer(cycle, part)
    again.train()
    again.loggers.close()
    assert json.loads((part / "mlflow.json").read_text())["run_id"] == before
    assert [s for s, _ in steps_of(server, part, "train/loss")] == LOGGED
    found = [(int(r["step"]), r["recall@10"]) for r in validations(part)]
    assert same(steps_of(server, part, "valid/recall_at_10"), found)
    made = mlflow.MlflowClient(server).get_run(before)
    assert made.info.status == "FINISHED" and made.info.run_name == "part"
    assert made.data.params["model.width"] == "16" and made.data.params["training.learning_rate"] == "0.02"


@OWN_WARNINGS
def test_mlflow_at_another_server_begins_anew(cycle: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = cycle.parent / "part"
    train_until(trainer(cycle, part), 59)
    mlflow.end_run("KILLED")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server}-other")
    again = trainer(cycle, part)
    again.train()
    again.loggers.close()
    assert [s for s, _ in steps_of(f"{server}-other", part, "train/loss")] == [s for s in LOGGED if s > 40]


@OWN_WARNINGS
def test_mlflow_that_is_down_at_first(cycle: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody listens there
    warned: list[str] = []
    run = cycle.parent / "run"
    t = trainer(cycle, run, warned)

    def watch(progress: object) -> None:
        if t.step == 70:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", server)

    t.train(watch)
    t.loggers.close()
    assert [s for s, _ in steps_of(server, run, "train/loss")] == LOGGED
    assert len(warned) == 1 and "MLflow does not take the metrics" in warned[0]


def test_mlflow_is_not_used_uninvited(cycle: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(cycle.parent)
    t = trainer(cycle, cycle.parent / "run")
    t.train()
    t.loggers.close()
    assert sorted(p.name for p in cycle.parent.iterdir()) == ["data", "run"]
    assert not (cycle.parent / "run" / "mlflow.json").exists()
