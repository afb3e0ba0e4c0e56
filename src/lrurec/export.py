"""Run to artifact. Knows both folders; what serving does with the second is not its concern."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

import lrurec
from lrurec.arrays import save_array
from lrurec.data.dataset import Dataset
from lrurec.folder import new_folder, write_manifest
from lrurec.models.lrurec import LRURec
from lrurec.serving.artifact import KIND, VERSION, WEIGHTS
from lrurec.serving.engine import Floats, Shape, tensors_of
from lrurec.training.run import Run

_POPULAR = 1000


def export(run: Run, dataset: Dataset, out: Path, checkpoint: str = "best") -> dict[str, Any]:
    """Write the artifact of a run; it appears whole or not at all. Gives its manifest."""
    model = run.model(checkpoint).cpu()
    table, bias = (t.detach().numpy() for t in model.item_table())
    shape = shape_of(model)
    manifest = {
        "format": f"lrurec-{KIND}",
        "version": VERSION,
        "made_by": f"lrurec {lrurec.__version__}",
        "model": {f.name: getattr(shape, f.name) for f in fields(Shape)},
        "max_length": run.config.training.max_length,
        "items": dataset.n_items,
        "ids": dataset.item_ids.kind,
        "names": dataset.item_names is not None,
        "from": {"dataset": dataset.content_id, "checkpoint": checkpoint, "config": run.manifest["config"]},
    }
    with new_folder(out, KIND) as work:
        save_file(weights_of(model), work / WEIGHTS)
        np.save(work / "table.npy", np.ascontiguousarray(table))
        save_array(work / "bias.npy", bias)
        save_array(work / "popular.npy", most_seen(dataset))
        dataset.item_ids.save(work, "item_ids")
        if dataset.item_names is not None:
            dataset.item_names.save(work, "item_names")
        write_manifest(work, manifest)
    return manifest


def shape_of(model: LRURec) -> Shape:
    return Shape(**{f.name: getattr(model.config, f.name) for f in fields(Shape)})


@torch.no_grad()
def weights_of(model: LRURec) -> dict[str, Floats]:
    """The weights as the engine wants them. What a switch has turned off is there, and does nothing."""
    shape = shape_of(model)
    rows: dict[str, list[Any]] = {name: [] for name in tensors_of(shape)}
    rows["start"] = [model.embedding[0]]
    if shape.layer_norm:
        rows["gain"], rows["shift"] = [model.norm.weight], [model.norm.bias]
    for block in model.blocks:
        lru: Any = block.lru
        b, b_bias = lru.scaled()
        found = {"lam": lru.eigenvalues(), "b": b.T, "b_bias": b_bias, "c": lru.c_weight.T, "c_bias": lru.c_bias}
        pffn: Any = block.pffn
        if shape.pffn:
            found |= {"w1": pffn.w1.T, "b1": pffn.b1, "w2": pffn.w2.T, "b2": pffn.b2}
        norms = ("norm1", "norm2") if shape.layer_norm and shape.pffn else ("norm1",) if shape.layer_norm else ()
        for name in norms:
            norm: Any = getattr(block, name)
            found |= {f"gain{name[-1]}": norm.weight, f"shift{name[-1]}": norm.bias}
        for name, tensor in found.items():
            rows[name].append(tensor)
    stacked = {}
    for name, wanted in tensors_of(shape).items():
        whole = np.concatenate([t.detach().numpy()[None] for t in rows[name]]) if rows[name] else np.zeros(wanted)
        stacked[name] = np.ascontiguousarray(whole.reshape(wanted), np.float32)
    return stacked


def most_seen(dataset: Dataset) -> NDArray[np.int32]:
    """The items of most events, the first the most; ties by index."""
    counts = np.bincount(dataset.items, minlength=dataset.n_items)
    return np.argsort(-counts, kind="stable")[:_POPULAR].astype(np.int32)
