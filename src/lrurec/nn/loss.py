"""Cross entropy over a large catalogue that never holds all scores. Knows vectors and targets, not models.

Cross entropy: scores, softmax and all gradients are computed at once, in the forward pass; the backward only scales
them. On a CPU by compiled loops (lrurec.nn.tiles), elsewhere in blocks of plain torch. Positions in a row that share a
vector (a user's, say) meet the catalogue once.

With `half`, the products are taken in bfloat16 and everything is summed in float32: faster on a processor (or GPU) that
multiplies bfloat16 (results/train.md), for scores that are off by up to 0.4%. Where it can, lrurec.nn.groups16 takes them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lrurec.nn.tiles import Gradients, catalogue, log_sums, meet_targets

_SHARED = 0.9  # so many rows that differ, of all, are worth being met once each
_SCORES_ON_DEVICE = 1 << 27  # scores at a time in plain torch


def cross_entropy_reference(hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The obvious twin: the whole score matrix."""
    return F.cross_entropy(hidden @ catalogue(table, bias).T + bias, targets)


def multiplies_half(device: torch.device) -> bool:
    """Whether products of bfloat16 have instructions of their own there; else they are emulated, and slow."""
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def _in_blocks(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor | None, gradients: bool, weights: Tensor, half: bool
) -> tuple[Tensor, Gradients | None]:
    """The same in plain torch: any device, any precision."""
    losses = torch.empty(len(hidden), dtype=hidden.dtype, device=hidden.device)
    d_hidden, whole, d_bias = torch.empty_like(hidden), torch.zeros_like(table), torch.zeros_like(bias)
    table, d_table = catalogue(table, bias), catalogue(whole, bias)
    kind = torch.bfloat16 if half else hidden.dtype
    items = table.to(kind)
    rows = max(16, min(2048, _SCORES_ON_DEVICE // len(table)))
    for start in range(0, len(hidden), rows):
        span = slice(start, start + rows)
        h, w = hidden[span], weights[span, None]
        s = (h.to(kind) @ items.T).to(h.dtype).add_(bias)
        most = s.amax(1, keepdim=True)
        s.sub_(most)
        below = -most if targets is None else s.gather(1, targets[span, None])
        s.exp_()
        z = s.sum(1, keepdim=True)
        losses[span] = (z.log() - below)[:, 0]
        if gradients:
            s.mul_(w / z)
            if targets is not None:
                s.scatter_add_(1, targets[span, None], -w)
            d_hidden[span] = s.to(kind) @ items
            d_table += s.to(kind).T @ h.to(kind)
            d_bias += s.sum(0)
    return losses, (d_hidden, whole, d_bias) if gradients else None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, gradients: bool, half: bool
    ) -> Tensor:
        hidden, table, bias = hidden.detach(), table.detach(), bias.detach()
        compiled = hidden.device.type == "cpu" and hidden.dtype == torch.float32 and len(hidden) > 0
        work = log_sums if compiled else _in_blocks
        firsts = _firsts(hidden)
        each = hidden.new_full((len(hidden),), 1.0 / max(len(hidden), 1))
        if len(firsts) > _SHARED * len(hidden):
            losses, found = work(hidden, table, bias, targets, gradients, each, half)
        else:
            counts = torch.diff(firsts, append=firsts.new_tensor([len(hidden)]))
            weights = (counts / len(hidden)).to(hidden.dtype)
            logs, found = work(hidden[firsts], table, bias, None, gradients, weights, half)
            losses = logs.repeat_interleave(counts)
            if found is not None:
                found = ((found[0] / counts[:, None]).repeat_interleave(counts, 0), *found[1:])
            meet_targets(hidden, table, bias, targets, each, losses, found)
        if found is not None:
            ctx.save_for_backward(*found)
        return losses.mean(dtype=torch.float64).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        return (*scaled(ctx.saved_tensors, grad), None, None, None)


def _firsts(hidden: Tensor) -> Tensor:
    """The rows that differ from the row before them."""
    new = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
    new[1:] = hidden[1:, 0] != hidden[:-1, 0]
    if int(new.sum()) <= _SHARED * len(hidden):  # most models are known from one column
        new[1:] |= (hidden[1:] != hidden[:-1]).any(1)
    return torch.nonzero(new)[:, 0]


def scaled(gradients: tuple[Tensor, Tensor, Tensor], grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden, table and bias, times what comes from above."""
    if grad.device.type == "cpu" and float(grad) == 1.0:  # the common case: no pass over the table
        return gradients
    d_hidden, d_table, d_bias = gradients
    return d_hidden * grad, d_table * grad, d_bias * grad


@torch.compiler.disable  # type: ignore[untyped-decorator]
def cross_entropy(hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, half: bool = False) -> Tensor:
    """The mean over positions of -log softmax(items hidden + bias)[target], in cache-sized tiles.

    The items are the last rows of the table, one per bias.
    """
    # Inside a Function nobody can see whether gradients are wanted at all.
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (hidden, table, bias))
    result: Tensor = _CrossEntropy.apply(hidden.contiguous(), table, bias, targets, gradients, half)  # type: ignore[no-untyped-call]
    return result
