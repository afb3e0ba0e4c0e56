"""What a fused block is handed: its weights, its sequences, its dropout. Knows arrays, not modules."""

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from lrurec.kernels.block import openings
from lrurec.nn.dropout import Keys, limit_of


class Weights(NamedTuple):
    """What a block learns, as the recurrence uses it: gamma is already part of B and b.

    Without a feed-forward network, what belongs to it has no elements.
    """

    lam: Tensor  # [2, C]
    b_weight: Tensor
    b_bias: Tensor
    c_weight: Tensor
    c_bias: Tensor
    gain1: Tensor
    shift1: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    gain2: Tensor
    shift2: Tensor

    def numpy(self) -> Any:
        """The same fields as arrays."""
        arrays: Any = [t.numpy() for t in self]
        return Weights(*arrays)


class Order(NamedTuple):
    """Where sequences open, and with which states."""

    opens: Any  # [N + 1]
    begins: Any  # [S, 2C]

    @classmethod
    def of(cls, offsets: Tensor, begins: Tensor | None, states: int) -> "Order":
        first = np.zeros((len(offsets) - 1, states), np.float32) if begins is None else begins.contiguous().numpy()
        return cls(openings(offsets.numpy(), int(offsets[-1])), first)


class Dropping(NamedTuple):
    """Dropout behind the recurrence, inside and behind the feed-forward network."""

    mixed: Any
    inner: Any
    outer: Any
    limit: Any
    scale: Any

    @classmethod
    def of(cls, rate: float, keys: Keys | None, feeds_forward: bool = True) -> "Dropping":
        if keys is None or rate == 0.0:
            zero = np.uint32(0)
            return cls(zero, zero, zero, zero, np.float32(1.0))
        mixed = np.uint32(keys.next())
        inner, outer = (np.uint32(keys.next() if feeds_forward else 0) for _ in range(2))
        return cls(mixed, inner, outer, np.uint32(limit_of(rate)), np.float32(1.0 / (1.0 - rate)))
