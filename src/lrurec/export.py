"""Run to artifact. Knows both folders; what serving does with the second is not its concern."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file
from torch import Tensor

import lrurec
from lrurec.arrays import save_array
from lrurec.data.dataset import Dataset
from lrurec.errors import FolderError, SettingsError
from lrurec.folder import new_folder, write_manifest
from lrurec.models.base import Model, RecurrentModel
from lrurec.models.lrurec import LRURec
from lrurec.serving.approximate import Approximate
from lrurec.serving.artifact import KIND, VERSION, WEIGHTS, save_memory
from lrurec.serving.copies import AnyEngine, AnyShape, engine_of
from lrurec.serving.engine import Floats, Shape
from lrurec.serving.half import rounded
from lrurec.serving.indexing import FEWEST, LARGE, build_index
from lrurec.serving.retrieval import Exact
from lrurec.serving.rwkv import RwkvShape
from lrurec.serving.scanned import Scanned
from lrurec.training.run import Run

_POPULAR = 1000
_SAMPLE = 500  # users whose vectors an index is measured with


def export(
    run: Run,
    dataset: Dataset,
    out: Path,
    checkpoint: str = "best",
    index: str = "auto",
    half: bool = False,
    watch: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write the artifact of a run; it appears whole or not at all. Gives its manifest.

    `index`: exact, scanned, approximate, or auto, which goes by the number of items. `half`: the table in 16 bits per number.
    """
    if index == "auto":
        index = Exact.kind if dataset.n_items < LARGE else Approximate.kind
    if index == Approximate.kind and dataset.n_items < FEWEST:
        raise SettingsError(f"{dataset.n_items:,} items are too few for an approximate index; leave out --index")
    if lacks := run.lacks_memory():
        raise SettingsError(lacks)
    model = servable(run.model(checkpoint).cpu(), run.config.name)
    table, bias = (t.detach().numpy() for t in model.item_table())
    stored: NDArray[Any] = np.ascontiguousarray(table)
    if half:  # an index is built for what will be read back
        stored = _halved(table)
        table = stored.astype(np.float32)
    shape = shape_of(model)
    manifest: dict[str, Any] = {
        "format": f"lrurec-{KIND}",
        "version": VERSION,
        "made_by": f"lrurec {lrurec.__version__}",
        "model": asdict(shape),
        "max_length": run.config.training.max_length,
        "items": dataset.n_items,
        "ids": dataset.item_ids.kind,
        "names": dataset.item_names is not None,
        "from": {"dataset": dataset.content_id, "checkpoint": checkpoint, "config": run.manifest["config"]},
    }
    with new_folder(out, KIND) as work:
        np.save(work / "table.npy", stored)
        try:
            save_file(weights_of(model), work / WEIGHTS)
        except SafetensorError as error:
            raise FolderError(
                f"no room left on the disk of {out} ({error}); free some, or choose another --out"
            ) from None
        (work / WEIGHTS).chmod((work / "table.npy").stat().st_mode)  # safetensors' own lets nobody else read it
        save_array(work / "bias.npy", bias)
        save_array(work / "popular.npy", most_seen(dataset))
        dataset.item_ids.save(work, "item_ids")
        if dataset.item_names is not None:
            dataset.item_names.save(work, "item_names")
        manifest["memory"] = model.memory is not None
        if model.memory is not None:
            save_memory(work, model.memory)
        manifest["index"] = {"kind": index}
        if index == Scanned.kind:
            Scanned.build(work, table, bias)
        if index == Approximate.kind:
            hidden = sample_of(engine_of(shape, weights_of(model), table), dataset)
            manifest["index"] = build_index(work, table, bias, hidden, watch)
        write_manifest(work, manifest, sealed=True)
    return manifest


def _halved(table: Floats) -> NDArray[np.float16]:
    try:
        return rounded(table)
    except ValueError as error:
        raise SettingsError(f"{error}; leave out --half") from None


def servable(model: Model, name: str) -> LRURec:
    """The model, if the serving engine can step it; else an error that says why not."""
    title = type(model).card.title
    if isinstance(model, LRURec):
        if model.config.mixer not in ("lru", "rwkv"):
            raise SettingsError(
                f"{title} with model.mixer={model.config.mixer} steps in Python (initial_state, step), but the serving"
                " engine knows the mixers lru and rwkv only; use lrurec recommend or lrurec.Recommender, or train with"
                " --set model.mixer=lru"
            )
        if model.config.gaps:
            raise SettingsError(
                f"{title} with model.gaps=true wants to know how much time lies between events, which the serving engine does"
                " not; use lrurec recommend or lrurec.Recommender, or train without it"
            )
        return model
    if isinstance(model, RecurrentModel):
        raise SettingsError(
            f"{title} steps in Python (initial_state, step), but the serving engine knows the recurrence of lrurec"
            f" alone; serve it with lrurec.Recommender, or train with --model lrurec"
        )
    raise SettingsError(
        f"{title} cannot be exported: the serving engine steps a recurrent state, and {title} has none (an event costs it"
        f" {type(model).card.update});"
        " use lrurec recommend or lrurec.Recommender, or train with --model lrurec"
    )


def sample_of(engine: AnyEngine, dataset: Dataset) -> Floats:
    """What comes out behind the histories of some users: the questions that an index will be asked."""
    users = np.random.default_rng(0).choice(dataset.n_users, min(_SAMPLE, dataset.n_users), replace=False)
    histories = [dataset.items[dataset.offsets[u] : dataset.offsets[u + 1]] for u in users]
    offsets = np.concatenate([[0], np.cumsum([len(h) for h in histories])])
    return engine.encode(np.concatenate(histories), offsets)[1]


def shape_of(model: LRURec) -> AnyShape:
    shape: Any = RwkvShape if model.config.mixer == "rwkv" else Shape
    found: AnyShape = shape(**{f.name: getattr(model.config, f.name) for f in fields(shape)})
    return found


@torch.no_grad()
def weights_of(model: LRURec) -> dict[str, Floats]:
    """The weights as the engine wants them. What a switch has turned off is there, and does nothing."""
    shape, starts = shape_of(model), model.vectors()[0].chunk(model.copies)
    found = [_weights_of(shape, start, *stack) for start, stack in zip(starts, model.stacks(), strict=True)]
    if len(found) == 1:
        return found[0]
    return {f"{c}.{name}": array for c, own in enumerate(found) for name, array in own.items()}


def _weights_of(shape: AnyShape, start: Tensor, norm: Any, blocks: Iterable[Any]) -> dict[str, Floats]:
    """Those of one copy."""
    rows: dict[str, list[Any]] = {name: [] for name in shape.tensors()}
    rows["start"] = [start]
    if shape.layer_norm:
        rows["gain"], rows["shift"] = [norm.weight], [norm.bias]
    for block in blocks:
        found = _rwkv_of(block) if isinstance(shape, RwkvShape) else _lru_of(block)
        norms = ("norm1", "norm2") if shape.layer_norm and shape.pffn else ("norm1",) if shape.layer_norm else ()
        for name in norms:
            own: Any = getattr(block, name)
            found |= {f"gain{name[-1]}": own.weight, f"shift{name[-1]}": own.bias}
        for name, tensor in found.items():
            rows[name].append(tensor)
    stacked = {}
    for name, wanted in shape.tensors().items():
        whole = np.concatenate([t.detach().numpy()[None] for t in rows[name]]) if rows[name] else np.zeros(wanted)
        stacked[name] = np.ascontiguousarray(whole.reshape(wanted), np.float32)
    return stacked


def _lru_of(block: Any) -> dict[str, Any]:
    lru, pffn = block.mixer, block.pffn
    lam, b, b_bias = lru.in_use()
    found = {"lam": lam, "b": b.T, "b_bias": b_bias, "c": lru.c_weight.T, "c_bias": lru.c_bias}
    return found if pffn is None else found | {"w1": pffn.w1.T, "b1": pffn.b1, "w2": pffn.w2.T, "b2": pffn.b2}


def _rwkv_of(block: Any) -> dict[str, Any]:
    time, channels = block.mixer, block.pffn
    found = {
        "mu": time.mu, "weight": time.weight.mT, "decay": time.decay.exp(), "bonus": time.bonus, "out": time.out_weight.T
    }  # fmt: skip
    if channels is not None:
        found |= {"mu2": channels.mu, "gate": channels.r_weight.T}
        found |= {"wide": channels.k_weight.T, "narrow": channels.v_weight.T}
    return found


def most_seen(dataset: Dataset) -> NDArray[np.int32]:
    """The items of most events, the first the most; ties by index."""
    counts = np.bincount(dataset.items, minlength=dataset.n_items)
    return np.argsort(-counts, kind="stable")[:_POPULAR].astype(np.int32)
