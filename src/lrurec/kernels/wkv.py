"""The weighted average of RWKV over packed sequences, and its backward. Knows rows of numbers in either precision.

All exponents are differences to a running maximum, so that nothing overflows (lrurec.nn.wkv has the formulas). Only one
of two such exponentials is ever computed: the other one is 1.
"""

from typing import Any

import numpy as np
from numba import extending, types

from lrurec.kernels.arithmetic import compiled, exp

LOWEST = -1e38  # the maximum of nothing


def _exp(x: Any) -> Any:
    """e^x in the precision of x; compiled, single precision takes the shorter way below."""
    return np.exp(x)


@extending.overload(_exp, strict=False)
def _exp_of(x: Any) -> Any:
    if x == types.float32:
        return lambda x: exp(x)
    return lambda x: np.exp(x)


@compiled
def forward(k: Any, v: Any, w: Any, u: Any, offsets: Any, first: Any, last: Any, y: Any, kept: Any) -> None:
    """y of sequences [first, last); numerator, denominator and maximum in front of each row into `kept` [3, N, d]."""
    one, zero, low = k.dtype.type(1), k.dtype.type(0), k.dtype.type(LOWEST)
    channels = k.shape[1]
    state = np.empty((3, channels), k.dtype)
    for s in range(first, last):
        for c in range(channels):
            state[0, c], state[1, c], state[2, c] = zero, zero, low
        for t in range(offsets[s], offsets[s + 1]):
            for c in range(channels):
                a, b, p = state[0, c], state[1, c], state[2, c]
                kept[0, t, c], kept[1, t, c], kept[2, t, c] = a, b, p
                key, value = k[t, c], v[t, c]
                ahead = u[c] + key - p
                e = _exp(-abs(ahead))
                old, new = (e, one) if ahead > zero else (one, e)
                y[t, c] = (old * a + new * value) / (old * b + new)
                p = p - w[c]
                ahead = key - p
                e = _exp(-abs(ahead))
                old, new = (e, one) if ahead > zero else (one, e)
                state[0, c] = old * a + new * value
                state[1, c] = old * b + new
                state[2, c] = key if ahead > zero else p


@compiled
def backward(
    g: Any,
    k: Any,
    v: Any,
    w: Any,
    u: Any,
    offsets: Any,
    first: Any,
    last: Any,
    kept: Any,
    d_k: Any,
    d_v: Any,
    sums: Any,
) -> None:
    """The gradients of sequences [first, last); those of w and u are added to `sums` [2, d] in double precision."""
    one, zero, low = k.dtype.type(1), k.dtype.type(0), k.dtype.type(LOWEST)
    channels = k.shape[1]
    behind = np.empty((5, channels), k.dtype)  # alpha, beta, their maximum; the gradients of w and u
    for s in range(first, last):
        for c in range(channels):
            behind[0, c], behind[1, c], behind[2, c] = zero, zero, low
            behind[3, c], behind[4, c] = zero, zero
        for t in range(offsets[s + 1] - 1, offsets[s] - 1, -1):
            for c in range(channels):
                a, b, p = kept[0, t, c], kept[1, t, c], kept[2, t, c]
                alpha, beta, q = behind[0, c], behind[1, c], behind[2, c]
                key, value = k[t, c], v[t, c]
                ahead = u[c] + key - p
                e = _exp(-abs(ahead))
                old, new = (e, one) if ahead > zero else (one, e)
                scale = one / (old * b + new)
                average = (old * a + new * value) * scale
                n = g[t, c] * scale
                own = n * new * (value - average)
                later = _exp(key + q)
                d_v[t, c] = n * new + later * alpha
                d_k[t, c] = own + later * (alpha * value + beta)
                behind[3, c] -= _exp(p - w[c] + q) * (a * alpha + b * beta)
                behind[4, c] += own
                top = -p - ahead if ahead > zero else -p  # minus the maximum that n is relative to
                q = q - w[c]
                ahead = top - q
                e = _exp(-abs(ahead))
                old, new = (e, one) if ahead > zero else (one, e)
                behind[0, c] = old * alpha + new * n
                behind[1, c] = old * beta - new * n * average
                behind[2, c] = top if ahead > zero else q
        for c in range(channels):
            sums[0, c] += behind[3, c]
            sums[1, c] += behind[4, c]
