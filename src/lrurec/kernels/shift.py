"""Rows mixed with the ones before them, and the backward. Know rows of numbers in either precision."""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import compiled


@compiled
def mix(x: Any, mu: Any, offsets: Any, first: Any, last: Any, out: Any) -> None:
    """out[m, t] = mu[m] x[t] + (1 - mu[m]) x[t - 1] for sequences [first, last); nothing is before their first rows."""
    one, (mixtures, channels) = x.dtype.type(1), mu.shape
    for s in range(first, last):
        for t in range(offsets[s], offsets[s + 1]):
            for m in range(mixtures):
                if t == offsets[s]:
                    for c in range(channels):
                        out[m, t, c] = mu[m, c] * x[t, c]
                else:
                    for c in range(channels):
                        out[m, t, c] = mu[m, c] * x[t, c] + (one - mu[m, c]) * x[t - 1, c]


@compiled
def mix_backward(g: Any, x: Any, mu: Any, offsets: Any, first: Any, last: Any, d_x: Any, sums: Any) -> None:
    """The gradients of sequences [first, last); that of mu is added to `sums` [M, d] in double precision."""
    zero, one, (mixtures, channels) = x.dtype.type(0), x.dtype.type(1), mu.shape
    share = np.empty((mixtures, channels), x.dtype)
    for s in range(first, last):
        share[:] = zero
        start, stop = offsets[s], offsets[s + 1]
        for t in range(start, stop):
            for c in range(channels):
                d_x[t, c] = zero
            for m in range(mixtures):
                for c in range(channels):
                    d_x[t, c] += mu[m, c] * g[m, t, c]
                    share[m, c] += g[m, t, c] * x[t, c]
                if t > start:
                    for c in range(channels):
                        d_x[t - 1, c] += (one - mu[m, c]) * g[m, t, c]
                        share[m, c] -= g[m, t, c] * x[t - 1, c]
        for m in range(mixtures):
            for c in range(channels):
                sums[m, c] += share[m, c]
