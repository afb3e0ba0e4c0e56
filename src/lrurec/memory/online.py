"""Counts that go on with the events: a memory that learns while it serves. Knows item numbers, not users.

The transitions of an artifact stay as they are, mapped and shared. What has come since lies beside them, row by row, and a history
brings to mind what both have together: the same as if all of it had been counted at once, as long as nothing had to be dropped.
The rows that were looked at or added to longest ago are dropped first.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lrurec.kernels import recall
from lrurec.memory.transitions import Floats, Transitions

_ROW = 256  # pairs of an item that are kept beside those of the artifact
_Row = dict[int, list[float]]  # item to after, before, around, as they are summed up


@dataclass
class Since:
    """What has come since some transitions were counted. Several threads may use it."""

    base: Transitions
    pairs: int = 2_000_000  # that are kept, at most; about 300 bytes each
    rows: OrderedDict[int, _Row] = field(default_factory=OrderedDict)
    held: int = 0  # pairs
    observed: int = 0  # events

    def __post_init__(self) -> None:
        self.counts = np.array(self.base.counts)  # [V], before and since
        self.popular = np.array(self.base.popular)
        self.window, self.decay = self.base.window, self.base.decay
        self._lock = threading.Lock()

    def observe(self, history: NDArray[np.integer], item: int) -> None:
        """Somebody with this history met an item."""
        near = [int(a) for a in history[-self.base.window :][::-1]]
        with self._lock:
            self.observed += 1
            self.counts[item] += 1
            self.popular[item] = np.log(self.counts[item])
            weight = 1.0
            for a in near:
                if a >= 0:
                    self._add(a, item, 0, weight)
                    self._add(item, a, 1, weight)
                weight *= self.base.decay
            while self.held > self.pairs:
                _, gone = self.rows.popitem(last=False)
                self.held -= len(gone)

    def _add(self, a: int, b: int, which: int, weight: float) -> None:
        row = self.rows.setdefault(a, {})
        self.rows.move_to_end(a)
        sums = row.get(b)
        if sums is None:
            sums = row[b] = [0.0, 0.0, 0.0]
            self.held += 1
        sums[which] += weight
        sums[2] += 1.0
        if len(row) > _ROW:
            lightest = min((other for other in row if other != b), key=lambda other: row[other][2])
            del row[lightest]
            self.held -= 1

    def recall(self, history: NDArray[np.integer]) -> tuple[NDArray[np.int32], Floats]:
        """What a history brings to mind, as `Transitions.recall` gives it."""
        base, last = self.base, history[-self.base.window :]
        which = np.full(len(last), -1, np.int64)
        found: dict[int, int] = {}
        items: list[NDArray[np.int32]] = []
        values: list[Floats] = []
        with self._lock:
            for k, a in enumerate(last.tolist()):
                if a < 0:
                    continue
                if a not in found:
                    found[a] = len(found)
                    row_items, row_values = self._row(a)
                    items.append(row_items)
                    values.append(row_values)
                which[k] = found[a]
            shares = (np.maximum(self.counts[list(found)], 1) ** -0.5).astype(np.float32)
        starts = np.concatenate([[0], np.cumsum([len(i) for i in items])]).astype(np.int64)
        others = np.concatenate([*items, np.zeros(0, np.int32)])
        weights = np.concatenate([*values, np.zeros((0, 3), np.float32)])
        different, place = np.unique(others, return_inverse=True)  # small scratch, whatever the size of the catalogue
        sums = np.zeros((len(different), recall.FEATURES), np.float32)
        out, features = np.empty(len(different), np.int32), np.empty((len(different), recall.FEATURES), np.float32)
        n = recall.recall(
            which, np.float32(base.decay), starts, place.astype(np.int32), weights, shares, sums, out, features
        )
        return different[out[:n]], features[:n]

    def _row(self, a: int) -> tuple[NDArray[np.int32], Floats]:
        """The row of an item, before and since, over the counts of now."""
        base = self.base
        span = slice(base.starts[a], base.starts[a + 1])
        items, values = np.array(base.items[span]), np.array(base.values[span])
        then, now = max(int(base.counts[a]), 1), max(int(self.counts[a]), 1)
        values[:, 0] *= (then / now) ** 0.3
        values[:, 1] *= (np.maximum(base.counts[items], 1) / np.maximum(self.counts[items], 1)) ** 0.3
        values[:, 2] *= (then / now) ** 0.5
        row = self.rows.get(a)
        if not row:
            return items, values
        self.rows.move_to_end(a)
        new = np.fromiter(row, np.int32, len(row))
        sums = np.array(list(row.values()), np.float64)
        sums[:, 0] /= now**0.3
        sums[:, 1] /= np.maximum(self.counts[new], 1) ** 0.3
        sums[:, 2] /= now**0.5
        both = np.concatenate([items, new])
        different, place = np.unique(both, return_inverse=True)
        merged = np.zeros((len(different), 3))
        np.add.at(merged, place, np.concatenate([values, sums]))
        return different.astype(np.int32), merged.astype(np.float32)
