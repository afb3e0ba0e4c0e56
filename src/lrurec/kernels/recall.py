"""Which items came before and after which: pairs counted, rows looked up, evidence weighed. Knows item numbers.

One history at a time, so that what it recalls does not depend on how many are asked about at once.
"""

from typing import Any

import numba
import numpy as np

from lrurec.kernels.arithmetic import as_bits, as_float, compiled, f4, i4, inlined

NEWEST = 3  # items of a history whose evidence is kept apart, too
FEATURES = (
    4 + NEWEST
)  # of a recalled item: came after, came before, was around, was around (by shares); after each newest
INPUTS = (
    FEATURES + 7
)  # and count, score, the score less the best of those recalled, two likenesses, how much was looked at, the newest's count
LEAST = np.float32(1e-3)  # added to evidence, of which there may be none, before its logarithm is taken
ALIKE = 10  # items of a history that others are compared with
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


@inlined
def _bits_for(neighbours: Any) -> Any:
    """The logarithm of the size of a table that they fill by half at most."""
    bits = 1
    while (1 << bits) < 2 * neighbours:
        bits += 1
    return bits


@_looped
def sum_up(
    begins: Any, ends: Any, who: Any, gaps: Any, decay: Any, most: Any, catalogue: Any, out: Any, values: Any
) -> Any:
    """Neighbours of some items, summed up: the `most` heaviest of each into out and values [.., 3]; gives their numbers.

    The neighbours of one item are found again in a table of twice their number, by hashing: most items have few, and a table
    over the catalogue would be a miss of the cache for each of them.
    """
    sizes = np.zeros(len(begins), np.int64)
    powers = np.empty(129, np.float32)
    powers[0] = f4(1)
    for g in range(1, 129):
        powers[g] = f4(powers[g - 1] * f4(decay))
    longest = 1
    for a in range(len(begins)):
        longest = max(longest, min(ends[a] - begins[a], catalogue))
    bits = _bits_for(longest)
    places = np.full(1 << bits, -1, np.int32)  # of a hash: which of the distinct neighbours
    different, sums, taken = (
        np.empty(longest, np.int32),
        np.empty((longest, 3), np.float32),
        np.empty(longest, np.int64),
    )
    total = 0
    for a in range(len(begins)):
        bits = _bits_for(min(ends[a] - begins[a], catalogue))
        mask, n = (1 << bits) - 1, 0
        for k in range(begins[a], ends[a]):
            b, gap = who[k], gaps[k]
            at = ((np.uint64(b) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)) & np.uint64(mask)
            while places[at] >= 0 and different[places[at]] != b:
                at = (at + np.uint64(1)) & np.uint64(mask)
            place = places[at]
            if place < 0:
                place = n
                places[at], different[n], taken[n] = n, b, at
                for j in range(3):
                    sums[n, j] = f4(0)
                n += 1
            if gap > 0:
                sums[place, 0] += powers[gap - 1]
            else:
                sums[place, 1] += powers[-gap - 1]
            sums[place, 2] += f4(1)
        chosen = np.arange(n)
        if n > most:
            weights = np.empty(n, np.float32)
            for k in range(n):
                weights[k] = -(sums[k, 0] + f4(0.3) * sums[k, 1] + f4(0.01) * sums[k, 2])
            chosen = np.argsort(weights, kind="mergesort")[:most]
        chosen = chosen[np.argsort(different[chosen])]
        for k in range(len(chosen)):
            out[total + k] = different[chosen[k]]
            for j in range(3):
                values[total + k, j] = sums[chosen[k], j]
        sizes[a] = len(chosen)
        total += len(chosen)
        for k in range(n):
            places[taken[k]] = -1
    return sizes


@_looped
def recall(
    history: Any, decay: Any, starts: Any, items: Any, values: Any, shares: Any, sums: Any, out: Any, found: Any
) -> Any:
    """What the items of a history, the newest last, bring to mind: how many items; they go to out, evidence to found [.., 7].

    sums [V, 7] is zero, before and behind. An item may occur in `history` more than once; numbers below 0 are passed over.
    """
    n = 0
    weight = f4(1)
    for back in range(len(history)):
        a = history[len(history) - 1 - back]
        if a >= 0:
            share = shares[a]
            for at in range(starts[a], starts[a + 1]):
                b = items[at]
                after, around = values[at, 0], values[at, 2]
                if sums[b, 2] == f4(0):
                    out[n] = b
                    n += 1
                sums[b, 0] += weight * after
                sums[b, 1] += weight * values[at, 1]
                sums[b, 2] += around
                sums[b, 3] += around * share
                if back < NEWEST:
                    sums[b, 4 + back] += after
        weight = f4(weight * decay)
    for k in range(n):
        for j in range(FEATURES):
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
def describe(
    query: Any, recent: Any, table: Any, bias: Any, rows: Any, items: Any, last: Any, found: Any, popular: Any,
    scores: Any, x: Any,
) -> None:  # fmt: skip
    """scores [m] of some items, which are `rows` of table and bias, for query [d]; and what is known of them, x [m, INPUTS].

    recent [r, d] are the vectors of the newest items, at most ALIKE, the newest last; `last` are the items that were looked
    back to, and the evidence found [m, FEATURES] is theirs. popular [V] are logarithms of counts.
    """
    width, many = len(query), len(recent)
    beside = np.empty((many + 1, width), np.float32)  # the recent ones at length 1, and the query
    for h in range(many):
        s = f4(1e-12)
        for j in range(width):
            s += recent[h, j] * recent[h, j]
        s = f4(f4(1) / np.sqrt(s))
        for j in range(width):
            beside[h, j] = recent[h, j] * s
    for j in range(width):
        beside[many, j] = query[j]
    size, first = f4(0), f4(0)
    for h in range(len(last)):
        if last[h] >= 0:
            size += f4(1)
            first = popular[last[h]]
    size = _log(max(size, f4(1)))
    best = f4(-3e38)
    evidence, logs = found.reshape(-1), np.empty(len(items) * FEATURES, np.float32)
    for k in range(len(logs)):  # all of them in one run: the processor takes many at once
        logs[k] = _log(f4(evidence[k] + LEAST))
    for k in range(len(items)):
        b, row = items[k], rows[k]
        length = f4(1e-12)
        for j in range(width):
            length += table[row, j] * table[row, j]
        length = f4(f4(1) / np.sqrt(length))
        like = f4(-1) if many else f4(0)
        newest = f4(0)
        for h in range(many):
            s = f4(0)
            for j in range(width):
                s += table[row, j] * beside[h, j]
            newest = f4(s * length)
            like = max(like, newest)
        s = bias[row]
        for j in range(width):
            s += table[row, j] * beside[many, j]
        seen = False
        for h in range(len(last)):
            seen |= last[h] == b
        if s > best and not seen:
            best = s
        scores[k] = s
        for j in range(FEATURES):
            x[k, j] = logs[k * FEATURES + j]
        x[k, FEATURES] = popular[b]
        x[k, FEATURES + 1] = s
        x[k, FEATURES + 3] = like
        x[k, FEATURES + 4] = newest
        x[k, FEATURES + 5] = size
        x[k, FEATURES + 6] = first
    for k in range(len(items)):
        x[k, FEATURES + 2] = f4(scores[k] - best) if best > f4(-3e38) else f4(0)


@compiled
def weigh(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, added: Any) -> None:
    """What is added to the scores of items that are described by x [m, INPUTS]: w1 is [INPUTS, H]."""
    units = len(b1)
    inner = np.empty(units, np.float32)
    for k in range(len(x)):
        for h in range(units):
            inner[h] = b1[h]
        for j in range(INPUTS):
            for h in range(units):
                inner[h] += w1[j, h] * x[k, j]
        total = b2[0]
        for h in range(units):
            total += w2[h] * max(inner[h], f4(0))
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
