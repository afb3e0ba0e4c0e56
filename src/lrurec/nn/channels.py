"""The channel mixing of RWKV. Knows vectors, not positions.

    y = sigmoid(R r) * V max(K k, 0)^2

One contract, two implementations that agree in value and gradient:

    mixed_whole    plain torch, where every operation reads and writes the whole batch: any device, any precision
    mixed_halves   with products of bfloat16, on a CPU that has them: each thread takes its rows, some at a time, through all
                   operations while they are in the cache

The backward of the second, with s = sigmoid(R r), m = max(K k, 0) and g = dL/dy:

    dL/d(Rr) = g (V m^2) s (1 - s),     dL/d(Kk) = 2 m (V^T (g s))
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lrurec.kernels import channels16 as kernels
from lrurec.kernels.dot16 import COLUMNS, has_dot16
from lrurec.nn.linear import factor16, product
from lrurec.nn.threads import at_once, shares

_PIECE, _LEAST = 128, 512  # rows at a time; that are worth a thread


def mixed(both: Tensor, r_weight: Tensor, k_weight: Tensor, v_weight: Tensor, half: bool = False) -> Tensor:
    """r and k [2, N, d] to y [N, d]."""
    if half and suits(both, k_weight):
        result: Tensor = mixed_halves(both, r_weight, k_weight, v_weight)
        return result
    return mixed_whole(both, r_weight, k_weight, v_weight, half)


def suits(both: Tensor, k_weight: Tensor) -> bool:
    """Whether the compiled way is there for these widths, on this processor."""
    there = both.device.type == "cpu" and both.dtype == torch.float32 and has_dot16()
    return there and both.shape[2] % COLUMNS == 0 and len(k_weight) % COLUMNS == 0


def mixed_whole(both: Tensor, r_weight: Tensor, k_weight: Tensor, v_weight: Tensor, half: bool = False) -> Tensor:
    """The obvious twin."""
    r, k = both
    inner: Tensor = _SquaredRelu.apply(product(k, k_weight, half))  # type: ignore[no-untyped-call]
    gate = torch.sigmoid(product(r, r_weight, half).to(both.dtype))
    return gate * product(inner, v_weight, half).to(both.dtype)


class _SquaredRelu(torch.autograd.Function):
    """max(x, 0)^2, with half the passes that torch's own two operations would make."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = F.relu(x)
        ctx.save_for_backward(kept)
        return kept * kept

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        product: Tensor = kept * grad
        return product.mul_(2.0)


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor, *weights: Tensor) -> Tensor:
        n, width, inside = both.shape[1], both.shape[2], len(weights[1])
        # A few rows more, which products may read: r, k, max(K k, 0), R r and what it opens.
        kept = [torch.empty(n + 3, many, dtype=torch.int16) for many in (width, width, inside, width, width)]
        factors = tuple(factor16(w.mT) for w in weights)
        out = both.new_empty(n, width)
        arrays, given = tuple(t.numpy() for t in kept), both.detach().contiguous().numpy()
        at_once(
            lambda part: kernels.forward(given, part.start, part.stop, _PIECE, factors, arrays, out.numpy()),
            shares(n, _LEAST),
        )
        ctx.save_for_backward(*kept, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        kept, weights = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        factors, arrays = tuple(factor16(w) for w in weights), tuple(t.numpy() for t in kept)
        grad, d_both = grad.contiguous(), grad.new_empty(2, *grad.shape)

        def work(part: slice) -> list[Tensor]:
            d = [torch.zeros_like(w) for w in weights]
            into = d_both.numpy(), tuple(t.numpy() for t in d)
            kernels.backward(grad.numpy(), part.start, part.stop, _PIECE, factors, arrays, *into)
            return d

        found = at_once(work, shares(len(grad), _LEAST))
        return d_both, *(sum(some[1:], start=some[0]) for some in zip(*found, strict=True))


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def mixed_halves(both: Tensor, r_weight: Tensor, k_weight: Tensor, v_weight: Tensor) -> Tensor:
    """The compiled kernel."""
    result: Tensor = _Halves.apply(both, r_weight, k_weight, v_weight)  # type: ignore[no-untyped-call]
    return result
