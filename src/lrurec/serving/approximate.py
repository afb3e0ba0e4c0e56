"""The best items by way of 4-bit codes: a sixteenth of the bytes or less, and a few hundred exact scores.

The vector of an item, with its bias as one more number, is cut into slices of one or two numbers, and each slice is the nearest of
16 centres (product quantisation). What a slice adds to a score is looked up in a table of 16 entries that is made once for a
question and rounded to a byte, so a whole score is a sum of small whole numbers. The items with the largest sums are scored exactly.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lrurec.arrays import mapped
from lrurec.errors import FolderError
from lrurec.kernels import scan4 as kernels
from lrurec.serving.engine import Floats
from lrurec.serving.half import Table
from lrurec.serving.retrieval import Exact, Found, best_of
from lrurec.serving.store.base import Indices
from lrurec.serving.threads import at_once, cores

FILES = CODES, CENTRES = "near_codes.npy", "near_centres.npy"
_BLOCKS = 2048  # of items whose sums are found together: they stay in the cache
_SHARE = 2  # times as many are worth a thread
_LARGEST = 254  # entry of a table: with one more, a byte
_MOST = (1 << 16) - 2  # that a sum may be
_TRAINED, _ROUNDS = 100_000, 25  # items that the centres are fitted to, and how often
_TILE = 1 << 16  # items encoded together


class Approximate:
    """`candidates`: how many items are scored exactly."""

    kind = "approximate"

    def __init__(self, codes: NDArray[np.uint8], centres: Floats, candidates: int, table: Table, bias: Floats) -> None:
        self.codes, self.centres, self.candidates, self.exact = codes, centres, candidates, Exact(table, bias)
        ways = {64: kernels.scan_64, 32: kernels.scan_32, 1: kernels.scan_reference}
        self._scan = ways[kernels.widest()]

    @classmethod
    def build(cls, folder: Path, table: Floats, bias: Floats, together: int, candidates: int) -> "Approximate":
        """Write the codes of a table beside it, each of `together` numbers."""
        items, slices = len(table), -(-(table.shape[1] + 1) // together)
        drawn = np.sort(np.random.default_rng(0).permutation(items)[:_TRAINED])
        centres = _fitted(with_bias(table[drawn], bias[drawn], slices * together), together)
        codes = np.zeros((-(-items // kernels.BLOCK), -(-slices // 2), kernels.BLOCK), np.uint8)
        for first in range(0, items, _TILE):
            part = slice(first, first + _TILE)
            kernels.encode(with_bias(table[part], bias[part], slices * together), first, centres, codes)
        np.save(folder / CODES, codes)
        np.save(folder / CENTRES, centres)
        return cls(codes, centres, candidates, table, bias)

    @classmethod
    def open(cls, folder: Path, candidates: int, table: Table, bias: Floats) -> "Approximate":
        try:
            codes, centres = mapped(folder / CODES), np.load(folder / CENTRES)
        except (OSError, ValueError) as error:
            raise FolderError(f"{folder}: its index cannot be read ({error}); export it again") from None
        slices, entries, together = centres.shape
        shape = (-(-len(table) // kernels.BLOCK), -(-slices // 2), kernels.BLOCK)
        if codes.shape != shape or entries != kernels.ENTRIES or not table.shape[1] < slices * together:
            raise FolderError(f"{folder}: its index is not that of its items; export it again")
        return cls(codes, centres, candidates, table, bias)

    def search(
        self, queries: Floats, k: int, exclude: Sequence[Indices] | None = None, allow: Indices | None = None
    ) -> Found:
        wanted = max(self.candidates, 4 * k)
        if allow is not None or k <= 0 or 2 * wanted >= len(self.exact.table):  # no candidates, but nearly everything
            return self.exact.search(queries, k, exclude, allow)
        shares = max(1, min(cores(), len(self.codes) // (_SHARE * _BLOCKS))) if len(queries) == 1 else 1
        found = []
        for q, query in enumerate(queries):
            gone = np.unique(exclude[q]) if exclude is not None else np.zeros(0, np.int64)
            items = self._near(query, wanted, gone, shares)
            scores = self.exact.scores_of(items, query)
            best = best_of(scores, k)
            found.append((items[best], scores[best]))
        return found

    def _near(self, query: Floats, wanted: int, gone: Indices, shares: int) -> Indices:
        """The items of the largest sums, in order: as many as are wanted, and those level with the last."""
        tables = self._tables(query)
        blocks = len(self.codes)
        firsts = [_BLOCKS * (blocks // _BLOCKS * s // shares) for s in range(shares)]
        parts = list(zip(firsts, [*firsts[1:], blocks], strict=True))
        found = at_once(lambda part: self._near_in(*part, tables, wanted, gone), parts)
        items, sums = (np.concatenate(some) for some in zip(*found, strict=True))
        if len(items) <= wanted:
            return items
        near: Indices = items[sums >= np.partition(sums, len(sums) - wanted)[len(sums) - wanted]]
        return near

    def _near_in(
        self, first: int, last: int, tables: NDArray[np.uint8], wanted: int, gone: Indices
    ) -> tuple[Indices, Indices]:
        """The same of some blocks, with their sums."""
        sums, most = np.empty((_BLOCKS, kernels.BLOCK), np.uint16), np.empty(_BLOCKS, np.int64)
        items, values = (np.empty(wanted + 2 * sums.size, np.int64) for _ in range(2))
        numbers, state = np.zeros(255 * len(tables) + 2, np.int64), np.array([0, 1, 0])
        # Behind the last item there is none, either.
        left = np.concatenate([gone, np.arange(len(self.exact.table), kernels.BLOCK * len(self.codes))])
        left = left[np.searchsorted(left, kernels.BLOCK * first) :]
        for block in range(first, last, _BLOCKS):
            count, begin = min(_BLOCKS, last - block), kernels.BLOCK * block
            self._scan(self.codes, tables, block, sums[:count], most)
            if len(left):
                here = np.searchsorted(left, begin + kernels.BLOCK * count)
                sums.reshape(-1)[left[:here] - begin] = 0
                left = left[here:]
            if state[0] + sums.size > len(items):
                kernels.tidy(items, values, state)
            if state[0] + sums.size > len(items):  # very many are level
                items, values = (np.concatenate([some, np.empty_like(some)]) for some in (items, values))
            kernels.take(sums[:count], most, begin, wanted, items, values, numbers, state)
        kernels.tidy(items, values, state)
        return items[: state[0]], values[: state[0]]

    def _tables(self, query: Floats) -> NDArray[np.uint8]:
        """What the codes stand for, for a question: 16 entries for each slice. No sum is 0."""
        slices, entries, together = self.centres.shape
        asked = with_bias(query[None], np.ones(1, np.float32), slices * together).reshape(slices, 1, together)
        worth = (self.centres * asked).sum(2)
        worth -= worth.min(1, keepdims=True)
        largest = float(worth.max())
        found = np.zeros((2 * self.codes.shape[1], entries), np.uint8)
        if 0 < largest < np.inf:
            found[:slices] = np.rint(worth * (min(_LARGEST, _MOST // slices) / largest))
        found[0] += 1
        return found


def with_bias(vectors: Floats, bias: Floats, width: int) -> Floats:
    """Vectors with one more number, and zeros up to a width, as the index has them."""
    found = np.zeros((len(vectors), width), np.float32)
    found[:, : vectors.shape[1]] = vectors
    found[:, vectors.shape[1]] = bias
    return found


def _fitted(rows: Floats, together: int) -> Floats:
    """16 centres for each slice of the rows: k-means from rows that are spread along its first number."""
    slices = rows.shape[1] // together
    centres = np.empty((slices, kernels.ENTRIES, together), np.float32)
    places = (2 * np.arange(kernels.ENTRIES) + 1) * len(rows) // (2 * kernels.ENTRIES)
    for m in range(slices):
        own = np.ascontiguousarray(rows[:, m * together : (m + 1) * together])
        centres[m] = own[np.argsort(own[:, 0], kind="stable")[places]]
        for _ in range(_ROUNDS):
            kernels.improve(own, centres[m])
    return centres
