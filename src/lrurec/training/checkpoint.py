"""Checkpoints: weights and everything else a run needs to continue exactly. Knows tensors and files, not the loop.

A checkpoint is one safetensors file: the weights under `model.`, the optimiser's moments under `first.` and `second.` (and
under `last.` the step that each row of a table is up to date with), and the counters as text in its header. It is
written aside, flushed, and moved into place: a crash leaves the old one.
"""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from lrurec.errors import FolderError
from lrurec.models.base import Model


def save_checkpoint(path: Path, model: nn.Module, more: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write atomically the weights, and `more` of the optimiser where a run is to go on from it."""
    tensors = {f"model.{name}": p.detach().contiguous() for name, p in model.named_parameters()}
    tensors |= {name: tensor.contiguous() for name, tensor in more.items()}
    data = save(tensors, metadata={"state": json.dumps(state)})
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise FolderError(f"{path} cannot be written ({error.strerror}); the checkpoint before it is kept") from error


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors and the counters; a damaged file is an error that says so."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            state = json.loads(file.metadata()["state"])
    except FileNotFoundError:
        raise FolderError(f"{path} does not exist; the run has no such checkpoint yet") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise FolderError(f"{path} is damaged ({error}); train again, or use the other checkpoint") from None
    return tensors, state


def restore_model(model: Model, tensors: dict[str, Tensor]) -> None:
    """Put the weights of a checkpoint into a model of the same shape."""
    found = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
    try:
        model.restore(found)
    except RuntimeError as error:
        raise FolderError(f"the checkpoint does not fit the model ({str(error).splitlines()[-1].strip()})") from None
