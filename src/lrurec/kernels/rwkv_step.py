"""One event after the other through all blocks of an RWKV model, without a product that is worth a library call."""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import compiled, exp, f4, inlined
from lrurec.kernels.step import at_length, normalised, times


@inlined
def _sigmoid(x: Any) -> Any:
    e = exp(f4(-abs(x)))
    return f4(f4(1) / (f4(1) + e)) if x > f4(0) else f4(e / (f4(1) + e))


@compiled
def run(
    states: Any,
    table: Any,
    items: Any,
    offsets: Any,
    x: Any,
    scratch: Any,
    length: Any,
    layer_norm: Any,
    residual: Any,
    pffn: Any,
    gain: Any,
    shift: Any,
    mu: Any,
    weight: Any,
    decay: Any,
    bonus: Any,
    out: Any,
    gain1: Any,
    shift1: Any,
    mu2: Any,
    gate: Any,
    wide: Any,
    narrow: Any,
    gain2: Any,
    shift2: Any,
) -> None:
    """User u meets items[offsets[u]:offsets[u + 1]], rows of `table`; behind them x [B, D] and states [B, blocks, 5, D].

    The rows of a state: the input before, numerator, denominator, maximum; the input of the channel mixing before. The rows
    of x have that length, or with 0 any. `scratch` is [6, 4 D]. The weights are those of lrurec.serving.rwkv.
    """
    width = x.shape[1]
    none = np.zeros(4 * width, np.float32)
    mixed, r, k, v, inner, y = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5]
    for u in range(len(x)):
        row = x[u]
        for at in range(offsets[u], offsets[u + 1]):
            item = items[at]
            for j in range(width):
                row[j] = table[item, j]
            if layer_norm:
                normalised(row, gain, shift)
            for n in range(states.shape[1]):
                state = states[u, n]
                for m in range(3):
                    for j in range(width):
                        mixed[j] = state[0, j] + mu[n, m, j] * (row[j] - state[0, j])
                    times(mixed, weight[n, m], none[:width], r if m == 0 else k if m == 1 else v)
                for j in range(width):
                    a, b, p = state[1, j], state[2, j], state[3, j]
                    ahead = f4(bonus[n, j] + k[j] - p)
                    e = exp(f4(-abs(ahead)))
                    old, new = (e, f4(1)) if ahead > f4(0) else (f4(1), e)
                    r[j] = _sigmoid(r[j]) * (old * a + new * v[j]) / (old * b + new)
                    p = f4(p - decay[n, j])
                    ahead = f4(k[j] - p)
                    e = exp(f4(-abs(ahead)))
                    old, new = (e, f4(1)) if ahead > f4(0) else (f4(1), e)
                    state[0, j] = row[j]
                    state[1, j] = old * a + new * v[j]
                    state[2, j] = old * b + new
                    state[3, j] = k[j] if ahead > f4(0) else p
                times(r, out[n], none[:width], y)
                for j in range(width):
                    row[j] = y[j] + row[j] if residual else y[j]
                if layer_norm:
                    normalised(row, gain1[n], shift1[n])
                if pffn:
                    for j in range(width):
                        mixed[j] = state[4, j] + mu2[n, 0, j] * (row[j] - state[4, j])
                    times(mixed, gate[n], none[:width], r)
                    for j in range(width):
                        mixed[j] = state[4, j] + mu2[n, 1, j] * (row[j] - state[4, j])
                        state[4, j] = row[j]
                    times(mixed, wide[n], none, inner)
                    for j in range(4 * width):
                        kept = max(inner[j], f4(0))
                        inner[j] = kept * kept
                    times(inner, narrow[n], none[:width], y)
                    for j in range(width):
                        value = _sigmoid(r[j]) * y[j]
                        row[j] = value + row[j] if residual else value
                    if layer_norm:
                        normalised(row, gain2[n], shift2[n])
        if offsets[u + 1] > offsets[u]:
            at_length(row, length)
