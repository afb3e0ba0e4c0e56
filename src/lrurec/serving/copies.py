"""Several models side by side, whose scores are averaged, as one engine. Knows engines, not their equations.

The table has a row per item with the vectors of all copies one behind another. Seen as one row per copy of an item, it is
the table of each of them, at other row numbers. A state has the blocks of all copies, in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lrurec.serving.engine import Engine, Floats, Shape
from lrurec.serving.half import HalfTable, Table
from lrurec.serving.rwkv import RwkvEngine, RwkvShape

AnyShape = Shape | RwkvShape


class AnyEngine(Protocol):
    """What steps users from event to event."""

    shape: Any
    table: Table
    start: Floats

    def initial(self, users: int) -> Floats: ...
    def step(self, states: Floats, items: NDArray[np.int64], out: Floats | None = None) -> Floats: ...
    def encode(self, items: NDArray[np.integer], offsets: NDArray[np.int64]) -> tuple[Floats, Floats]: ...
    def magnitudes(self, states: Floats) -> Floats: ...
    @property
    def kept(self) -> Floats: ...


def tensors_of(shape: AnyShape) -> dict[str, tuple[int, ...]]:
    """Every weight beside the item table, and its shape; of several copies, each begins with the copy's number."""
    if shape.copies == 1:
        return shape.tensors()
    return {f"{c}.{name}": wanted for c in range(shape.copies) for name, wanted in shape.tensors().items()}


def engine_of(shape: AnyShape, weights: Mapping[str, Floats], table: Table) -> AnyEngine:
    """The engine that steps models of a shape."""
    if shape.copies > 1:
        return Copies(shape, weights, table)
    return RwkvEngine(shape, weights, table) if isinstance(shape, RwkvShape) else Engine(shape, weights, table)


class Copies:
    """As an engine of one model. Vectors are those of the copies one behind another, over their number."""

    def __init__(self, shape: AnyShape, weights: Mapping[str, Floats], table: Table) -> None:
        self.shape, self.table = shape, table
        one = replace(shape, copies=1)
        rows = (
            HalfTable(_by_copy(table.half, one.width)) if isinstance(table, HalfTable) else _by_copy(table, one.width)
        )
        self.parts = [
            engine_of(one, {name: weights[f"{c}.{name}"] for name in one.tensors()}, rows) for c in range(shape.copies)
        ]
        self.start: Floats = self._joined([part.start[None] for part in self.parts])[0]

    def _joined(self, vectors: Sequence[Floats]) -> Floats:
        found: Floats = np.concatenate(vectors, 1) / np.float32(len(vectors))
        return found

    def initial(self, users: int) -> Floats:
        return np.concatenate([part.initial(users) for part in self.parts], 1)

    def step(self, states: Floats, items: NDArray[np.int64], out: Floats | None = None) -> Floats:
        found, blocks = [], self.shape.blocks
        for c, part in enumerate(self.parts):
            own = np.ascontiguousarray(states[:, c * blocks : (c + 1) * blocks])
            found.append(part.step(own, self._rows(items, c)))
            states[:, c * blocks : (c + 1) * blocks] = own
        joined = self._joined(found)
        if out is None:
            return joined
        out[:] = joined
        return out

    def encode(self, items: NDArray[np.integer], offsets: NDArray[np.int64]) -> tuple[Floats, Floats]:
        states, hidden = zip(
            *(part.encode(self._rows(items, c), offsets) for c, part in enumerate(self.parts)), strict=True
        )
        return np.concatenate(states, 1), self._joined(hidden)

    def _rows(self, items: NDArray[np.integer], copy: int) -> NDArray[np.int64]:
        """Where a copy of each item is in the table that has a row per copy."""
        return items.astype(np.int64) * len(self.parts) + copy

    def magnitudes(self, states: Floats) -> Floats:
        return self.parts[0].magnitudes(states)

    @property
    def kept(self) -> Floats:
        return np.concatenate([part.kept for part in self.parts])


def _by_copy(table: NDArray[Any], width: int) -> NDArray[Any]:
    return table.reshape(-1, width)
