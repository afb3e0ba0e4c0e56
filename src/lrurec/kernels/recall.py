"""Which items came before and after which: pairs counted, rows looked up, evidence weighed. Knows item numbers.

Fast math is off: what a history recalls does not depend on who asks, nor on how many ask at once.
"""

from typing import Any

import numba
import numpy as np

from lrurec.kernels.arithmetic import f4

FEATURES = 4  # of a recalled item: came after, came before, was around, was around (each by its share)
_looped = numba.njit(nogil=True, cache=True)


@_looped
def count_partners(items: Any, starts: Any, stops: Any, window: Any, counts: Any, partners: Any) -> None:
    """Adds to counts [V] how often each item occurs, and to partners [V] how many neighbours that makes."""
    for s in range(len(starts)):
        first, last = starts[s], stops[s]
        for i in range(first, last):
            counts[items[i]] += 1
            partners[items[i]] += min(window, i - first) + min(window, last - 1 - i)


@_looped
def collect(
    items: Any, starts: Any, stops: Any, window: Any, low: Any, high: Any, ends: Any, who: Any, gaps: Any
) -> None:
    """Puts the neighbours of the items from low to high into `who`, and how far behind (+) or before (-) into `gaps`.

    Those of item a lie before ends[a - low], which is where its next one goes.
    """
    for s in range(len(starts)):
        first, last = starts[s], stops[s]
        for i in range(first, last):
            a = items[i]
            if a < low or a >= high:
                continue
            at = ends[a - low]
            for j in range(max(first, i - window), min(last, i + window + 1)):
                if j != i:
                    who[at] = items[j]
                    gaps[at] = j - i
                    at += 1
            ends[a - low] = at


@_looped
def sum_up(
    begins: Any, ends: Any, who: Any, gaps: Any, decay: Any, most: Any, sums: Any, touched: Any, out: Any, values: Any
) -> Any:
    """Neighbours of some items, summed up: the `most` heaviest of each into out and values [.., 3]; gives their numbers.

    sums [V, 3] is zero, before and behind; `touched` [V] is scratch.
    """
    sizes = np.zeros(len(begins), np.int64)
    powers = np.empty(129, np.float32)
    powers[0] = f4(1)
    for g in range(1, 129):
        powers[g] = f4(powers[g - 1] * f4(decay))
    total = 0
    for a in range(len(begins)):
        n = 0
        for k in range(begins[a], ends[a]):
            b, gap = who[k], gaps[k]
            if sums[b, 2] == f4(0):
                touched[n] = b
                n += 1
            if gap > 0:
                sums[b, 0] += powers[gap - 1]
            else:
                sums[b, 1] += powers[-gap - 1]
            sums[b, 2] += f4(1)
        chosen = touched[:n]
        if n > most:
            weights = np.empty(n, np.float32)
            for k in range(n):
                weights[k] = -(sums[chosen[k], 0] + f4(0.3) * sums[chosen[k], 1] + f4(0.01) * sums[chosen[k], 2])
            chosen = chosen[np.argsort(weights, kind="mergesort")[:most]]
        kept = np.sort(chosen)
        for k in range(len(kept)):
            b = kept[k]
            out[total + k] = b
            for j in range(3):
                values[total + k, j] = sums[b, j]
        sizes[a] = len(kept)
        total += len(kept)
        for k in range(n):
            for j in range(3):
                sums[touched[k], j] = f4(0)
    return sizes


@_looped
def recall(
    history: Any, decay: Any, starts: Any, items: Any, values: Any, shares: Any, sums: Any, out: Any, found: Any
) -> Any:
    """What the items of a history, the newest last, bring to mind: how many items; they go to out, evidence to found [.., 4].

    sums [V, 4] is zero, before and behind. An item may occur in `history` more than once; numbers below 0 are passed over.
    """
    n = 0
    weight = f4(1)
    for k in range(len(history) - 1, -1, -1):
        a = history[k]
        if a >= 0:
            share = shares[a]
            for at in range(starts[a], starts[a + 1]):
                b = items[at]
                around = values[at, 2]
                if sums[b, 2] == f4(0):
                    out[n] = b
                    n += 1
                sums[b, 0] += weight * values[at, 0]
                sums[b, 1] += weight * values[at, 1]
                sums[b, 2] += around
                sums[b, 3] += around * share
        weight = f4(weight * decay)
    for k in range(n):
        for j in range(4):
            found[k, j] = sums[out[k], j]
            sums[out[k], j] = f4(0)
    return n


@_looped
def weigh(
    query: Any, table: Any, bias: Any, items: Any, found: Any, popular: Any,
    w1: Any, b1: Any, w2: Any, scores: Any, added: Any,
) -> None:  # fmt: skip
    """scores [m] of some items for query [d], and what the evidence found [m, 4] adds to them."""
    x = np.empty(6, np.float32)
    for k in range(len(items)):
        b = items[k]
        s = f4(0)
        for j in range(len(query)):
            s += f4(query[j] * table[b, j])
        s += bias[b]
        for j in range(4):
            x[j] = np.log(found[k, j] + f4(1e-3))
        x[4] = popular[b]
        x[5] = s
        total = f4(0)
        for h in range(len(b1)):
            inner = b1[h]
            for j in range(6):
                inner += f4(w1[h, j] * x[j])
            total += f4(w2[h] * max(inner, f4(0)))
        scores[k] = s
        added[k] = total
