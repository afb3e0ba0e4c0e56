"""The pipeline against its slow twin, and the promises of the folder."""

import contextlib
import hashlib
import io
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
from hypothesis import given
from hypothesis import strategies as st

import lrurec
from conftest import Event, Run, histories, slow_prepare
from lrurec import Dataset
from lrurec.data import spill
from lrurec.data.prepare import prepare
from lrurec.errors import FolderError, NothingLeftError, SettingsError


def write(path: Path, events: list[Event]) -> Path:
    pl.DataFrame(
        {"user": [e[0] for e in events], "item": [e[1] for e in events], "time": [e[2] for e in events]}
    ).write_parquet(path)
    return path


logs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=60)
choices = st.fixed_dictionaries(
    {
        "min_user": st.integers(1, 4),
        "min_item": st.integers(1, 4),
        "k_core": st.booleans(),
        "drop_repeats": st.booleans(),
    }
)


@given(logs, choices, st.sampled_from([3, 8, 1 << 22]))
def test_agrees_with_the_slow_twin(
    tmp_path_factory: pytest.TempPathFactory, log: list[Event], chosen: dict[str, Any], part: int
) -> None:
    """Also when the log is dealt out to many parts."""
    path = write(tmp_path_factory.mktemp("p") / "log.parquet", log)
    expected = slow_prepare(log, **chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "PART", part)
        if max((len(h) for h in expected.values()), default=0) < 2:
            with pytest.raises(NothingLeftError):
                lrurec.load_events(path, **chosen)
            return
        dataset = lrurec.load_events(path, **chosen)
    assert histories(dataset) == expected
    assert dataset.n_items == len({i for h in expected.values() for i in h})


def test_filter_takes_items_first_and_passes_once() -> None:
    # Item c is rare; without it user 2 is short; without user 2 item b is rare, but one pass does not look again.
    log = pl.DataFrame({"user": [1, 1, 2, 2], "item": ["a", "a", "b", "c"]}).vstack(
        pl.DataFrame({"user": [1, 1, 2], "item": ["b", "a", "b"]})
    )
    assert histories(lrurec.load_events(log, min_user=3, min_item=2)) == {1: ["a", "a", "b", "a"]}
    assert histories(lrurec.load_events(log, min_user=3, min_item=2, k_core=True)) == {1: ["a", "a", "a"]}


def test_repeats_go_before_anything_is_counted() -> None:
    log = pl.DataFrame({"user": [1, 1, 1, 2, 2], "item": ["a", "a", "b", "b", "a"]})
    kept = lrurec.load_events(log, drop_repeats=True)
    assert histories(kept) == {1: ["a", "b"], 2: ["b", "a"]}
    assert kept.manifest["log"]["repeats_dropped"] == 1
    with pytest.raises(NothingLeftError):
        lrurec.load_events(log, drop_repeats=True, min_user=3)


TIED = pl.DataFrame({"user": [1] * 5 + [2] * 3, "item": [5, 9, 2, 7, 1, 3, 2, 1], "time": [1, 1, 1, 1, 0, 4, 4, 4]})


def test_ties() -> None:
    assert histories(lrurec.load_events(TIED)) == {1: [1, 5, 9, 2, 7], 2: [3, 2, 1]}
    assert histories(lrurec.load_events(TIED, ties="item")) == {1: [1, 2, 5, 7, 9], 2: [1, 2, 3]}
    seen = [histories(lrurec.load_events(TIED, ties="shuffle", seed=s)) for s in range(20)]
    assert all(h[1][0] == 1 and sorted(map(str, h[1])) == ["1", "2", "5", "7", "9"] for h in seen)
    assert len({str(h) for h in seen}) > 10
    assert seen[3] == histories(lrurec.load_events(TIED, ties="shuffle", seed=3))


def test_a_shuffle_does_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = histories(lrurec.load_events(TIED, ties="shuffle"))
    monkeypatch.setattr(spill, "PART", 2)
    assert histories(lrurec.load_events(TIED, ties="shuffle")) == whole


def test_recipe_paper_is_five_and_five(tmp_path: Path) -> None:
    dataset = lrurec.load_events(TIED.vstack(TIED), recipe="paper", min_user=1, min_item=1)
    settings = dataset.manifest["source"]["settings"]
    assert (settings["drop_repeats"], settings["ties"]) == (True, "item")
    log = pl.DataFrame({"user": ["a"] * 5 + ["b"] * 4, "item": list("vwxyz") + list("vwxy")})
    many = pl.concat([log.with_columns(pl.col("user") + str(k)) for k in range(5)])
    assert lrurec.load_events(many, recipe="paper").n_users == 5
    pairs = tmp_path / "pairs.txt"  # arrives filtered
    pairs.write_text("1 10\n1 10\n1 11\n2 10\n")
    assert histories(lrurec.load_events(pairs, recipe="paper")) == {1: [10, 11], 2: [10]}


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_are_kept_in_microseconds(tmp_path: Path, unit: str, factor: int) -> None:
    log = [(1, 1, 1_700_000_000 * factor), (1, 2, 1_700_000_060 * factor)]
    dataset = lrurec.load_events(write(tmp_path / "log.parquet", list(log)))
    assert dataset.times is not None
    assert dataset.times.tolist() == [1_700_000_000 * 10**6, 1_700_000_060 * 10**6]
    with pytest.raises(SettingsError, match="--time-unit") if factor > 10**3 else contextlib.nullcontext():
        lrurec.load_events(write(tmp_path / "log.parquet", list(log)), time_unit="s")


def test_nanoseconds_decide_the_order_before_they_are_rounded(tmp_path: Path) -> None:
    log: list[Event] = [(1, "b", 1_700_000_000_000_000_002), (1, "a", 1_700_000_000_000_000_001)]
    assert lrurec.load_events(write(tmp_path / "log.parquet", log)).history(1) == ["a", "b"]


def test_numbers_in_one_file_and_dates_in_another(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,time\n1,1,1700000000\n1,2,1700000100\n")
    (tmp_path / "b.csv").write_text("user,item,time\n1,3,2023-11-14T22:13:50Z\n")
    assert lrurec.load_events(tmp_path).history(1) == [1, 3, 2]


# --- the folder ---------------------------------------------------------------------------------


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_same_input_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    log = [(f"u{u}", int(i), int(t)) for u, i, t in rng.integers(0, 50, (2000, 3))]
    path = write(tmp_path / "log.parquet", list(log))
    first = prepare([path], tmp_path / "one", min_item=2)
    monkeypatch.setattr(spill, "PART", 64)  # nor does the way it was dealt out matter
    second = prepare([path], tmp_path / "two", min_item=2)
    assert not first.unchanged and not second.unchanged
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


def test_nothing_changed_nothing_done(tmp_path: Path, run: Run) -> None:
    log, out = tmp_path / "log.csv", tmp_path / "out"
    log.write_text("user,item\n1,2\n1,3\n")
    assert run("prepare", log, "--out", out).code == 0
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    again = run("prepare", log, "--out", out)
    assert again.code == 0 and "up to date" in again.out
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before
    log.write_text("user,item\n1,2\n1,4\n")  # same size, other content
    assert "up to date" not in run("prepare", log, "--out", out).out
    assert Dataset.open(out).history(1) == [2, 4]
    assert "up to date" not in run("prepare", log, "--out", out, "--drop-repeats").out
    assert "up to date" not in run("prepare", log, "--out", out, "--header", "no").out  # other reading, other events
    assert Dataset.open(out).n_events == 3
    assert list(tmp_path.glob(".*")) == []


def test_a_damaged_dataset_is_made_again(tmp_path: Path, run: Run) -> None:
    log, out = tmp_path / "log.csv", tmp_path / "out"
    log.write_text("user,item\n1,2\n1,3\n")
    run("prepare", log, "--out", out)
    (out / "items.npy").write_bytes(b"short")
    with pytest.raises(FolderError, match="items.npy has 5 bytes"):
        Dataset.open(out)
    assert run("prepare", log, "--out", out).code == 0
    assert Dataset.open(out).history(1) == [2, 3]


def test_json_says_it_all(tmp_path: Path, run: Run) -> None:
    log = tmp_path / "log.csv"
    log.write_text("uid,sku,ts\na,x,1\na,y,2\n")
    told = json.loads(run("prepare", log, "--out", tmp_path / "out", "--json").out)
    assert told["counts"] == {"users": 1, "items": 2, "interactions": 2}
    given = told["source"]["inputs"][0]
    assert (given["format"], given["user"], given["item"], given["time"]) == ("csv", "uid", "sku", "ts")
    assert given["sha256"] == hashlib.sha256(log.read_bytes()).hexdigest()


@pytest.fixture
def big_log(tmp_path: Path) -> Path:
    """Large enough to be caught in the middle."""
    rng = np.random.default_rng(0)
    log = tmp_path / "log.csv"
    pl.DataFrame(rng.integers(0, 1000, (1_500_000, 3)), schema=["user", "item", "time"]).write_csv(log)
    return log


def stop_at_work(log: Path, out: Path, number: int) -> "subprocess.Popen[str]":
    """Start preparing, and send a signal once events are being set aside."""
    command = [sys.executable, "-m", "lrurec.cli.main", "prepare", str(log), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(log.parent.glob(".out.lrurec-*/events.spill")):
        assert process.poll() is None, "never caught it at work"
        time.sleep(0.001)
    process.send_signal(number)
    process.wait(timeout=60)
    return process


def test_killed_writers_leave_nothing_that_counts(big_log: Path, run: Run) -> None:
    """SIGKILL in the middle: no folder appears, and the next run sweeps up and succeeds."""
    out = big_log.parent / "out"
    with stop_at_work(big_log, out, signal.SIGKILL).stderr or io.StringIO():
        assert not out.exists()
    assert list(big_log.parent.glob(".out.lrurec-*")), "the killed writer should have left its hidden folder"
    assert run("prepare", big_log, "--out", out).code == 0
    assert Dataset.open(out).n_events == 1_500_000
    assert list(big_log.parent.glob(".*")) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_stopped_writers_clean_up(big_log: Path, number: int, code: int) -> None:
    out = big_log.parent / "out"
    process = stop_at_work(big_log, out, number)
    with process.stderr or io.StringIO() as stderr:
        told = stderr.read()
    assert process.returncode == code, told
    assert told == "lrurec: stopped; nothing was left behind\n"
    assert sorted(p.name for p in big_log.parent.iterdir()) == ["log.csv"]


def test_a_pipe_is_no_file(tmp_path: Path, run: Run) -> None:
    os.mkfifo(tmp_path / "log")
    done = run("prepare", tmp_path / "log", "--out", tmp_path / "out")
    assert done.code == 2 and "write it to a file first" in done.err


def test_two_writers_to_one_folder(tmp_path: Path) -> None:
    """Both finish; the folder is one of the two, whole."""
    rng = np.random.default_rng(0)
    commands = []
    for k in (1, 2):
        log = tmp_path / f"log{k}.csv"
        pl.DataFrame(rng.integers(0, 100, (50_000 * k, 3)), schema=["user", "item", "time"]).write_csv(log)
        commands.append([sys.executable, "-m", "lrurec.cli.main", "prepare", str(log), "--out", str(tmp_path / "out")])
    for _ in range(3):
        writers = [subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for c in commands]
        for writer in writers:
            _, err = writer.communicate()
            assert writer.returncode == 0, err
        dataset = Dataset.open(tmp_path / "out")
        dataset.verify()
        assert dataset.n_events in (50_000, 100_000)
    assert list(tmp_path.glob(".*")) == []
