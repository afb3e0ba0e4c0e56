"""Sums of earlier vectors, weighed by a sigmoid of sums, and their gradients. Knows packed rows.

    out_t = sum over j <= t of w_tj h_j,   w_tj = sum over c of v_c p_tjc,   p_tjc = sigma(q_tc + k_jc)

What comes in is a = e^-q and b = e^-k, so that p = 1 / (1 + a b): no exponential for each pair. The backward computes p
again: for one history of n items it is n^2 / 2 times as wide as the vectors.
"""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import compiled, f4


@compiled
def weighed(a: Any, b: Any, v: Any, h: Any, offsets: Any, first: Any, last: Any, out: Any) -> None:
    """`out` [N, C] of sequences [first, last)."""
    channels, width = a.shape[1], h.shape[1]
    for s in range(first, last):
        for t in range(offsets[s], offsets[s + 1]):
            for c in range(width):
                out[t, c] = f4(0)
            for j in range(offsets[s], t + 1):
                w = f4(0)
                for c in range(channels):
                    w += f4(v[c] / (f4(1.0) + a[t, c] * b[j, c]))
                for c in range(width):
                    out[t, c] += w * h[j, c]


@compiled
def weighed_backward(
    a: Any,
    b: Any,
    v: Any,
    h: Any,
    offsets: Any,
    first: Any,
    last: Any,
    d: Any,
    d_q: Any,
    d_k: Any,
    d_v: Any,
    d_h: Any,
) -> None:
    """From d, the gradient of `out`, those of q and k (both still to be multiplied by v), of v and of h, all added.

    With e = d_t . h_j, the gradient of w_tj: that of v is the sum of e p, of q_t and k_j the sum of e p (1 - p),
    of h_j that of w d_t. Two positions at a time meet each j, so that what belongs to j is read and written half as
    often; the last of an odd number meets it beside itself, weighed with nothing.
    """
    channels, width = a.shape[1], h.shape[1]
    p0, p1, q0, q1, sums = np.empty((5, channels), np.float32)
    for s in range(first, last):
        stop = offsets[s + 1]
        sums[:] = f4(0)
        for t0 in range(offsets[s], stop, 2):
            t1 = min(t0 + 1, stop - 1)
            q0[:] = f4(0)
            q1[:] = f4(0)
            for j in range(offsets[s], t1 + 1):
                w0, w1, e0, e1 = f4(0), f4(0), f4(0), f4(0)
                for c in range(channels):
                    x0 = f4(f4(1.0) / (f4(1.0) + a[t0, c] * b[j, c]))
                    x1 = f4(f4(1.0) / (f4(1.0) + a[t1, c] * b[j, c]))
                    w0 += v[c] * x0
                    w1 += v[c] * x1
                    p0[c] = x0
                    p1[c] = x1
                for c in range(width):
                    e0 += d[t0, c] * h[j, c]
                    e1 += d[t1, c] * h[j, c]
                if j > t0:
                    w0, e0 = f4(0), f4(0)
                if t1 == t0:
                    w1, e1 = f4(0), f4(0)
                for c in range(channels):
                    q0[c] += e0 * p0[c] * (f4(1.0) - p0[c])
                    q1[c] += e1 * p1[c] * (f4(1.0) - p1[c])
                for c in range(channels):
                    sums[c] += e0 * p0[c] + e1 * p1[c]
                    d_k[j, c] += e0 * p0[c] * (f4(1.0) - p0[c]) + e1 * p1[c] * (f4(1.0) - p1[c])
                for c in range(width):
                    d_h[j, c] += w0 * d[t0, c] + w1 * d[t1, c]
            for c in range(channels):
                d_q[t0, c] += q0[c]
            for c in range(channels):
                d_q[t1, c] += q1[c]
        for c in range(channels):
            d_v[c] += sums[c]
