"""The whole LRURec block in one function on a CPU. Knows arrays, not modules.

    z   = LayerNorm(Dropout(Re(C h) + c) + x),   h_k = Lambda h_{k-1} + B x_k + b
    out = LayerNorm(Dropout(W2 Dropout(GELU(W1 z + b1)) + b2) + z)        (z itself without a feed-forward network)

The obvious twin is `Block.forward` in plain torch (lrurec.models.lrurec), where every operation reads and writes the
whole batch. Here each thread takes whole sequences, a few hundred positions at a time, through all operations while
they are in the cache; the backward is derived by hand, and computes again what is cheaper than to keep.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrurec.kernels import block as kernels
from lrurec.nn import fused16
from lrurec.nn.dropout import Keys
from lrurec.nn.parts import Dropping, Order, Weights
from lrurec.nn.threads import at_once

_PIECE = 512  # positions at a time


class _Kept(NamedTuple):
    """What the backward needs of the forward, for all positions."""

    x: Tensor
    h: Tensor
    norm1: Tensor
    spread1: Tensor
    inner: Tensor
    norm2: Tensor
    spread2: Tensor


def _shares(offsets: Any, threads: int) -> list[slice]:
    """For each thread the rows of its sequences."""
    marks = np.linspace(0, offsets[-1], threads + 1)[1:-1]
    inner = offsets[np.searchsorted(offsets, marks)]
    return [slice(*bounds) for bounds in pairwise([0, *inner.tolist(), int(offsets[-1])])]


def _pieces(share: slice) -> list[slice]:
    """Its rows piece by piece, in order."""
    return [slice(k, min(k + _PIECE, share.stop)) for k in range(share.start, share.stop, _PIECE)]


def _forward(share: slice, w: Weights, kept: _Kept, order: Order, drop: Dropping, out: Tensor) -> None:
    """Some sequences, on one thread."""
    lam, width = w.lam.numpy(), kept.x.shape[1]
    gain1, shift1, gain2, shift2 = (t.numpy() for t in (w.gain1, w.shift1, w.gain2, w.shift2))
    inside = len(w.b1)
    for rows in _pieces(share):
        start, x = rows.start, kept.x[rows]
        torch.addmm(w.b_bias, x, w.b_weight.T, out=kept.h[rows])
        kernels.recur(kept.h.numpy(), lam, *order, start, rows.stop)
        y = torch.addmm(w.c_bias, kept.h[rows], w.c_weight.T)
        z = torch.empty_like(x)
        numbers = (start * width, drop.mixed, drop.limit, drop.scale)
        arrays = kept.norm1[rows].numpy(), kept.spread1[rows].numpy()
        kernels.add_and_normalise(y.numpy(), x.numpy(), *numbers, gain1, shift1, *arrays, z.numpy())
        if not inside:
            out[rows] = z
            continue
        a = torch.addmm(w.b1, z, w.w1.T, out=kept.inner[rows])
        g = torch.empty_like(a)
        kernels.gelu(a.numpy(), start * inside, drop.inner, drop.limit, drop.scale, g.numpy())
        y = torch.addmm(w.b2, g, w.w2.T)
        numbers = (start * width, drop.outer, drop.limit, drop.scale)
        arrays = kept.norm2[rows].numpy(), kept.spread2[rows].numpy()
        kernels.add_and_normalise(y.numpy(), z.numpy(), *numbers, gain2, shift2, *arrays, out[rows].numpy())


def _backward(
    share: slice, w: Weights, kept: _Kept, order: Order, drop: Dropping, grad: Tensor, d_x: Tensor
) -> Weights:
    """Some sequences, the last rows first, on one thread: writes the gradient of x, gives the share of the weights'."""
    d = Weights(*(torch.zeros_like(t) for t in w))
    sums = np.zeros(w.lam.shape)
    lam, width, inside = w.lam.numpy(), kept.x.shape[1], len(w.b1)
    carry = np.empty(2 * lam.shape[1], np.float32)
    for rows in reversed(_pieces(share)):
        start = rows.start
        h, a = kept.h[rows], kept.inner[rows]
        d_z, d_y = grad[rows], torch.empty_like(grad[rows])
        if inside:
            d_z = torch.empty_like(d_y)
            kernels.normalise_backward(
                grad[rows].numpy(), kept.norm2[rows].numpy(), kept.spread2[rows].numpy(), w.gain2.numpy(),
                start * width, drop.outer, drop.limit, drop.scale,
                d.gain2.numpy(), d.shift2.numpy(), d_z.numpy(), d_y.numpy(), d.b2.numpy(),
            )  # fmt: skip
            d_a, g = torch.mm(d_y, w.w2), torch.empty_like(a)
            numbers = (start * inside, drop.inner, drop.limit, drop.scale)
            kernels.gelu_backward(a.numpy(), d_a.numpy(), *numbers, g.numpy(), d.b1.numpy())
            d.w2.addmm_(d_y.T, g)
            d.w1.addmm_(d_a.T, torch.addcmul(w.shift1, kept.norm1[rows], w.gain1))
            d_z.addmm_(d_a, w.w1)
        kernels.normalise_backward(
            d_z.numpy(), kept.norm1[rows].numpy(), kept.spread1[rows].numpy(), w.gain1.numpy(),
            start * width, drop.mixed, drop.limit, drop.scale,
            d.gain1.numpy(), d.shift1.numpy(), d_x[rows].numpy(), d_y.numpy(), d.c_bias.numpy(),
        )  # fmt: skip
        d.c_weight.addmm_(d_y.T, h)
        d_h = torch.mm(d_y, w.c_weight)
        kernels.recur_backward(d_h.numpy(), kept.h.numpy(), lam, *order, start, carry, sums, d.b_bias.numpy())
        d.b_weight.addmm_(d_h.T, kept.x[rows])
        d_x[rows].addmm_(d_h, w.b_weight)
    return d._replace(lam=torch.from_numpy(sums).to(w.lam.dtype))


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, offsets: Tensor, begins: Tensor | None, drop: Dropping, half: bool, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        x, w = x.detach().contiguous(), Weights(*(t.detach().contiguous() for t in weights))
        n, width = x.shape
        bounds = offsets.numpy()
        order = Order.of(offsets, begins, len(w.b_bias))
        ctx.parts, out = _shares(bounds, torch.get_num_threads()), torch.empty_like(x)
        ctx.drop, ctx.order, ctx.half = drop, order, half and fused16.suits(w)
        if ctx.half:
            halves, factors = fused16.Kept.empty(n, w), fused16.factors_forward(w)
            at_once(lambda part: fused16.forward(part, w, factors, halves, x, order, drop, out), ctx.parts)
            ctx.save_for_backward(*halves, *w)
            return _with_ends(ctx, out, halves.h.view(torch.bfloat16), offsets, begins)
        kept = _Kept(
            x, torch.empty(n, len(w.b_bias)),
            torch.empty(n, width), torch.empty(n), torch.empty(n, len(w.b1)), torch.empty(n, width), torch.empty(n),
        )  # fmt: skip
        at_once(lambda part: _forward(part, w, kept, order, drop, out), ctx.parts)
        ctx.save_for_backward(*kept, *w)
        return _with_ends(ctx, out, kept.h, offsets, begins)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        fields = fused16.Kept if ctx.half else _Kept
        kept: Any = fields(*saved[: len(fields._fields)])
        w = Weights(*saved[len(fields._fields) :])
        grad, d_x = grad.contiguous(), torch.empty_like(grad)
        others = kept, ctx.order, ctx.drop, grad, d_x
        if ctx.half:
            factors = fused16.factors_backward(w)
            shares = at_once(lambda part: fused16.backward(part, w, factors, *others), ctx.parts)
        else:
            shares = at_once(lambda part: _backward(part, w, *others), ctx.parts)
        return (d_x, None, None, None, None, *(sum(parts[1:], start=parts[0]) for parts in zip(*shares, strict=True)))


def _with_ends(ctx: Any, out: Tensor, h: Tensor, offsets: Tensor, begins: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the block gives, and the state behind the last row of each sequence: of an empty one, that it began with."""
    ends = torch.empty(0) if begins is None else begins.clone()
    if begins is not None:
        filled = offsets.diff() > 0
        ends[filled] = h[offsets[1:][filled] - 1].float()
    ctx.mark_non_differentiable(ends)
    ctx.set_materialize_grads(False)
    return out, ends


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def fused_block(
    x: Tensor, offsets: Tensor, begins: Tensor | None, weights: Weights, rate: float, keys: Keys | None, half: bool
) -> tuple[Tensor, Tensor]:
    """The block over packed sequences [N, width]; with keys, dropout is on; with `half`, products are of bfloat16.

    Sequences begin with the states `begins` [S, 2C], to which no gradient goes, or with zeros. The states that they end
    with come second, if they began with any; with `half`, they are rounded.
    """
    drop = Dropping.of(rate, keys, len(weights.b1) > 0)
    result: tuple[Tensor, Tensor] = _Block.apply(x, offsets, begins, drop, half, *weights)  # type: ignore[no-untyped-call]
    return result
