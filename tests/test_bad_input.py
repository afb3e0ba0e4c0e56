"""Everything that can be wrong with the input: one line that says what to do, exit code 2, nothing left behind."""

import gzip
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from conftest import Ran, Run
from lrurec import Dataset

GOOD = "user,item,time\n1,2,10\n1,3,20\n"

# name: (file name, content, options, words of the message)
CASES: dict[str, tuple[str, bytes | None, list[str], list[str]]] = {
    "missing file": ("log.csv", None, [], ["does not exist", "check the path"]),
    "empty file": ("log.csv", b"", [], ["is empty"]),
    "blank file": ("log.csv", b"\n \n\n", [], ["is empty"]),
    "empty gzip": ("log.csv.gz", gzip.compress(b""), [], ["is empty"]),
    "header only": ("log.csv", b"user,item\n", [], ["no rows"]),
    "one column": ("log.csv", b"user\n1\n2\n", [], ["no format that lrurec knows", "--format"]),
    "no user column": ("log.csv", b"when,item\n1,2\n", [], ["no user column", "--user", "when, item"]),
    "no item column": ("log.csv", b"user,when\n1,2\n", [], ["no item column", "--item"]),
    "wrong user column": (
        "log.csv",
        GOOD.encode(),
        ["--user", "usr"],
        ["no column 'usr'", "user, item, time"],
    ),
    "no rating column": ("log.csv", GOOD.encode(), ["--min-rating", "4"], ["no rating column", "--rating"]),
    "empty user": (
        "log.csv",
        b"user,item\n1,2\n,3\n",
        [],
        ["row 2 (line 3)", "no user id", "--skip-bad-rows"],
    ),
    "quoted empty item": ("log.csv", b'user,item\n1,""\n1,3\n', [], ["row 1 (line 2)", "no item id"]),
    "short row": ("log.csv", b"user,item\n1,2\n1\n", [], ["row 2 (line 3)", "no item id"]),
    "null user": (
        "log.jsonl",
        b'{"user":1,"item":2}\n\n{"user":null,"item":3}\n',
        [],
        ["row 2 (line 3)", "no user id"],
    ),
    "absent item": ("log.jsonl", b'{"user":1,"item":2}\n{"user":1}\n', [], ["row 2 (line 2)", "no item id"]),
    "time": (
        "log.csv",
        b"user,item,time\n1,2,2020-01-01\n1,3,soon\n",
        [],
        ["row 2 (line 3)", "'soon'", "ISO"],
    ),
    "empty time": (
        "log.csv",
        b"user,item,time\n1,2,5\n1,3,\n",
        [],
        ["row 2 (line 3)", "has no time"],
    ),
    "two readings": (
        "log.csv",
        b"user,item,date\n1,2,01/02/2014\n",
        [],
        ["row 1 (line 2)", "'01/02/2014'", "two ways"],
    ),
    "rating": ("log.csv", b"user,item,rating\n1,2,5\n1,3,good\n", ["--min-rating", "4"], ["row 2", "'good'"]),
    "too many fields": ("log.csv", b"user,item\n1,2\n1,3,4\n1,5\n", [], ["line 3 has 3 fields, 2 expected"]),
    "open quote": ("log.csv", b'user,item\n1,2\n"1,3\n', [], ["line 3", "cannot be taken apart"]),
    "stray quote": ("log.csv", b'user,item\n1,2\n"1"x,3\n', [], ["line 3", "cannot be taken apart"]),
    "truncated gzip": (
        "log.csv.gz",
        gzip.compress(GOOD.encode() * 999)[:-9],
        [],
        ["ends early", "get the file again"],
    ),
    "not UTF-8": ("log.csv", b"user,item\n1,2\n1,caf\xe9\n", [], ["line 3 is not UTF-8", "iconv"]),
    "UTF-16": ("log.csv", GOOD.encode("utf-16"), [], ["UTF-16", "iconv"]),
    "zip": ("log.zip", b"PK\x03\x04 and so on", [], ["zip archive", "unpack it first"]),
    "binary": ("log.bin", bytes(range(256)) * 9, [], ["neither text nor Parquet", "line 1"]),
    "bad JSON": ("log.jsonl", b'{"user":1,"item":2}\n{"user":1,\n', [], ["line 2 is not a JSON object"]),
    "broken Parquet": ("log.parquet", b"PAR1 and then nothing", [], ["not a whole Parquet file"]),
    "users with one event": ("log.csv", b"user,item\n1,2\n3,4\n", [], ["no user has two events", "--user"]),
    "all filtered": (
        "log.csv",
        GOOD.encode(),
        ["--min-user", "5"],
        ["nothing is left", "--min-user 5", "lower"],
    ),
    "all rated low": ("log.csv", b"user,item,rating\n1,2,3\n1,3,2\n", ["--min-rating", "4"], ["2 rated below 4"]),
    "skipped to nothing": (
        "log.csv",
        b"user,item\n1,2\n,3\n",
        ["--skip-bad-rows"],
        ["two events", "1 bad rows were skipped"],
    ),
    "ids that are lists": (
        "log.jsonl",
        b'{"user":[1],"item":2}\n',
        [],
        ["user ids are such as [1]", "integers or text"],
    ),
    "header or not": (
        "log.csv",
        b"shopper,thing\nann,tea\nann,jam\n",
        ["--user", "1", "--item", "2"],
        ["--header yes or no"],
    ),
    "empty path": ("log.csv", GOOD.encode(), ["--out", ""], ["an empty path"]),
    "unknown recipe": ("log.csv", GOOD.encode(), ["--recipe", "papre"], ["did you mean 'paper'?"]),
    "unknown format": ("log.csv", GOOD.encode(), ["--format", "cvs"], ["did you mean 'csv'?"]),
    "unknown flag": ("log.csv", GOOD.encode(), ["--min-usr", "5"], ["did you mean --min-user?"]),
    "no number": ("log.csv", GOOD.encode(), ["--min-user", "five"], ["'five' is not a number"]),
    "zero": ("log.csv", GOOD.encode(), ["--min-user", "0"], ["not a whole number of 1 or more"]),
    "wrong unit": (
        "log.csv",
        b"user,item,time\n1,2,9999999999999999\n1,3,4\n",
        ["--time-unit", "s"],
        ["--time-unit"],
    ),
    "no names": ("log.csv", GOOD.encode(), ["--item-names", "absent.csv"], ["absent.csv does not exist"]),
}


def one_line(ran: Ran) -> str:
    assert ran.code == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("lrurec: ") and ran.err.count("\n") == 1, ran.err
    return ran.err


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_nothing_left(tmp_path: Path, run: Run, case: str) -> None:
    name, content, options, words = CASES[case]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    message = one_line(run("prepare", path, "--out", tmp_path / "deep" / "out", *options))
    for word in words:
        assert word in message
    left = [p for p in sorted(tmp_path.rglob("*")) if p not in before and p != tmp_path / "deep"]
    assert left == []


def test_nulls_in_parquet_are_named(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"user": [1, None], "item": ["a", "b"], "time": [1, 2]}).write_parquet(path)
    assert "row 2 has no user id" in one_line(run("prepare", path, "--out", tmp_path / "out"))
    pl.DataFrame({"user": [1, 1], "item": ["a", "b"], "time": [1, None]}).write_parquet(path)
    assert "row 2 has no time" in one_line(run("prepare", path, "--out", tmp_path / "out"))


def test_names_that_fit_no_item(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    (tmp_path / "names.csv").write_text("item,title\nx,X\n")
    message = one_line(
        run("prepare", tmp_path / "log.csv", "--item-names", tmp_path / "names.csv", "--out", tmp_path / "out")
    )
    assert "names none of the items" in message and not (tmp_path / "out").exists()


def test_a_foreign_folder_is_not_touched(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    assert "nothing was touched" in one_line(run("prepare", tmp_path / "log.csv", "--out", out))
    assert [p.name for p in out.iterdir()] == ["thesis.tex"]
    shutil.rmtree(out)
    out.write_text("a file")
    assert "not a folder" in one_line(run("prepare", tmp_path / "log.csv", "--out", out))
    out.unlink()
    out.mkdir()  # an empty folder is as good as none
    assert run("prepare", tmp_path / "log.csv", "--out", out).code == 0


def test_an_unwritable_place(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    place = Path("/proc/nowhere") if os.geteuid() == 0 else tmp_path / "closed"
    if place.parent == tmp_path:
        place.mkdir(mode=0o500)
    message = one_line(run("prepare", tmp_path / "log.csv", "--out", place / "out"))
    assert "cannot be written" in message and "--out" in message
    (tmp_path / "file").write_text("")
    assert "cannot be written" in one_line(run("prepare", tmp_path / "log.csv", "--out", tmp_path / "file" / "out"))


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the end of the disk where a small disk cannot be mounted."""
    log, disk = tmp_path / "log.csv", tmp_path / "disk"
    log.write_text("user,item\n" + "".join(f"{k % 100},{k % 77}\n" for k in range(300_000)))
    disk.mkdir()
    small = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True, check=False
    )
    limit = None if small.returncode == 0 else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lrurec.cli.main", "prepare", str(log), "--out", str(disk / "out")],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=limit,
        )
        assert "no room left" in one_line(Ran(done.returncode, done.stdout, done.stderr))
        assert list(disk.iterdir()) == []
    finally:
        if small.returncode == 0:
            subprocess.run(["umount", str(disk)], check=True)


BAD_ROWS = {
    "log.csv": b'user,item,time\n1,2,10\n,3,11\n1,4,soon\n1,5,12,13\n"1"x,6,13\n\n1,caf\xe9,14\n1,7,15\n',
    "log.jsonl": (
        b'{"user":1,"item":2,"time":10}\n{"user":null,"item":3,"time":11}\n{"user":1,"item":4,"time":"soon"}\n'
        b'{"user":1,\nrubbish\n{"user":1,"item":"caf\xe9","time":14}\n{"user":1,"item":7,"time":15}\n'
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_can_be_left_out_and_are_counted(tmp_path: Path, run: Run, name: str) -> None:
    path, out = tmp_path / name, tmp_path / "out"
    path.write_bytes(BAD_ROWS[name])
    assert run("prepare", path, "--out", out).code == 2
    done = run("prepare", path, "--out", out, "--skip-bad-rows")
    assert done.code == 0, done.err
    assert "5 bad rows of 7" in done.out
    dataset = Dataset.open(out)
    assert dataset.history(1) == [2, 7]
    assert dataset.manifest["log"]["bad_rows"] == 5


def test_all_rows_bad(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text("user,item\n,2\n1,\n")
    message = one_line(run("prepare", tmp_path / "log.csv", "--out", tmp_path / "out", "--skip-bad-rows"))
    assert "all 2 rows were left out (2 bad)" in message


def test_one_event_users_are_kept_and_mentioned(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,2\n1,3\n2,2\n")
    done = run("prepare", tmp_path / "log.csv", "--out", tmp_path / "out")
    assert done.code == 0 and "1 users have one event only" in done.out
    assert Dataset.open(tmp_path / "out").history(2) == [2]


def test_times_in_some_files_only(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "b.csv").write_text("user,item\n1,9\n")
    message = one_line(run("prepare", tmp_path / "a.csv", tmp_path / "b.csv", "--out", tmp_path / "out"))
    assert "a.csv has times" in message and "b.csv has none" in message


def test_folders_with_nothing_to_read(tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    assert "no files to read" in one_line(run("prepare", tmp_path / "empty", "--out", tmp_path / "out"))
    (tmp_path / "log.csv").write_text(GOOD)
    run("prepare", tmp_path / "log.csv", "--out", tmp_path / "out")
    assert "prepared dataset already" in one_line(run("prepare", tmp_path / "out", "--out", tmp_path / "out2"))


def test_describing_what_is_no_dataset(tmp_path: Path, run: Run) -> None:
    assert "does not exist" in one_line(run("data", "describe", tmp_path / "absent"))
    assert "is not a dataset folder" in one_line(run("data", "describe", tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    assert "is not a lrurec dataset folder" in one_line(run("data", "describe", tmp_path))
    (tmp_path / "manifest.json").write_text('{"format": "lrurec-dataset", "version": 99}')
    assert "version 99" in one_line(run("data", "describe", tmp_path))
    (tmp_path / "manifest.json").write_text('{"format": "lrurec-dataset", "version": 1')
    assert "cannot be read" in one_line(run("data", "describe", tmp_path))
    (tmp_path / "manifest.json").write_text('{"format": "lrurec-dataset", "version": 1}')
    assert "is damaged" in one_line(run("data", "describe", tmp_path))


def test_a_flipped_byte_is_found(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    run("prepare", tmp_path / "log.csv", "--out", tmp_path / "out")
    assert run("data", "describe", tmp_path / "out", "--verify").code == 0
    items = tmp_path / "out" / "items.npy"
    data = bytearray(items.read_bytes())
    data[-1] ^= 1
    items.write_bytes(data)
    assert "items.npy is damaged" in one_line(run("data", "describe", tmp_path / "out", "--verify"))


def test_files_that_are_not_ours_are_not_lost(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    out = tmp_path / "out"
    assert run("prepare", tmp_path / "log.csv", "--out", out).code == 0
    (out / "notes.txt").write_text("mine")
    message = one_line(run("prepare", tmp_path / "log.csv", "--out", out, "--drop-repeats"))
    assert "also notes.txt, which would be lost" in message
    assert (out / "notes.txt").read_text() == "mine" and Dataset.open(out).n_events == 2


def test_the_place_where_one_stands(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "is where you stand" in one_line(run("prepare", tmp_path / "log.csv", "--out", "."))
    assert list((tmp_path / "here").iterdir()) == []


def test_a_damaged_dataset_can_be_forced(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    out = tmp_path / "out"
    run("prepare", tmp_path / "log.csv", "--out", out)
    data = bytearray((out / "items.npy").read_bytes())
    data[-1] ^= 0x40  # an item number that does not exist
    (out / "items.npy").write_bytes(data)
    assert "is damaged" in one_line(run("data", "describe", out))
    assert "up to date" in run("prepare", tmp_path / "log.csv", "--out", out).out
    assert run("prepare", tmp_path / "log.csv", "--out", out, "--force").code == 0
    Dataset.open(out).verify()


def test_a_quote_that_is_never_closed_costs_one_line(tmp_path: Path, run: Run) -> None:
    rows = ["1,a,1", "1,b,2", '1,"c,3', "1,d,4", "1,e,5", "1,f,6", '1,"g",7', "1,h,8"]
    (tmp_path / "log.csv").write_text("user,item,time\n" + "\n".join(rows) + "\n")
    done = run("prepare", tmp_path / "log.csv", "--out", tmp_path / "out", "--skip-bad-rows")
    assert "1 bad rows of 8" in done.out
    assert Dataset.open(tmp_path / "out").history(1) == list("abdefgh")


def test_ids_that_look_like_mistakes_are_mentioned(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text('user,item,time\nNULL,a,1\nNULL,b,2\nx,"c\nd",3\n')
    told = run("prepare", tmp_path / "log.csv", "--out", tmp_path / "out").out
    assert "'NULL' is taken as user id" in told and "some item ids contain line breaks" in told


def test_folders_as_other_tools_leave_them(tmp_path: Path, run: Run) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, text in (("_SUCCESS", ""), ("part-0.csv", GOOD), ("part-1.csv", ""), (".crc", "x")):
        (logs / name).write_text(text)
    for _ in range(2):  # the second time its own output lies inside
        done = run("prepare", logs, "--out", logs / "ds")
        assert done.code == 0, done.err
    assert "up to date" in done.out
    assert "given twice" in one_line(run("prepare", logs, logs / "part-0.csv", "--out", tmp_path / "out"))


def test_output_that_cannot_be_printed(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "lrurec.cli.main", "data", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left" in done.stderr
