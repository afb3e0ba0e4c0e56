"""Dropout whose mask is a function of a key. Knows tensors, not layers.

torch draws its random numbers on one thread and keeps a hidden state. Here the mask of element i is a hash of
(key, i): any thread can compute it, the backward computes it again instead of keeping it, and a run that is
stopped and resumed sees the same masks.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from lrurec.nn.threads import at_once, shares

_LEAST = 1 << 15  # elements that are worth a thread


@numba.njit(nogil=True, cache=True)
def _masked(x: Any, start: Any, key: Any, limit: Any, scale: Any, out: Any) -> None:
    """out = x * scale where hash(key, start + i) >= limit, else 0."""
    zero = x.dtype.type(0)
    for i in range(len(x)):
        # The 32-bit finaliser of MurmurHash3 with better constants. numba widens every product to 64 bits,
        # so each line cuts back to 32.
        z = np.uint32(np.uint32(start + i) + key)
        z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D))
        z = np.uint32((z ^ (z >> np.uint32(15))) * np.uint32(0x846CA68B))
        z = np.uint32(z ^ (z >> np.uint32(16)))
        out[i] = x[i] * scale if z >= limit else zero


def hashes(count: int, key: int, device: torch.device) -> Tensor:
    """The hash of (key, i) for i below `count`, on any device: [count], each from 0 to 2^32 - 1."""
    word = 0xFFFFFFFF
    z = (torch.arange(count, device=device, dtype=torch.int64) + key) & word
    z = ((z ^ (z >> 16)) * 0x7FEB352D) & word
    z = ((z ^ (z >> 15)) * 0x846CA68B) & word
    return z ^ (z >> 16)


def mask_reference(count: int, rate: float, key: int, device: torch.device) -> Tensor:
    """The obvious twin: which of `count` elements stay."""
    return hashes(count, key, device) >= limit_of(rate)


def limit_of(rate: float) -> int:
    """An element stays if its hash is not below this."""
    return min(int(rate * 2.0**32), 2**32 - 1)


def _apply(x: Tensor, rate: float, key: int) -> Tensor:
    scale = 1.0 / (1.0 - rate)
    if x.device.type != "cpu":
        return x * mask_reference(x.numel(), rate, key, x.device).view_as(x) * scale
    flat = x.detach().contiguous()
    out = torch.empty_like(flat)
    before, after = flat.view(-1).numpy(), out.view(-1).numpy()
    key_, limit, factor = np.uint32(key), np.uint32(limit_of(rate)), before.dtype.type(scale)
    at_once(
        lambda part: _masked(before[part], part.start, key_, limit, factor, after[part]), shares(len(before), _LEAST)
    )
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, key: int) -> Tensor:
        ctx.rate, ctx.key = rate, key
        return _apply(x, rate, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _apply(grad, ctx.rate, ctx.key), None, None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def dropout(x: Tensor, rate: float, keys: "Keys | None") -> Tensor:
    """x with a share `rate` of its elements set to 0 and the rest scaled up; without keys, x itself."""
    if keys is None or rate == 0.0:
        return x
    result: Tensor = _Dropout.apply(x, rate, keys.next())  # type: ignore[no-untyped-call]
    return result


class Keys:
    """A stream of 32-bit keys from a seed: the n-th key of a step is always the same."""

    def __init__(self, seed: int) -> None:
        self._state = seed % (1 << 64)

    def next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) % (1 << 64)
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % (1 << 64)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % (1 << 64)
        return (z ^ (z >> 31)) >> 32
