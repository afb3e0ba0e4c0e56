"""`lrurec reproduce`: one queue of cells, whatever happens to it, and the table that comes of it."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import lrurec
from conftest import Run
from lrurec.data.synthetic import log, preset, resized
from lrurec.experiments import settings
from lrurec.experiments.cells import DONE, FAILED
from lrurec.experiments.markdown import page, remarks, text_rows
from lrurec.experiments.published import published
from lrurec.experiments.rows import main
from lrurec.experiments.settings import kind_of, settings_for
from lrurec.experiments.tables import METRICS, tables
from lrurec.training.checkpoint import load_checkpoint

SMALL = ["model.width=16", "model.channels=8", "training.batch=16", "training.steps=6", "training.validate_every=3"]
LONG = [*SMALL[:3], "training.steps=400", "training.validate_every=50"]


def sets(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in sample, much smaller: 20 events per user, so it is sparse."""
    folder = tmp_path_factory.mktemp("data") / "tiny"
    world = resized(preset("sample"), users=120, items=60, events=2400)
    lrurec.load_events(pl.concat(log(world)), out=folder)
    return folder


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four cells, done."""
    out = tmp_path_factory.mktemp("finished") / "out"
    command = [sys.executable, "-m", "lrurec.cli.main", *reproduce(tiny, out)]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def reproduce(data: Path, out: Path, *more: object, models: str = "popularity,lrurec", seeds: str = "0,1") -> list[str]:
    words = ["reproduce", "main", "--datasets", data, "--out", out, "--models", models, "--seeds", seeds, *more]
    return [str(word) for word in words] + ([] if "--set" in words else sets(SMALL))


def cell(out: Path, model: str = "lrurec", seed: int = 0, dataset: str = "tiny") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "main" / dataset / model / f"seed-{seed}" / "cell.json").read_text())
    return found


def started(err: str) -> list[str]:
    return [line.split()[-1] for line in err.splitlines() if line.startswith(("started", "goes on"))]


def test_the_table(out: Path, tiny: Path, run: Run) -> None:
    one = cell(out, seed=1)
    result = json.loads((out / "main/tiny/lrurec/seed-1/run/result.json").read_text())
    assert one["state"] == DONE and one["test"] == result["test"] and one["valid"] == result["valid"]
    assert one["dataset"]["kind"] == "sparse" and one["dataset"]["content_id"] == lrurec.Dataset.open(tiny).content_id
    assert one["config"]["training"]["steps"] == 6 and one["config"]["training"]["negatives"] == 4096
    assert one["config"]["model"]["dropout"] == 0.6 and one["config"]["training"]["seed"] == 1
    assert 5e7 < one["peak_memory"] < 1e10 and one["lrurec"] == lrurec.__version__ and "cores of" in one["machine"]
    manifest = json.loads((out / "main/tiny/lrurec/seed-1/run/manifest.json").read_text())
    assert one["threads"] == manifest["environment"]["threads"]
    whole = json.loads((out / "main.json").read_text())
    (table,) = whole["datasets"]
    assert [row["model"] for row in table["rows"]] == ["popularity", "lrurec"] and whole["missing"] == []
    values = [cell(out, seed=k)["test"]["ndcg@10"] for k in (0, 1)]
    assert table["rows"][1]["test"]["ndcg@10"]["mean"] == pytest.approx(sum(values) / 2)
    assert values[0] != values[1] and table["rows"][1]["verdict"] == "not in the paper"
    text = (out / "main.md").read_text()
    (command,) = [line.strip() for line in text.splitlines() if line.startswith("    lrurec")]
    done = run(*command.split()[1:], "--out", out)  # the command under the table makes it, and here it is made already
    assert done.code == 0 and started(done.err) == [] and (out / "main.md").read_text() == text
    assert "LRURec against the best of the others: NDCG@10" in done.out
    assert json.loads(run(*reproduce(tiny, out, "--json")).out) == whole
    run(*reproduce(tiny, out, "--results", out / "results"))
    assert (out / "results/baselines.md").read_text() == text
    assert json.loads((out / "results/baselines.json").read_text()) == whole


def test_only_what_is_missing_is_done(out: Path, tiny: Path, run: Run) -> None:
    before = cell(out, seed=1)
    shutil.rmtree(out / "main/tiny/lrurec/seed-1")
    (out / "main/tiny/popularity/seed-0/cell.json").unlink()
    done = run(*reproduce(tiny, out))
    assert done.code == 0
    assert started(done.err) == ["tiny/popularity/seed-0", "tiny/lrurec/seed-1"]
    assert "goes on   tiny/popularity/seed-0" in done.err  # its run was there
    assert cell(out, seed=1)["test"] == before["test"]
    assert len(json.loads((out / "main.json").read_text())["datasets"][0]["rows"][1]["seeds"]) == 2


def test_other_settings_are_kept_until_asked(out: Path, tiny: Path, run: Run) -> None:
    changed = sets([*SMALL, "training.steps=9"])
    told = one_line(run, *reproduce(tiny, out, *changed))
    assert "lrurec/seed-0 was made with other settings (training.steps was 6, is 9 now), and so was 1 other;" in told
    assert "--again" in told
    listed = run(*reproduce(tiny, out, "--list", *changed)).out
    assert "tiny/popularity/seed-0  done" in listed  # steps mean nothing to it
    assert "tiny/lrurec/seed-0      other settings (training.steps was 6, is 9 now)" in listed
    done = run(*reproduce(tiny, out, "--again", *changed, seeds="0"))
    assert done.code == 0 and started(done.err) == ["tiny/lrurec/seed-0"]
    assert cell(out)["steps"] == 9 and cell(out, seed=1)["steps"] == 6
    text = (out / "main.md").read_text()
    assert "its seeds were trained with different settings" in text
    assert text.count("    lrurec reproduce main") == 3  # popularity, and lrurec in two ways
    lrurec.load_events(pl.DataFrame({"user": [1, 1, 1, 2, 2], "item": [1, 2, 3, 1, 2]}), out=out / "tiny")
    assert "the dataset is another one" in one_line(run, *reproduce(out / "tiny", out))


def test_a_failing_cell_does_not_stop_the_rest(tiny: Path, tmp_path: Path, run: Run) -> None:
    wild = sets([*SMALL, "training.learning_rate=1e30"])
    done = run(*reproduce(tiny, tmp_path, *wild, models="lrurec,popularity", seeds="0"))
    assert done.code == 1 and "1 of 2 cells failed" in done.err and "Traceback" not in done.err
    assert cell(tmp_path)["state"] == FAILED and "the loss at step" in cell(tmp_path)["error"][-1]
    assert cell(tmp_path, "popularity")["state"] == DONE
    assert "LRURec, seed 0, failed: lrurec: the loss at step" in (tmp_path / "main.md").read_text()
    assert "failed" in done.out.split("LRURec")[1]
    listed = json.loads(run(*reproduce(tiny, tmp_path, "--list", "--json", *wild, seeds="0")).out)
    assert [one["state"] for one in listed] == [DONE, FAILED]
    again = run(*reproduce(tiny, tmp_path, seeds="0"))  # it has nothing to keep, so other settings need no --again
    assert again.code == 0 and started(again.err) == ["tiny/lrurec/seed-0"]
    assert cell(tmp_path)["state"] == DONE and "failed" not in (tmp_path / "main.md").read_text()


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cell that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole")
    command = [sys.executable, "-m", "lrurec.cli.main", *disturbed(tiny, out)]
    subprocess.run(command, check=True, capture_output=True)
    return out / "main/tiny/lrurec/seed-0/run"


def disturbed(tiny: Path, out: Path) -> list[str]:
    return reproduce(tiny, out, *sets(LONG), models="lrurec", seeds="0")


@pytest.mark.parametrize("how", ["kill all", "kill the queue", "ctrl-c"])
def test_a_queue_that_is_stopped_goes_on_exactly(how: str, tiny: Path, whole: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lrurec.cli.main", *disturbed(tiny, tmp_path)]
    folder = tmp_path / "main/tiny/lrurec/seed-0"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as queue:
        wait_for(lambda: (folder / "run/last.safetensors").exists())
        (child,) = map(int, Path(f"/proc/{queue.pid}/task/{queue.pid}/children").read_text().split())
        queue.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGKILL)
        if how == "kill all":
            os.kill(child, signal.SIGKILL)
        _, err = queue.communicate()
    wait_for(lambda: not Path(f"/proc/{child}").exists())  # nobody trains on in secret
    assert not (folder / "cell.json").exists()
    saved = load_checkpoint(folder / "run/last.safetensors")[1]["step"]
    assert 50 <= saved < 400
    if how == "kill all":
        assert saved % 50 == 0
    if how == "ctrl-c":
        assert queue.returncode == 130 and "0 of 1 cells are done; go on with:\n  lrurec reproduce main" in err
        assert "Traceback" not in err and "stopped and saved at step" in (folder / "log.txt").read_text()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "goes on   tiny/lrurec/seed-0" in done.stderr
    assert (folder / "log.txt").read_text().count("$ lrurec train") == 2
    for name in ("last.safetensors", "best.safetensors"):
        a, b = load_checkpoint(whole / name)[0], load_checkpoint(folder / "run" / name)[0]
        assert set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)
    assert cell(tmp_path)["test"] == json.loads((whole / "result.json").read_text())["test"]


def wait_for(condition: Any, seconds: float = 300.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.01)


def test_two_queues_do_no_cell_twice(tiny: Path, tmp_path: Path) -> None:
    """Nor twice what fails: who sees it fail elsewhere leaves it at that."""
    wild = sets([*SMALL, "training.learning_rate=1e30"])
    command = [sys.executable, "-m", "lrurec.cli.main", *reproduce(tiny, tmp_path, *wild)]
    queues = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [queue.communicate() for queue in queues]
    assert [queue.returncode for queue in queues] == [1, 1], told
    logs = list(tmp_path.glob("main/tiny/*/*/log.txt"))
    assert len(logs) == 4 and all(path.read_text().count("$ lrurec train") == 1 for path in logs)
    begun = [started(err) for _, err in told]
    assert all(begun) and sorted(begun[0] + begun[1]) == sorted(
        f"tiny/{model}/seed-{seed}" for model in ("popularity", "lrurec") for seed in (0, 1)
    )
    for out, err in told:  # each knows of all
        assert "2 of 4 cells failed" in err and "Popularity  2 " in out
    (table,) = json.loads((tmp_path / "main.json").read_text())["datasets"]
    assert [len(row["seeds"]) for row in table["rows"]] == [2, 0]


def test_jobs_share_the_cores_and_a_budget_ends(
    tiny: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    short = sets(["training.max_length=10"])
    done = run(*reproduce(tiny, tmp_path, "--jobs", 2, *short, models="popularity,markov", seeds="0"))
    lines = [line.split()[0] for line in done.err.splitlines()]
    assert done.code == 0 and lines == ["started", "started", "done", "done"]
    assert cell(tmp_path, "markov")["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
    over = run(*reproduce(tiny, tmp_path, "--budget", 1e-9, *short, models="popularity,lrurec", seeds="0"))
    assert over.code == 1 and started(over.err) == []
    assert "1 of 2 cells are left; go on with:\n  lrurec reproduce main" in over.err
    assert "Not done yet: tiny/lrurec/seed-0." in (tmp_path / "main.md").read_text()


def test_a_known_dataset_is_prepared_from_the_raw_file(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw/beauty").mkdir(parents=True)
    with gzip.open(tmp_path / "raw/beauty/beauty.txt.gz", "wt") as file:
        file.writelines(f"{u} {(u + k) % 12 + 1}\n" for u in range(40) for k in range(9))
    monkeypatch.setenv("LRUREC_DATA", str(tmp_path / "raw"))
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "main", "--models", "popularity,markov", "--out", "out"]
    assert "beauty/beauty.txt.gz (to be prepared)" in run(*words, "--list").out
    assert not (tmp_path / "out").exists()
    done = run(*words)  # no --datasets: those of the table that are here
    assert done.code == 0 and lrurec.Dataset.open(tmp_path / "out/datasets/beauty").n_users == 40
    text = (tmp_path / "out/main.md").read_text()
    assert "not the paper's data: it has 40 users and 12 items, the paper's Amazon Beauty 52,204 and 57,289" in text
    monkeypatch.delenv("LRUREC_DATA")
    assert started(run(*words).err) == []  # the prepared one is found without it
    assert "lrurec data fetch ml-1m" in one_line(run, *words, "--datasets", "ml-1m")


def one_line(run: Run, *arguments: object) -> str:
    done = run(*arguments)
    assert done.code == 2 and done.err.count("\n") == 1 and done.out == "", done
    return done.err


def test_mistakes(tiny: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRUREC_DATA", raising=False)
    base = ["reproduce", "main", "--datasets", tiny]
    assert "did you mean 'main'" in one_line(run, "reproduce", "mian", "--datasets", tiny)
    assert "TARGET" in one_line(run, "reproduce")
    assert "unknown model 'lrurek'; did you mean 'lrurec'?" in one_line(run, *base, "--models", "lrurek")
    assert "known: popularity, markov" in one_line(run, *base, "--models", "zzz")
    assert "did you mean 'beauty'" in one_line(run, "reproduce", "main", "--datasets", "beuty")
    assert "did you mean 'tiny'" in one_line(run, "reproduce", "main", "--datasets", "tinny", "--data", tiny.parent)
    assert "none of ml-1m, beauty" in one_line(run, "reproduce", "main")
    assert "does not exist" in one_line(run, "reproduce", "main", "--datasets", "data/absent")
    assert "both called tiny" in one_line(run, "reproduce", "main", "--datasets", f"tiny,{tiny}", "--data", tiny.parent)
    assert "did you mean 'dropout'" in one_line(run, *base, "--set", "model.droput=1")
    assert "unknown training setting 'stepz'; did you mean 'steps'" in one_line(
        run, *base, "--models", "markov", "--set", "training.stepz=1"
    )
    assert "must be a whole number" in one_line(run, *base, "--set", "training.steps=x")
    assert "what --seeds says" in one_line(run, *base, "--set", "training.seed=1")
    assert "what --models says" in one_line(run, *base, "--set", "model.name=x")
    assert "part.name=value" in one_line(run, *base, "--set", "steps")
    assert "from 0 on" in one_line(run, *base, "--seeds", "0,x")
    assert "commas between" in one_line(run, *base, "--models", "a,,b")
    assert "minutes" in one_line(run, *base, "--budget", "-1")
    assert list(tmp_path.iterdir()) == []  # nothing was left behind
    (tmp_path / "file").touch()
    assert "lrurec: " in one_line(run, *base, "--out", "file", "--models", "markov")


def test_settings_follow_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [kind_of(n) for n in (7.1, 29.9, 30.0, 165.5)] == ["sparse", "sparse", "dense", "dense"]
    dense = settings_for("dense", "lrurec", 3)
    assert dense.recipe == "fast"
    assert dense.assignments == ("model.dropout=0.1", "training.max_length=200", "training.seed=3")
    sparse = settings_for("sparse", "lrurec", 0).config
    assert (sparse.model.dropout, sparse.training.steps, sparse.training.shared_negatives) == (0.6, 12000, True)
    assert settings_for("sparse", "popularity", 0, ["training.steps=5"]).assignments == ("training.seed=0",)
    given = settings_for("sparse", "lrurec", 0, ["training.steps=5", "training.steps=7"]).assignments
    assert given[-2:] == ("training.steps=7", "training.seed=0") and sum("steps" in a for a in given) == 1
    own = {**settings.table(), "models": {"lrurec": {"dense": {"recipe": "paper", "training": {"max_length": 90}}}}}
    monkeypatch.setattr(settings, "table", lambda: own)
    mine = settings_for("dense", "lrurec", 0)
    assert mine.recipe == "paper" and mine.config.training.max_length == 90
    assert settings_for("dense", "popularity", 0).config.training.max_length == 200


def test_the_published_numbers_give_the_published_improvements() -> None:
    """The last column of the paper's table, in percent, from the other columns as we hold them."""
    printed = {
        "ml-1m": (4.22, 3.06, 2.52, 0.08),
        "beauty": (5.86, 4.78, 4.61, 2.81),
        "video": (6.33, 0.76, 6.13, 0.39),
        "sports": (17.40, 5.39, 14.86, 4.24),  # 17.43 in print
        "steam": (2.59, 1.86, 2.53, 1.96),
    }
    paper = published("main")
    assert paper.table == "Table 3" and list(paper.values) == list(printed)
    for dataset, improvements in printed.items():
        assert len(paper.values[dataset]) == 9
        for metric, percent in zip(METRICS, improvements, strict=True):
            assert 100 * (paper.improvement(dataset, metric) or 0) == pytest.approx(percent, abs=0.006)


def made_up(model: str, seed: int, factor: float, **more: object) -> dict[str, Any]:
    """A cell on ML-1M that comes to `factor` times what the paper has."""
    paper = published("main").of("ml-1m", model) or dict.fromkeys(METRICS, 0.1)
    dataset = {"name": "ml-1m", "given": "ml-1m", "content_id": "x", "kind": "dense", "not_the_papers": None}
    return {
        "target": "main",
        "row": model,
        "dataset": {**dataset, "users": 6040, "items": 3416, "events": 999_611},
        "model": model,
        "seed": seed,
        "state": DONE,
        "test": {metric: value * factor for metric, value in paper.items()},
        "seconds": 10.0 + seed,
        "peak_memory": 1e9 + seed,
        "threads": 1,
        "recipe": "fast",
        "settings": ["training.max_length=200", f"training.seed={seed}"],
        "given": [],
        **more,
    }


def test_ours_beside_the_papers() -> None:
    cells = [
        made_up("lrurec", 0, 1.00),
        made_up("lrurec", 1, 1.02),
        made_up("sasrec", 0, 0.90),
        made_up("gru4rec", 0, 1.06),
        made_up("popularity", 0, 1.0),
        made_up("narm", 0, 1.0, state=FAILED, error=["first", "the last line"]),
    ]
    (table,) = tables(cells, published("main"), main("dense"))
    rows = {row["model"]: row for row in table["rows"]}
    assert list(rows)[-1] == "lrurec" and next(iter(rows)) == "popularity"
    verdicts = {model: row["verdict"] for model, row in rows.items()}
    assert verdicts == {
        "popularity": "not in the paper",
        "gru4rec": "above",
        "narm": "failed",
        "sasrec": "below by 10.0%",
        "lrurec": "reproduced",
    }
    ours = rows["lrurec"]["test"]["ndcg@10"]
    assert ours["mean"] == pytest.approx(0.19065 * 1.01) and ours["spread"] == pytest.approx(0.19065 * 0.02 / 2**0.5)
    assert rows["lrurec"]["relative"]["recall@20"] == pytest.approx(0.01)
    assert rows["lrurec"]["seconds"] == 10.5 and rows["lrurec"]["peak_memory"] == 1e9 + 1
    lead = table["lead"]["ndcg@10"]
    assert lead["over"] == "GRU4Rec" and lead["ours"] == pytest.approx(0.19065 * 1.01 / (0.15943 * 1.06) - 1)
    assert lead["published"] == pytest.approx(0.0422, abs=1e-4)
    marked = text_rows(table, marked=True)
    assert marked[-1][2].startswith("**0.19256 ±") and [row[2] for row in marked if row[0] == "GRU4Rec"] == [
        "*0.16900*"
    ]
    assert any("NARM, seed 0, failed: the last line" in remark for remark in remarks(table))
    assert table["commands"] == [
        "lrurec reproduce main --datasets ml-1m --models popularity,gru4rec,narm,sasrec --seeds 0",
        "lrurec reproduce main --datasets ml-1m --models lrurec --seeds 0,1",
    ]
    whole = {
        "table": "Table 3",
        "caption": "Main",
        "split": "test",
        "paper": "P",
        "datasets": [table],
        "machines": ["m"],
    }
    assert "| 0.18293 | -10.0% |" in page(whole)


def test_other_data_of_the_same_name_is_not_judged() -> None:
    one = made_up("lrurec", 0, 1.0)
    one["dataset"]["not_the_papers"] = "it has 5 users"
    (table,) = tables([one], published("main"), main("dense"))
    assert table["rows"][0]["verdict"] == "other data" and table["notes"] == ["not the paper's data: it has 5 users"]
