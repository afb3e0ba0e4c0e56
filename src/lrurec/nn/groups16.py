"""Positions against items with products of bfloat16, by the processor's own instruction. Knows vectors.

Takes the place of the tiles in lrurec.nn.loss where it can: on a processor that has the instruction, for vectors of a
width it suits, and for scores that are small enough to be powers without a look at the largest first.
"""

import math
from typing import Any

import numpy as np
from torch import Tensor

from lrurec.kernels import softmax16 as kernels
from lrurec.kernels.dot16 import COLUMNS, has_dot16

_LARGEST = 60.0  # e^60 times all items of a catalogue, and e^-60, are still floats
_FEW_ITEMS, _FEW = 1 << 14, 192  # positions in a group over few items
_STORE, _LEAST = 96 << 20, 128  # bytes of exponentials over many items; positions that are worth reading them for


def _padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


class DotGroup:
    """Some positions against the items of one part of the catalogue."""

    unit = kernels.WIDE  # parts of the catalogue begin at multiples of it

    @staticmethod
    def rows(items: int) -> int:
        return _FEW if items <= _FEW_ITEMS else max(_LEAST, _STORE // (2 * items))

    @staticmethod
    def suits(hidden: Tensor, table: Tensor, bias: Tensor) -> bool:
        if not has_dot16() or hidden.shape[1] % COLUMNS or len(hidden) == 0:
            return False
        # No product is larger than that of the lengths (Cauchy and Schwarz). Not a number is not below anything.
        lengths = [math.sqrt(kernels.longest(t.numpy())) for t in (hidden, table)]
        return lengths[0] * lengths[1] + float(bias.abs().max()) < _LARGEST

    def __init__(self, table: Tensor, bias: Tensor, rows: int) -> None:
        items, width = table.shape
        blocks, most = -(-items // self.unit), _padded(rows, 4)
        self.columns = np.empty((blocks, width // 2, self.unit), np.int32)
        self.items = np.empty((blocks, self.unit // 2, width), np.int32)
        kernels.pack_items(table.numpy(), self.columns, self.items)
        self.bias = np.full(blocks * self.unit, -1e30, np.float32)  # behind the last item: nothing
        np.multiply(bias.numpy(), np.float32(kernels.LOG2E), out=self.bias[:items])
        self.total, self.store = np.empty(most, np.float32), np.empty(blocks * self.unit * most // 2, np.int32)
        self.halves, self.to_hidden = np.empty((most, width), np.int16), np.empty((most, width), np.float32)
        self.pairs = np.empty((most // 2, width), np.int32)

    def sums(self, hidden: Tensor, gradients: bool) -> tuple[Any, Any]:
        """(0, sum of exponentials) per position; the exponentials stay in the store."""
        places = self.total, self.store, self.halves, self.to_hidden
        kernels.sums(hidden.numpy(), self.columns, self.items, self.bias, *places, gradients)
        return np.zeros(len(hidden), np.float32), self.total[: len(hidden)].copy()

    def gradients(
        self, hidden: Tensor, largest: Any, weight: Any, d_hidden: Tensor, d_table: Tensor, d_bias: Tensor, fresh: bool
    ) -> None:
        """Add the gradients of the log of the sums, weighed per position. Those of items may reach behind the last one.

        A `fresh` d_table and d_bias hold nothing yet.
        """
        places = self.store, self.halves, self.pairs, self.to_hidden
        found = d_hidden.numpy(), d_table.numpy(), d_bias.numpy()
        kernels.gradients(hidden.numpy(), weight, *places, *found, not fresh)

    def meet(
        self, hidden: Tensor, weights: Tensor, rows: int, logs: Tensor, found: tuple[Tensor, Tensor, Tensor] | None
    ) -> None:
        """All of that for any number of positions, some rows at a time, in one loop: no time is lost between groups."""
        d_hidden, d_table, d_bias = (t.numpy() for t in found or (hidden, hidden, logs))
        kernels.meet(
            hidden.numpy(), weights.numpy(), rows, self.columns, self.items, self.bias, self.total, self.store,
            self.halves, self.pairs, self.to_hidden, logs.numpy(), d_hidden, d_table, d_bias, found is not None,
        )  # fmt: skip
