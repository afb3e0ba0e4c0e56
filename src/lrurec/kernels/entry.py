"""Vectors of items, dropped out and normalised, and the backward of it. Knows rows of numbers.

`key`, `limit` and `scale` are those of lrurec.nn.dropout; `start` is the number of the first row among all of the batch.
"""

from typing import Any

from lrurec.kernels.arithmetic import compiled, f4, is_kept
from lrurec.kernels.block import normalise


@compiled
def enter(
    table: Any, inputs: Any, start: Any, key: Any, limit: Any, scale: Any,
    gain: Any, shift: Any, norm: Any, spread: Any, out: Any,
) -> None:  # fmt: skip
    """out = LayerNorm(Dropout(table[inputs])); keeps the normalised rows and one over their standard deviations."""
    rows, width = out.shape
    for i in range(rows):
        item, first = inputs[i], (start + i) * width
        total = f4(0)
        for j in range(width):
            r = f4(table[item, j] * scale) if is_kept(first + j, key, limit) else f4(0)
            norm[i, j] = r
            total += r
        normalise(norm, i, total, gain, shift, spread, out)


@compiled
def enter_backward(
    d_out: Any, norm: Any, spread: Any, gain: Any, start: Any, key: Any, limit: Any, scale: Any,
    d_gain: Any, d_shift: Any, d_rows: Any,
) -> None:  # fmt: skip
    """The gradient of what was looked up, row by row; those of gain and shift are added."""
    rows, width = d_out.shape
    for i in range(rows):
        first, second = f4(0), f4(0)
        for j in range(width):
            d, n = d_out[i, j], norm[i, j]
            g = f4(d * gain[j])
            first += g
            second += g * n
            d_gain[j] += d * n
            d_shift[j] += d
        first, second = f4(first / f4(width)), f4(second / f4(width))
        s = f4(spread[i] * scale)
        for j in range(width):
            g = f4(s * (d_out[i, j] * gain[j] - first - norm[i, j] * second))
            d_rows[i, j] = g if is_kept((start + i) * width + j, key, limit) else f4(0)


@compiled
def add_rows(d_rows: Any, inputs: Any, begin: Any, end: Any, d_table: Any) -> None:
    """d_table[inputs] += d_rows, columns from `begin` to `end`: threads that take columns never meet."""
    for i in range(len(inputs)):
        item = inputs[i]
        for j in range(begin, end):
            d_table[item, j] += d_rows[i, j]
