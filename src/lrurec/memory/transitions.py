"""What came near what in a log: for each item a row of the items that followed it, preceded it or were around. Knows no users.

    after[a, b]   sum over every b that came g = 1..window items after an a of decay^(g-1), over count(a)^0.3
    before[a, b]  the same for every b that came before an a, over count(b)^0.3
    around[a, b]  how often b was among the `window` items on either side of an a, over count(a)^0.5

A row keeps its heaviest pairs. The last `window` items of a history look their rows up: O(1), however long it is.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lrurec.errors import SettingsError
from lrurec.kernels import recall

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
_TOGETHER = 1 << 25  # pairs that are summed up at once
_MOST_WINDOW = 100
PAIR_BYTES, ITEM_BYTES = 16, 16  # of Transitions: of a pair, and of an item
_PAIRS, _EACH = 32_000_000, 45  # kept by default: of all items, and of each of very many


@dataclass(frozen=True)
class MemoryConfig:
    """Whether a run has a transition memory, and how much of one."""

    use: bool = False
    window: int = 10  # items that look back, and that are looked back to
    decay: float = 0.6
    row: int = 128  # pairs kept of an item, at most
    pairs: int = 0  # and of all items together, 16 bytes each; 0: 32 million, or 45 of each item where that is more
    held_back: float = 0.03  # share of the training events that the weights of the evidence are learned from
    rare: float = 0.2  # an answer that occurred n times weighs (n + 1)^-rare in that: more is better for rare items
    rare_below: float = 1.0  # the share of the answers, the rarest, for which that is so; those beyond it weigh alike

    def __post_init__(self) -> None:
        if not 1 <= self.window <= _MOST_WINDOW:
            raise SettingsError(f"memory.window must lie between 1 and {_MOST_WINDOW}, not {self.window}")
        if not 0 < self.decay <= 1:
            raise SettingsError(f"memory.decay must lie above 0 and not above 1, not {self.decay}")
        if self.row < 1:
            raise SettingsError(f"memory.row must be 1 or more, not {self.row}")
        if self.pairs < 0:
            raise SettingsError(f"memory.pairs must be 0 (as the catalogue needs) or more, not {self.pairs}")
        if not 0 < self.held_back <= 0.5:
            raise SettingsError(f"memory.held_back must lie above 0 and not above 0.5, not {self.held_back}")
        if not 0 <= self.rare <= 1:
            raise SettingsError(f"memory.rare must lie between 0 and 1, not {self.rare}")
        if not 0 <= self.rare_below <= 1:
            raise SettingsError(f"memory.rare_below must lie between 0 and 1, not {self.rare_below}")

    def of_each(self, n_items: int) -> int:
        """How many pairs of an item are kept at most, of so many items.

        >>> MemoryConfig().of_each(50_000), MemoryConfig().of_each(2_000_000), MemoryConfig(pairs=100).of_each(50)
        (128, 45, 2)
        """
        pairs = self.pairs or max(_PAIRS, _EACH * n_items)
        return max(1, min(self.row, pairs // max(n_items, 1)))


def _shares_of(partners: Indices) -> list[slice]:
    """Runs of items that have about _TOGETHER neighbours each."""
    bounds, many = [0], np.cumsum(partners)
    while bounds[-1] < len(partners):
        before = many[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(many, before + _TOGETHER, side="right"))))
    return [slice(a, b) for a, b in pairwise(bounds)]


@dataclass(frozen=True)
class Transitions:
    """Rows of a sparse matrix; row a is items[starts[a]:starts[a + 1]], in order."""

    counts: NDArray[np.int64]  # [V], how often an item occurred
    starts: Indices  # [V + 1]
    items: NDArray[np.int32]  # [P]
    values: Floats  # [P, 3]: after, before, around
    window: int
    decay: float

    @cached_property
    def popular(self) -> Floats:
        """[V]: the logarithm of how often an item occurred, of which there is no less than once."""
        found: Floats = np.log(np.maximum(self.counts, 1)).astype(np.float32)
        return found

    @cached_property
    def _shares(self) -> Floats:
        found: Floats = (np.maximum(self.counts, 1) ** -0.5).astype(np.float32)
        return found

    @cached_property
    def _scratch(self) -> threading.local:
        return threading.local()

    @classmethod
    def count(
        cls,
        items: NDArray[np.int32],
        starts: Indices,
        stops: Indices,
        n_items: int,
        config: MemoryConfig,
        at_once: Callable[[Callable[[slice], slice], list[slice]], Iterable[slice]] = map,
    ) -> "Transitions":
        """Of the sequences items[starts[k]:stops[k]]; some items at a time, so that memory stays bounded.

        `at_once` may do several parts of the work at a time, and gives their results in order.
        """
        counts, partners = np.zeros(n_items, np.int64), np.zeros(n_items, np.int64)
        recall.count_partners(items, starts, stops, config.window, counts, partners)
        most = config.of_each(n_items)

        # Each part has the room that it may need at most; what is not written takes no memory.
        room = np.concatenate([[0], np.cumsum(np.minimum(partners, most))])
        found, weighed = np.empty(room[-1], np.int32), np.empty((room[-1], 3), np.float32)
        sizes = np.zeros(n_items, np.int64)

        def fill(span: slice) -> slice:
            ends = np.concatenate([[0], np.cumsum(partners[span])])
            begins, stop = ends[:-1], ends[:-1].copy()
            who, gaps = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.int8)
            recall.collect(items, starts, stops, config.window, span.start, span.stop, stop, who, gaps)
            own = slice(room[span.start], room[span.stop])
            sizes[span] = recall.sum_up(begins, stop, who, gaps, config.decay, most, n_items, found[own], weighed[own])
            return span

        end = 0
        for span in at_once(fill, _shares_of(partners)):  # moved together, in order
            begin, many = room[span.start], sizes[span].sum()
            found[end : end + many], weighed[end : end + many] = (
                found[begin : begin + many],
                weighed[begin : begin + many],
            )
            end += int(many)
        found, weighed = found[:end], weighed[:end]
        often = np.maximum(counts, 1)
        less, least = ((often**power).astype(np.float32) for power in (-0.3, -0.5))
        weighed[:, 0] *= np.repeat(less, sizes)
        weighed[:, 1] *= less[found]
        weighed[:, 2] *= np.repeat(least, sizes)
        return cls(counts, np.concatenate([[0], np.cumsum(sizes)]), found, weighed, config.window, config.decay)

    @cached_property
    def _room(self) -> int:
        """How many items a history brings to mind at most."""
        return min(len(self.counts), self.window * int(np.diff(self.starts).max(initial=0)))

    def recall(self, history: NDArray[np.integer]) -> tuple[NDArray[np.int32], Floats]:
        """What a history brings to mind: items, in the order of recall, and their features [m, FEATURES]."""
        own = self._scratch
        if getattr(own, "sums", None) is None:  # one per thread
            own.sums = np.zeros((len(self.counts), recall.FEATURES), np.float32)
            own.out, own.found = np.empty(self._room, np.int32), np.empty((self._room, recall.FEATURES), np.float32)
        last = history[-self.window :]
        decay, rows = np.float32(self.decay), (self.starts, self.items, self.values)
        n = recall.recall(last, decay, *rows, self._shares, own.sums, own.out, own.found)
        return own.out[:n].copy(), own.found[:n].copy()
