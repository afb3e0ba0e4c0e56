"""`lrurec train` and `lrurec evaluate` as a person uses them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import lrurec
from conftest import Run
from lrurec.cli import parts
from lrurec.folder import held
from lrurec.kernels import compiled_before
from lrurec.models.base import TrainedModel
from lrurec.training.checkpoint import load_checkpoint
from lrurec.training.remembering import remember
from lrurec.training.run import Run as RunFolder

SMALL = ["model.width=16", "model.channels=8", "training.steps=40", "training.validate_every=20", "training.batch=16"]
SETTINGS = [part for s in [*SMALL, "training.learning_rate=0.02"] for part in ("--set", s)]


@pytest.fixture
def cycle(tmp_path: Path) -> Path:
    rows = [(u, (u + k) % 12) for u in range(40) for k in range(9)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    return tmp_path / "data"


def test_train_then_evaluate(cycle: Path, run: Run) -> None:
    out = cycle.parent / "run"
    done = run("train", cycle, "--out", out, *SETTINGS)
    assert done.code == 0 and "test      Recall@10" in done.out
    result = json.loads((out / "result.json").read_text())
    assert result["steps"] == 40 and len(result["mean_abs_lambda"]) == 2
    assert "learning_rate = 0.02" in (out / "config.toml").read_text()
    told = run("evaluate", out)
    assert told.code == 0
    for words in (
        "40 users, test split",
        "recall@10",
        "95% interval",
        "by length of history",
        "mean |lambda| per block",
    ):
        assert words in told.out
    assert "popularity" in run("evaluate", out, "--baselines").out
    report = json.loads(run("evaluate", out, "-k", "1", "-k", "5", "--json").out)
    assert set(report["metrics"]) == {f"{m}@{k}" for m in ("recall", "ndcg", "mrr") for k in (1, 5)}
    assert report["metrics"]["recall@5"]["low"] <= report["metrics"]["recall@5"]["value"]
    by_test = json.loads(run("evaluate", out, "--json").out)["metrics"]["recall@10"]["value"]
    assert by_test == pytest.approx(result["test"]["recall@10"])
    valid = json.loads(run("evaluate", out, "--split", "valid", "--json").out)["metrics"]["ndcg@10"]["value"]
    assert valid == pytest.approx(result["valid"]["ndcg@10"])


@pytest.mark.parametrize(("model", "noted"), [("popularity", True), ("markov", False)])
def test_a_model_that_reads_no_histories_says_so(cycle: Path, run: Run, model: str, noted: bool) -> None:
    out = cycle.parent / model
    assert run("train", cycle, "--out", out, "--model", model).code == 0
    told = run("recommend", out, "--history", "3,4", "-k", "2")
    assert told.code == 0 and ("does not look at histories" in told.err) == noted
    assert "does not look" not in run("recommend", out, "--user", "1").err


def test_a_line_for_every_validation(cycle: Path, run: Run) -> None:
    """Also for one that is no better than the one before; metrics among samples say so; nothing is said of compiling twice."""
    out = cycle.parent / "run"
    more = ("--set", "training.candidates=4", "--set", "training.validate_every=10", "--set", "memory.use=true")
    done = run("train", cycle, "--out", out, *SETTINGS, *more)
    assert done.code == 0 and done.out.count("(among 4 sampled items)") == 4
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 20, 30, 40]
    for row in rows:
        said = f"step {row['step']}/40  loss {row['loss']:.3f}  Recall@10 {row['recall@10']:.4f}"
        assert any(line.startswith(said) and "sampled" in line for line in done.err.splitlines()), (said, done.err)
    result = json.loads((out / "result.json").read_text())
    assert result["candidates"] == 4 and compiled_before()
    again = run("train", cycle, "--out", out, "--resume")  # it was whole: nothing is measured anew but the same metrics
    assert again.code == 0 and json.loads((out / "result.json").read_text())["seconds"] == result["seconds"]
    for damaged in ("", "{", "[]", "{}"):
        (out / "result.json").write_text(damaged)
        assert run("train", cycle, "--out", out, "--resume").code == 0
        assert json.loads((out / "result.json").read_text())["test"] == result["test"]


def test_evaluate_among_candidates(cycle: Path, run: Run) -> None:
    out = cycle.parent / "run"
    run("train", cycle, "--out", out, *SETTINGS)
    told = run("evaluate", out, "--candidates", 5, "--baselines")
    assert told.code == 0
    assert "40 users, test split, ranked among 5 sampled items (seed 0)" in told.out
    assert "not comparable" in told.out and "of the catalogue" not in told.out

    def values(*more: object) -> list[object]:
        report = json.loads(run("evaluate", out, "-k", 2, "--baselines", "--json", *more).out)
        assert ("recommended" in report) == ("candidates" not in report)
        return [report["metrics"], report["baselines"]]

    assert values("--candidates", 5) == values("--candidates", 5, "--seed", 0)
    assert values("--candidates", 1) != values("--candidates", 1, "--seed", 3)
    assert values("--candidates", "1e4") == values()  # 12 items: all of them
    covered = run("evaluate", out, "--candidates", 10_000)
    assert "all items ranked (there are no more than 10,000 others)" in covered.out and "warning" not in covered.out
    assert "pass both" in one_line(run, "evaluate", out, "--seed", 1)
    assert "from 0 on" in one_line(run, "evaluate", out, "--candidates", 5, "--seed", -1)


def test_report(cycle: Path, run: Run) -> None:
    out = cycle.parent / "run"
    run("train", cycle, "--out", out, *SETTINGS)
    assert run("report", out).code == 0
    text = (out / "report.html").read_text()
    assert text.count("<svg") == 3 + 2 + 2 * 2  # curves, slices, a disc and a histogram per block
    assert text.count("<circle class=fb") == 2 * 8  # a dot per channel
    assert "http" not in text.replace("http-equiv", "") and "<script" not in text
    assert run("report", out, "--out", "/proc/nowhere/x.html").code == 2


@pytest.mark.parametrize(("mixer", "dots"), [("s4", 16 * 32), ("rwkv", 16)])
def test_other_mixers(cycle: Path, run: Run, mixer: str, dots: int) -> None:
    out = cycle.parent / "run"
    assert (
        run(
            "train", cycle, "--out", out, *SETTINGS, *("--set", "model.channels=128", "--set", f"model.mixer={mixer}")
        ).code
        == 0
    )
    assert "mean |lambda| per block" in run("evaluate", out).out
    assert run("report", out).code == 0
    assert (out / "report.html").read_text().count("<circle class=fb") == 2 * dots
    artifact = cycle.parent / "artifact"
    if mixer == "rwkv":
        assert run("export", out, "--out", artifact).code == 0
    else:
        refused = one_line(run, "export", out, "--out", artifact)
        assert "model.mixer=s4 steps in Python" in refused and "knows the mixers lru and rwkv only" in refused


def test_ctrl_c_saves_and_resume_goes_on_exactly(cycle: Path, run: Run) -> None:
    """A real SIGINT; the run that was stopped ends with the weights of one that was not."""
    settings = [*SETTINGS, "--set", "training.steps=600", "--set", "training.validate_every=300"]
    whole, part = cycle.parent / "whole", cycle.parent / "part"
    assert run("train", cycle, "--out", whole, *settings).code == 0
    command = [sys.executable, "-m", "lrurec.cli.main", "train", str(cycle), "--out", str(part), *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (part / "config.toml").exists():
            time.sleep(0.01)
        time.sleep(2.0)  # imports are done and steps are being made
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert "stopped and saved at step" in err and "--resume" in err and "Traceback" not in err
    stopped_at = load_checkpoint(part / "last.safetensors")[1]["step"]
    assert 0 < stopped_at < 600
    assert run("train", cycle, "--out", part, "--resume").code == 0
    a, b = load_checkpoint(whole / "last.safetensors")[0], load_checkpoint(part / "last.safetensors")[0]
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_ctrl_c_while_the_memory_is_learned(cycle: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not left halfway, and whoever waits is told."""
    out = cycle.parent / "run"

    def pressed(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return remember(*arguments)

    monkeypatch.setattr("lrurec.training.trainer.remember", pressed)
    more = ("--set", "memory.use=true", "--set", "training.finish=20")
    done = run("train", cycle, "--out", out, *SETTINGS, *more)
    assert done.code == 130 and "stops when the memory is learned" in done.err
    assert (out / "memory.safetensors").exists() and "stopped and saved at step 41" in done.err
    again = run("train", cycle, "--out", out, "--resume")
    assert again.code == 0 and "stops when" not in again.err


def one_line(run: Run, *arguments: object) -> str:
    done = run(*arguments)
    assert done.code == 2 and done.err.count("\n") == 1 and done.out == "", done
    return done.err


def test_mistakes(cycle: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = cycle.parent / "run"
    assert "does not exist" in one_line(run, "train", tmp_path / "absent", "--out", out)
    assert "did you mean 'fast'" in one_line(run, "train", cycle, "--out", out, "--recipe", "fats")
    assert "did you mean 'dropout'" in one_line(run, "train", cycle, "--out", out, "--set", "model.droput=1")
    assert "does not exist" in one_line(run, "train", cycle, "--out", out, "--config", tmp_path / "c.toml")
    assert "does not exist" in one_line(run, "train", cycle, "--out", out, "--resume")
    assert not out.exists()
    assert run("train", cycle, "--out", out, *SETTINGS).code == 0
    assert "--resume to go on" in one_line(run, "train", cycle, "--out", out)
    assert "keeps its settings" in one_line(run, "train", cycle, "--out", out, "--resume", *SETTINGS)
    assert "is not a lrurec dataset" in one_line(run, "train", out, "--out", out.parent / "run2")
    weights = (out / "best.safetensors").read_bytes()
    (out / "best.safetensors").write_bytes(weights[:-5])
    assert "is damaged" in one_line(run, "evaluate", out)
    (out / "best.safetensors").write_bytes(weights)
    lrurec.load_events(pl.DataFrame({"user": [1, 1, 1], "item": [1, 2, 3]}), out=cycle)
    assert "is not the dataset that" in one_line(run, "evaluate", out)
    cycle.rename(cycle.with_name("elsewhere"))
    assert "if it has moved, pass --dataset DIR" in one_line(run, "evaluate", out)
    cycle.with_name("elsewhere").rename(cycle)
    assert "does not exist" in one_line(run, "evaluate", tmp_path / "nowhere")
    monkeypatch.setattr(parts, "find_spec", lambda name: None)
    assert "pip install 'lrurec[train]'" in one_line(run, "train", cycle, "--out", out)


def test_nobody_to_test_on(tmp_path: Path, run: Run) -> None:
    lrurec.load_events(pl.DataFrame({"user": [1, 1, 2, 2], "item": [1, 2, 2, 1]}), out=tmp_path / "data")
    done = run("train", tmp_path / "data", "--out", tmp_path / "run", *SETTINGS)
    assert done.code == 0 and "nothing to validate or test on" in done.err
    assert "nothing to evaluate on" in one_line(run, "evaluate", tmp_path / "run")


def test_refit_trains_on_everything_and_is_not_measured(tmp_path: Path, run: Run) -> None:
    rows = [(u, (u + k) % 12) for u in range(20) for k in range(5)] + [(99, k) for k in (3, 4)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    small = ("--set", "model.width=8", "--set", "model.channels=4", "--set", "training.steps=6")
    more = ("--set", "training.validate_every=2", "--set", "memory.use=true", "--set", "memory.held_back=0.3")
    made = run("train", tmp_path / "data", "--out", tmp_path / "run", "--refit", *small, *more)
    assert made.code == 0 and "on everything" in made.out and "Recall" not in made.out
    opened = RunFolder.open(tmp_path / "run")
    model = opened.model()
    assert isinstance(model, TrainedModel) and model.memory is not None
    assert int(model.memory.transitions.counts.sum()) == len(rows)
    assert "test" not in json.loads((tmp_path / "run" / "result.json").read_text())
    for command in (("evaluate", tmp_path / "run"), ("compare", tmp_path / "run", tmp_path / "run")):
        refused = run(*command)
        assert refused.code == 2 and "was trained on everything (--refit)" in refused.err
    assert run("export", tmp_path / "run", "--out", tmp_path / "artifact").code == 0
    again = run("train", tmp_path / "data", "--out", tmp_path / "run", "--resume", "--refit")
    assert again.code == 2 and "leave out" in again.err
    endless = run("train", tmp_path / "data", "--out", tmp_path / "other", "--recipe", "paper", "--refit")
    assert endless.code == 2 and "training.refit needs training.steps" in endless.err
    both = run("train", tmp_path / "data", "--out", tmp_path / "other", "--refit", "--set", "training.refit=false")
    assert both.code == 2 and "exclude each other" in both.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.learning_rate=-1", "training.learning_rate must be a number of 0 or more"),
        ("training.learning_rate=nan", "training.learning_rate must be a number of 0 or more"),
        ("training.clip=-1", "training.clip must be a number above 0"),
        ("training.weight_decay=-1", "training.weight_decay must be a number of 0 or more"),
        ("training.seed=-1", "training.seed must be a whole number from 0"),
        (f"training.seed={1 << 40}", "training.seed must be a whole number from 0"),
        ("training.steps=-5", "training.steps must be 0"),
        ("training.device=foo", "training.device=foo is no device"),
        ("training.device=cuda:7", "training.device=cuda:7 is not here"),
        ("model.width=100000000000", "the model does not fit into memory"),
        ("training.stepz=5", "unknown setting of training 'stepz'; did you mean 'steps'?"),
    ],
)
def test_settings_that_cannot_be_leave_no_folder(cycle: Path, run: Run, setting: str, said: str) -> None:
    out = cycle.parent / "run"
    assert said in one_line(run, "train", cycle, "--out", out, "--set", setting)
    assert not out.exists()


def test_a_sampled_loss_that_cannot_be_leaves_no_folder(cycle: Path, run: Run) -> None:
    out = cycle.parent / "run"
    settings = ("--set", "training.loss=sampled", "--set", "training.negatives=1000000")
    assert "are more than the 12 items" in one_line(run, "train", cycle, "--out", out, *settings)
    assert not out.exists()


def test_a_config_that_is_no_text(cycle: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"[training]\nsteps = 5 # \xff\n")
    said = one_line(run, "train", cycle, "--out", tmp_path / "run", "--config", tmp_path / "c.toml")
    assert "is not text in UTF-8" in said


def test_a_folder_of_another_kind(cycle: Path, run: Run) -> None:
    said = one_line(run, "evaluate", cycle)
    assert (
        "is not a lrurec run folder; it is a dataset, which lrurec train takes; a run is made by lrurec train" in said
    )


def test_damaged_files_say_what_else_there_is(cycle: Path, run: Run) -> None:
    out = cycle.parent / "run"
    assert run("train", cycle, "--out", out, *SETTINGS).code == 0
    for file, other in (("best", "last"), ("last", "best")):
        whole = (out / f"{file}.safetensors").read_bytes()
        (out / f"{file}.safetensors").write_bytes(whole[:20])
        said = one_line(run, "evaluate", out, "--checkpoint", file)
        assert said.strip().endswith(f"or evaluate and export the other one (--checkpoint {other})")
        assert run("evaluate", out, "--checkpoint", other).code == 0
        (out / f"{file}.safetensors").write_bytes(whole)


def test_a_run_without_a_checkpoint_begins_anew_and_says_so(cycle: Path, run: Run) -> None:
    out = cycle.parent / "run"
    assert run("train", cycle, "--out", out, *SETTINGS).code == 0
    for file in ("last.safetensors", "best.safetensors", "metrics.jsonl", "result.json"):
        (out / file).unlink()
    again = run("train", cycle, "--out", out, "--resume")
    assert again.code == 0 and "there is no checkpoint yet" in again.err and "training.validate_every" in again.err


def test_more_candidates_than_items_are_all_items(cycle: Path, run: Run) -> None:
    said = run("train", cycle, "--out", cycle.parent / "run", *SETTINGS, "--set", "training.candidates=1e6")
    assert said.code == 0 and "Recall@10" in said.out and "sampled" not in said.out + said.err


def test_a_dataset_folder_is_no_run_to_go_on_with(cycle: Path, run: Run) -> None:
    said = one_line(run, "train", cycle, "--out", cycle)
    assert "already exists; choose another --out" in said and "--resume" not in said


def test_a_dataset_with_items_that_it_does_not_have(cycle: Path, run: Run) -> None:
    items = np.load(cycle / "items.npy")
    items[17] = 10_000
    np.save(cycle / "items.npy", items)
    assert "items.npy names items that are not in it" in one_line(run, "train", cycle, "--out", cycle.parent / "run")
    assert not (cycle.parent / "run").exists()


@pytest.mark.parametrize("file", ["best.safetensors", "last.safetensors"])
def test_a_changed_byte_is_noticed(cycle: Path, run: Run, file: str) -> None:
    out = cycle.parent / "run"
    assert run("train", cycle, "--out", out, *SETTINGS).code == 0
    weights = bytearray((out / file).read_bytes())
    weights[-3] ^= 1
    (out / file).write_bytes(weights)
    command = ("evaluate", out) if file.startswith("best") else ("train", cycle, "--out", out, "--resume")
    assert "its bytes have changed" in one_line(run, *command)


def test_metrics_that_end_within_a_line(cycle: Path, run: Run) -> None:
    """As a machine that lost power leaves them."""
    out = cycle.parent / "run"
    assert run("train", cycle, "--out", out, *SETTINGS).code == 0
    rows = (out / "metrics.jsonl").read_text()
    (out / "metrics.jsonl").write_text(rows + '{"step": 60, "sec')
    assert run("report", out).code == 0
    assert run("train", cycle, "--out", out, "--resume").code == 0
    assert (out / "metrics.jsonl").read_text() == rows
    (out / "metrics.jsonl").write_text('{"step": 60, "sec\n' + rows)
    assert "line 1 of" in one_line(run, "report", out)


def test_a_run_that_is_being_trained_is_left_alone(cycle: Path, run: Run) -> None:
    out = cycle.parent / "run"
    long = ("--set", "training.steps=1000000", "--set", "training.validate_every=1000000")
    command = [sys.executable, "-m", "lrurec.cli.main", "train", str(cycle), "--out", str(out), *SETTINGS, *long]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not (out / "manifest.json").exists():
            time.sleep(0.01)
        time.sleep(1.0)
        assert "is being trained by another process" in one_line(run, "train", cycle, "--out", out, "--resume")
        process.kill()
        process.communicate()
    with held(out, "trained"):  # of one that was killed, nothing is left
        pass


def test_a_loss_that_is_no_number_says_how_to_go_on(cycle: Path, run: Run) -> None:
    out = cycle.parent / "run"
    said = one_line(run, "train", cycle, "--out", out, *SETTINGS, "--set", "training.learning_rate=1e30")
    assert "train again with a lower training.learning_rate (it is 1e+30)" in said


COLD = """
import hashlib, torch
from lrurec.models.base import Batch, Sizes
from lrurec.models.lrurec import LRURec, LRURecConfig
from lrurec.nn.dropout import Keys
from lrurec.nn.loss import cross_entropy, multiplies_half
g = torch.Generator().manual_seed(3)
model = LRURec(Sizes(200, 5, 50), LRURecConfig(), g)
items = torch.randint(1, 201, (160,), generator=g)
batch = Batch(items, torch.tensor([0, 50, 51, 51, 100, 160]), None, half=multiplies_half(torch.device("cpu")))
hidden = model.encode(batch, Keys(5))
loss = cross_entropy(hidden, *model.answers(), torch.randint(0, 200, (160,), generator=g), half=batch.half)
loss.backward()
found = hashlib.sha256()
for p in model.parameters():
    found.update(p.grad.numpy().tobytes())
print(found.hexdigest())
"""


def test_kernels_from_the_cache_are_those_that_were_compiled(tmp_path: Path) -> None:
    """The first process compiles, the second finds everything compiled: the same gradients, bit for bit."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COLD]
    cold, warm = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert any(tmp_path.rglob("*.nbc")) and cold == warm
