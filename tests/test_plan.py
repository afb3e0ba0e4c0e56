"""A plan against what really happens, at sizes that are quick. Seconds are never asserted."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import lrurec
from conftest import Run
from lrurec.data.batches import Windows
from lrurec.errors import SettingsError
from lrurec.planning import plan as planning
from lrurec.planning.log import Log
from lrurec.planning.plan import PlanFailed, plan
from lrurec.planning.probe import Measured, line
from lrurec.training.config import config_for
from lrurec.training.learner import Learner

SMALL = ["training.steps=12", "training.validate_every=12", "training.batch=16", "model.width=16", "model.channels=16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """700 users, about 400 items, histories of all lengths."""
    rng = np.random.default_rng(0)
    rows = [(u, int(i)) for u in range(700) for i in rng.integers(0, 400, rng.integers(1, 90))]
    log = tmp_path_factory.mktemp("plan") / "log.csv"
    pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row").write_csv(log)
    out = log.parent / "data"
    subprocess.run([sys.executable, "-m", "lrurec.cli.main", "prepare", str(log), "--out", str(out)], check=True)
    for name, more in (("full", []), ("sampled", ["training.loss=sampled"]), ("memory", ["memory.use=true"])):
        trained(out, out.with_name(name), [*SMALL, *more])  # whoever compiles the loops first holds more memory
    return out


def trained(folder: Path, out: Path, assignments: list[str]) -> int:
    """A real run, and the bytes its process held at most."""
    more = [x for a in assignments for x in ("--set", a)]
    command = [sys.executable, "-m", "lrurec.cli.main", "train", str(folder), "--out", str(out), *more]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize(
    "more", [[], ["training.loss=sampled"], ["memory.use=true"]], ids=["full", "sampled", "with a memory"]
)
def test_it_is_what_comes_out(folder: Path, tmp_path: Path, run: Run, more: list[str]) -> None:
    settings = [*SMALL, *more]
    told = run("plan", folder, "--json", *(x for a in settings for x in ("--set", a)))
    assert told.code == 0, told.err
    found = json.loads(told.out)
    peak = trained(folder, tmp_path / "run", settings)
    assert found["memory"] == pytest.approx(peak, rel=0.15)
    best, last = ((tmp_path / "run" / f"{name}.safetensors").stat().st_size for name in ("best", "last"))
    assert found["measured"]["weights"] == pytest.approx(best, rel=0.1)
    assert found["measured"]["resumable"] == pytest.approx(last, rel=0.1)
    memory = tmp_path / "run/memory.safetensors"
    assert memory.exists() == ("memory.use=true" in more)
    remembered = memory.stat().st_size if memory.exists() else 0
    assert found["run_bytes"] == pytest.approx(best + 2 * last + remembered, rel=0.1)
    assert run("export", tmp_path / "run", "--out", tmp_path / "artifact").code == 0
    size = sum(f.stat().st_size for f in (tmp_path / "artifact").iterdir())
    assert found["artifact_bytes"] == pytest.approx(size, rel=0.35)
    dataset = lrurec.Dataset.open(folder)
    learner = Learner(dataset.n_items, 0, lrurec.leave_last_out(dataset).train, config_for("fast", None, settings))
    assert found["steps_per_epoch"] == learner.sampler.steps_per_epoch and found["steps"] == learner.steps
    mean = len(learner.windows) and learner.windows.n_targets / len(learner.windows) * 16
    assert found["measured"]["positions"] == pytest.approx(mean, rel=0.25)
    assert found["measured"]["step"] > 0 and found["measured"]["exact"] > 0


def test_what_is_extended_is_what_is_there() -> None:
    """Tables of a catalogue that is measured in part, against the same catalogue as a whole."""
    log = Log.made_up(users=50, items=40_000, events=2000, length=None)
    config = config_for("fast", None, [*SMALL, "training.loss=sampled"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "SAMPLED", 10_000)
        part = plan(log, config)
    whole = plan(log, config)
    assert part.scales == (0.0625, 0.25) and whole.scales == (1.0,)
    for name in ("weights", "resumable"):
        assert getattr(part.all, name) == pytest.approx(getattr(whole.all, name), rel=0.01)
    assert part.memory == pytest.approx(whole.memory, rel=0.1)


def test_a_log_that_is_not_there_yet(folder: Path) -> None:
    """Its sizes alone give nearly the disk that it takes."""
    dataset = lrurec.Dataset.open(folder)
    real = Log.of(dataset)
    made = Log.made_up(real.users, real.items, real.events, None)
    assert made.events == real.events and made.users == real.users
    config = config_for("fast", None, [])
    empty = Measured(*[0.0] * 11)
    sizes = [planning.Plan(log, config, (1.0,), empty, 1).dataset_bytes for log in (made, real)]
    assert sizes[0] == pytest.approx(sizes[1] - (folder / "manifest.json").stat().st_size, rel=0.5)
    assert Log.made_up(10, 5, None, 7).events == 70


@pytest.mark.parametrize("longest", [5, 50])
def test_samples_are_like_training(folder: Path, longest: int) -> None:
    log = Log.of(lrurec.Dataset.open(folder))
    train = lrurec.leave_last_out(lrurec.Dataset.open(folder)).train
    whole = Windows.of(train, longest)
    assert log.windows(longest) == len(whole)
    some = Windows.of(log.sample(2000, longest, 100), longest)
    assert len(some) == pytest.approx(2000, rel=0.2) and int(some.items.max()) < 100
    assert some.n_targets / len(some) == pytest.approx(whole.n_targets / len(whole), rel=0.1)


@pytest.mark.parametrize("model", ["sasrec", "popularity", "mf"])
def test_other_models(folder: Path, run: Run, model: str) -> None:
    told = run("plan", folder, "--model", model, "--set", "training.steps=3")
    assert told.code == 0 and "memory of training" in told.out and "serving" not in told.out
    assert ("counting" in told.out) == (model == "popularity")


def test_advice() -> None:
    log = Log.made_up(1000, 60_000, None, 300)
    measured = Measured(1.0, 100.0, 0.001, 1e9, 1e6, 3e6, None, None, None, None, 0.0)

    def advice(*assignments: str, peak: float = 1e9) -> str:
        config = config_for("fast", None, ["training.precision=float32", *assignments])
        return "\n".join(planning.Plan(log, config, (1.0,), replace(measured, peak=peak), 2).advice())

    assert "training.loss=sampled" in advice() and "training.loss=sampled" not in advice("training.loss=sampled")
    assert "training.shared_negatives=true" in advice("training.loss=sampled")
    assert "training.max_length=500" in advice() and "carry_state" in advice()
    assert "training.max_length" not in advice("training.max_length=300")
    assert "GB of memory" in advice(peak=1e15) and "GB of memory" not in advice()
    assert "validations take" in advice("training.steps=2", "training.validate_every=1")
    assert "validations take" not in advice("training.steps=1")
    assert "GB of disk" not in advice()
    short = planning.Plan(Log.made_up(10, 5, None, 2), config_for("fast", None, []), (1.0,), measured, 2)
    assert "nothing to validate" in "\n".join(short.advice())
    huge = planning.Plan(log, config_for("fast", None, []), (1.0,), replace(measured, peak=1e15, resumable=9e14), 2)
    assert "model.width" in huge.advice()[0] and "GB of disk" in huge.advice()[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "pass a dataset folder, or --users"),
        (["--users", "10", "--items", "5"], "how many events"),
        (["--users", "10", "--items", "5", "--events", "5"], "fewer than"),
        (["--users", "10", "--items", "5", "--events", "100", "--length", "50"], "10 per user, not 50"),
        (["--users", "inf", "--items", "5", "--events", "5"], "not a whole number"),
        (["--users", "nan", "--items", "5", "--events", "5"], "not a whole number"),
        (["nowhere"], "nowhere"),
        (["nowhere", "--items", "5"], "leave out --items"),
        (["--users", "1", "--items", "5", "--events", "5", "--set", "training.lss=full"], "did you mean"),
    ],
)
def test_wrong_words(run: Run, arguments: list[str], words: str) -> None:
    told = run("plan", *arguments)
    assert told.code == 2 and words in told.err and "Traceback" not in told.err


def test_settings_that_only_a_trial_can_judge(folder: Path, run: Run) -> None:
    told = run("plan", folder, "--set", "training.loss=sampled", "--set", "training.negatives=5000")
    assert told.code == 2 and "more than the 400 items" in told.err and "Error" not in told.err


def test_a_trial_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    log, config = Log.made_up(10, 5, None, 7), config_for("fast", None, SMALL)
    for code, words in (("import os; os.kill(os.getpid(), 9)", "signal 9"), ("raise OSError('no room')", "no room")):
        monkeypatch.setattr(planning, "_COMMAND", ["-c", code])
        with pytest.raises(PlanFailed, match=words):
            plan(log, config)
    with pytest.raises(SettingsError):
        Log.made_up(10, 5, None, None)


def test_lines() -> None:
    assert line((1, 2), (10.0, 11.0), 5) == 14.0
    assert line((1, 2), (11.0, 10.0), 5) == 10.0
    assert line((2, 2), (11.0, 10.0), 5) == 10.0


def test_finishing_and_remembering_take_time(folder: Path, run: Run) -> None:
    more = ["training.steps=12", "training.finish=5", "memory.use=true"]
    settings = [x for a in [*SMALL, *more] for x in ("--set", a)]
    told = json.loads(run("plan", folder, "--json", *settings).out)
    assert told["steps"] == 17 and told["remembering"] > 0
    assert told["whole"] > 17 * told["measured"]["step"] + told["remembering"]
    text = run("plan", folder, *settings).out
    assert "17 steps" in text and "the transition memory" in text and "with a transition memory" in text
