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


_GATHERED = 4 << 20  # bytes of item vectors or scores per block of a sampled loss


def sampled_softmax_reference(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor, log_q: Tensor | None = None
) -> Tensor:
    """The obvious twin: the vectors of all negatives at once."""
    positive = (hidden * table[targets]).sum(-1, keepdim=True) + bias[targets, None]
    vectors = table[negatives].expand(len(hidden), -1, -1)  # [N, K, d]
    scores = torch.einsum("nd,nkd->nk", hidden, vectors) + bias[negatives]
    if log_q is not None:
        scores = scores - (log_q[negatives] + bias.new_tensor(negatives.shape[-1]).log())
    scores = scores.masked_fill(negatives == targets[:, None], float("-inf"))
    return F.cross_entropy(torch.cat([positive, scores], 1), torch.zeros_like(targets))


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor,
        targets: Tensor,
        negatives: Tensor,
        log_q: Tensor | None,
        gradients: bool,
    ) -> Tensor:
        hidden, table, bias = hidden.detach(), table.detach(), bias.detach()
        (count, width), shared, many = hidden.shape, negatives.ndim == 1, negatives.shape[-1]
        offset = bias if log_q is None else bias - log_q - bias.new_tensor(many).log()
        rows = max(1, _GATHERED // (many * (1 if shared else width) * hidden.element_size()))
        scale = 1.0 / max(count, 1)
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        d_hidden, d_table, d_bias = torch.empty_like(hidden), torch.zeros_like(table), torch.zeros_like(bias)
        d_shared = hidden.new_zeros(many, width) if shared else None
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            h, y, n = hidden[part], targets[part], negatives if shared else negatives[part]
            own, others = table[y], table.index_select(0, n.reshape(-1))  # [R, d], [R * K, d] or [K, d]
            if shared:
                scores = h @ others.T
            else:
                others = others.view(-1, many, width)
                scores = torch.bmm(h[:, None], others.transpose(1, 2))[:, 0]
            scores.add_(offset[n]).masked_fill_(n == y[:, None], float("-inf"))
            s = torch.cat([(h * own).sum(1, keepdim=True) + bias[y, None], scores], 1)  # the target first
            s.sub_(s.amax(1, keepdim=True))
            at_target = s[:, :1].clone()
            z = s.exp_().sum(1, keepdim=True)
            total += (z.log() - at_target).sum()
            if not gradients:
                continue
            s.mul_(scale / z)
            g, g_own = s[:, 1:], s[:, :1] - scale
            d_table.index_add_(0, y, g_own * h)
            d_bias.index_add_(0, y, g_own[:, 0])
            d_bias.index_add_(0, n.reshape(-1), g.sum(0) if shared else g.reshape(-1))
            if d_shared is not None:
                d_hidden[part] = g @ others + g_own * own
                d_shared.addmm_(g.T, h)
            else:
                d_hidden[part] = torch.bmm(g[:, None], others)[:, 0] + g_own * own
                outer = torch.mul(g[:, :, None], h[:, None], out=others)  # the vectors are no longer needed
                d_table.index_add_(0, n.reshape(-1), outer.view(-1, width))
        if gradients:
            if d_shared is not None:
                d_table.index_add_(0, negatives, d_shared)
            ctx.save_for_backward(d_hidden, d_table, d_bias)
        return total.mul_(scale).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_table, d_bias = ctx.saved_tensors
        return d_hidden * grad, d_table * grad, d_bias * grad, None, None, None, None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def sampled_softmax(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    negatives: Tensor,
    log_q: Tensor | None = None,
) -> Tensor:
    """Cross entropy of the target among K sampled negatives: [N, K] per position, or [K] shared by all.

    A negative that is the target by accident is left out. With `log_q` [V], the logarithm of the chance q to draw an
    item, each negative counts 1 / (K q) times, and the target, which is not drawn, once:

        Z = exp(s_target) + sum over negatives n != target of exp(s_n) / (K q_n)

    The expectation of Z is the sum over the whole catalogue, so the more negatives, the nearer the gradient is to that
    of the full softmax. Without `log_q` the target competes with the drawn items alone, as in the paper.
    """
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (hidden, table, bias))
    result: Tensor = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
        hidden.contiguous(), table, bias, targets, negatives, log_q, gradients
    )
    return result
