"""Compiled inner loops in single precision. Knows rows of numbers, not layers or losses.

Each runs on the calling thread and lets go of the interpreter, so that several threads can work on parts of their
own. They are written so that the compiler makes vector instructions of them: no branches, 32-bit integers, and an
exponential of our own (a call of the library's would run one element at a time).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import extending, types

intrinsic: Any = extending.intrinsic
f4, i4 = np.float32, np.int32
_LOWEST = i4(-(2**31) + 1)
_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    """With numpy's rules for division: Python's would look for a zero each time, one element after the other."""
    made: Any = numba.njit(nogil=True, fastmath=True, error_model="numpy", cache=True)(function)
    return made  # type: ignore[no-any-return]


def _inlined(function: _F) -> _F:
    made: Any = numba.njit(inline="always", cache=True)(function)
    return made  # type: ignore[no-any-return]


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


@_inlined
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


@_inlined
def _ordered(bits: Any) -> Any:
    """Bits of floats as integers in the same order (and back): the largest of integers is found in vectors."""
    return i4(bits ^ i4(i4(bits >> i4(31)) & i4(0x7FFFFFFF)))


@_compiled
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


@_compiled
def weigh(values: Any, reference: Any, largest: Any, weight: Any, sums: Any) -> None:
    """values [R, W] times weight [R], for the reference they were made with; adds their columns to `sums` [W]."""
    rows, width = values.shape
    for i in range(rows):
        w = f4(weight[i] * _exp(f4(reference[i] - largest[i])))
        for j in range(width):
            v = f4(values[i, j] * w)
            values[i, j] = v
            sums[j] += v


@_compiled
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
def at_least(scores: Any, own: Any, counts: Any) -> None:
    """counts [R]: how many of each row of scores [R, V] are not below `own` [R]."""
    for i in range(len(scores)):
        count = i4(0)
        for j in range(scores.shape[1]):
            count += i4(0) if scores[i, j] < own[i] else i4(1)
        counts[i] = count


@_compiled
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


@_inlined
def _widened(half: Any) -> Any:
    return _as_float(i4(i4(half) << i4(16)))


@_inlined
def _halved(value: Any) -> Any:
    """Rounded to the nearest, to even in the middle."""
    bits = _as_bits(value)
    return np.int16(i4(bits + i4(0x7FFF) + i4(i4(bits >> i4(16)) & i4(1))) >> i4(16))


@_compiled
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


@_compiled
def column_sums16(values: Any, weight: Any, sums: Any) -> None:
    """Add the columns of values [R, W], weighed per row, to `sums` [W]."""
    rows, width = values.shape
    for i in range(rows):
        w = weight[i]
        for j in range(width):
            sums[j] += w * _widened(values[i, j])


@_compiled
def add_rows16(values: Any, weight: Any, out: Any) -> None:
    """out [R, W] += weight [R] * values."""
    rows, width = values.shape
    for i in range(rows):
        w = weight[i]
        for j in range(width):
            out[i, j] += w * _widened(values[i, j])


# The parts of a block that look at one position at a time, and their backward. `key`, `limit` and `scale` are those of
# lrurec.nn.dropout; `start` is the number of the first element among all of the batch.


@_inlined
def _kept(number: Any, key: Any, limit: Any) -> Any:
    """Whether dropout keeps an element: the hash of lrurec.nn.dropout."""
    z = np.uint32(np.uint32(number) + key)
    z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D))
    z = np.uint32((z ^ (z >> np.uint32(15))) * np.uint32(0x846CA68B))
    z = np.uint32(z ^ (z >> np.uint32(16)))
    return z >= limit


@_inlined
def _upper_tail(x: Any, bell: Any) -> Any:
    """The chance that a normal variable exceeds |x|, to 1e-7; `bell` is exp(-x^2 / 2).

    Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    t = f4(f4(1.0) / (f4(1.0) + f4(0.3275911 * 0.7071067811865476) * abs(x)))
    p = f4(f4(1.061405429) * t + f4(-1.453152027))
    p = f4(p * t + f4(1.421413741))
    p = f4(p * t + f4(-0.284496736))
    p = f4(p * t + f4(0.254829592))
    return f4(f4(0.5) * p * t * bell)


@_compiled
def add_and_normalise(
    y: Any,
    x: Any,
    start: Any,
    key: Any,
    limit: Any,
    scale: Any,
    gain: Any,
    shift: Any,
    norm: Any,
    spread: Any,
    out: Any,
) -> None:
    """out = LayerNorm(Dropout(y) + x); keeps the normalised rows and one over their standard deviations."""
    rows, width = y.shape
    for i in range(rows):
        total = f4(0)
        for j in range(width):
            kept = _kept(start + i * width + j, key, limit)
            r = f4(x[i, j] + (y[i, j] * scale if kept else f4(0)))
            norm[i, j] = r
            total += r
        mean = f4(total / f4(width))
        squares = f4(0)
        for j in range(width):
            r = f4(norm[i, j] - mean)
            squares += r * r
        s = f4(f4(1.0) / np.sqrt(f4(squares / f4(width) + f4(1e-5))))
        spread[i] = s
        for j in range(width):
            r = f4((norm[i, j] - mean) * s)
            norm[i, j] = r
            out[i, j] = r * gain[j] + shift[j]


@_compiled
def normalise_backward(
    d_out: Any,
    norm: Any,
    spread: Any,
    gain: Any,
    start: Any,
    key: Any,
    limit: Any,
    scale: Any,
    d_gain: Any,
    d_shift: Any,
    d_x: Any,
    d_y: Any,
    d_bias: Any,
) -> None:
    """The gradients of `add_and_normalise`: of x, of y, and the columns of the latter added to `d_bias`."""
    rows, width = d_out.shape
    for i in range(rows):
        first, second = f4(0), f4(0)
        for j in range(width):
            g = f4(d_out[i, j] * gain[j])
            first += g
            second += g * norm[i, j]
            d_gain[j] += d_out[i, j] * norm[i, j]
            d_shift[j] += d_out[i, j]
        first, second = f4(first / f4(width)), f4(second / f4(width))
        s = spread[i]
        for j in range(width):
            g = f4(s * (d_out[i, j] * gain[j] - first - norm[i, j] * second))
            d_x[i, j] = g
            kept = _kept(start + i * width + j, key, limit)
            g = f4(g * scale) if kept else f4(0)
            d_y[i, j] = g
            d_bias[j] += g


@_compiled
def gelu(a: Any, start: Any, key: Any, limit: Any, scale: Any, out: Any) -> None:
    """out = Dropout(GELU(a))."""
    rows, width = a.shape
    for i in range(rows):
        for j in range(width):
            x = a[i, j]
            tail = _upper_tail(x, _exp(f4(f4(-0.5) * x * x)))
            below = f4(1.0) - tail if x > f4(0) else tail
            kept = _kept(start + i * width + j, key, limit)
            out[i, j] = f4(x * below * scale) if kept else f4(0)


@_compiled
def gelu_backward(a: Any, d: Any, start: Any, key: Any, limit: Any, scale: Any, out: Any, d_bias: Any) -> None:
    """`d`, the gradient of Dropout(GELU(a)), becomes that of a, its columns added to `d_bias`; `out` is computed again."""
    rows, width = a.shape
    for i in range(rows):
        for j in range(width):
            x = a[i, j]
            bell = _exp(f4(f4(-0.5) * x * x))
            tail = _upper_tail(x, bell)
            below = f4(1.0) - tail if x > f4(0) else tail
            kept = scale if _kept(start + i * width + j, key, limit) else f4(0)
            out[i, j] = f4(x * below * kept)
            g = f4(d[i, j] * kept * (below + x * bell * f4(0.3989422804014327)))
            d[i, j] = g
            d_bias[j] += g


@_compiled
def recur(h: Any, lam: Any, opens: Any, start: Any, stop: Any) -> None:
    """In place: h_k = lambda h_{k-1} + h_k over rows [start, stop) of h [N, 2C], anew where a sequence opens."""
    channels = h.shape[1] // 2
    for k in range(start, stop):
        if opens[k] == 0:
            for c in range(channels):
                real, imaginary = h[k - 1, c], h[k - 1, channels + c]
                h[k, c] += lam[0, c] * real - lam[1, c] * imaginary
                h[k, channels + c] += lam[0, c] * imaginary + lam[1, c] * real


@_compiled
def recur_backward(a: Any, h: Any, lam: Any, opens: Any, start: Any, carry: Any, sums: Any, d_bias: Any) -> None:
    """In place: a_k = a_k + conj(lambda) a_{k+1} over rows from `start`, the last first.

    `carry` [2C] holds a of the row behind the last, and of the first row afterwards; `opens` has one element more
    than rows. The gradient of lambda is added to `sums` [2, C] in double precision, the columns to `d_bias`.
    """
    rows, channels = a.shape[0], a.shape[1] // 2
    for i in range(rows - 1, -1, -1):
        k = start + i
        if opens[k + 1] == 0:
            for c in range(channels):
                real, imaginary = carry[c], carry[channels + c]
                a[i, c] += lam[0, c] * real + lam[1, c] * imaginary
                a[i, channels + c] += lam[0, c] * imaginary - lam[1, c] * real
                sums[0, c] += real * h[k, c] + imaginary * h[k, channels + c]
                sums[1, c] += imaginary * h[k, c] - real * h[k, channels + c]
        for c in range(2 * channels):
            carry[c] = a[i, c]
            d_bias[c] += a[i, c]


# One event for each of some users, all blocks, without a product that is worth a library call.


@_inlined
def _times(x: Any, matrix: Any, bias: Any, out: Any) -> None:
    """out = x matrix + bias, for matrix [in, out]: the inner loop runs along its rows."""
    for j in range(len(bias)):
        out[j] = bias[j]
    for i in range(matrix.shape[0]):
        value = x[i]
        for j in range(len(bias)):
            out[j] += value * matrix[i, j]


@_inlined
def _normalised(x: Any, gain: Any, shift: Any) -> None:
    """LayerNorm in place."""
    width = len(x)
    total = f4(0)
    for j in range(width):
        total += x[j]
    mean = f4(total / f4(width))
    squares = f4(0)
    for j in range(width):
        squares += (x[j] - mean) * (x[j] - mean)
    spread = f4(f4(1.0) / np.sqrt(f4(squares / f4(width) + f4(1e-5))))
    for j in range(width):
        x[j] = (x[j] - mean) * spread * gain[j] + shift[j]


@_inlined
def _gelu_in_place(x: Any, width: Any) -> None:
    for j in range(width):
        v = x[j]
        tail = _upper_tail(v, _exp(f4(f4(-0.5) * v * v)))
        x[j] = f4(v * (f4(1.0) - tail if v > f4(0) else tail))


@_compiled
def advance(
    states: Any,
    x: Any,
    scratch: Any,
    layer_norm: Any,
    residual: Any,
    pffn: Any,
    outer_gelu: Any,
    gain: Any,
    shift: Any,
    lam: Any,
    b: Any,
    b_bias: Any,
    c: Any,
    c_bias: Any,
    gain1: Any,
    shift1: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    b2: Any,
    gain2: Any,
    shift2: Any,
) -> None:
    """x [B, D], the vectors of the items, becomes the hidden vectors; states [B, blocks, 2C] are updated.

    `scratch` is [2, W], W at least 2C and 4D. The weights are those of lrurec.serving.engine.
    """
    width, channels = x.shape[1], lam.shape[2]
    wide, narrow = scratch[0], scratch[1, :width]
    for u in range(len(x)):
        row = x[u]
        if layer_norm:
            _normalised(row, gain, shift)
        for k in range(states.shape[1]):
            state = states[u, k]
            _times(row, b[k], b_bias[k], wide)
            for j in range(channels):
                real, imaginary = state[j], state[channels + j]
                state[j] = lam[k, 0, j] * real - lam[k, 1, j] * imaginary + wide[j]
                state[channels + j] = lam[k, 0, j] * imaginary + lam[k, 1, j] * real + wide[channels + j]
            _times(state, c[k], c_bias[k], narrow)
            for j in range(width):
                row[j] = narrow[j] + row[j] if residual else narrow[j]
            if layer_norm:
                _normalised(row, gain1[k], shift1[k])
            if pffn:
                _times(row, w1[k], b1[k], wide)
                _gelu_in_place(wide, b1.shape[1])
                _times(wide, w2[k], b2[k], narrow)
                if outer_gelu:
                    _gelu_in_place(narrow, width)
                for j in range(width):
                    row[j] = narrow[j] + row[j] if residual else narrow[j]
                if layer_norm:
                    _normalised(row, gain2[k], shift2[k])
