"""Which items came before and after which: pairs counted, rows looked up, evidence weighed. Knows item numbers.

One history at a time, so that what it recalls does not depend on how many are asked about at once.
"""

from typing import Any

import numba
import numpy as np

from lrurec.kernels.arithmetic import as_bits, as_float, compiled, f4, i4, inlined

FEATURES = 4  # of a recalled item: came after, came before, was around, was around (each by its share)
LEAST = np.float32(1e-3)  # added to evidence, of which there may be none, before its logarithm is taken
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


@inlined
def _log(x: Any) -> Any:
    """ln x of a positive number, to a millionth."""
    bits = as_bits(x)
    power = (bits - i4(0x3F3504F3)) >> i4(23)  # so that what is left lies between the roots of 1/2 and of 2
    m = as_float(i4(bits - (power << i4(23))))
    t = f4((m - f4(1)) / (m + f4(1)))
    q = f4(t * t)
    series = f4(f4(1) + q * (f4(1 / 3) + q * (f4(1 / 5) + q * f4(1 / 7))))
    return f4(f4(power) * f4(0.6931471805599453) + f4(2) * t * series)


@compiled
def weigh(
    query: Any, table: Any, bias: Any, items: Any, found: Any, popular: Any,
    w1: Any, b1: Any, w2: Any, scores: Any, added: Any,
) -> None:  # fmt: skip
    """scores [m] of some items for query [d], and what the evidence found [m, 4] adds to them: w1 is [6, H]."""
    units = len(b1)
    inner, x = np.empty(units, np.float32), np.empty(6, np.float32)
    for k in range(len(items)):
        b = items[k]
        s = f4(0)
        for j in range(len(query)):
            s += query[j] * table[b, j]
        s += bias[b]
        for j in range(4):
            x[j] = _log(f4(found[k, j] + LEAST))
        x[4] = popular[b]
        x[5] = s
        for h in range(units):
            inner[h] = b1[h]
        for j in range(6):
            for h in range(units):
                inner[h] += w1[j, h] * x[j]
        total = f4(0)
        for h in range(units):
            total += w2[h] * max(inner[h], f4(0))
        scores[k] = s
        added[k] = total


@_looped
def merge(
    items: Any, scores: Any, more_items: Any, more_scores: Any, added: Any, gone: Any, marks: Any, k: Any,
    out: Any, values: Any,
) -> Any:  # fmt: skip
    """The k best of two lists into out and values; the second gets `added`, and loses what is gone. Gives how many there are.

    The first is sorted, the best first. Of equal scores the smaller item goes first. marks [V] is zero, before and behind.
    """
    n = min(k, len(items))
    for j in range(n):
        out[j], values[j] = items[j], scores[j]
    for j in range(len(gone)):
        marks[gone[j]] = 1
    for j in range(len(more_items)):
        item = more_items[j]
        if marks[item]:
            continue
        score = f4(more_scores[j] + added[j])
        if n == k and (score < values[k - 1] or (score == values[k - 1] and item > out[k - 1])):
            continue
        at = n if n < k else k - 1
        while at > 0 and (values[at - 1] < score or (values[at - 1] == score and out[at - 1] > item)):
            out[at], values[at] = out[at - 1], values[at - 1]
            at -= 1
        out[at], values[at] = item, score
        n = min(n + 1, k)
    for j in range(len(gone)):
        marks[gone[j]] = 0
    return n
