"""TensorBoard and MLflow: they get what metrics.jsonl has, once, and never stop a training."""

import json
import sys
from collections import defaultdict
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import lrurec
from conftest import Run as Command
from lrurec.training import loggers as module
from lrurec.training.checkpoint import load_checkpoint
from lrurec.training.config import config_for
from lrurec.training.loggers import Loggers, Row, loggers_for
from lrurec.training.run import Run
from lrurec.training.trainer import LAST, METRICS, Trainer, learning_rate

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
    t = Trainer(lrurec.leave_last_out(dataset), dataset.n_items, run.config, folder)
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
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


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


class Server(ModuleType):
    """As much of mlflow as is used, in memory, with the same refusals."""

    class MlflowException(Exception):
        error_code = "RESOURCE_DOES_NOT_EXIST"

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.__spec__ = ModuleSpec("mlflow", None)
        self.entities = SimpleNamespace(
            Metric=lambda key, value, at, step: SimpleNamespace(key=key, value=value, step=step),
            Param=lambda key, value: (key, value),
        )
        self.metrics: dict[str, dict[str, list[Any]]] = {}
        self.params: dict[str, str] = {}
        self.active: str | None = None
        self.outcomes: list[str] = []
        self.down = False

    def MlflowClient(self) -> "Server":
        return self

    def start_run(self, run_id: str | None = None, run_name: str | None = None) -> Any:
        self._answer()
        assert self.active is None
        if run_id is not None and run_id not in self.metrics:
            raise self.MlflowException
        self.active = run_id or f"{run_name}-{len(self.metrics)}"
        metrics = self.metrics.setdefault(self.active, defaultdict(list))
        return SimpleNamespace(info=SimpleNamespace(run_id=self.active), data=SimpleNamespace(metrics=dict(metrics)))

    def end_run(self, status: str) -> None:
        self.active = None
        self.outcomes.append(status)

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self._answer()
        assert len(metrics) <= 1000 and not any("@" in m.key for m in metrics)
        for m in metrics:
            self.metrics[run_id][m.key].append(m)
        self.params |= dict(params)

    def get_metric_history(self, run_id: str, key: str) -> Any:
        return self.metrics[run_id][key]

    def _answer(self) -> None:
        if self.down:
            raise ConnectionError("the server is down")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setitem(sys.modules, "mlflow", made)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://nowhere.invalid")
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    return made


def test_mlflow_has_every_step_once_even_after_a_kill(cycle: Path, server: Server) -> None:
    part = cycle.parent / "part"
    first = trainer(cycle, part)
    train_until(first, 59)
    server.end_run("")  # the process is gone
    again = trainer(cycle, part)
    again.train()
    again.loggers.close()
    assert list(server.metrics) == ["part-0"] and json.loads((part / "mlflow.json").read_text())["run_id"] == "part-0"
    history = {key: [(m.step, m.value) for m in values] for key, values in server.metrics["part-0"].items()}
    assert [s for s, _ in history["train/loss"]] == LOGGED
    assert history["valid/recall_at_10"] == [(r["step"], r["recall@10"]) for r in validations(part)]
    assert server.params["model.width"] == "16" and server.params["training.learning_rate"] == "0.02"
    assert server.outcomes[-1] == "FINISHED"


def test_mlflow_at_another_server_begins_anew(cycle: Path, server: Server) -> None:
    part = cycle.parent / "part"
    train_until(trainer(cycle, part), 59)
    server.end_run("")
    server.metrics.clear()
    again = trainer(cycle, part)
    again.train()
    again.loggers.close()
    assert [m.step for m in server.metrics["part-0"]["train/loss"]] == [s for s in LOGGED if s > 40]


def test_mlflow_that_is_down_at_first(cycle: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    warned: list[str] = []
    server.down = True
    t = trainer(cycle, cycle.parent / "run", warned)

    def watch(progress: object) -> None:
        server.down = t.step < 70

    t.train(watch)
    t.loggers.close()
    assert [m.step for m in server.metrics["run-0"]["train/loss"]] == LOGGED
    assert len(warned) == 1 and "MLflow does not take the metrics (the server is down)" in warned[0]


def test_mlflow_is_not_used_uninvited(cycle: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(cycle.parent)
    t = trainer(cycle, cycle.parent / "run")
    t.train()
    t.loggers.close()
    assert server.metrics == {} and sorted(p.name for p in cycle.parent.iterdir()) == ["data", "run"]


@pytest.mark.filterwarnings("ignore")  # its own
def test_a_real_mlflow(cycle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (too heavy to be pinned for the tests)")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no database of its own")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{cycle.parent}/mlflow.db")
    part = cycle.parent / "part"
    train_until(trainer(cycle, part), 59)
    mlflow.end_run("KILLED")
    again = trainer(cycle, part)
    again.train()
    again.loggers.close()
    client = mlflow.MlflowClient()
    made = client.get_run(json.loads((part / "mlflow.json").read_text())["run_id"])
    assert made.info.status == "FINISHED" and made.info.run_name == "part"
    assert made.data.params["training.steps"] == "120"
    assert [m.step for m in client.get_metric_history(made.info.run_id, "train/loss")] == LOGGED
    found = [(m.step, m.value) for m in client.get_metric_history(made.info.run_id, "valid/recall_at_10")]
    assert same(found, [(int(r["step"]), r["recall@10"]) for r in validations(part)])
