"""The artifact folder: all that serving needs of a trained model, and no torch. Knows files, not requests.

manifest.json         the model's shape, where it came from, the size and hash of every file, and its own hash
weights.safetensors   the blocks, laid out for stepping (lrurec.serving.engine)
table.npy             float32 or 16 [items, width]  what an item is as input, and what it is scored with
bias.npy              float32 [items]
popular.npy           int32 [at most 1000]     the items seen most often, the first the most
near_*.npy            for a large catalogue: the table in 4 bits, where to look first (lrurec.serving.approximate); or
codes.npy, scales.npy the table in 8 bits, to find the best ones exactly (lrurec.serving.scanned)
memory_*.npy          what came near what, where the run has a memory (lrurec.memory)
item_ids.*            the ids, sorted; item_names.* where there are titles

A file that differs from its hash by one byte is refused. Arrays are mapped: processes on one machine share them.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from lrurec.arrays import mapped
from lrurec.config import from_mapping
from lrurec.errors import FolderError, LrurecError
from lrurec.folder import check_hashes, check_sizes, read_manifest, seal_of
from lrurec.ids import IdTable, TextIds
from lrurec.memory.memory import ARRAYS, Memory
from lrurec.serving.approximate import Approximate
from lrurec.serving.copies import AnyEngine, engine_of, tensors_of
from lrurec.serving.engine import Floats, Shape, check_tensors
from lrurec.serving.half import HalfTable, Table
from lrurec.serving.retrieval import Exact, Retriever
from lrurec.serving.rwkv import RwkvShape
from lrurec.serving.scanned import Scanned

KIND, VERSION = "artifact", 2
WEIGHTS = "weights.safetensors"
_TILE = 1 << 16  # items compared together


@dataclass(frozen=True)
class Artifact:
    """An opened artifact. `id` names its content: a state that was computed with another id is not used."""

    path: Path
    id: str
    manifest: dict[str, Any]
    engine: AnyEngine
    bias: Floats
    popular: NDArray[np.int32]
    item_ids: IdTable
    item_names: TextIds | None
    memory: Memory | None = None

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> "Artifact":
        """Open a folder made by `lrurec export`; with `verify`, every byte is compared with its hash."""
        folder = Path(path)
        manifest = read_manifest(folder, KIND, VERSION)
        try:
            if manifest.get("seal") != seal_of(manifest):
                raise FolderError(
                    f"{folder}: manifest.json is damaged (its hash differs); make it again with lrurec export"
                )
            (check_hashes if verify else check_sizes)(folder, manifest, KIND)
            return cls._map(folder, manifest)
        except LrurecError:
            raise
        except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
            raise FolderError(f"{folder} is damaged ({error}); export it again") from None

    def need_memory(self) -> None:
        """Refuse to learn from events where there is no memory to learn with."""
        if self.memory is None:
            raise FolderError(
                f"{self.path} has no memory that could learn from events; export a run of --recipe best (its training at an"
                " end), or serve without learning"
            )

    @classmethod
    def _map(cls, folder: Path, manifest: dict[str, Any]) -> "Artifact":
        is_rwkv = dict(manifest["model"]).get("mixer") == "rwkv"
        shape: Any = from_mapping(RwkvShape if is_rwkv else Shape, manifest["model"])
        weights = load_file(folder / WEIGHTS)
        if wrong := check_tensors(tensors_of(shape), weights):
            raise FolderError(f"{folder}: {WEIGHTS} does not fit the model ({', '.join(wrong)}); export it again")
        stored = mapped(folder / "table.npy")
        table: Table = HalfTable(stored) if stored.dtype == np.float16 else stored
        names = None
        if manifest["names"]:
            names = TextIds(mapped(folder / "item_names.text.npy"), mapped(folder / "item_names.offsets.npy"))
        return cls(
            folder,
            manifest["seal"][:16],
            manifest,
            engine_of(shape, weights, table),
            mapped(folder / "bias.npy"),
            np.load(folder / "popular.npy"),
            IdTable.open(folder, "item_ids", manifest["ids"]),
            names,
            _memory(folder, len(table)) if manifest.get("memory") else None,
        )

    @property
    def n_items(self) -> int:
        return len(self.bias)

    def retriever(self) -> Retriever:
        """How the best items are found: the way that was chosen at export."""
        facts = self.manifest["index"]
        if facts["kind"] == Exact.kind:
            return Exact(self.engine.table, self.bias)
        if facts["kind"] == Scanned.kind:
            return Scanned.open(self.path, self.engine.table, self.bias)
        return Approximate.open(self.path, facts["candidates"], self.engine.table, self.bias)

    @cached_property
    def lengths(self) -> Floats:
        """|e| of every item."""
        return np.concatenate([np.sqrt(np.square(self.engine.table[part]).sum(1)) for part in self._parts()])

    def cosines(self, item: int) -> Floats:
        """How nearly the vectors of all items point the way of one."""
        table, own = self.engine.table, self.engine.table[item]
        products = np.concatenate([table[part] @ own for part in self._parts()])
        found: Floats = products / np.maximum(self.lengths * self.lengths[item], 1e-12)
        return found

    def _parts(self) -> list[slice]:
        return [slice(first, first + _TILE) for first in range(0, self.n_items, _TILE)]

    def name(self, item: int) -> str | None:
        """The title of an item, if it has one."""
        return (self.item_names[item] or None) if self.item_names is not None else None

    def __repr__(self) -> str:
        return f"Artifact({self.n_items:,} items, id {self.id})"


def save_memory(folder: Path, memory: Memory) -> None:
    """The arrays of a memory as files, to be mapped."""
    for name, array in memory.arrays().items():
        np.save(folder / f"memory_{name}.npy", np.ascontiguousarray(array))


def _memory(folder: Path, n_items: int) -> Memory:
    return Memory.of({name: mapped(folder / f"memory_{name}.npy") for name in ARRAYS}, n_items)
