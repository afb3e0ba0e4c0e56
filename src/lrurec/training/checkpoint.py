"""Checkpoints: weights and everything else a run needs to continue exactly. Knows tensors and files, not the loop.

A checkpoint is one safetensors file: the weights under `model.`, the optimiser's moments under `first.` and `second.` (and
under `last.` the step that each row of a table is up to date with), and the counters as text in its header. It is
written aside, flushed, and moved into place: a crash leaves the old one. Its header also has a checksum of all bytes
behind it: a disk that gives back others is noticed.
"""

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lrurec.errors import FolderError
from lrurec.models.base import Model

_KINDS = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32"}
_AGAIN = "train again with another --out"
_CHOICE = {"last": "best", "best": "last"}  # of the checkpoints that evaluate and export take
_SUM = "crc32"  # in the header, eight hexadecimal digits


def save_checkpoint(path: Path, model: nn.Module, more: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write atomically the weights, and `more` of the optimiser where a run is to go on from it."""
    tensors = {f"model.{name}": p.detach().contiguous() for name, p in model.named_parameters()}
    save_tensors(path, tensors | {name: tensor.contiguous() for name, tensor in more.items()}, state)


def save_tensors(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write a safetensors file whole or not at all, `state` as text in its header."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            _write(file, tensors, {"state": json.dumps(state)})
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        kept = "; the one before it is kept" if path.exists() else ""
        raise FolderError(
            f"{path} cannot be written ({error.strerror}){kept}; when it can be, go on with lrurec train ... --resume"
        ) from error


def _write(file: BinaryIO, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file, tensor by tensor, the widest numbers first, so that all lie aligned.

    The library's own writers hold all of it twice, or leave files of their own behind when they are killed.
    """
    ordered = dict(sorted(tensors.items(), key=lambda pair: (-pair[1].element_size(), pair[0])))
    header: dict[str, Any] = {"__metadata__": {**metadata, _SUM: f"{checksum(ordered.values()):08x}"}}
    end = 0
    for name, tensor in ordered.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in ordered.values():
        file.write(_bytes(tensor))


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.cpu().reshape(-1)
    return flat.view(torch.uint8).numpy().data if len(flat) else memoryview(b"")


def checksum(tensors: Iterable[Tensor]) -> int:
    """Of the bytes of tensors, one after the other."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(_bytes(tensor), found)
    return found


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors and the counters; a damaged file is an error that says so."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
            metadata = file.metadata()
            state = json.loads(metadata["state"])
    except FileNotFoundError:
        raise FolderError(
            f"{path} does not exist; the run has no such checkpoint yet: go on with lrurec train ... --resume"
        ) from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise FolderError(f"{path} is damaged ({error}); {_instead(path)}") from None
    if _SUM in metadata and int(metadata[_SUM], 16) != checksum(tensors.values()):  # files of before have none
        raise FolderError(f"{path} is damaged (its bytes have changed); {_instead(path)}")
    return tensors, state


def read_state(path: Path) -> dict[str, Any] | None:
    """The counters alone, without reading the tensors; None where there are none that can be read."""
    try:
        with safe_open(path, framework="pt") as file:
            found: dict[str, Any] = json.loads(file.metadata()["state"])
            return found
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None


def _instead(path: Path) -> str:
    """What to do without a file."""
    other = _CHOICE.get(path.stem)
    return f"{_AGAIN}, or evaluate and export the other one (--checkpoint {other})" if other else _AGAIN


def restore_model(model: Model, tensors: dict[str, Tensor]) -> None:
    """Put the weights of a checkpoint into a model of the same shape."""
    found = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
    try:
        model.restore(found)
    except RuntimeError as error:
        raise FolderError(f"the checkpoint does not fit the model ({str(error).splitlines()[-1].strip()})") from None
