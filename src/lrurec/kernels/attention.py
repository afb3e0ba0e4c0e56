"""Attention over packed sequences: no padding, and no square of scores in memory.

Four queries at a time meet the keys they see: their scores are a strip that stays in the cache. Keys and values of a
head are turned on their side first, so that the long loops run along them; four queries times four columns in each of
these loops keep the processor multiplying rather than loading and storing. Heads whose width is no multiple of four are
filled up with zeros, for which the strips have room.
"""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import LOWEST, as_bits, as_float, compiled, exp, f4, ordered


@compiled
def attend(
    q: Any,
    asked: Any,
    kv: Any,
    seen: Any,
    k_column: Any,
    heads: Any,
    causal: Any,
    out: Any,
    log_sums: Any,
) -> None:
    """out = softmax(Q K' / sqrt(d)) V, one head beside the other; keeps the logarithms of the sums [M, heads].

    Sequence n is rows asked[n] to asked[n + 1] of q and seen[n] to seen[n + 1] of kv, whose keys begin at column
    `k_column`, the values right behind. If causal, query i sees the keys up to i.
    """
    width = out.shape[1]
    d = width // heads
    scale = f4(1.0 / np.sqrt(d))
    kt, s, few = _strips(d, seen)
    for n in range(len(asked) - 1):
        first, stop, begin, end = asked[n], asked[n + 1], seen[n], seen[n + 1]
        for h in range(heads):
            at = h * d
            _turn(kv, begin, end, k_column + at, d, kt)
            for i in range(first, stop, 4):
                many = min(i - first + 4, end - begin) if causal else end - begin
                _four(q, i, stop, at, d, scale, few)
                _scores(few, kt, many, s)
                for r in range(min(4, stop - i)):
                    mine = min(i - first + r + 1, many) if causal else many
                    largest, total = _soften(s[r], mine, many)
                    log_sums[i + r, h] = largest + np.log(total)
                _mix(s, kv, begin, k_column + width + at, d, many, few)
                for r in range(min(4, stop - i)):
                    row = out[i + r, at : at + d]
                    for c in range(d):
                        row[c] = few[r, c]


@compiled
def attend_backward(
    q: Any,
    asked: Any,
    kv: Any,
    seen: Any,
    k_column: Any,
    heads: Any,
    causal: Any,
    out: Any,
    log_sums: Any,
    d_out: Any,
    d_q: Any,
    d_kv: Any,
) -> None:
    """The gradients of `attend`, written to where q, keys and values are; the weights are computed again.

    dV = P' dO,  dS = P (dO V' - rowsum(dO O)),  dQ = dS K / sqrt(d),  dK = dS' Q / sqrt(d)
    """
    width = out.shape[1]
    d = width // heads
    scale = f4(1.0 / np.sqrt(d))
    kt, p, few = _strips(d, seen)
    vt, ds, d_few = _strips(d, seen)
    d_kt, d_vt, d_row = np.empty_like(kt), np.empty_like(kt), np.zeros_like(few)
    for n in range(len(asked) - 1):
        first, stop, begin, end = asked[n], asked[n + 1], seen[n], seen[n + 1]
        for h in range(heads):
            at = h * d
            k_at, v_at = k_column + at, k_column + width + at
            _turn(kv, begin, end, k_at, d, kt)
            _turn(kv, begin, end, v_at, d, vt)
            d_kt[:, : end - begin] = f4(0)
            d_vt[:, : end - begin] = f4(0)
            for i in range(first, stop, 4):
                many = min(i - first + 4, end - begin) if causal else end - begin
                _four(q, i, stop, at, d, scale, few)
                _four(d_out, i, stop, at, d, f4(1.0), d_few)
                _scores(few, kt, many, p)
                _scores(d_few, vt, many, ds)
                for r in range(4):
                    mine = min(i - first + r + 1, many) if causal else many
                    if i + r < stop:
                        total = f4(0)
                        row = out[i + r, at : at + d]
                        for c in range(d):
                            total += d_few[r, c] * row[c]
                        _weigh(p[r], ds[r], mine, many, log_sums[i + r, h], total)
                    else:
                        _weigh(p[r], ds[r], 0, many, f4(0), f4(0))
                _add_turned(d_few, p, many, d_vt)
                _add_turned(few, ds, many, d_kt)
                _mix(ds, kv, begin, k_at, d, many, d_row)
                for r in range(min(4, stop - i)):
                    row = d_q[i + r, at : at + d]
                    for c in range(d):
                        row[c] = d_row[r, c] * scale
            _turn_back(d_kt, begin, end, k_at, d, d_kv)
            _turn_back(d_vt, begin, end, v_at, d, d_kv)


@compiled
def _strips(d: Any, seen: Any) -> Any:
    """Room for one head turned on its side, four rows of scores, and four vectors."""
    longest = 0
    for n in range(len(seen) - 1):
        longest = max(longest, seen[n + 1] - seen[n])
    padded = (d + 3) // 4 * 4
    return np.zeros((padded, longest), f4), np.zeros((4, longest), f4), np.zeros((4, padded), f4)


# A column that is not known to lie behind the first costs the vector instructions: Python's negative indices count from
# the end. A slice does not.


@compiled
def _turn(x: Any, first: Any, stop: Any, column: Any, d: Any, out: Any) -> None:
    """out[c, j] = x[first + j, column + c]"""
    for j in range(stop - first):
        row = x[first + j, column : column + d]
        for c in range(d):
            out[c, j] = row[c]


@compiled
def _turn_back(x: Any, first: Any, stop: Any, column: Any, d: Any, out: Any) -> None:
    """out[first + j, column + c] = x[c, j]"""
    for j in range(stop - first):
        row = out[first + j, column : column + d]
        for c in range(d):
            row[c] = x[c, j]


@compiled
def _four(x: Any, first: Any, stop: Any, column: Any, d: Any, scale: Any, out: Any) -> None:
    """out[r] = scale * x[first + r, column : column + d] for four rows; those from `stop` on are 0."""
    for r in range(4):
        row = x[min(first + r, stop - 1), column : column + d]
        factor = scale if first + r < stop else f4(0)
        for c in range(d):
            out[r, c] = row[c] * factor


@compiled
def _scores(q: Any, kt: Any, many: Any, out: Any) -> None:
    """out [4, many] = q [4, d] kt [d, many]"""
    for r in range(4):
        for j in range(many):
            out[r, j] = f4(0)
    for c in range(0, kt.shape[0], 4):
        a0, a1, a2, a3 = q[0, c], q[0, c + 1], q[0, c + 2], q[0, c + 3]
        b0, b1, b2, b3 = q[1, c], q[1, c + 1], q[1, c + 2], q[1, c + 3]
        c0, c1, c2, c3 = q[2, c], q[2, c + 1], q[2, c + 2], q[2, c + 3]
        d0, d1, d2, d3 = q[3, c], q[3, c + 1], q[3, c + 2], q[3, c + 3]
        for j in range(many):
            k0, k1, k2, k3 = kt[c, j], kt[c + 1, j], kt[c + 2, j], kt[c + 3, j]
            out[0, j] += a0 * k0 + a1 * k1 + a2 * k2 + a3 * k3
            out[1, j] += b0 * k0 + b1 * k1 + b2 * k2 + b3 * k3
            out[2, j] += c0 * k0 + c1 * k1 + c2 * k2 + c3 * k3
            out[3, j] += d0 * k0 + d1 * k1 + d2 * k2 + d3 * k3


@compiled
def _add_turned(q: Any, s: Any, many: Any, out: Any) -> None:
    """out [d, many] += q [4, d]' s [4, many]"""
    for c in range(0, out.shape[0], 4):
        a0, a1, a2, a3 = q[0, c], q[0, c + 1], q[0, c + 2], q[0, c + 3]
        b0, b1, b2, b3 = q[1, c], q[1, c + 1], q[1, c + 2], q[1, c + 3]
        c0, c1, c2, c3 = q[2, c], q[2, c + 1], q[2, c + 2], q[2, c + 3]
        d0, d1, d2, d3 = q[3, c], q[3, c + 1], q[3, c + 2], q[3, c + 3]
        for j in range(many):
            s0, s1, s2, s3 = s[0, j], s[1, j], s[2, j], s[3, j]
            out[c, j] += a0 * s0 + b0 * s1 + c0 * s2 + d0 * s3
            out[c + 1, j] += a1 * s0 + b1 * s1 + c1 * s2 + d1 * s3
            out[c + 2, j] += a2 * s0 + b2 * s1 + c2 * s2 + d2 * s3
            out[c + 3, j] += a3 * s0 + b3 * s1 + c3 * s2 + d3 * s3


@compiled
def _mix(s: Any, x: Any, first: Any, column: Any, d: Any, many: Any, out: Any) -> None:
    """out [4, d] = s [4, many] x[first : first + many, column : column + d]"""
    for r in range(4):
        for c in range(d):
            out[r, c] = f4(0)
    whole = many - many % 4
    for j in range(0, whole, 4):
        a0, a1, a2, a3 = s[0, j], s[0, j + 1], s[0, j + 2], s[0, j + 3]
        b0, b1, b2, b3 = s[1, j], s[1, j + 1], s[1, j + 2], s[1, j + 3]
        c0, c1, c2, c3 = s[2, j], s[2, j + 1], s[2, j + 2], s[2, j + 3]
        d0, d1, d2, d3 = s[3, j], s[3, j + 1], s[3, j + 2], s[3, j + 3]
        k = first + j
        x0, x1 = x[k, column : column + d], x[k + 1, column : column + d]
        x2, x3 = x[k + 2, column : column + d], x[k + 3, column : column + d]
        for c in range(d):
            y0, y1, y2, y3 = x0[c], x1[c], x2[c], x3[c]
            out[0, c] += a0 * y0 + a1 * y1 + a2 * y2 + a3 * y3
            out[1, c] += b0 * y0 + b1 * y1 + b2 * y2 + b3 * y3
            out[2, c] += c0 * y0 + c1 * y1 + c2 * y2 + c3 * y3
            out[3, c] += d0 * y0 + d1 * y1 + d2 * y2 + d3 * y3
    for j in range(whole, many):
        s0, s1, s2, s3 = s[0, j], s[1, j], s[2, j], s[3, j]
        row = x[first + j, column : column + d]
        for c in range(d):
            y = row[c]
            out[0, c] += s0 * y
            out[1, c] += s1 * y
            out[2, c] += s2 * y
            out[3, c] += s3 * y


@compiled
def _soften(s: Any, mine: Any, many: Any) -> Any:
    """A row of scores to its softmax, 0 from `mine` on: (the largest, the sum of exponentials relative to it)."""
    most = LOWEST
    for j in range(mine):
        most = max(most, ordered(as_bits(s[j])))
    largest = as_float(ordered(most))
    total = f4(0)
    for j in range(mine):
        e = exp(f4(s[j] - largest))
        s[j] = e
        total += e
    share = f4(f4(1.0) / total)
    for j in range(mine):
        s[j] *= share
    for j in range(mine, many):
        s[j] = f4(0)
    return largest, total


@compiled
def _weigh(p: Any, ds: Any, mine: Any, many: Any, log_sum: Any, total: Any) -> None:
    """A row of scores to its softmax, and of gradients of the softmax to those of the scores; 0 from `mine` on."""
    for j in range(mine):
        e = exp(f4(p[j] - log_sum))
        p[j] = e
        ds[j] = e * (ds[j] - total)
    for j in range(mine, many):
        p[j] = f4(0)
        ds[j] = f4(0)
