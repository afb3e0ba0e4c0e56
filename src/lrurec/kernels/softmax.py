"""Scores to exponentials, sums and gradients; ranks. Knows rows of scores.

Loops that end in 16 work on 16-bit floats (bfloat16: the upper half of a float), which numpy holds as int16.
"""

from typing import Any

import numba

from lrurec.kernels.arithmetic import LOWEST, as_bits, as_float, compiled, exp, f4, halved, i4, ordered, widened


@compiled
def exponentials(scores: Any, bias: Any, largest: Any, total: Any, reference: Any) -> None:
    """scores [R, W] to exp(scores + bias - reference), with the largest so far as the reference of each row.

    `largest` and `total` [R] carry the largest score and the sum of exponentials relative to it over the blocks of a
    row; `reference` [R] is written: the largest as it was known when this block was done.
    """
    rows, width = scores.shape
    for i in range(rows):
        most = LOWEST
        for j in range(width):
            most = max(most, ordered(as_bits(f4(scores[i, j] + bias[j]))))
        old, new = largest[i], as_float(ordered(most))
        new = old if old > new else new
        s = f4(0)
        for j in range(width):
            e = exp(f4(scores[i, j] + bias[j] - new))
            scores[i, j] = e
            s += e
        total[i] = f4(total[i] * exp(f4(old - new)) + s)
        largest[i] = reference[i] = new


@compiled
def weigh(values: Any, reference: Any, largest: Any, weight: Any, sums: Any) -> None:
    """values [R, W] times weight [R], for the reference they were made with; adds their columns to `sums` [W]."""
    rows, width = values.shape
    for i in range(rows):
        w = f4(weight[i] * exp(f4(reference[i] - largest[i])))
        for j in range(width):
            v = f4(values[i, j] * w)
            values[i, j] = v
            sums[j] += v


@compiled
def at_targets(hidden: Any, table: Any, bias: Any, targets: Any, out: Any) -> None:
    """The score of each row's target."""
    rows, width = hidden.shape
    for i in range(rows):
        y = targets[i]
        s = bias[y]
        for d in range(width):
            s += hidden[i, d] * table[y, d]
        out[i] = s


@compiled
def take_from_targets(
    hidden: Any, table: Any, targets: Any, weights: Any, d_hidden: Any, d_table: Any, d_bias: Any
) -> None:
    """The gradients of -weight * (score of the target) of each row, added."""
    rows, width = hidden.shape
    for i in range(rows):
        y, scale = targets[i], weights[i]
        d_bias[y] -= scale
        for d in range(width):
            d_hidden[i, d] -= scale * table[y, d]
            d_table[y, d] -= scale * hidden[i, d]


@numba.njit(nogil=True, cache=True)
def at_least(scores: Any, own: Any, counts: Any) -> None:
    """counts [R]: how many of each row of scores [R, V] are not below `own` [R]."""
    for i in range(len(scores)):
        count = i4(0)
        for j in range(scores.shape[1]):
            count += i4(0) if scores[i, j] < own[i] else i4(1)
        counts[i] = count


@compiled
def exponentials16(scores: Any, bias: Any, largest: Any, total: Any, reference: Any) -> None:
    """`exponentials` of 16-bit scores; the sums are those of the rounded values."""
    rows, width = scores.shape
    for i in range(rows):
        most = LOWEST
        for j in range(width):
            most = max(most, ordered(as_bits(f4(widened(scores[i, j]) + bias[j]))))
        old, new = largest[i], as_float(ordered(most))
        new = old if old > new else new
        s = f4(0)
        for j in range(width):
            half = halved(exp(f4(widened(scores[i, j]) + bias[j] - new)))
            scores[i, j] = half
            s += widened(half)
        total[i] = f4(total[i] * exp(f4(old - new)) + s)
        largest[i] = reference[i] = new


@compiled
def column_sums16(values: Any, weight: Any, sums: Any) -> None:
    """Add the columns of values [R, W], weighed per row, to `sums` [W]."""
    rows, width = values.shape
    for i in range(rows):
        w = weight[i]
        for j in range(width):
            sums[j] += w * widened(values[i, j])


@compiled
def add_rows16(values: Any, weight: Any, out: Any) -> None:
    """out [R, W] += weight [R] * values."""
    rows, width = values.shape
    for i in range(rows):
        w = weight[i]
        for j in range(width):
            out[i, j] += w * widened(values[i, j])
