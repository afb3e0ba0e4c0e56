"""`lrurec export`, and opening what it made."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lrurec
from conftest import Run
from lrurec.errors import FolderError
from lrurec.folder import seal_of
from lrurec.models.base import Batch
from lrurec.serving.artifact import Artifact
from lrurec.training.run import Run as Trained


def test_it_scores_as_the_run_does(trained: Path) -> None:
    artifact, run = Artifact.open(trained / "artifact"), Trained.open(trained / "run")
    dataset, model = run.dataset(), run.model()
    assert artifact.n_items == dataset.n_items == 12
    assert [artifact.item_ids[k] for k in range(12)] == [dataset.item_ids[k] for k in range(12)]
    assert (artifact.name(3), artifact.name(11)) == ("Item 3", None)
    states, hidden = artifact.engine.encode(dataset.items, np.array(dataset.offsets))
    with torch.no_grad():
        offsets = torch.tensor(np.array(dataset.offsets))
        scores = model.scores(Batch(torch.tensor(np.array(dataset.items)).long() + 1, offsets))
    assert np.allclose(hidden @ artifact.engine.table[:].T + artifact.bias, scores.numpy(), atol=1e-5)
    assert len(states) == 40


def test_popular_items_come_first(trained: Path) -> None:
    artifact, dataset = Artifact.open(trained / "artifact"), lrurec.Dataset.open(trained / "data")
    counts = np.bincount(dataset.items)[artifact.popular]
    assert len(counts) == 12 and (np.diff(counts) <= 0).all()


def test_the_same_run_gives_the_same_artifact(trained: Path, tmp_path: Path, run: Run) -> None:
    told = run("export", trained / "run", "--out", tmp_path / "again")
    first = Artifact.open(trained / "artifact").id
    assert told.code == 0 and first in told.out
    assert Artifact.open(tmp_path / "again").id == first


@pytest.mark.parametrize("name", ["table.npy", "weights.safetensors", "item_ids.text.npy", "popular.npy"])
def test_one_flipped_byte_is_refused(trained: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(trained / "artifact", tmp_path / "a")
    raw = bytearray((tmp_path / "a" / name).read_bytes())
    raw[-1] ^= 1
    (tmp_path / "a" / name).write_bytes(raw)
    with pytest.raises(FolderError, match=f"{name} is damaged"):
        Artifact.open(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "format version 99"),
        ({"model": {"width": 17, "channels": 8, "blocks": 2}}, "does not fit the model"),
        ({"model": {}}, "is damaged"),
        ({"model": None}, "is damaged"),
    ],
)
def test_a_wrong_manifest_is_refused(trained: Path, tmp_path: Path, change: dict[str, object], words: str) -> None:
    shutil.copytree(trained / "artifact", tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    manifest = json.loads(path.read_text()) | change
    path.write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match="manifest.json is damaged|format version 99"):
        Artifact.open(tmp_path / "a")
    path.write_text(json.dumps(manifest | {"seal": seal_of(manifest)}))  # whoever made it meant it so
    with pytest.raises(FolderError, match=words):
        Artifact.open(tmp_path / "a")


def test_opening_imports_no_torch(trained: Path) -> None:
    code = (
        "import sys; from lrurec.serving.artifact import Artifact; Artifact.open(sys.argv[1]);"
        " heavy = {'torch', 'polars', 'pandas'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, trained / "artifact"], check=True)


def test_other_folders_are_refused(trained: Path, tmp_path: Path, run: Run) -> None:
    refused = run("export", trained / "data", "--out", tmp_path / "a")
    assert refused.code == 2 and "not a lrurec run folder" in refused.err
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("keep")
    refused = run("export", trained / "run", "--out", tmp_path / "b")
    assert refused.code == 2 and "choose another --out" in refused.err
    with pytest.raises(FolderError, match="not a lrurec artifact folder"):
        Artifact.open(trained / "data")


def test_whoever_may_read_one_file_may_read_all(trained: Path) -> None:
    assert len({file.stat().st_mode for file in (trained / "artifact").iterdir()}) == 1
