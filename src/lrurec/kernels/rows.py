"""AdamW on some rows of a table. Knows rows of numbers."""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import compiled, f4


@compiled
def catch_up(
    rows: Any, shrink: Any, ahead: Any, eps: Any, fade1: Any, fade2: Any, values: Any, first: Any, second: Any
) -> None:
    """Rows as they are after some steps without a gradient: values [V, D], moments `first` and `second`."""
    width = values.shape[1]
    for k in range(len(rows)):
        r = rows[k]
        s, a, e, f, g = shrink[k], ahead[k], eps[k], fade1[k], fade2[k]
        for d in range(width):
            m, v = first[r, d], second[r, d]
            values[r, d] = values[r, d] * s - a * m / f4(np.sqrt(v) + e)
            first[r, d] = m * f
            second[r, d] = v * g


@compiled
def update(
    rows: Any, gradients: Any, shrink: Any, keep1: Any, keep2: Any, rate: Any, root: Any, eps: Any,
    values: Any, first: Any, second: Any,
) -> None:  # fmt: skip
    """A step with gradients [R, D]: `rate` is the learning rate over 1 - beta1^t, `root` the root of 1 - beta2^t."""
    width = values.shape[1]
    for k in range(len(rows)):
        r = rows[k]
        for d in range(width):
            g = gradients[k, d]
            m = f4(first[r, d] + (g - first[r, d]) * f4(f4(1) - keep1))
            v = f4(second[r, d] * keep2 + g * g * f4(f4(1) - keep2))
            first[r, d] = m
            second[r, d] = v
            values[r, d] = values[r, d] * shrink - rate * m / f4(np.sqrt(v) / root + eps)
