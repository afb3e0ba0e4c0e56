"""The two passes of `fused` with products of bfloat16. Knows arrays, not modules."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrurec.kernels import block16 as kernels
from lrurec.kernels.dot16 import COLUMNS, has_dot16
from lrurec.nn.linear import factor16
from lrurec.nn.parts import Dropping, Order, Weights

_PIECE, _PIECE_BACK = 128, 256  # positions at a time


class Kept(NamedTuple):
    """What the backward needs of the forward, for all positions, rounded; a few rows more, which products may read."""

    x: Tensor
    h: Tensor
    norm1: Tensor
    spread1: Tensor
    z: Tensor
    inner: Tensor
    norm2: Tensor
    spread2: Tensor

    @classmethod
    def empty(cls, n: int, w: Weights) -> "Kept":
        width, states, inside = len(w.c_bias), len(w.b_bias), len(w.b1)
        x, h, norm1, z, inner, norm2 = (
            torch.empty(n + 3, k, dtype=torch.int16) for k in (width, states, width, width, inside, width)
        )
        return cls(x, h, norm1, torch.empty(n), z, inner, norm2, torch.empty(n))

    def numpy(self) -> Any:
        return tuple(t.numpy() for t in self)


def suits(w: Weights) -> bool:
    """Whether the compiled way is there for these widths, on this processor."""
    return has_dot16() and all(len(t) % COLUMNS == 0 for t in (w.c_bias, w.b_bias, w.b1))


Factors = tuple[Any, ...]  # B, C, W1 and W2, rounded and in pairs: as one of the two passes multiplies by them


def factors_forward(w: Weights) -> Factors:
    return tuple(factor16(t.T) for t in (w.b_weight, w.c_weight, w.w1, w.w2))


def factors_backward(w: Weights) -> Factors:
    return tuple(factor16(t) for t in (w.b_weight, w.c_weight, w.w1, w.w2))


def forward(
    share: slice, w: Weights, factors: Factors, kept: Kept, x: Tensor, order: Order, drop: Dropping, out: Tensor
) -> None:
    """Some sequences, on one thread."""
    numbers = share.start, share.stop, _PIECE, tuple(w.numpy()), factors
    kernels.forward(x.numpy(), *numbers, kept.numpy(), *order, tuple(drop), out.numpy())


def backward(
    share: slice, w: Weights, factors: Factors, kept: Kept, order: Order, drop: Dropping, grad: Tensor, d_x: Tensor
) -> Weights:
    """The same sequences: writes the gradient of x, gives their share of the weights'."""
    numbers = share.start, share.stop, _PIECE_BACK, tuple(w.numpy()), factors
    d, sums = Weights(*(torch.zeros_like(t) for t in w)), np.zeros(w.lam.shape)
    kernels.backward(grad.numpy(), *numbers, kept.numpy(), *order, tuple(drop), d_x.numpy(), tuple(d.numpy()), sums)
    return d._replace(lam=torch.from_numpy(sums).to(w.lam.dtype))
