"""The approximate index against the exact one."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Run
from lrurec.errors import FolderError
from lrurec.kernels import scan4
from lrurec.serving import approximate, indexing, retrieval
from lrurec.serving.approximate import Approximate, with_bias
from lrurec.serving.artifact import Artifact
from lrurec.serving.indexing import GOAL, build_index
from lrurec.serving.retrieval import Exact
from lrurec.serving.service import Live

NONE = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def vectors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Items in clusters, as trained ones lie, and queries near them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, 16))
    table = (centres[rng.integers(0, 60, 6000)] + 0.4 * rng.normal(size=(6000, 16))).astype(np.float32)
    queries = (centres[rng.integers(0, 60, 80)] + 0.4 * rng.normal(size=(80, 16))).astype(np.float32)
    return table, rng.normal(size=6000).astype(np.float32), queries


@pytest.mark.parametrize("together", [1, 2])
def test_it_finds_what_it_says(
    vectors: tuple[np.ndarray, ...], tmp_path: Path, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, bias, queries = vectors
    monkeypatch.setattr(indexing, "MILLIONS", len(table) + 2 - together)
    said: list[str] = []
    facts = build_index(tmp_path, table, bias, queries, said.append)
    assert facts["recall@20"] >= GOAL and facts["candidates"] < 1000 and len(said) > 1
    near, exact = Approximate.open(tmp_path, facts["candidates"], table, bias), Exact(table, bias)
    found, truth = near.search(queries, 20), exact.search(queries, 20)
    shares = [len(set(a.tolist()) & set(b.tolist())) / 20 for (a, _), (b, _) in zip(found, truth, strict=True)]
    assert np.mean(shares) == pytest.approx(facts["recall@20"], abs=1e-6)
    for (items, scores), query in zip(found, queries, strict=True):
        assert np.allclose(scores, table[items] @ query + bias[items], atol=1e-4)
        assert (np.diff(scores) <= 0).all() and len(set(items.tolist())) == 20
    assert near.centres.shape == ((17, 16, 1) if together == 1 else (9, 16, 2))
    many = Approximate(near.codes, near.centres, 2900, table, bias).search(queries, 20)
    assert all((a == b).all() for (a, _), (b, _) in zip(many, truth, strict=True))
    monkeypatch.setattr(approximate, "_BLOCKS", 7)
    monkeypatch.setattr(approximate, "cores", lambda: 3)
    for query, (items, scores) in zip(queries, found, strict=True):  # alone, it may have several threads
        alone = near.search(query[None], 20)[0]
        assert (alone[0] == items).all() and (alone[1] == scores).all()


def test_beside_faiss(vectors: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    table, bias, queries = vectors
    truth = [set(items.tolist()) for items, _ in Exact(table, bias).search(queries, 20)]
    for together in (1, 2):
        near = Approximate.build(tmp_path, table, bias, together, 60)
        slices, _, _ = near.centres.shape
        theirs = faiss.IndexPQFastScan(slices * together, slices, 4, faiss.METRIC_INNER_PRODUCT)
        rows = with_bias(table, bias, slices * together)
        theirs.train(rows)
        theirs.add(rows)
        _, found = theirs.search(with_bias(queries, np.ones(len(queries), np.float32), slices * together), 60)
        nobody = np.zeros(0, np.int64)
        mine = [near._near(query, 60, nobody, 1) for query in queries]
        ours, other = (
            np.mean([len(t & set(items.tolist())) / 20 for t, items in zip(truth, some, strict=True)])
            for some in (mine, found)
        )
        assert ours > other - 0.01 and ours > 0.8


@pytest.mark.parametrize("lanes", [32, 64])
@given(
    items=st.integers(1, 400),
    pairs=st.integers(1, 70),
    wanted=st.integers(1, 90),
    entry=st.sampled_from([1, 3, 254]),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_the_scan(lanes: int, items: int, pairs: int, wanted: int, entry: int, seed: int) -> None:
    """Sums by instructions are those of plain loops, and what is kept is what has the largest, and all that is level."""
    if lanes > scan4.widest():
        pytest.skip(f"the processor looks up {scan4.widest()} bytes at most")
    rng = np.random.default_rng(seed)
    blocks = -(-items // scan4.BLOCK)
    codes = rng.integers(0, 256, (blocks, pairs, scan4.BLOCK)).astype(np.uint8)
    tables = rng.integers(0, entry + 1, (2 * pairs, scan4.ENTRIES)).astype(np.uint8)
    tables[0] += 1
    fast, plain = (np.empty((blocks, scan4.BLOCK), np.uint16) for _ in range(2))
    most, largest = (np.empty(blocks, np.int64) for _ in range(2))
    (scan4.scan_64 if lanes == 64 else scan4.scan_32)(codes, tables, 0, fast, most)
    scan4.scan_reference(codes, tables, 0, plain, largest)
    assert (fast == plain).all() and (most == largest).all()
    byte = codes[items // scan4.BLOCK - 1 if items % scan4.BLOCK == 0 else -1]  # and those are what they say
    i = (items - 1) % scan4.BLOCK
    own = byte[:, 2 * (i % 32) + i // 32]
    by_hand = sum(int(tables[2 * p, b & 15]) + int(tables[2 * p + 1, b >> 4]) for p, b in enumerate(own.tolist()))
    assert plain.reshape(-1)[items - 1] == by_hand
    gone = np.flatnonzero(rng.random(items) < 0.3)
    near = Approximate(
        codes,
        np.zeros((2 * pairs, 16, 1), np.float32),
        1,
        np.zeros((items, 1), np.float32),
        np.zeros(items, np.float32),
    )
    sums = plain.reshape(-1)[:items].astype(np.int64)
    sums[gone] = 0
    order = np.sort(sums)[::-1]
    least = max(1, order[min(wanted, items) - 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "_BLOCKS", 2)
        patch.setattr(Approximate, "_tables", lambda self, query: tables)
        for shares in (1, 2):
            found = near._near(np.zeros(1, np.float32), wanted, gone, min(shares, blocks))
            assert found.tolist() == np.flatnonzero(sums >= least).tolist()


@pytest.mark.parametrize("width", [1, 5, 600])
def test_codes_are_nearest(tmp_path: Path, width: int) -> None:
    """Sums, put back on the scale of scores, differ from them by what the codes leave out, and no more."""
    rng = np.random.default_rng(width)
    table, bias = rng.normal(size=(700, width)).astype(np.float32), rng.normal(size=700).astype(np.float32)
    near = Approximate.build(tmp_path, table, bias, 1, 10)
    rows = with_bias(table, bias, width + 1)
    coded = np.empty_like(rows)
    for item in range(700):
        at = 2 * (item % 64 % 32) + item % 64 // 32
        for m in range(width + 1):
            byte = near.codes[item // 64, m // 2, at]
            code = byte >> 4 if m % 2 else byte & 15
            coded[item, m] = near.centres[m, code, 0]
            assert abs(coded[item, m] - rows[item, m]) == np.abs(near.centres[m, :, 0] - rows[item, m]).min()
    query = rng.normal(size=width).astype(np.float32)
    tables = near._tables(query)
    sums, most = np.empty((len(near.codes), 64), np.uint16), np.empty(len(near.codes), np.int64)
    near._scan(near.codes, tables, 0, sums, most)
    scores = coded @ np.append(query, np.float32(1))
    spans = near.centres[:, :, 0] * np.append(query, np.float32(1))[:, None]
    step = (spans.max(1) - spans.min(1)).max() / min(254, 65534 // (width + 1))
    off = (sums.reshape(-1)[:700] - 1.0) * step + spans.min(1).sum() - scores
    assert np.abs(off).max() <= (width + 1) * step / 2 + 1e-3


def test_questions_that_say_nothing(vectors: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    """All sums are level: all items are scored."""
    table, bias, _ = vectors
    near = Approximate.build(tmp_path, table, np.zeros_like(bias), 1, 10)
    nothing = np.zeros((1, table.shape[1]), np.float32)
    assert near.search(nothing, 5)[0][0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are whose")
def test_the_codes_are_one_copy(vectors: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    """They are pages of the file, which all processes share: nothing of them is this process's own."""
    table, bias, queries = vectors
    facts = build_index(tmp_path, table, bias, queries)
    near = Approximate.open(tmp_path, facts["candidates"], table, bias)
    near.search(queries, 20)
    own = Path("/proc/self/smaps").read_text().split(str(tmp_path / approximate.CODES))
    assert len(own) == 2
    pages = {line.split(":")[0]: line.split()[1] for line in own[1].splitlines()[1:20] if line.endswith("kB")}
    assert int(pages["Rss"]) > 0 and pages["Anonymous"] == "0" and not near.codes.flags.writeable


def test_an_index_that_is_not_its_own(vectors: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    table, bias, queries = vectors
    build_index(tmp_path, table, bias, queries)
    with pytest.raises(FolderError, match="not that of its items; export it again"):
        Approximate.open(tmp_path, 100, table[:-100], bias[:-100])
    with pytest.raises(FolderError, match="not that of its items; export it again"):
        Approximate.open(tmp_path, 100, np.zeros((6000, 17), np.float32), bias)
    (tmp_path / approximate.CODES).write_bytes(b"nothing")
    with pytest.raises(FolderError, match="cannot be read .*; export it again"):
        Approximate.open(tmp_path, 100, table, bias)
    (tmp_path / approximate.CODES).unlink()
    with pytest.raises(FolderError, match="export it again"):
        Approximate.open(tmp_path, 100, table, bias)


def test_exclusions_and_lists(vectors: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    table, bias, queries = vectors
    facts = build_index(tmp_path, table, bias, queries)
    near = Approximate.open(tmp_path, facts["candidates"], table, bias)
    first = Exact(table, bias).search(queries[:2], 300)
    out = [first[0][0][::2], NONE]
    again = near.search(queries[:2], 10, out)
    assert not set(again[0][0].tolist()) & set(out[0].tolist())
    assert again[0][0].tolist() == first[0][0][1::2][:10].tolist()
    assert again[1][0].tolist() == first[1][0][:10].tolist()
    allow = np.arange(50)
    mine, truth = near.search(queries, 60, None, allow)[0], Exact(table, bias).search(queries[:1], 60, None, allow)[0]
    assert (mine[0] == truth[0]).all() and len(mine[0]) == 50
    everything = near.search(queries[:1], 5, [np.arange(3, 6000)])[0][0]  # hardly anything is left
    assert sorted(everything.tolist()) == [0, 1, 2]
    assert len(near.search(queries[:1], 6000)[0][0]) == 6000


def test_many_tiles_are_one(monkeypatch: pytest.MonkeyPatch, vectors: tuple[np.ndarray, ...]) -> None:
    table, bias, queries = vectors
    out = [np.random.default_rng(k).integers(0, 6000, k) for k in range(len(queries))]
    whole = Exact(table, bias).search(queries, 30, out)
    monkeypatch.setattr(retrieval, "_TILE", 77)
    tiles = Exact(table, bias).search(queries, 30, out)
    monkeypatch.setattr(retrieval, "_SORTED", 5)
    sorted_ = Exact(table, bias).search(queries, 30, out)
    for a, b, c in zip(whole, tiles, sorted_, strict=True):
        assert (a[0] == b[0]).all() and (a[0] == c[0]).all() and np.allclose(a[1], c[1], atol=1e-4)


def test_an_artifact_with_an_index(sample: Path, trained: Path, tmp_path: Path, run: Run) -> None:
    export = ("export", sample.parent / "run", "--out", tmp_path / "a")
    done = run(*export, "--index", "approximate")
    assert done.code == 0 and "of the exact top 20" in done.out
    assert Artifact.open(tmp_path / "a").manifest["index"]["recall@20"] >= GOAL
    with Live(tmp_path / "a", tmp_path / "s") as live, Live(sample, tmp_path / "t") as exact:
        assert isinstance(live.served.retriever, Approximate) and isinstance(exact.served.retriever, Exact)
        for history in ([3, 9, 1], [500], [77, 1000]):
            mine, theirs = ([r.item for r in one.recommend_for(history, 5)] for one in (live, exact))
            assert len(set(mine) & set(theirs)) >= 4
    index = tmp_path / "a" / approximate.CODES
    raw = bytearray(index.read_bytes())
    raw[len(raw) // 2] ^= 1
    index.write_bytes(raw)
    with pytest.raises(FolderError, match=index.name):
        Artifact.open(tmp_path / "a")
    assert "exact (auto, for 12 items)" in run("export", trained / "run", "--out", tmp_path / "b").out
    few = run("export", trained / "run", "--out", tmp_path / "c", "--index", "approximate")
    assert few.code == 2 and "too few" in few.err
