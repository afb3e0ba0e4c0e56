"""One event for each of some users through all blocks, without a product that is worth a library call."""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import compiled, exp, f4, inlined, upper_tail


@inlined
def times(x: Any, matrix: Any, bias: Any, out: Any) -> None:
    """out = x matrix + bias, for matrix [in, out]: the inner loop runs along its rows."""
    for j in range(len(bias)):
        out[j] = bias[j]
    for i in range(matrix.shape[0]):
        value = x[i]
        for j in range(len(bias)):
            out[j] += value * matrix[i, j]


@inlined
def normalised(x: Any, gain: Any, shift: Any) -> None:
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


@inlined
def at_length(x: Any, length: Any) -> None:
    """x in place, of that length; 0: as it is."""
    if length > f4(0):
        squares = f4(1e-24)
        for j in range(len(x)):
            squares += x[j] * x[j]
        factor = f4(length / np.sqrt(squares))
        for j in range(len(x)):
            x[j] *= factor


@compiled
def all_at_length(x: Any, length: Any) -> None:
    """The rows of x [N, W] in place."""
    for i in range(len(x)):
        at_length(x[i], length)


@inlined
def _gelu_in_place(x: Any, width: Any) -> None:
    for j in range(width):
        v = x[j]
        tail = upper_tail(v, exp(f4(f4(-0.5) * v * v)))
        x[j] = f4(v * (f4(1.0) - tail if v > f4(0) else tail))


@compiled
def gelu(x: Any) -> None:
    """GELU of x [N, W] in place."""
    for i in range(len(x)):
        _gelu_in_place(x[i], x.shape[1])


@compiled
def advance(
    states: Any,
    table: Any,
    items: Any,
    x: Any,
    scratch: Any,
    length: Any,
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
    """Rows `items` [B] of `table` become the hidden vectors x [B, D]; states [B, blocks, 2C] are updated.

    They have that length, or with 0 any. `scratch` is [2, W], W at least 2C and 4D. The weights are those of
    lrurec.serving.engine.
    """
    width, channels = x.shape[1], lam.shape[2]
    wide, narrow = scratch[0], scratch[1, :width]
    for u in range(len(x)):
        row, item = x[u], items[u]
        for j in range(width):
            row[j] = table[item, j]
        if layer_norm:
            normalised(row, gain, shift)
        for k in range(states.shape[1]):
            state = states[u, k]
            times(row, b[k], b_bias[k], wide)
            for j in range(channels):
                real, imaginary = state[j], state[channels + j]
                state[j] = lam[k, 0, j] * real - lam[k, 1, j] * imaginary + wide[j]
                state[channels + j] = lam[k, 0, j] * imaginary + lam[k, 1, j] * real + wide[channels + j]
            times(state, c[k], c_bias[k], narrow)
            for j in range(width):
                row[j] = narrow[j] + row[j] if residual else narrow[j]
            if layer_norm:
                normalised(row, gain1[k], shift1[k])
            if pffn:
                times(row, w1[k], b1[k], wide)
                _gelu_in_place(wide, b1.shape[1])
                times(wide, w2[k], b2[k], narrow)
                if outer_gelu:
                    _gelu_in_place(narrow, width)
                for j in range(width):
                    row[j] = narrow[j] + row[j] if residual else narrow[j]
                if layer_norm:
                    normalised(row, gain2[k], shift2[k])
        at_length(row, length)
