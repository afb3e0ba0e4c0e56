"""The softmax over items with products of bfloat16 (`dot16`), a group of positions at a time. Knows rows of scores.

Items come in blocks of `WIDE`, in two layouts: `columns` [B, D / 2, WIDE] for the scores, pairs along the width of the
vectors, and `rows` [B, WIDE / 2, D] for the gradient of the positions, pairs of items. A pair of 16-bit floats is an int32.
Scores are in powers of two: positions and biases come times log2(e). There is no largest score to take away: the caller
sees to it that no power leaves the range of floats.
"""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import as_float, compiled, f4, i4
from lrurec.kernels.dot16 import half, multiply, multiply_columns, multiply_to_powers

WIDE = 128  # items at a time


@compiled
def pack_items(table: Any, columns: Any, rows: Any) -> None:
    """A table [V, D], rounded, in both layouts; zeros behind its end."""
    items, width = table.shape
    blocks = columns.shape[0]
    some = np.empty((WIDE, width), np.int16)
    for k in range(blocks):
        start = k * WIDE
        count = min(WIDE, items - start)
        for i in range(count):
            for d in range(width):
                some[i, d] = half(table[start + i, d])
        for i in range(count, WIDE):
            for d in range(width):
                some[i, d] = 0
        for p in range(WIDE // 2):
            for d in range(width):
                rows[k, p, d] = i4(i4(some[2 * p, d]) & i4(0xFFFF)) | i4(i4(some[2 * p + 1, d]) << i4(16))
        words = some.view(np.int32)
        for p in range(width // 2):
            for i in range(WIDE):
                columns[k, p, i] = words[i, p]


@compiled
def scale_and_halve(x: Any, by: Any, out: Any) -> None:
    """x [R, W] times by [R], rounded."""
    rows, width = x.shape
    for i in range(rows):
        for j in range(width):
            out[i, j] = half(f4(x[i, j] * by[i]))


@compiled
def add_scaled(x: Any, by: Any, out: Any) -> None:
    """out [R, W] += x times by [R]."""
    rows, width = out.shape
    for i in range(rows):
        for j in range(width):
            out[i, j] += x[i, j] * by[i]


@compiled
def sums(
    hidden: Any, columns: Any, rows: Any, bias: Any, total: Any, store: Any, to_hidden: Any, gradients: Any
) -> None:
    """Of positions [R, D], R a multiple of 4: the sums of powers into `total` [R], the powers into `store` [B, R / 2, WIDE].

    With `gradients`, also the powers times the items into `to_hidden` [R, D].
    """
    count = len(hidden)
    halves, lanes = np.empty((count, WIDE), np.int16), np.zeros((count, 16), np.float32)
    to_hidden[:] = 0
    for k in range(len(columns)):
        multiply_to_powers(hidden, count, columns[k], bias[k * WIDE : (k + 1) * WIDE], lanes, halves, store[k])
        if gradients:
            multiply(halves, count, rows[k], to_hidden, True)
    for i in range(count):
        s = f4(0)
        for j in range(16):
            s += lanes[i, j]
        total[i] = s


@compiled
def _column_sums(pairs: Any, weight: Any, out: Any) -> None:
    for p in range(len(pairs)):
        a, b = weight[2 * p], weight[2 * p + 1]
        for j in range(WIDE):
            word = pairs[p, j]
            out[j] += a * as_float(i4(word << i4(16))) + b * as_float(i4(word & i4(-65536)))


@compiled
def to_items(store: Any, hidden: Any, weight: Any, d_table: Any, d_bias: Any, add: Any) -> None:
    """The gradients of items [B * WIDE, D] and biases: the powers times positions [R / 2, D] that are weighed already.

    They are added to what there is if `add` says so.
    """
    if not add:
        d_bias[:] = 0
    for k in range(len(store)):
        multiply_columns(store[k], hidden, len(hidden), d_table[k * WIDE : (k + 1) * WIDE], add)
        _column_sums(store[k], weight, d_bias[k * WIDE : (k + 1) * WIDE])
