"""The approximate index against the exact one."""

from pathlib import Path

import numpy as np
import pytest

from conftest import Run
from lrurec.errors import FolderError, MissingPartError
from lrurec.serving import indexing, retrieval
from lrurec.serving.artifact import Artifact
from lrurec.serving.indexing import GOAL, build_index
from lrurec.serving.retrieval import INDEX, Approximate, Exact
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
    indexes = [index for index, _ in near.parts]
    assert [index.pq.M for index in indexes] == ([17] if together == 1 else [9, 9])
    many = Approximate(indexes, 2900, table, bias).search(queries, 20)
    assert all((a == b).all() for (a, _), (b, _) in zip(many, truth, strict=True))
    for query, (items, scores) in zip(queries, found, strict=True):  # alone, it may have several threads
        alone = near.search(query[None], 20)[0]
        assert (alone[0] == items).all() and (alone[1] == scores).all()


def test_parts_that_do_not_make_a_whole(vectors: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    table, bias, queries = vectors
    build_index(tmp_path, table, bias, queries)
    (path,) = tmp_path.glob(INDEX)
    with pytest.raises(FolderError, match="not that of its items; export it again"):
        Approximate.open(tmp_path, 100, table[:-1], bias[:-1])
    path.write_bytes(b"nothing")
    with pytest.raises(FolderError, match="cannot be read .*; export it again"):
        Approximate.open(tmp_path, 100, table, bias)
    path.unlink()
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
    (index,) = (tmp_path / "a").glob(INDEX)
    raw = bytearray(index.read_bytes())
    raw[len(raw) // 2] ^= 1
    index.write_bytes(raw)
    with pytest.raises(FolderError, match=index.name):
        Artifact.open(tmp_path / "a")
    assert "exact (auto, for 12 items)" in run("export", trained / "run", "--out", tmp_path / "b").out
    few = run("export", trained / "run", "--out", tmp_path / "c", "--index", "approximate")
    assert few.code == 2 and "too few" in few.err


def test_without_faiss(sample: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingPartError, match="--index exact"):
        retrieval.faiss()
    done = run("export", sample.parent / "run", "--out", tmp_path / "a", "--index", "approximate")
    assert done.code == 2 and "needs faiss" in done.err and not (tmp_path / "a").exists()
