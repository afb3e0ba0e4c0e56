"""Additive attention to everything up to each position, without a softmax. Knows vectors, not items.

    out_t = sum over j <= t of w_tj h_j,   w_tj = v . sigma(q_t + k_j)

q and k are held between -40 and 40, where a sigmoid is flat, so that no exponential overflows.

Three ways:

    additive_packed   compiled loops over the packed run, a backward derived by hand: CPU
    additive_torch    plain torch over padded groups, block by block: any device
    additive_last     the newest position of each sequence alone: plain torch, any device
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lrurec.kernels.additive import weighed, weighed_backward
from lrurec.nn.ragged import groups_of, packed_again, side_by_side
from lrurec.nn.threads import at_once

LIMIT = 40.0
_BLOCK = 1 << 26  # elements of the widest tensor in plain torch


def additive(q: Tensor, k: Tensor, v: Tensor, h: Tensor, offsets: Tensor) -> Tensor:
    """All positions of packed sequences: q and k [N, C], v [C], h [N, D] to [N, D]."""
    compiled = h.device.type == "cpu" and h.dtype == torch.float32
    result: Tensor = (additive_packed if compiled else additive_torch)(q, k, v, h, offsets)
    return result


def additive_last(q: Tensor, k: Tensor, v: Tensor, h: Tensor, offsets: Tensor) -> Tensor:
    """The newest positions alone, whose queries are q [S, C]: [S, D]."""
    lengths = offsets.diff().to(h.device)
    whose = torch.repeat_interleave(torch.arange(len(lengths), device=h.device), lengths)
    w = torch.sigmoid(_held(q)[whose] + _held(k)) @ v
    return h.new_zeros(len(lengths), h.shape[1]).index_add_(0, whose, w[:, None] * h)


def _held(x: Tensor) -> Tensor:
    return x.clamp(-LIMIT, LIMIT)


def additive_torch(q: Tensor, k: Tensor, v: Tensor, h: Tensor, offsets: Tensor) -> Tensor:
    """The obvious twin; what is as wide as pairs of positions is computed again in the backward."""
    groups, parts = groups_of(offsets, h.device), []
    for group in groups:
        q_, k_, h_ = (side_by_side(x, group) for x in (_held(q), _held(k), h))
        batch, length, channels = q_.shape
        rows = max(1, _BLOCK // (batch * length * channels))
        blocks = [
            checkpoint(_block, q_[:, t : t + rows], k_[:, : t + rows], v, h_[:, : t + rows], t, use_reentrant=False)
            for t in range(0, length, rows)
        ]
        parts.append(torch.cat(blocks, 1))
    return packed_again(parts, groups) if parts else h[:0]


def _block(q: Tensor, k: Tensor, v: Tensor, h: Tensor, first: int) -> Tensor:
    """Positions `first` and on [B, T, C] against all up to the last of them."""
    w = torch.sigmoid(q[:, :, None] + k[:, None]) @ v  # [B, T, J]
    return w.tril(first) @ h


def _chunks(offsets: Any, threads: int) -> list[tuple[int, int]]:
    """Runs of sequences with about the same number of pairs each, one per thread."""
    ends = np.cumsum(np.diff(offsets) ** 2)
    marks = np.linspace(0, ends[-1] if len(ends) else 0, threads + 1)[1:-1]
    return list(pairwise([0, *np.searchsorted(ends, marks).tolist(), len(ends)]))


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, h: Tensor, offsets: Tensor) -> Tensor:
        a, b = (torch.exp(-_held(x.detach())) for x in (q, k))
        v, h, out = v.detach().contiguous(), h.detach().contiguous(), torch.empty_like(h)
        arrays = a.numpy(), b.numpy(), v.numpy(), h.numpy(), offsets.numpy()
        chunks = _chunks(arrays[-1], torch.get_num_threads())
        at_once(lambda run: weighed(*arrays, *run, out.numpy()), chunks)
        ctx.save_for_backward(q, k, a, b, v, h, offsets)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, a, b, v, h, offsets = ctx.saved_tensors
        arrays = a.numpy(), b.numpy(), v.numpy(), h.numpy(), offsets.numpy()
        d_q, d_k, d_h = (torch.zeros_like(x) for x in (a, b, h))
        grad_ = grad.contiguous().numpy()

        def share(run: tuple[int, int]) -> Tensor:
            d_v = torch.zeros_like(v, dtype=torch.float64)  # a sum over all pairs of the batch
            weighed_backward(*arrays, *run, grad_, d_q.numpy(), d_k.numpy(), d_v.numpy(), d_h.numpy())
            return d_v

        d_v = torch.stack(at_once(share, _chunks(arrays[-1], torch.get_num_threads()))).sum(0).to(v.dtype)
        for x, d in ((q, d_q), (k, d_k)):
            d.mul_(v).masked_fill_(x.abs() > LIMIT, 0.0)
        return d_q, d_k, d_v, d_h, None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def additive_packed(q: Tensor, k: Tensor, v: Tensor, h: Tensor, offsets: Tensor) -> Tensor:
    """The compiled loops: no padding, sequences shared out to threads by their pairs."""
    result: Tensor = _Packed.apply(q, k, v, h, offsets)  # type: ignore[no-untyped-call]
    return result
