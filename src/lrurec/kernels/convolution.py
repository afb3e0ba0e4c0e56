"""A causal convolution per channel over packed sequences, and its backward. Knows arrays.

All three products are one: with r(.) for "the last row first", within a sequence

    y       = conv(x, w)                y_k = sum over j = 0..k of w_j x_{k-j}
    r(d_x)  = conv(r(d_y), w)
    r(d_w)  = conv(x, r(d_y))

Sequences are copied to scratch whose rows are a multiple of the tile, with zeros behind the last and before the
first, so that no tile asks where it is.
"""

from typing import Any

from lrurec.kernels.arithmetic import compiled, f4

TILE = 4  # outputs, and inputs, that are taken together: what is read once is used four times
FRONT = TILE - 1  # zeros before the first row of a kernel


@compiled
def _put(rows: Any, backwards: Any, shift: Any, out: Any) -> None:
    """Rows, or the last first, from row `shift` of `out` on; zeros before and up to a whole tile behind."""
    n, width = rows.shape
    for i in range(shift):
        for c in range(width):
            out[i, c] = f4(0)
    for i in range(n):
        k = n - 1 - i if backwards else i
        for c in range(width):
            out[shift + i, c] = rows[k, c]
    for i in range(shift + n, shift + n + (-n) % TILE):
        for c in range(width):
            out[i, c] = f4(0)


@compiled
def _convolve(x: Any, w: Any, rows: Any, y: Any) -> None:
    """The first rows of y from those of x, in scratch; row j of the kernel is row FRONT + j of w."""
    width = x.shape[1]
    for a in range(0, rows, TILE):
        for i in range(a, a + TILE):
            for c in range(width):
                y[i, c] = f4(0)
        for b in range(0, a + 1, TILE):
            k = a - b
            for c in range(width):
                x0, x1, x2, x3 = x[b, c], x[b + 1, c], x[b + 2, c], x[b + 3, c]
                w0, w1, w2, w3 = w[k, c], w[k + 1, c], w[k + 2, c], w[k + 3, c]
                w4, w5, w6 = w[k + 4, c], w[k + 5, c], w[k + 6, c]
                y[a, c] += x0 * w3 + x1 * w2 + x2 * w1 + x3 * w0
                y[a + 1, c] += x0 * w4 + x1 * w3 + x2 * w2 + x3 * w1
                y[a + 2, c] += x0 * w5 + x1 * w4 + x2 * w3 + x3 * w2
                y[a + 3, c] += x0 * w6 + x1 * w5 + x2 * w4 + x3 * w3


@compiled
def forward(x: Any, kernel: Any, offsets: Any, first: Any, last: Any, scratch: Any, y: Any) -> None:
    """The outputs of sequences [first, last); `scratch` is [3, rows, width], see `scratch_rows`."""
    inputs, weights, outputs = scratch[0], scratch[1], scratch[2]
    _put(kernel, False, FRONT, weights)
    for s in range(first, last):
        start, stop = offsets[s], offsets[s + 1]
        _put(x[start:stop], False, 0, inputs)
        _convolve(inputs, weights, stop - start, outputs)
        y[start:stop] = outputs[: stop - start]


@compiled
def backward(
    g: Any, x: Any, kernel: Any, offsets: Any, first: Any, last: Any, scratch: Any, d_x: Any, d_kernel: Any
) -> None:
    """The gradients of the inputs of sequences [first, last), and of the kernel, which are added; scratch [4, ...]."""
    inputs, weights, turned, outputs = scratch[0], scratch[1], scratch[2], scratch[3]
    width = x.shape[1]
    _put(kernel, False, FRONT, weights)
    for s in range(first, last):
        start, stop = offsets[s], offsets[s + 1]
        n = stop - start
        _put(g[start:stop], True, 0, inputs)
        _convolve(inputs, weights, n, outputs)
        for i in range(n):
            for c in range(width):
                d_x[stop - 1 - i, c] = outputs[i, c]
        _put(g[start:stop], True, FRONT, turned)
        _put(x[start:stop], False, 0, inputs)
        _convolve(inputs, turned, n, outputs)
        for i in range(n):
            for c in range(width):
                d_kernel[n - 1 - i, c] += outputs[i, c]


def scratch_rows(longest: int) -> int:
    """Rows of scratch for sequences, and a kernel, of at most so many."""
    return FRONT + longest + TILE
