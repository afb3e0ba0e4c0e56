"""Compiled inner loops in single precision. Knows rows of numbers, not layers or losses.

Each runs on the calling thread and lets go of the interpreter, so that several threads can work on parts of their
own. They are written so that the compiler makes vector instructions of them: no branches, 32-bit integers, and an
exponential of our own (a call of the library's would run one element at a time).
"""

from typing import Any

import numba
import numpy as np
from numba import extending, types

intrinsic: Any = extending.intrinsic
f4, i4 = np.float32, np.int32
_LOWEST = i4(-(2**31) + 1)


@intrinsic  # type: ignore[untyped-decorator]
def _as_float(context: Any, bits: Any) -> Any:
    """The float with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@intrinsic  # type: ignore[untyped-decorator]
def _as_bits(context: Any, value: Any) -> Any:
    """The bits of a float."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


@numba.njit(inline="always", cache=True)
def _exp(x: Any) -> Any:
    """e^x for x up to 88, to 5e-7 of its value; below -87 it stays at e^-87."""
    x = f4(-87.0) if x < f4(-87.0) else x
    n = np.floor(f4(x * f4(1.44269504) + f4(0.5)))  # e^x = 2^n e^r, r within half of ln 2
    r = f4(x - n * f4(0.693359375))
    r = f4(r - n * f4(-2.12194440e-4))
    p = f4(r * f4(1.0 / 720) + f4(1.0 / 120))
    p = f4(p * r + f4(1.0 / 24))
    p = f4(p * r + f4(1.0 / 6))
    p = f4(p * r + f4(0.5))
    p = f4(p * r * r + r + f4(1.0))
    return f4(p * _as_float(i4((i4(n) + i4(127)) << i4(23))))


@numba.njit(inline="always", cache=True)
def _ordered(bits: Any) -> Any:
    """Bits of floats as integers in the same order (and back): the largest of integers is found in vectors."""
    return i4(bits ^ i4(i4(bits >> i4(31)) & i4(0x7FFFFFFF)))


@numba.njit(nogil=True, fastmath=True, cache=True)
def exponentials(scores: Any, bias: Any, largest: Any, total: Any, reference: Any) -> None:
    """scores [R, W] to exp(scores + bias - reference), with the largest so far as the reference of each row.

    `largest` and `total` [R] carry the largest score and the sum of exponentials relative to it over the blocks of a
    row; `reference` [R] is written: the largest as it was known when this block was done.
    """
    rows, width = scores.shape
    for i in range(rows):
        most = _LOWEST
        for j in range(width):
            most = max(most, _ordered(_as_bits(f4(scores[i, j] + bias[j]))))
        old, new = largest[i], _as_float(_ordered(most))
        new = old if old > new else new
        s = f4(0)
        for j in range(width):
            e = _exp(f4(scores[i, j] + bias[j] - new))
            scores[i, j] = e
            s += e
        total[i] = f4(total[i] * _exp(f4(old - new)) + s)
        largest[i] = reference[i] = new


@numba.njit(nogil=True, fastmath=True, cache=True)
def weigh(values: Any, reference: Any, largest: Any, weight: Any, sums: Any) -> None:
    """values [R, W] times weight [R], for the reference they were made with; adds their columns to `sums` [W]."""
    rows, width = values.shape
    for i in range(rows):
        w = f4(weight[i] * _exp(f4(reference[i] - largest[i])))
        for j in range(width):
            v = f4(values[i, j] * w)
            values[i, j] = v
            sums[j] += v


@numba.njit(nogil=True, fastmath=True, cache=True)
def at_targets(hidden: Any, table: Any, bias: Any, targets: Any, out: Any) -> None:
    """The score of each row's target."""
    rows, width = hidden.shape
    for i in range(rows):
        y = targets[i]
        s = bias[y]
        for d in range(width):
            s += hidden[i, d] * table[y, d]
        out[i] = s


@numba.njit(nogil=True, cache=True)
def take_from_targets(
    hidden: Any, table: Any, targets: Any, scale: Any, d_hidden: Any, d_table: Any, d_bias: Any
) -> None:
    """The gradients of -scale * (score of the target), added."""
    rows, width = hidden.shape
    for i in range(rows):
        y = targets[i]
        d_bias[y] -= scale
        for d in range(width):
            d_hidden[i, d] -= scale * table[y, d]
            d_table[y, d] -= scale * hidden[i, d]


# The same on 16-bit floats (bfloat16: the upper half of a float), which numpy holds as int16.


@numba.njit(inline="always", cache=True)
def _widened(half: Any) -> Any:
    return _as_float(i4(i4(half) << i4(16)))


@numba.njit(inline="always", cache=True)
def _halved(value: Any) -> Any:
    """Rounded to the nearest, to even in the middle."""
    bits = _as_bits(value)
    return np.int16(i4(bits + i4(0x7FFF) + i4(i4(bits >> i4(16)) & i4(1))) >> i4(16))


@numba.njit(nogil=True, fastmath=True, cache=True)
def exponentials16(scores: Any, bias: Any, largest: Any, total: Any, reference: Any) -> None:
    """`exponentials` of 16-bit scores; the sums are those of the rounded values."""
    rows, width = scores.shape
    for i in range(rows):
        most = _LOWEST
        for j in range(width):
            most = max(most, _ordered(_as_bits(f4(_widened(scores[i, j]) + bias[j]))))
        old, new = largest[i], _as_float(_ordered(most))
        new = old if old > new else new
        s = f4(0)
        for j in range(width):
            half = _halved(_exp(f4(_widened(scores[i, j]) + bias[j] - new)))
            scores[i, j] = half
            s += _widened(half)
        total[i] = f4(total[i] * _exp(f4(old - new)) + s)
        largest[i] = reference[i] = new


@numba.njit(nogil=True, fastmath=True, cache=True)
def column_sums16(values: Any, weight: Any, sums: Any) -> None:
    """Add the columns of values [R, W], weighed per row, to `sums` [W]."""
    rows, width = values.shape
    for i in range(rows):
        w = weight[i]
        for j in range(width):
            sums[j] += w * _widened(values[i, j])


@numba.njit(nogil=True, fastmath=True, cache=True)
def add_rows16(values: Any, weight: Any, out: Any) -> None:
    """out [R, W] += weight [R] * values."""
    rows, width = values.shape
    for i in range(rows):
        w = weight[i]
        for j in range(width):
            out[i, j] += w * _widened(values[i, j])
