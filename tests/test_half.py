"""A table in 16 bits: everything reads what was rounded once, and computes in 32."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import lrurec
from conftest import Run
from lrurec.errors import SettingsError
from lrurec.export import _halved
from lrurec.models.base import Sizes
from lrurec.models.lrurec import LRURec
from lrurec.serving.artifact import Artifact
from lrurec.serving.copies import engine_of
from lrurec.serving.half import HalfTable, rounded
from lrurec.serving.retrieval import Exact
from lrurec.serving.rwkv import RwkvEngine
from lrurec.serving.service import Live
from lrurec.training.config import config_for
from lrurec.training.learner import build


@pytest.fixture(scope="module", params=["lru", "rwkv"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a memory, of either mixer."""
    made = tmp_path_factory.mktemp("half")
    rows = [(u, f"i{(7 * u + k * (1 + u % 3)) % 300:03}") for u in range(200) for k in range(12)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=made / "dataset")
    settings = {"steps": 20, "validate_every": 10, "memory_use": True, "model_mixer": request.param, "model_width": 16}
    rec = lrurec.Recommender(**settings).fit(lrurec.Dataset.open(made / "dataset"))
    rec.save(made / "saved")
    return made


@pytest.mark.parametrize("index", ["exact", "scanned"])
def test_it_serves_what_the_rounded_model_says(folder: Path, tmp_path: Path, run: Run, index: str) -> None:
    saved = folder / "saved"
    command = ("export", saved / "run", "--dataset", saved / "dataset", "--index", index)
    assert run(*command, "--out", tmp_path / "whole").code == 0
    assert run(*command, "--out", tmp_path / "half", "--half").code == 0
    assert np.load(tmp_path / "half" / "table.npy").dtype == np.float16
    rec = lrurec.Recommender.load(saved)
    assert isinstance(rec.model, LRURec)
    with torch.no_grad():
        rec.model.embedding[1:] = rec.model.embedding[1:].half().float()
    live = Live(tmp_path / "half", tmp_path / "store")
    histories = [["i003"], ["i010", "i012", "i014"], [f"i{k:03}" for k in range(30)], ["i299"] * 3]
    expected = rec.recommend(histories=histories, k=8)
    for k, history in enumerate(histories):
        mine = live.recommend_for(history, 8)
        wanted = expected.filter(pl.col("history") == k)
        assert [r.item for r in mine] == wanted["item"].to_list()
        assert np.allclose([r.score for r in mine], wanted["score"].to_list(), atol=1e-4)
        for item in history:
            live.observe(f"u{k}", item)
        assert [r.item for r in live.recommend(f"u{k}", 8)] == wanted["item"].to_list()
    near = live.similar_items("i003", 5)
    assert [r.item for r in near] == rec.similar_items(["i003"], 5)["similar"].to_list()
    assert len(live.recommend_for(["i003"], 290, filter_seen=False)) == 290  # by way of all scores


def test_every_way_to_read_it_gives_the_same_floats() -> None:
    model = build(40, 0, config_for("fast", None, ["model.width=8", "model.mixer=rwkv"]))
    assert isinstance(model, LRURec) and model.sizes == Sizes(40, 0, 50)
    from lrurec.export import shape_of, weights_of

    half = rounded(model.item_table()[0].detach().numpy())
    whole = half.astype(np.float32)
    a, b = (engine_of(shape_of(model), weights_of(model), t) for t in (HalfTable(half), whole))
    assert isinstance(a, RwkvEngine)
    items, offsets = np.arange(40), np.array([0, 3, 3, 40])
    for x, y in zip(a.encode(items, offsets), b.encode(items, offsets), strict=True):
        assert np.array_equal(x, y)
    queries, bias = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32), np.zeros(40, np.float32)
    for k, allow in ((5, None), (200, None), (3, np.array([1, 5, 9]))):
        found = (Exact(t, bias).search(queries, k, None, allow) for t in (HalfTable(half), whole))
        for (i, s), (j, t) in zip(*found, strict=True):
            assert np.array_equal(i, j) and np.array_equal(s, t)


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not fit into 16 bits; leave out --half"):
        _halved(np.array([[1e6]], np.float32))


def test_an_artifact_says_how_large_it_is(folder: Path, tmp_path: Path, run: Run) -> None:
    saved = folder / "saved"
    told = run("export", saved / "run", "--dataset", saved / "dataset", "--out", tmp_path / "a", "--half")
    assert told.code == 0 and "16 bits" in told.out
    assert Artifact.open(tmp_path / "a").n_items == len(np.load(tmp_path / "a" / "table.npy"))
