"""Checkpoints of the authors' repository as runs of ours. Knows the authors' names, and nothing of how items got numbers.

    theirs                                       ours
    embedding.token.weight     [V + 1, D]        embedding: row 0 is their padding, our start token
    model.bias                 [V + 1]           bias [V]: theirs without the padding
    embedding.layer_norm       [D]               norm
    model.lru_blocks.k.
      lru_layer.params_log     [3, C]            mixer.log
      lru_layer.in_proj        complex [C, D]    mixer.b_weight = [Re B; Im B], mixer.b_bias likewise
      lru_layer.out_proj       complex [D, C]    mixer.c_weight = [Re C, -Im C], mixer.c_bias = the real part
      lru_layer.layer_norm     [D]               norm1
      feed_forward.w_1, w_2    [4D, D], [D, 4D]  pffn.w1 and b1, pffn.w2 and b2
      feed_forward.layer_norm  [D]               norm2

Both scale B x and its bias by gamma, and neither carries anything out of the padding: the scores are the same.
A torch file is a pickle, which can run any code; it is opened with `weights_only`, or not at all.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lrurec.data.dataset import Dataset
from lrurec.data.text import cannot_read
from lrurec.errors import InputError, SettingsError
from lrurec.folder import new_folder
from lrurec.models.base import Sizes
from lrurec.models.lrurec import LRURec
from lrurec.training.checkpoint import save_checkpoint
from lrurec.training.config import RunConfig, config_for
from lrurec.training.run import KIND, Run, refuse_used
from lrurec.training.trainer import BEST

_TABLE, _LOG = "embedding.token.weight", "model.lru_blocks.0.lru_layer.params_log"
_GIVEN = ("mixer", "width", "channels", "blocks", "layer_norm", "residual", "pffn", "outer_gelu")


@dataclass(frozen=True)
class Checkpoint:
    """The authors' tensors by their names, and the shape that they tell."""

    tensors: dict[str, Tensor]
    items: int
    width: int
    channels: int
    blocks: int


def read_checkpoint(path: Path) -> Checkpoint:
    """A file of the authors' trainer, or the state dict alone; anything else is refused."""
    tensors = _state(path, _load(path))
    for name in (_TABLE, _LOG):
        if name not in tensors:
            raise InputError(f"{path} has no {name}; it is not a checkpoint of the authors' LRURec")
        if tensors[name].ndim != 2:
            raise InputError(f"{path}: {name} has shape {list(tensors[name].shape)}, two dimensions expected")
    rows, width = tensors[_TABLE].shape
    blocks = len({found[1] for name in tensors if (found := re.match(r"model\.lru_blocks\.(\d+)\.", name))})
    shape = {"items": rows - 1, "width": width, "channels": tensors[_LOG].shape[1], "blocks": blocks}
    if min(shape.values()) < 1:
        raise InputError(f"{path}: {_TABLE} or {_LOG} is empty")
    _check(path, tensors, _expected(**shape))
    kept = {n: t.detach().to(torch.complex64 if t.is_complex() else torch.float32) for n, t in tensors.items()}
    return Checkpoint(kept, **shape)


def config_of(checkpoint: Checkpoint, assignments: list[str]) -> RunConfig:
    """The shape of the checkpoint; what it does not hold are the paper's settings, or those given."""
    for assignment in assignments:
        key = assignment.partition("=")[0]
        if key in {f"model.{name}" for name in _GIVEN}:
            raise SettingsError(f"{key} is given by the checkpoint; leave out --set {key}")
    config = config_for("paper", None, assignments)
    c = checkpoint
    return replace(config, model=replace(config.model, width=c.width, channels=c.channels, blocks=c.blocks))


def to_model(checkpoint: Checkpoint, numbers: NDArray[np.int64], config: RunConfig) -> LRURec:
    """Our model with their weights; `numbers` are theirs, 1 to V, of our items in our order."""
    model = LRURec(Sizes(checkpoint.items), config.model, torch.Generator())
    model.load_state_dict(_renamed(checkpoint, torch.tensor(numbers)))
    return model


def write_run(folder: Path, dataset: Dataset, config: RunConfig, model: LRURec, origin: dict[str, Any]) -> None:
    """A run folder that holds the weights alone; it appears whole or not at all."""
    refuse_used(folder)
    with new_folder(folder, KIND) as work:
        Run.begin(work, dataset, config, imported=origin)
        save_checkpoint(work / BEST, model, {}, {"imported": origin})


def _load(path: Path) -> object:
    try:
        file = path.open("rb")
    except OSError as error:
        raise cannot_read(path, error) from None
    try:
        with file, warnings.catch_warnings(action="ignore"):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can raise anything
        found = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, UnpicklingError) else None
        if found:
            raise InputError(
                f"{path} holds {found[1]} beside weights and was not opened, as that could run any code;"
                " save it again with torch.save(model.state_dict(), FILE)"
            ) from None
        raise InputError(f"{path} is not a file that torch.save wrote, or it is damaged; copy it again") from None


def _state(path: Path, loaded: object) -> dict[str, Tensor]:
    state = loaded.get("model_state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise InputError(f"{path} holds neither model_state_dict nor a state dict; save it with the authors' trainer")
    wrapped = all(str(name).startswith("module.") for name in state)  # by DataParallel
    return {str(name).removeprefix("module." if wrapped else ""): tensor for name, tensor in state.items()}


def _expected(items: int, width: int, channels: int, blocks: int) -> dict[str, tuple[bool, list[int]]]:
    """Every name, whether it is complex, and its shape."""
    real: dict[str, list[int]] = {_TABLE: [items + 1, width], "model.bias": [items + 1]}
    imaginary: dict[str, list[int]] = {}
    norms = ["embedding.layer_norm"]
    for k in range(blocks):
        lru, forward = f"model.lru_blocks.{k}.lru_layer", f"model.lru_blocks.{k}.feed_forward"
        real[f"{lru}.params_log"] = [3, channels]
        imaginary |= {f"{lru}.in_proj.weight": [channels, width], f"{lru}.in_proj.bias": [channels]}
        imaginary |= {f"{lru}.out_proj.weight": [width, channels], f"{lru}.out_proj.bias": [width]}
        real |= {f"{forward}.w_1.weight": [4 * width, width], f"{forward}.w_1.bias": [4 * width]}
        real |= {f"{forward}.w_2.weight": [width, 4 * width], f"{forward}.w_2.bias": [width]}
        norms += [f"{lru}.layer_norm", f"{forward}.layer_norm"]
    real |= {f"{name}.{part}": [width] for name in norms for part in ("weight", "bias")}
    return {n: (False, s) for n, s in real.items()} | {n: (True, s) for n, s in imaginary.items()}


def _check(path: Path, tensors: dict[str, Tensor], expected: dict[str, tuple[bool, list[int]]]) -> None:
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise InputError(f"{path} has no {_few(missing)}; it is not a checkpoint of the authors' LRURec")
    strange = [name for name in tensors if name not in expected]
    if strange:
        raise InputError(f"{path} holds {_few(strange)}, which the authors' LRURec has not")
    for name, (is_complex, shape) in expected.items():
        t = tensors[name]
        kind = t.is_complex() if is_complex else t.is_floating_point()
        if list(t.shape) != shape or not kind or t.layout != torch.strided:
            wanted = f"{shape} ({'complex' if is_complex else 'real'})"
            raise InputError(f"{path}: {name} is {list(t.shape)} ({t.dtype}), {wanted} expected")
        if not t.isfinite().all():
            raise InputError(f"{path}: {name} holds values that are no numbers; take an earlier checkpoint")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _renamed(checkpoint: Checkpoint, numbers: Tensor) -> dict[str, Tensor]:
    """Our names, with the rows of the items in our order."""
    t = checkpoint.tensors
    table = t[_TABLE]
    done = {"embedding": torch.cat([table[:1], table[numbers]]), "bias": t["model.bias"][numbers]}
    norms = {"embedding.layer_norm": "norm"}
    for k in range(checkpoint.blocks):
        lru, forward, ours = f"model.lru_blocks.{k}.lru_layer", f"model.lru_blocks.{k}.feed_forward", f"blocks.{k}"
        b, c = t[f"{lru}.in_proj.weight"], t[f"{lru}.out_proj.weight"]
        b_bias, c_bias = t[f"{lru}.in_proj.bias"], t[f"{lru}.out_proj.bias"]
        done[f"{ours}.mixer.log"] = t[f"{lru}.params_log"]
        done[f"{ours}.mixer.b_weight"] = torch.cat([b.real, b.imag])
        done[f"{ours}.mixer.b_bias"] = torch.cat([b_bias.real, b_bias.imag])
        done[f"{ours}.mixer.c_weight"] = torch.cat([c.real, -c.imag], 1)
        done[f"{ours}.mixer.c_bias"] = c_bias.real
        for n in (1, 2):
            done[f"{ours}.pffn.w{n}"] = t[f"{forward}.w_{n}.weight"]
            done[f"{ours}.pffn.b{n}"] = t[f"{forward}.w_{n}.bias"]
        norms |= {f"{lru}.layer_norm": f"{ours}.norm1", f"{forward}.layer_norm": f"{ours}.norm2"}
    for theirs, our in norms.items():
        for part in ("weight", "bias"):
            done[f"{our}.{part}"] = t[f"{theirs}.{part}"]
    return done
