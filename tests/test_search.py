"""The search for settings: trials that are ended early, killed, shared."""

import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import lrurec
from conftest import Run
from lrurec.errors import SettingsError
from lrurec.experiments.search import size, space_for

SMALL = [
    "model.width=16",
    "model.channels=8",
    "training.batch=16",
    "training.steps=40",
    "training.validate_every=20",
    "training.learning_rate=0.02",
    "training.loss=full",
]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]


@pytest.fixture
def cycle(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 8, (80, 9))  # or every trial is as good as the next
    rows = [(u, (5 * u + 9 * k + noise[u, k]) % 90) for u in range(80) for k in range(9)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "cycle")
    return tmp_path / "cycle"


def found(folder: Path) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((folder / "search.json").read_text())
    return whole


def test_spaces() -> None:
    assert size(space_for("paper", "lrurec", "dense")) == 16 and size(space_for("paper", "sasrec", "long")) == 4
    assert size(space_for("quick", "mf", "sparse")) == 9
    wide = space_for("wide", "gru4rec", "dense")
    assert "model.hidden" in wide and "model.mask_share" not in wide and size(wide) is None
    with pytest.raises(SettingsError, match="not trained"):
        space_for("paper", "markov", "dense")
    with pytest.raises(SettingsError, match="wide"):
        space_for("wid", "lrurec", "dense")


def test_a_grid_and_its_best_settings(cycle: Path, run: Run) -> None:
    out = cycle.parent / "out"
    command = ("search", cycle, "--out", out, *SETTINGS)
    done = run(*command, "--trials", "2")
    assert done.code == 0 and "best      trial" in done.out and done.err.count("started") == 2
    assert run(*command, "--trials", "2").err == ""  # they are there
    assert run(*command, "--trials", "9").code == 0
    whole = found(out)
    tried = [(t["training.weight_decay"], t["model.dropout"]) for t in whole["trials"]]
    assert len(tried) == len(set(tried)) == 9
    assert {t["state"] for t in whole["trials"]} == {"complete", "pruned"}  # some were not worth their second half
    assert all(t["step"] == (20 if t["state"] == "pruned" else 40) for t in whole["trials"])
    values = [t["recall@10"] for t in whole["trials"] if t["state"] == "complete"]
    assert whole["best"]["recall@10"] == max(values) > min(values)
    best = tomllib.loads((out / "best.toml").read_text())
    assert best["model"]["dropout"] == whole["best"]["model.dropout"] and best["training"]["steps"] == 40
    page = (out / "search.html").read_text()
    assert page.count("<svg") == 3 and "What mattered" in page
    assert not any(word in page for word in ("src=", 'href="http', "<link", "@import"))  # it needs nothing else
    trained = run("train", cycle, "--config", out / "best.toml", "--out", cycle.parent / "run")
    assert trained.code == 0
    result = json.loads((cycle.parent / "run/result.json").read_text())
    assert result["valid"]["recall@10"] == whole["best"]["recall@10"]


def test_wide(cycle: Path, run: Run) -> None:
    out = cycle.parent / "wide"
    small = [word for word in SETTINGS if not word.startswith(("model.width", "training.learning"))]
    small = [w for k, w in enumerate(small) if not (w == "--set" and (k + 1 == len(small) or small[k + 1] == "--set"))]
    done = run("search", cycle, "--space", "wide", "--trials", "3", "--out", out, "--json", *small)
    assert done.code == 0 and len(json.loads(done.out)["trials"]) == 3
    assert all(1e-3 <= t["training.learning_rate"] <= 1e-2 for t in found(out)["trials"])


def test_trials_that_fail_end_the_search(cycle: Path, run: Run) -> None:
    wild = [w.replace("learning_rate=0.02", "learning_rate=1e30") for w in SETTINGS]
    done = run("search", cycle, "--trials", "2", "--out", cycle.parent / "wild", *wild)
    assert done.code == 2 and done.err.count("failed: the loss at step") == 2
    assert done.err.splitlines()[-1].startswith("lrurec: no trial came to an end")


def test_killed_before_its_early_end_is_recorded(cycle: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run knows that it was ended, the journal does not: it is no whole trial when the search goes on."""
    out = cycle.parent / "out"
    command = ("search", cycle, "--out", out, *SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr("optuna.trial.Trial.should_prune", lambda trial: True)
        patch.setattr("optuna.study.Study.tell", lambda *arguments, **more: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*command, "--trials", "1").code == 130
    assert run(*command, "--trials", "2").code == 0
    states = {t["run"]: (t["state"], t["step"]) for t in found(out)["trials"]}
    assert states == {"0000": ("pruned", 20), "0002": ("complete", 40)}


def test_killed_and_shared(cycle: Path, tmp_path: Path) -> None:
    """Killed in the middle of a trial, then two processes at once: every point of the grid is tried once."""
    out = tmp_path / "out"
    slow = ["--set", "training.steps=200", "--set", "training.validate_every=10"]
    words = ["search", str(cycle), "--out", str(out), "--trials", "5", *SETTINGS, *slow]
    command = [sys.executable, "-m", "lrurec.cli.main", *words]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    metrics = out / "trials/0000/run/metrics.jsonl"
    for _ in range(600):
        time.sleep(0.1)
        if metrics.exists() and metrics.read_text().count("\n") >= 3:
            break
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    before = metrics.read_text().splitlines()
    assert 3 <= len(before) < 20, "it was not killed in the middle of a trial"
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(text.count("goes on") for text in said) == 1
    whole = found(out)
    assert (
        len(whole["trials"]) == 5
        and len({(t["training.weight_decay"], t["model.dropout"]) for t in whole["trials"]}) == 5
    )
    assert sorted(t["run"] for t in whole["trials"])[0] == "0000" and len({t["run"] for t in whole["trials"]}) == 5
    assert metrics.read_text().splitlines()[: len(before)] == before  # it went on, and did not begin anew


def test_mistakes(cycle: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("search", cycle, "--out", out, "--trials", "1", *SETTINGS).code == 0
    (tmp_path / "text").write_text("not a journal\n")
    for words, hint in (
        (("--out", out, "--model", "sasrec", "--trials", "1"), "another model"),
        (("--out", out, "--set", "model.dropout=0.1"), "leave it out of --set"),
        (("--model", "popularity"), "not trained"),
        (("--space", "papr"), "did you mean"),
        (("--trials", "0"), "--trials"),
        (("--out", tmp_path / "b", "--storage", tmp_path / "text"), "journal"),
    ):
        done = run("search", cycle, *words)
        assert done.code == 2 and hint in done.err and done.err.count("\n") == 1, done.err
