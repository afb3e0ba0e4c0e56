"""The best of many scores, and what comes before: items looked up, items left out. Knows rows of numbers."""

from typing import Any

import numba
import numpy as np

from lrurec.kernels.arithmetic import LOWEST, as_bits, as_float, f4, i4, ordered

_RUN = 64  # scores looked at together


@numba.njit(
    nogil=True, cache=True
)  # not `compiled`: an excluded item has the score minus infinity, which fast math may not know
def keep_best(scores: Any, bias: Any, first: Any, values: Any, items: Any, counts: Any) -> None:
    """Puts the best of scores [R, W] + bias [W] into values [R, k] and items [R, k], the best first.

    Both hold the best so far, unless the first score belongs to item `first` = 0: then they begin empty. `counts` [R]
    is how many there are. Of equal scores the earlier item goes first. `scores` is overwritten.
    """
    rows, width = scores.shape
    k = values.shape[1]
    for r in range(rows):
        if first == 0:
            counts[r] = 0
            for j in range(k):
                values[r, j] = -np.inf
        worst = values[r, k - 1]
        for start in range(0, width, _RUN):
            stop = min(start + _RUN, width)
            most = LOWEST
            for j in range(start, stop):
                s = f4(scores[r, j] + bias[j])
                scores[r, j] = s
                most = max(most, ordered(as_bits(s)))
            if not as_float(i4(ordered(most))) > worst:
                continue
            for j in range(start, stop):
                s = scores[r, j]
                if s > worst:
                    counts[r] = min(counts[r] + 1, k)
                    at = k - 1
                    while at > 0 and values[r, at - 1] < s:
                        values[r, at] = values[r, at - 1]
                        items[r, at] = items[r, at - 1]
                        at -= 1
                    values[r, at] = s
                    items[r, at] = first + j
                    worst = values[r, k - 1]


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
def score_some(table: Any, bias: Any, items: Any, query: Any, out: Any) -> None:
    """out [m] becomes the scores of some items. No copy of their rows is made: the processor waits for many of them at once."""
    for k in range(len(items)):
        row = table[items[k]]
        s = np.float32(0)
        for j in range(len(query)):
            s += row[j] * query[j]
        out[k] = s + bias[items[k]]


@numba.njit(nogil=True, cache=True)
def strike_out(scores: Any, items: Any, first: Any) -> None:
    """scores [W], of the items from `first` on, become minus infinity for `items`."""
    width = len(scores)
    for k in range(len(items)):
        at = items[k] - first
        if 0 <= at < width:
            scores[at] = -np.inf


@numba.njit(nogil=True, cache=True)
def look_up(words: Any, start: Any, step: Any, table: Any, out: Any) -> Any:
    """out[k] = table[words[start + k * step]]; gives the least of them, or -3 if a word lies beyond the table."""
    least = np.int64(0)
    for k in range(len(out)):
        word = words[start + k * step]
        if word >= len(table):
            return np.int64(-3)
        out[k] = table[word]
        least = min(least, out[k])
    return least
