"""The channel mixing of RWKV with products of bfloat16, forward and backward. Knows rows of numbers.

    y = sigmoid(R r) * V max(K k, 0)^2

As in lrurec.kernels.block16: what goes into a product is rounded, and so is what the backward keeps of the forward.
"""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import compiled, f4, sigmoid, widened
from lrurec.kernels.block16 import halve
from lrurec.kernels.dot16 import half, multiply, multiply_columns, pair_rows


@compiled
def _square(a: Any, positive: Any, out: Any) -> None:
    """out = max(a, 0)^2; keeps max(a, 0)."""
    rows, width = positive.shape
    for i in range(rows):
        for j in range(width):
            m = half(max(a[i, j], f4(0)))
            positive[i, j] = m
            out[i, j] = half(f4(widened(m) * widened(m)))


@compiled
def _open(a: Any, b: Any, gate: Any, values: Any, out: Any) -> None:
    """out = sigmoid(a) b; keeps a and b."""
    rows, width = out.shape
    for i in range(rows):
        for j in range(width):
            g, v = half(a[i, j]), half(b[i, j])
            gate[i, j] = g
            values[i, j] = v
            out[i, j] = sigmoid(widened(g)) * widened(v)


@compiled
def _open_backward(grad: Any, gate: Any, values: Any, d_gate: Any, d_values: Any) -> None:
    rows, width = grad.shape
    for i in range(rows):
        for j in range(width):
            s, g = sigmoid(widened(gate[i, j])), grad[i, j]
            d_values[i, j] = half(f4(g * s))
            d_gate[i, j] = half(f4(g * widened(values[i, j]) * s * (f4(1) - s)))


@compiled
def _square_backward(d: Any, positive: Any, d_a: Any, squared: Any) -> None:
    """From `d`, the gradient of the squares, that of what became them; these are computed again."""
    rows, width = positive.shape
    for i in range(rows):
        for j in range(width):
            m = widened(positive[i, j])
            d_a[i, j] = half(f4(f4(2) * m * d[i, j]))
            squared[i, j] = half(f4(m * m))


@compiled
def forward(both: Any, begin: Any, end: Any, piece: Any, factors: Any, kept: Any, out: Any) -> None:
    """Rows [begin, end) of r and k, `both` [2, N, d], `piece` rows at a time."""
    by_r, by_k, by_v = factors
    r, k, positive, gate, values = kept
    width, inside = out.shape[1], positive.shape[1]
    a, squared = np.empty((piece + 3, inside), np.float32), np.empty((piece + 3, inside), np.int16)
    opened, y = np.empty((piece + 3, width), np.float32), np.empty((piece + 3, width), np.float32)
    for s in range(begin, end, piece):
        e = min(s + piece, end)
        n = e - s
        halve(both[0, s:e], r[s:e])
        halve(both[1, s:e], k[s:e])
        multiply(k[s:], n, by_k, a, False)
        _square(a, positive[s:e], squared)
        multiply(squared, n, by_v, y, False)
        multiply(r[s:], n, by_r, opened, False)
        _open(opened, y, gate[s:e], values[s:e], out[s:e])


@compiled
def backward(grad: Any, begin: Any, end: Any, piece: Any, factors: Any, kept: Any, d_both: Any, d: Any) -> None:
    """The same rows: writes their `d_both`, adds to the gradients `d` of the weights."""
    by_r, by_k, by_v = factors
    r, k, positive, gate, values = kept
    d_r, d_k, d_v = d
    width, inside = grad.shape[1], positive.shape[1]
    d_gate, d_values = np.empty((piece + 3, width), np.int16), np.empty((piece + 3, width), np.int16)
    d_inner, more = np.empty((piece + 3, inside), np.float32), np.empty((piece + 3, width), np.float32)
    a16, squared = np.empty((piece + 3, inside), np.int16), np.empty((piece, inside), np.int16)
    pairs = (piece + 1) // 2
    narrow, other, wide = (
        np.empty((pairs, width), np.int32),
        np.empty((pairs, width), np.int32),
        np.empty((pairs, inside), np.int32),
    )
    for s in range(begin, end, piece):
        e = min(s + piece, end)
        n = e - s
        steps = (n + 1) // 2
        _open_backward(grad[s:e], gate[s:e], values[s:e], d_gate, d_values)
        multiply(d_values, n, by_v, d_inner, False)
        _square_backward(d_inner, positive[s:e], a16, squared)
        pair_rows(d_values, n, narrow)
        pair_rows(squared, n, wide)
        multiply_columns(narrow, wide, steps, d_v, True)
        pair_rows(a16, n, wide)
        pair_rows(k[s:e], n, other)
        multiply_columns(wide, other, steps, d_k, True)
        pair_rows(d_gate, n, narrow)
        pair_rows(r[s:e], n, other)
        multiply_columns(narrow, other, steps, d_r, True)
        multiply(d_gate, n, by_r, more, False)
        d_both[0, s:e] = more[:n]
        multiply(a16, n, by_k, more, False)
        d_both[1, s:e] = more[:n]
