"""The way into a model in one function: items to vectors, dropped out and normalised. Knows tensors, not modules.

    out = LayerNorm(Dropout(table[inputs]))

On a CPU one pass does it all, and one takes the gradients back; elsewhere it is plain torch, which is also its obvious twin.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lrurec.kernels import entry as kernels
from lrurec.nn.dropout import Keys, dropout, limit_of
from lrurec.nn.threads import at_once, shares

_LEAST = 512  # rows that are worth a thread


def entry_reference(
    table: Tensor, inputs: Tensor, gain: Tensor, shift: Tensor, rate: float, keys: Keys | None
) -> Tensor:
    """The obvious twin."""
    x = dropout(F.embedding(inputs, table), rate, keys)
    return F.layer_norm(x, gain.shape, gain, shift)


class _Entry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, inputs: Tensor, gain: Tensor, shift: Tensor, rate: float, key: int) -> Tensor:
        key_, limit, scale = np.uint32(key), np.uint32(limit_of(rate) if rate else 0), np.float32(1.0 / (1.0 - rate))
        ctx.numbers = key_, limit, scale
        count, width = len(inputs), table.shape[1]
        if count and not (int(inputs.min()) >= 0 and int(inputs.max()) < len(table)):  # compiled loops do not look
            raise IndexError(f"items must lie between 0 and {len(table) - 1}")
        norm, spread, out = torch.empty(count, width), torch.empty(count), torch.empty(count, width)
        t, i, g, s, n, p, o = (x.detach().numpy() for x in (table, inputs, gain, shift, norm, spread, out))
        at_once(
            lambda part: kernels.enter(t, i[part], part.start, key_, limit, scale, g, s, n[part], p[part], o[part]),
            shares(count, _LEAST),
        )
        ctx.items = len(table)
        ctx.save_for_backward(inputs, gain, norm, spread)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, gain, norm, spread = ctx.saved_tensors
        (count, width), (key, limit, scale) = norm.shape, ctx.numbers
        d_rows, d_table = torch.empty_like(norm), torch.zeros(ctx.items, width)
        i, d, n, p, g, r, t = (x.numpy() for x in (inputs, grad.contiguous(), norm, spread, gain, d_rows, d_table))

        def work(part: slice) -> Any:
            sums = np.zeros((2, width), np.float32)
            numbers = part.start, key, limit, scale
            kernels.enter_backward(d[part], n[part], p[part], g, *numbers, sums[0], sums[1], r[part])
            return sums

        sums = torch.from_numpy(sum(at_once(work, shares(count, _LEAST))))
        at_once(lambda part: kernels.add_rows(r, i, part.start, part.stop, t), shares(width, 32))
        return d_table, None, sums[0], sums[1], None, None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def entry(table: Tensor, inputs: Tensor, gain: Tensor, shift: Tensor, rate: float, keys: Keys | None) -> Tensor:
    """LayerNorm(Dropout(table[inputs])), [N, width]; with keys, dropout is on."""
    if table.device.type != "cpu" or table.dtype != torch.float32:
        return entry_reference(table, inputs, gain, shift, rate, keys)
    on = keys is not None and rate > 0.0
    result: Tensor = _Entry.apply(table, inputs, gain, shift, rate if on else 0.0, keys.next() if on else 0)  # type: ignore[no-untyped-call, union-attr]
    return result
