"""Fetching: from a real server that breaks off, from a file at hand, and with no network."""

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

import lrurec
from conftest import Run
from lrurec.data import sources
from lrurec.data.fetch import fetch
from lrurec.data.sources import KNOWN, Known
from lrurec.errors import FetchError


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("toy/ratings.dat", "".join(f"{u}::{i}::5::{100 + i}\n" for u in range(1, 8) for i in range(1, 9)))
        file.writestr("toy/movies.dat", "1::One (1995)::Drama\n2::Two (1996)::Drama\n")
        file.writestr("toy/README", "x" * 200_000)
    return out.getvalue()


DATA = archive()


class Server(BaseHTTPRequestHandler):
    """Serves DATA, understands ranges, and breaks off after `breaks` bytes as often as told."""

    breaks: ClassVar[list[int]] = []
    ranges: ClassVar[bool] = True
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        Server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start >= len(DATA):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(DATA) - start))
        self.end_headers()
        stop = self.breaks.pop() if self.breaks else len(DATA)
        self.wfile.write(DATA[start : start + stop])

    def log_message(self, *arguments: object) -> None:
        return


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Known]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    row = replace(
        KNOWN["ml-1m"],
        name="toy",
        url=f"http://127.0.0.1:{server.server_port}/toy.zip",
        checksum=f"sha256:{hashlib.sha256(DATA).hexdigest()}",
    )
    monkeypatch.setitem(sources.KNOWN, "toy", row)
    Server.breaks, Server.ranges, Server.asked = [], True, []
    yield row
    server.shutdown()
    server.server_close()
    thread.join()


def test_fetch_then_prepare(tmp_path: Path, run: Run, toy: Known) -> None:
    folder = tmp_path / "raw"
    done = run("data", "fetch", "toy", "--to", folder)
    assert done.code == 0 and "lrurec prepare" in done.out
    source = json.loads((folder / "source.json").read_text())
    assert (source["events"], source["item_names"]) == (["ratings.dat"], "movies.dat")
    assert run("prepare", folder, "--recipe", "paper", "--out", tmp_path / "d").code == 0
    dataset = lrurec.Dataset.open(tmp_path / "d")
    assert (dataset.n_users, dataset.n_items, dataset.n_events) == (7, 8, 56)
    assert dataset.name(0) == "One (1995)"
    assert run("data", "fetch", "toy", "--to", folder).code == 0  # again: nothing is downloaded twice
    assert len(Server.asked) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_is_continued(tmp_path: Path, toy: Known, ranges: bool) -> None:
    Server.ranges, Server.breaks = ranges, [1000, 5000]
    with pytest.raises(FetchError, match="5,000 bytes are kept"):
        fetch(toy, tmp_path)
    with pytest.raises(FetchError, match="will be continued"):
        fetch(toy, tmp_path)
    seen: list[tuple[int, int | None]] = []
    fetch(toy, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert (tmp_path / "toy.zip").read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    assert Server.asked[1:] == (["bytes=5000-", "bytes=6000-"] if ranges else ["bytes=5000-", "bytes=1000-"])
    assert not list(tmp_path.glob("*.part"))


def test_a_whole_part_is_taken(tmp_path: Path, toy: Known) -> None:
    (tmp_path / "toy.zip.part").write_bytes(DATA)
    fetch(toy, tmp_path)
    assert (tmp_path / "toy.zip").read_bytes() == DATA


def test_a_wrong_checksum(tmp_path: Path, run: Run, toy: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.KNOWN, "toy", replace(toy, checksum="md5:00"))
    done = run("data", "fetch", "toy", "--to", tmp_path)
    assert done.code == 2 and "md5" in done.err and "--no-checksum" in done.err
    assert list(tmp_path.iterdir()) == []
    assert run("data", "fetch", "toy", "--to", tmp_path, "--no-checksum").code == 0


def test_no_network_says_which_file_to_put_where(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.KNOWN, "ml-1m", replace(KNOWN["ml-1m"], url="http://127.0.0.1:9/ml-1m.zip"))
    done = run("data", "fetch", "ml-1m", "--to", tmp_path / "raw")
    assert done.code == 2 and done.err.count("\n") == 1
    assert f"put it at {tmp_path / 'raw' / 'ml-1m.zip'}" in done.err and "--from FILE" in done.err


def test_put_there_by_hand(tmp_path: Path, toy: Known) -> None:
    row = replace(toy, url="http://127.0.0.1:9/toy.zip")
    (tmp_path / "toy.zip").write_bytes(DATA)
    fetch(row, tmp_path)
    assert (tmp_path / "source.json").exists()


def test_from_a_file(tmp_path: Path, run: Run, toy: Known) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "toy.zip").write_bytes(DATA)
    assert run("data", "fetch", "toy", "--from", own / "toy.zip", "--to", tmp_path / "raw").code == 0
    assert (tmp_path / "raw" / "ratings.dat").exists() and Server.asked == []
    (own / "toy.zip").write_bytes(DATA[:-1])
    assert run("data", "fetch", "toy", "--from", own / "toy.zip", "--to", tmp_path / "raw").code == 2
    (own / "Beauty.txt").write_text("1 2\n1 3\n")  # not the publisher's file: taken as it is
    assert run("data", "fetch", "beauty", "--from", own / "Beauty.txt", "--to", tmp_path / "b").code == 0
    assert run("prepare", tmp_path / "b", "--recipe", "paper", "--out", tmp_path / "d").code == 0
    assert "does not exist" in run("data", "fetch", "beauty", "--from", own / "none", "--to", tmp_path / "b").err


def test_a_foreign_archive(tmp_path: Path, run: Run, toy: Known) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("letter.txt", "dear")
    done = run("data", "fetch", "toy", "--from", tmp_path / "other.zip", "--to", tmp_path / "raw")
    assert done.code == 2 and "no ratings.dat inside" in done.err


def test_xlong_wants_a_person(run: Run, tmp_path: Path) -> None:
    done = run("data", "fetch", "xlong", "--to", tmp_path / "raw")
    assert done.code == 2 and "--from train_corpus_total_dual.txt --from test_corpus_total_dual.txt" in done.err
    for k, name in enumerate(KNOWN["xlong"].events):
        (tmp_path / name).write_text(f"{k}\t{70 + k}\t5,6,7\t8\t1\t0\t3\n")
    files = [part for name in KNOWN["xlong"].events for part in ("--from", tmp_path / name)]
    assert run("data", "fetch", "xlong", *files, "--to", tmp_path / "raw").code == 0
    assert run("prepare", tmp_path / "raw", "--out", tmp_path / "d").code == 0
    assert lrurec.Dataset.open(tmp_path / "d").n_users == 2


def test_unknown_name(run: Run) -> None:
    assert "did you mean 'ml-1m'?" in run("data", "fetch", "ml1m").err


def test_list(run: Run) -> None:
    told = run("data", "list").out
    for name in ("ml-1m", "ml-100k", "beauty", "video", "sports", "steam", "xlong"):
        assert name in told
    rows = json.loads(run("data", "list", "--json").out)
    assert {r["name"] for r in rows} == set(KNOWN)
    assert all(r["licence"] and r["page"] for r in rows)


def test_a_file_that_cannot_be_it(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,2\n")
    done = run("data", "fetch", "ml-1m", "--from", tmp_path / "log.csv", "--to", tmp_path / "raw")
    assert done.code == 2 and "looks like csv; MovieLens 1M comes as movielens or pairs" in done.err
    (tmp_path / "ratings.dat").write_text("")
    assert "is empty" in run("data", "fetch", "ml-1m", "--from", tmp_path / "ratings.dat", "--to", tmp_path / "raw").err


def test_a_failed_fetch_leaves_no_folder(tmp_path: Path, run: Run) -> None:
    run("data", "fetch", "xlong", "--to", tmp_path / "raw")
    assert not (tmp_path / "raw").exists()
