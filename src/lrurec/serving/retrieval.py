"""The best items for some vectors. Knows vectors and item numbers, not users."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lrurec.serving.engine import Floats

Indices = NDArray[np.int64]


class Retriever(Protocol):
    """The k items of the highest scores, the best first."""

    def search(
        self, queries: Floats, k: int, exclude: Sequence[Indices] | None = None, allow: Indices | None = None
    ) -> list[tuple[Indices, Floats]]:
        """For each query (items, scores): at most k, none of its `exclude`, only such as `allow` has."""


class Exact:
    """Scores every item: table . query + bias. Equal scores are in the order of the items."""

    def __init__(self, table: Floats, bias: Floats) -> None:
        self.table, self.bias = table, bias

    def search(
        self, queries: Floats, k: int, exclude: Sequence[Indices] | None = None, allow: Indices | None = None
    ) -> list[tuple[Indices, Floats]]:
        if allow is None:
            scores = queries @ self.table.T + self.bias
        else:
            allow = np.unique(allow)
            scores = queries @ self.table[allow].T + self.bias[allow]
        found = []
        for q, row in enumerate(scores):
            if exclude is not None and len(exclude[q]):
                row[_places(exclude[q], allow)] = -np.inf
            best = _best(row, k)
            found.append((best if allow is None else allow[best], row[best]))
        return found


def _places(items: Indices, allow: Indices | None) -> Indices:
    """Where items stand among the allowed ones; those that are not there are left out."""
    if allow is None:
        return items
    at = np.minimum(np.searchsorted(allow, items), max(len(allow) - 1, 0))
    return at[allow[at] == items] if len(allow) else at[:0]


def _best(scores: Floats, k: int) -> Indices:
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
