"""Losses over a large catalogue that never hold all scores. Knows vectors and targets, not models.

Cross entropy: for a block of positions small enough for the cache, scores, softmax and both gradients are computed
at once, in the forward pass; the backward only scales them. On a CPU each thread takes blocks of its own.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_CACHE = 2 << 20  # bytes of scores per block and thread on a CPU
_MOST = 32 << 20  # ... and where so few positions would fit that reading the table costs more than the arithmetic
_ROWS_ON_DEVICE = 2048


def cross_entropy_reference(hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The obvious twin: the whole score matrix."""
    return F.cross_entropy(hidden @ table.T + bias, targets)


def block_rows(items: int, itemsize: int = 4) -> int:
    """How many positions at a time: as many as keep their scores in the cache, or 32 if that is few, within bounds."""
    row = items * itemsize
    return max(min(256, _CACHE // row), min(32, max(4, _MOST // row)))


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lrurec-loss")


def _work(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, rows: int, gradients: bool, scale: float
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Sum of the losses of some positions, and scaled gradients of hidden, table and bias."""
    dtype = hidden.dtype
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    d_hidden = torch.empty_like(hidden) if gradients else None
    d_table = torch.zeros_like(table) if gradients else None
    d_bias = torch.zeros_like(bias) if gradients else None
    buffer = torch.empty(rows, len(table), dtype=dtype, device=hidden.device)
    for start in range(0, len(hidden), rows):
        h, y = hidden[start : start + rows], targets[start : start + rows, None]
        s = torch.addmm(bias, h, table.T, out=buffer[: len(h)])
        s.sub_(s.amax(1, keepdim=True))
        at_target = s.gather(1, y)
        s.exp_()
        z = s.sum(1, keepdim=True)
        total += (z.log() - at_target).sum()
        if d_hidden is not None and d_table is not None and d_bias is not None:
            s.mul_(scale / z)
            s.scatter_add_(1, y, s.new_full((len(h), 1), -scale))
            torch.mm(s, table, out=d_hidden[start : start + rows])
            d_table.addmm_(s.T, h)
            d_bias += s.sum(0)
    return total, d_hidden, d_table, d_bias


def _on_one_thread(*arguments: Any) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    torch.set_num_threads(1)  # of this worker alone
    with torch.no_grad():
        return _work(*arguments)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, gradients: bool) -> Tensor:
        hidden, table, bias = hidden.detach(), table.detach(), bias.detach()
        count = len(hidden)
        scale = 1.0 / max(count, 1)
        threads = torch.get_num_threads() if hidden.device.type == "cpu" else 1
        rows = (
            block_rows(len(table), hidden.element_size())
            if threads > 1 or hidden.device.type == "cpu"
            else _ROWS_ON_DEVICE
        )
        if threads == 1 or count <= rows:
            parts = [_work(hidden, table, bias, targets, rows, gradients, scale)]
        else:
            share = -(-count // (threads * rows)) * rows
            spans = [slice(k, min(k + share, count)) for k in range(0, count, share)]
            jobs = [
                _workers(threads).submit(_on_one_thread, hidden[s], table, bias, targets[s], rows, gradients, scale)
                for s in spans
            ]
            parts = [job.result() for job in jobs]
        if gradients:
            d_hidden = torch.cat([p[1] for p in parts if p[1] is not None])
            d_table = _sum([p[2] for p in parts if p[2] is not None])
            d_bias = _sum([p[3] for p in parts if p[3] is not None])
            ctx.save_for_backward(d_hidden, d_table, d_bias)
        return _sum([p[0] for p in parts]).mul_(scale).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        d_hidden, d_table, d_bias = ctx.saved_tensors
        return d_hidden * grad, d_table * grad, d_bias * grad, None, None


def _sum(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


@torch.compiler.disable  # type: ignore[untyped-decorator]
def cross_entropy(hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The mean over positions of -log softmax(table hidden + bias)[target], in cache-sized blocks."""
    # Inside a Function nobody can see whether gradients are wanted at all.
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (hidden, table, bias))
    result: Tensor = _CrossEntropy.apply(hidden.contiguous(), table, bias, targets, gradients)  # type: ignore[no-untyped-call]
    return result


def sampled_softmax(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    negatives: Tensor,
    log_q: Tensor | None = None,
) -> Tensor:
    """Cross entropy of the target among sampled negatives: [N, K] per position, or [K] shared by all.

    A negative that is the target by accident is left out. With `log_q` [V], the logarithm of the chance to draw an
    item, scores are corrected for the sampling (log-q), so that the expected gradient is that of the full softmax.
    """
    positive = (hidden * table[targets]).sum(-1, keepdim=True) + bias[targets, None]
    if negatives.ndim == 1:
        scores = hidden @ table[negatives].T + bias[negatives]
    else:
        scores = torch.einsum("nd,nkd->nk", hidden, table[negatives]) + bias[negatives]
    if log_q is not None:
        count = negatives.shape[-1]
        scores = scores - (log_q[negatives] + torch.log(torch.tensor(float(count))))
        # The target is always there: its own expected count is 1.
    scores = scores.masked_fill(negatives == targets[:, None], float("-inf"))
    both = torch.cat([positive, scores], 1)
    return (torch.logsumexp(both, 1) - positive[:, 0]).mean()
