"""The exact best items by way of 8-bit codes: a quarter of the bytes, and a bound that leaves nothing out.

A row e of the table is a (c + r): codes c, whole numbers up to 127, a scale a, and what rounding took, |r| <= 1/2. A query q
is b (p + t): whole numbers p up to 32,767, and |t| <= 1/2. So the score found by whole numbers alone is off by at most

    | q . e - a b (p . c) |  <=  a (b / 2 * 127 D + |q|_1 / 2)

with |q|_1 the sum of its numbers' sizes. One pass over the codes keeps the k-th best of the lower bounds, and every item whose
upper bound reaches it. Those, a few hundred, are scored exactly; no other item can be among the best k. A single query is split over the cores, each with
a run of the catalogue: what is possible in the whole is possible in its part.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lrurec.arrays import mapped, save_array
from lrurec.kernels import scan8 as kernels
from lrurec.kernels.select import strike_out
from lrurec.serving.engine import Floats
from lrurec.serving.half import Table
from lrurec.serving.retrieval import Exact, Found, best_of
from lrurec.serving.store.base import Indices
from lrurec.serving.threads import at_once, cores

CODES, SCALES = "codes.npy", "scales.npy"
_TILE = 1 << 14  # items scored together: their bounds stay in the cache
_TILES = 16  # that are worth a thread
_ROOM = 1 << 16  # items that may be possible, at most; with more, every item is scored
_MOST_K = 1000


class Scanned:
    """As Exact, and the same results but for scores that differ by rounding alone."""

    kind = "scanned"

    def __init__(self, codes: NDArray[np.int8], scales: Floats, table: Table, bias: Floats) -> None:
        self.codes, self.scales, self.exact = codes, scales, Exact(table, bias)
        self._scan = kernels.scan if kernels.has_pairs() else kernels.scan_reference

    @classmethod
    def build(cls, folder: Path, table: Floats, bias: Floats) -> "Scanned":
        """Write the codes of a table beside it."""
        items, width = table.shape
        blocks = -(-items // kernels.BLOCK)
        codes = np.zeros((blocks, -(-width // 2), kernels.BLOCK, 2), np.int8)
        scales = np.zeros(items, np.float32)
        kernels.encode(table, codes, scales)
        np.save(folder / CODES, codes)
        save_array(folder / SCALES, scales)
        return cls(codes, scales, table, bias)

    @classmethod
    def open(cls, folder: Path, table: Table, bias: Floats) -> "Scanned":
        return cls(mapped(folder / CODES), mapped(folder / SCALES), table, bias)

    def search(
        self, queries: Floats, k: int, exclude: Sequence[Indices] | None = None, allow: Indices | None = None
    ) -> Found:
        if allow is not None or not 0 < k <= _MOST_K:
            return self.exact.search(queries, k, exclude, allow)
        tiles = -(-len(self.scales) // _TILE)
        parts = max(1, min(cores(), tiles // _TILES)) if len(queries) == 1 else 1
        found = []
        for q, query in enumerate(queries):
            gone = exclude[q] if exclude is not None else np.zeros(0, np.int64)
            possible = self._possible(query, min(k, len(self.scales)), gone, parts)
            if possible is None:
                found += self.exact.search(query[None], k, [gone])
                continue
            scores = self.exact.scores_of(possible, query)
            best = best_of(scores, k)
            found.append((possible[best], scores[best]))
        return found

    def _possible(self, query: Floats, k: int, gone: Indices, parts: int = 1) -> Indices | None:
        """The items that may be among the best k, in order; None if the codes cannot tell."""
        most = float(np.abs(query).max(initial=0.0))
        if not 1e-30 < most < 1e30:
            return None
        width, by = 2 * self.codes.shape[1], most / 32767
        asked = np.zeros(width, np.int16)
        asked[: len(query)] = np.rint(query / np.float32(by))
        # A little more than the bound above: what follows is computed in floats.
        slack = np.float32(1.001 * (by / 2 * 127 * width + float(np.abs(query).sum()) / 2))
        firsts = range(0, len(self.scales), _TILE)
        shares = [firsts[len(firsts) * p // parts : len(firsts) * (p + 1) // parts] for p in range(parts)]
        found = at_once(lambda share: self._possible_in(share, asked, by, slack, k, gone), shares)
        whole = [items for items in found if items is not None]
        return np.concatenate(whole) if len(whole) == len(found) else None

    def _possible_in(
        self, firsts: range, asked: NDArray[np.int16], by: float, slack: np.float32, k: int, gone: Indices
    ) -> Indices | None:
        """The same of the tiles that begin at some items."""
        bias, items = self.exact.bias, np.empty(_ROOM, np.int64)
        bounds, lowers = np.empty(_ROOM, np.float32), np.full(k, -np.inf, np.float32)
        products, uppers = np.empty(_TILE, np.int32), np.empty(_TILE, np.float32)
        count = 0
        for first in firsts:
            last = min(first + _TILE, len(self.scales))
            rows = -(-(last - first) // kernels.BLOCK) * kernels.BLOCK
            self._scan(self.codes, asked, first // kernels.BLOCK, products[:rows])
            scales, upper = self.scales[first:last], uppers[: last - first]
            kernels.upper_bounds(products, scales, bias[first:last], np.float32(by), slack, upper)
            strike_out(upper, gone, first)
            count = kernels.still_possible(upper, scales, slack, first, lowers, items, bounds, count)
            if count < 0:
                return None
        kept: Indices = items[:count][bounds[:count] >= lowers[-1]]
        return kept
