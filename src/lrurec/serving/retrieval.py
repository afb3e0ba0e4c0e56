"""The best items for some vectors. Knows vectors and item numbers, not users."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lrurec.kernels.select import keep_best, score_some, strike_out
from lrurec.serving.engine import Floats
from lrurec.serving.half import HalfTable, Table
from lrurec.serving.store.base import Indices

_TILE = 1 << 14  # items scored together: their scores stay in the cache
_SORTED = 128  # results that are kept sorted while scanning; for more, all scores are partitioned
Found = list[tuple[Indices, Floats]]


class Retriever(Protocol):
    """The k items of the highest scores, the best first."""

    def search(
        self, queries: Floats, k: int, exclude: Sequence[Indices] | None = None, allow: Indices | None = None
    ) -> Found:
        """For each query (items, scores): at most k, none of its `exclude`, only such as `allow` has."""


class Exact:
    """Scores every item: table . query + bias. Equal scores are in the order of the items."""

    kind = "exact"

    def __init__(self, table: Table, bias: Floats) -> None:
        self.table, self.bias = table, bias

    def search(
        self, queries: Floats, k: int, exclude: Sequence[Indices] | None = None, allow: Indices | None = None
    ) -> Found:
        if allow is not None:
            return self._among(np.unique(allow), queries, k, exclude)
        k = min(k, len(self.table))
        if k <= 0:
            return [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
        if k > _SORTED:
            return self._among(np.arange(len(self.table)), queries, k, exclude)
        values, items = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        counts = np.empty(len(queries), np.int64)
        for first in range(0, len(self.table), _TILE):
            last = min(first + _TILE, len(self.table))
            scores = queries @ self.table[first:last].T
            if exclude is not None:
                for row, gone in zip(scores, exclude, strict=True):
                    strike_out(row, gone, first)
            keep_best(scores, self.bias[first:last], first, values, items, counts)
        return [(i[:n], v[:n]) for i, v, n in zip(items, values, counts.tolist(), strict=True)]

    def scores_of(self, items: Indices, query: Floats) -> Floats:
        """Of some items."""
        if not isinstance(self.table, np.ndarray):
            scores: Floats = self.table[items] @ query + self.bias[items]
            return scores
        scores = np.empty(len(items), np.float32)
        score_some(self.table, self.bias, items, query, scores)
        return scores

    def _among(self, allow: Indices, queries: Floats, k: int, exclude: Sequence[Indices] | None) -> Found:
        """The same among some items: for lists of allowed ones, and for very many results."""
        if len(allow) == len(self.table) and not isinstance(self.table, HalfTable):
            table, bias = self.table, self.bias
        else:
            table, bias = self.table[allow], self.bias[allow]
        found = []
        for q, query in enumerate(queries):
            scores = table @ query + bias
            if exclude is not None and len(exclude[q]):
                scores[_places(exclude[q], allow)] = -np.inf
            best = best_of(scores, k)
            found.append((allow[best], scores[best]))
        return found


def _places(items: Indices, allow: Indices) -> Indices:
    """Where items stand among the allowed ones; those that are not there are left out."""
    if not len(allow):
        return np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(allow, items), len(allow) - 1)
    there: Indices = at[allow[at] == items]
    return there


def best_of(scores: Floats, k: int) -> Indices:
    """Places of the k highest scores, the best first, equal ones in order; what is excluded never counts."""
    k = min(k, len(scores))
    if k <= 0:
        return np.zeros(0, np.int64)
    if k < len(scores):
        lowest = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > lowest)
        level = np.flatnonzero(scores == lowest)[: k - len(above)]
        best = np.concatenate([above, level])
    else:
        best = np.arange(len(scores))
    best = best[np.lexsort((best, -scores[best]))]
    kept: Indices = best[scores[best] > -np.inf]
    return kept
