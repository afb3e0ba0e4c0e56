"""A table kept in 16 bits per number, read in 32: half the disk and memory, the same arithmetic. Knows rows of numbers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class HalfTable:
    """Rows of float16 that are handed out as float32."""

    def __init__(self, half: NDArray[np.float16]) -> None:
        self.half = half
        self.shape = half.shape

    def __len__(self) -> int:
        return len(self.half)

    def __getitem__(self, rows: Any) -> Floats:
        found: Floats = self.half[rows].astype(np.float32)
        return found


Table = Floats | HalfTable


def rows_of(table: Table, items: NDArray[np.integer]) -> tuple[Floats, NDArray[np.integer]]:
    """A table of floats and where the items are in it: the table as it is, or the rows that are asked for."""
    if isinstance(table, HalfTable):
        return table[items], np.arange(len(items))
    return table, items


def rounded(table: Floats) -> NDArray[np.float16]:
    """The table in 16 bits; ValueError where a number is too large for them."""
    with np.errstate(over="ignore"):
        half = table.astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError("a number of the table does not fit into 16 bits")
    return half
