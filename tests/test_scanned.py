"""The best items by way of 8-bit codes: the same as by scoring every item."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Run
from lrurec.errors import FolderError
from lrurec.kernels import scan8
from lrurec.serving import scanned
from lrurec.serving.artifact import Artifact
from lrurec.serving.retrieval import Exact
from lrurec.serving.scanned import Scanned
from lrurec.serving.service import Live

NONE = np.zeros(0, np.int64)


def made(items: int, width: int, seed: int, scale: float, copies: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    table = (scale * rng.normal(size=(items, width)) * rng.choice([0.0, 0.01, 1.0, 50.0], (items, 1))).astype(
        np.float32
    )
    bias = (scale * rng.normal(size=items)).astype(np.float32)
    if copies:
        of = rng.integers(0, max(1, items // 4), items)
        table, bias = table[of], bias[of]
    return table, bias


def same(found: tuple[np.ndarray, np.ndarray], exact: np.ndarray, k: int, allowed: np.ndarray) -> None:
    """The best k of the allowed ones by exact scores, but for what rounding cannot tell apart."""
    items, scores = found
    near = 1e-5 * (1e-30 + float(np.abs(exact).max()))
    assert len(items) == min(k, int(allowed.sum())) == len(set(items.tolist())) and allowed[items].all()
    assert np.allclose(scores, exact[items], atol=near) and (np.diff(scores) <= 0).all()
    best = np.sort(exact[allowed])[::-1][: len(items)]
    assert np.allclose(exact[items], best, atol=near)


@given(
    items=st.integers(1, 500),
    width=st.integers(1, 70),
    k=st.integers(1, 30),
    seed=st.integers(0, 999),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    copies=st.booleans(),
    gone=st.floats(0, 1),
    tile=st.sampled_from([64, 128, 1 << 14]),
    plain=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_it_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    items: int,
    width: int,
    k: int,
    seed: int,
    scale: float,
    copies: bool,
    gone: float,
    tile: int,
    plain: bool,
) -> None:
    table, bias = made(items, width, seed, scale, copies)
    rng = np.random.default_rng(seed + 1)
    queries = rng.normal(size=(3, width)).astype(np.float32) * rng.choice([0.0, 1.0, 1e4], (3, 1)).astype(np.float32)
    out = [np.flatnonzero(rng.random(items) < gone) for _ in queries]
    folder = tmp_path_factory.mktemp("codes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanned, "_TILE", tile)
        if plain:
            patch.setattr(scan8, "has_pairs", lambda: False)
        Scanned.build(folder, table, bias)
        s = Scanned.open(folder, table, bias)
        found = s.search(queries, k, out)
        patch.setattr(scanned, "_TILES", 1)
        patch.setattr(scanned, "cores", lambda: 3)
        alone = [s.search(query[None], k, [left_out])[0] for query, left_out in zip(queries, out, strict=True)]
    for one, query, left_out in zip(found + alone, [*queries] * 2, out * 2, strict=True):
        allowed = np.ones(items, bool)
        allowed[left_out] = False
        same(one, table.astype(np.float64) @ query.astype(np.float64) + bias, k, allowed)


@given(st.integers(1, 300), st.integers(1, 70), st.integers(0, 999))
@settings(deadline=None)
def test_the_bound_holds(items: int, width: int, seed: int) -> None:
    """No score lies above its upper bound, also where every rounding goes the same way."""
    rng = np.random.default_rng(seed)
    table, bias = made(items, width, seed, 1.0, False)
    table[::3] = np.rint(table[::3] * 4) / 4 + 0.5 / 127  # between two codes
    query = rng.choice([-1.0, 1.0, 0.49999 / 32767], width).astype(np.float32)
    codes = np.zeros((-(-items // scan8.BLOCK), -(-width // 2), scan8.BLOCK, 2), np.int8)
    scales = np.zeros(items, np.float32)
    scan8.encode(table, codes, scales)
    s = Scanned(codes, scales, table, bias)
    exact = table.astype(np.float64) @ query.astype(np.float64) + bias
    possible = s._possible(query, 1, NONE)
    assert possible is None or int(np.argmax(exact)) in possible.tolist()
    every = s._possible(query, items, NONE)
    assert every is None or every.tolist() == list(range(items))


def test_the_instruction_and_the_loops_agree() -> None:
    if not scan8.has_pairs():
        pytest.skip("this processor has no instruction for it")
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, (9, 35, scan8.BLOCK, 2)).astype(np.int8)
    codes[2] = 127
    for query in (rng.integers(-32767, 32768, 70), np.full(70, -32767)):
        one, other = np.empty(5 * scan8.BLOCK, np.int32), np.empty(5 * scan8.BLOCK, np.int32)
        scan8.scan(codes, query.astype(np.int16), 2, one)
        scan8.scan_reference(codes, query.astype(np.int16), 2, other)
        assert np.array_equal(one, other)
        flat = codes.transpose(0, 2, 1, 3).reshape(-1, 70).astype(np.int64)[2 * 64 : 7 * 64]
        assert np.array_equal(one, flat @ query)


def test_few_are_scored(tmp_path: Path) -> None:
    """It would also be exact if all were: then it would be slow."""
    rng = np.random.default_rng(0)
    table, bias = rng.normal(size=(50_000, 64)).astype(np.float32), rng.normal(size=50_000).astype(np.float32)
    s = Scanned.build(tmp_path, table, bias)
    for query in rng.normal(size=(5, 64)).astype(np.float32):
        possible = s._possible(query, 20, NONE)
        assert possible is not None and 20 <= len(possible) < 200


def test_what_the_codes_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of allowed items, very many results, odd queries and too many candidates go the plain way."""
    table, bias = made(3000, 8, 0, 1.0, False)
    s, exact = Scanned.build(tmp_path, table, bias), Exact(table, bias)
    query = np.ones((1, 8), np.float32)
    for k, allow in ((5, np.arange(50)), (2000, None), (0, None)):
        assert np.array_equal(s.search(query, k, None, allow)[0][0], exact.search(query, k, None, allow)[0][0])
    for odd in (np.zeros((1, 8), np.float32), np.full((1, 8), 1e-38, np.float32)):
        assert s._possible(odd[0], 5, NONE) is None
        assert np.array_equal(s.search(odd, 5)[0][0], exact.search(odd, 5)[0][0])
    monkeypatch.setattr(scanned, "_ROOM", 10)
    assert s._possible(query[0], 20, NONE) is None
    assert np.array_equal(s.search(query, 20)[0][0], exact.search(query, 20)[0][0])


def test_an_artifact_with_codes(sample: Path, tmp_path: Path, run: Run) -> None:
    told = run("export", sample.parent / "run", "--out", tmp_path / "a", "--index", "scanned")
    assert told.code == 0 and "exact results, by way of 8-bit codes" in told.out
    with Live(tmp_path / "a", tmp_path / "s") as live, Live(sample, tmp_path / "t") as plain:
        assert isinstance(live.served.retriever, Scanned) and isinstance(plain.served.retriever, Exact)
        for history in ([], [3, 9, 1], [500], [77, 1000]):
            mine, theirs = ([r.item for r in one.recommend_for(history, 5)] for one in (live, plain))
            assert mine == theirs
    raw = bytearray((tmp_path / "a" / scanned.CODES).read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "a" / scanned.CODES).write_bytes(raw)
    with pytest.raises(FolderError, match=scanned.CODES):
        Artifact.open(tmp_path / "a")
