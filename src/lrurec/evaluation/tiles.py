"""Ranks against a large catalogue on a CPU: some hundred users meet it tile by tile. Knows vectors, not models.

The scores of a tile stay in the cache: they are counted, the best of them kept, and the next tile takes their place. So
memory does not grow with the catalogue, and the product is large enough to run at the processor's speed.
"""

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lrurec.kernels.select import keep_best
from lrurec.kernels.softmax import at_least
from lrurec.nn.threads import at_once, shares

_TILE = 1 << 14  # items at a time
_ROUNDING = 1e-6  # by which two ways to sum up a product differ, of the length of its factors

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
Added = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
_P = TypeVar("_P", Pairs, Added)
_NOTHING: Added = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


def rank_in_tiles(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    answers: NDArray[np.int64],
    barred: Pairs,
    top: int,
    added: Added | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many items other than the answer do not score clearly below it, [B], and the best `top` items, [B, top].

    `barred` are (row, item) pairs that count for nothing. An answer that is barred comes last. `added` are (row, item, what
    is added to its score), each pair once.
    """
    rows, items = len(hidden), len(table)
    at = torch.from_numpy(answers)
    chosen = table[at]
    own = ((hidden * chosen).sum(1) + bias[at]).numpy()
    # A product rounds an item's score as its place in the tile has it: what could be equal is a tie, against the model.
    size = torch.linalg.vector_norm(hidden, dim=1) * torch.linalg.vector_norm(chosen, dim=1) + bias[at].abs()
    rows_added, items_added, more = _by_item(added or _NOTHING)
    mine = np.flatnonzero(items_added == answers[rows_added])
    own[rows_added[mine]] += more[mine]
    least = own - _ROUNDING * size.numpy()
    who, what = _by_item(barred)
    lost = who[what == answers[who]]
    own[lost] = least[lost] = -np.inf
    counts, many = np.zeros(rows, np.int64), max(top, 1)
    best, values = np.zeros((rows, many), np.int64), np.empty((rows, many), np.float32)
    filled, offsets = np.empty(rows, np.int64), bias.numpy()
    for start in range(0, items, _TILE):
        stop = min(start + _TILE, items)
        scores = torch.mm(hidden, table[start:stop].T).numpy()
        first, last = np.searchsorted(items_added, (start, stop))
        scores[rows_added[first:last], items_added[first:last] - start] += more[first:last]
        first, last = np.searchsorted(what, (start, stop))
        scores[who[first:last], what[first:last] - start] = -np.inf
        here = np.flatnonzero((answers >= start) & (answers < stop))
        scores[here, answers[here] - start] = (
            own[here] - offsets[answers[here]]
        )  # each is counted, whatever the rounding

        def work(part: slice, scores: NDArray[np.float32] = scores, start: int = start, stop: int = stop) -> None:
            found = np.empty(part.stop - part.start, np.int64)
            keep_best(scores[part], offsets[start:stop], start, values[part], best[part], filled[part])
            at_least(scores[part], least[part], found)  # behind it: by now the biases are part of the scores
            counts[part] += found

        at_once(work, shares(rows, 8))
    return counts - 1, best[:, :top]  # the answer is one of those counted


def _by_item(pairs: _P) -> _P:
    """In the order of the items, which come second."""
    order = np.argsort(pairs[1], kind="stable")
    return tuple(column[order] for column in pairs)  # type: ignore[return-value]
