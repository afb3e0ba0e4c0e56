"""What stands between the products of a block, one position at a time, and its backward; the recurrence.

`key`, `limit` and `scale` are those of lrurec.nn.dropout; `start` is the number of the first element among all of the
batch.
"""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import compiled, exp, f4, is_kept, upper_tail


@compiled
def normalise(norm: Any, i: Any, total: Any, gain: Any, shift: Any, spread: Any, out: Any) -> None:
    """LayerNorm of row i, whose sum is known: normalised in place, and with gain and shift into `out`."""
    width = norm.shape[1]
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


@compiled
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
            kept = is_kept(start + i * width + j, key, limit)
            r = f4(x[i, j] + (y[i, j] * scale if kept else f4(0)))
            norm[i, j] = r
            total += r
        normalise(norm, i, total, gain, shift, spread, out)


@compiled
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
            kept = is_kept(start + i * width + j, key, limit)
            g = f4(g * scale) if kept else f4(0)
            d_y[i, j] = g
            d_bias[j] += g


@compiled
def gelu(a: Any, start: Any, key: Any, limit: Any, scale: Any, out: Any) -> None:
    """out = Dropout(GELU(a))."""
    rows, width = a.shape
    for i in range(rows):
        for j in range(width):
            x = a[i, j]
            tail = upper_tail(x, exp(f4(f4(-0.5) * x * x)))
            below = f4(1.0) - tail if x > f4(0) else tail
            kept = is_kept(start + i * width + j, key, limit)
            out[i, j] = f4(x * below * scale) if kept else f4(0)


@compiled
def gelu_backward(a: Any, d: Any, start: Any, key: Any, limit: Any, scale: Any, out: Any, d_bias: Any) -> None:
    """`d`, the gradient of Dropout(GELU(a)), becomes that of a, its columns added to `d_bias`; `out` is computed again."""
    rows, width = a.shape
    for i in range(rows):
        for j in range(width):
            x = a[i, j]
            bell = exp(f4(f4(-0.5) * x * x))
            tail = upper_tail(x, bell)
            below = f4(1.0) - tail if x > f4(0) else tail
            kept = scale if is_kept(start + i * width + j, key, limit) else f4(0)
            out[i, j] = f4(x * below * kept)
            g = f4(d[i, j] * kept * (below + x * bell * f4(0.3989422804014327)))
            d[i, j] = g
            d_bias[j] += g


def openings(offsets: Any, rows: int) -> Any:
    """[rows + 1]: 1, 2, ... at the first row of each sequence, and something behind the last; 0 elsewhere."""
    opens = np.zeros(rows + 1, np.int32)
    opens[offsets] = np.arange(1, len(offsets) + 1)  # of sequences that begin at one row, all but the last are empty
    return opens


@compiled
def recur(h: Any, lam: Any, opens: Any, begins: Any, start: Any, stop: Any) -> None:
    """In place: h_k = lambda h_{k-1} + h_k over rows [start, stop) of h [N, 2C].

    Where a sequence opens (`openings`), h_{k-1} is its row of `begins` [S, 2C].
    """
    channels = h.shape[1] // 2
    for k in range(start, stop):
        before = h[k - 1] if opens[k] == 0 else begins[opens[k] - 1]
        for c in range(channels):
            real, imaginary = before[c], before[channels + c]
            h[k, c] += lam[0, c] * real - lam[1, c] * imaginary
            h[k, channels + c] += lam[0, c] * imaginary + lam[1, c] * real


@compiled
def recur_backward(
    a: Any, h: Any, lam: Any, opens: Any, begins: Any, start: Any, carry: Any, sums: Any, d_bias: Any
) -> None:
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
        if opens[k] != 0:
            before = begins[opens[k] - 1]
            for c in range(channels):
                sums[0, c] += carry[c] * before[c] + carry[channels + c] * before[channels + c]
                sums[1, c] += carry[channels + c] * before[c] - carry[c] * before[channels + c]
