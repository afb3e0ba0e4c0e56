"""The best of many scores. Knows rows of scores."""

from typing import Any

import numba

from lrurec.kernels.arithmetic import LOWEST, as_bits, as_float, f4, i4, ordered

_RUN = 64  # scores looked at together


@numba.njit(
    nogil=True, cache=True
)  # not `compiled`: an excluded item has the score minus infinity, which fast math may not know
def keep_best(scores: Any, bias: Any, first: Any, values: Any, items: Any) -> None:
    """Puts the best of scores [R, W] + bias [W] into values [R, k] and items [R, k], the best first.

    Both hold the best so far (at the beginning minus infinity and -1); the first score belongs to item `first`. Of equal
    scores the earlier item goes first. `scores` is overwritten.
    """
    rows, width = scores.shape
    k = values.shape[1]
    for r in range(rows):
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
                    at = k - 1
                    while at > 0 and values[r, at - 1] < s:
                        values[r, at] = values[r, at - 1]
                        items[r, at] = items[r, at - 1]
                        at -= 1
                    values[r, at] = s
                    items[r, at] = first + j
                    worst = values[r, k - 1]
