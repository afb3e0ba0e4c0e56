"""A residual and its LayerNorm in one function: what stands behind every layer of a block. Knows tensors, not modules.

    out = LayerNorm(Dropout(y) + x)

On a CPU one pass does it all, and one takes the gradients back; elsewhere it is plain torch, which is also its obvious twin.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.kernels import block as kernels
from lrurec.nn.dropout import Keys, dropout, limit_of
from lrurec.nn.threads import at_once, shares

_LEAST = 512  # rows that are worth a thread


def add_and_norm_reference(y: Tensor, x: Tensor, gain: Tensor, shift: Tensor, rate: float, keys: Keys | None) -> Tensor:
    """The obvious twin."""
    return F.layer_norm(dropout(y, rate, keys) + x, gain.shape, gain, shift)


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, gain: Tensor, shift: Tensor, rate: float, key: int) -> Tensor:
        numbers = np.uint32(key), np.uint32(limit_of(rate) if rate else 0), np.float32(1.0 / (1.0 - rate))
        norm, spread, out = torch.empty_like(x), torch.empty(len(x)), torch.empty_like(x)
        a, b, g, s = (t.detach().contiguous().numpy() for t in (y, x, gain, shift))
        n, p, o = norm.numpy(), spread.numpy(), out.numpy()

        def work(part: slice) -> None:
            start = part.start * x.shape[1]
            kernels.add_and_normalise(a[part], b[part], start, *numbers, g, s, n[part], p[part], o[part])

        at_once(work, shares(len(x), _LEAST))
        ctx.numbers = numbers
        ctx.save_for_backward(gain, norm, spread)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gain, norm, spread = ctx.saved_tensors
        d_y, d_x = torch.empty_like(norm), torch.empty_like(norm)
        width, (key, limit, scale) = norm.shape[1], ctx.numbers
        d, n, p, g, to_y, to_x = (t.numpy() for t in (grad.contiguous(), norm, spread, gain.detach(), d_y, d_x))

        def work(part: slice) -> Any:
            sums, numbers = np.zeros((3, width), np.float32), (part.start * width, key, limit, scale)
            outputs = sums[0], sums[1], to_x[part], to_y[part], sums[2]
            kernels.normalise_backward(d[part], n[part], p[part], g, *numbers, *outputs)
            return sums

        sums = torch.from_numpy(sum(at_once(work, shares(len(norm), _LEAST))))
        return d_y, d_x, sums[0], sums[1], None, None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def add_and_norm(y: Tensor, x: Tensor, norm: nn.LayerNorm, rate: float, keys: Keys | None) -> Tensor:
    """LayerNorm(Dropout(y) + x) of rows [N, width]; with keys, dropout is on."""
    gain, shift = norm.weight, norm.bias
    if x.device.type != "cpu" or x.dtype != torch.float32 or y.dtype != torch.float32 or x.ndim != 2:
        return add_and_norm_reference(y, x, gain, shift, rate, keys)
    on = keys is not None and rate > 0.0
    result: Tensor = _AddAndNorm.apply(y, x, gain, shift, rate if on else 0.0, keys.next() if on else 0)  # type: ignore[no-untyped-call, union-attr]
    return result
