"""The softmax over items with products of bfloat16 (`dot16`), a group of positions at a time. Knows rows of scores.

Items come in blocks of `WIDE`, in two layouts: `columns` [B, D / 2, WIDE] for the scores, pairs along the width of the
vectors, and `rows` [B, WIDE / 2, D] for the gradient of the positions, pairs of items. A pair of 16-bit floats is an int32.
Scores are in powers of two: positions and biases come times log2(e). There is no largest score to take away: the caller
sees to it that no power leaves the range of floats.
"""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import as_bits, as_float, compiled, f4, i4
from lrurec.kernels.dot16 import half, multiply, multiply_columns, multiply_to_powers, pair_rows

WIDE = 128  # items at a time
LOG2E = 1.4426950408889634


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
def longest(x: Any) -> Any:
    """The square of the length of the longest row; not a number, if one of them is none.

    Compared as integers: those have the order of floats, with what is not a number above all.
    """
    rows, width = x.shape
    most = i4(0)
    for i in range(rows):
        s = f4(0)
        for d in range(width):
            s += x[i, d] * x[i, d]
        most = max(most, i4(as_bits(s) & i4(0x7FFFFFFF)))
    return as_float(most)


@compiled
def _scale_and_halve(x: Any, by: Any, out: Any) -> Any:
    """The first rows of `out`: x [R, W] times by [R], rounded, and zeros up to a multiple of four rows."""
    rows, width = x.shape
    padded = (rows + 3) // 4 * 4
    for i in range(rows):
        for j in range(width):
            out[i, j] = half(f4(x[i, j] * by[i]))
    for i in range(rows, padded):
        for j in range(width):
            out[i, j] = 0
    return out[:padded]


@compiled
def _powers(store: Any, blocks: Any, rows: Any) -> Any:
    """The part of the store that the powers of some rows take: [B, R / 2, WIDE]."""
    return store[: blocks * (rows // 2) * WIDE].reshape(blocks, rows // 2, WIDE)


@compiled
def sums(
    hidden: Any, columns: Any, rows: Any, bias: Any, total: Any, store: Any, halves: Any, to_hidden: Any, gradients: Any
) -> None:
    """Of positions [R, D]: the sums of their powers into `total`, the powers into `store`.

    With `gradients`, also the powers times the items into `to_hidden`. `halves` is a place to work in; all of these have room
    for a multiple of four rows.
    """
    rounded = _scale_and_halve(hidden, np.full(len(hidden), f4(LOG2E)), halves)
    count = len(rounded)
    powers = _powers(store, len(columns), count)
    some, lanes = np.empty((count, WIDE), np.int16), np.zeros((count, 16), np.float32)
    to_hidden[:count] = 0
    for k in range(len(columns)):
        multiply_to_powers(rounded, count, columns[k], bias[k * WIDE : (k + 1) * WIDE], lanes, some, powers[k])
        if gradients:
            multiply(some, count, rows[k], to_hidden, True)
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
def gradients(
    hidden: Any, weight: Any, store: Any, halves: Any, pairs: Any, to_hidden: Any,
    d_hidden: Any, d_table: Any, d_bias: Any, add: Any,
) -> None:  # fmt: skip
    """Behind `sums`, with a weight for each position: adds to d_hidden [R, D], and adds to, or fills, those of the items.

    d_table [B * WIDE, D] and d_bias hold something already if `add` says so.
    """
    count, width = hidden.shape
    rounded = _scale_and_halve(hidden, weight, halves)
    padded = len(rounded)
    pair_rows(rounded, padded, pairs)
    weights = np.zeros(padded, np.float32)
    weights[:count] = weight
    for i in range(count):
        for j in range(width):
            d_hidden[i, j] += to_hidden[i, j] * weight[i]
    powers = _powers(store, len(d_bias) // WIDE, padded)
    if not add:
        d_bias[:] = 0
    for k in range(len(powers)):
        multiply_columns(powers[k], pairs, padded // 2, d_table[k * WIDE : (k + 1) * WIDE], add)
        _column_sums(powers[k], weights, d_bias[k * WIDE : (k + 1) * WIDE])


@compiled
def meet(
    hidden: Any, weight: Any, group: Any, columns: Any, rows: Any, bias: Any, total: Any, store: Any, halves: Any,
    pairs: Any, to_hidden: Any, logs: Any, d_hidden: Any, d_table: Any, d_bias: Any, with_gradients: Any,
) -> None:  # fmt: skip
    """All of that for any number of positions, `group` of them at a time: the logarithms of their sums into `logs`."""
    for start in range(0, len(hidden), group):
        stop = min(start + group, len(hidden))
        some = hidden[start:stop]
        sums(some, columns, rows, bias, total, store, halves, to_hidden, with_gradients)
        for i in range(stop - start):
            logs[start + i] = np.log(total[i])
        if with_gradients:
            weights = weight[start:stop] / total[: stop - start]
            places = store, halves, pairs, to_hidden
            gradients(some, weights, *places, d_hidden[start:stop], d_table, d_bias, start > 0)
