"""Cross entropy against sampled negatives, for large catalogues. Knows vectors and numbers of items, not how they are drawn.

Scores and gradients are computed at once, in blocks of positions, as in lrurec.nn.loss; on a CPU, for negatives that all
positions share, by its loops, but for the few positions whose target is among them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lrurec.kernels.softmax import at_targets, take_from_targets
from lrurec.nn.loss import scaled
from lrurec.nn.tiles import catalogue, log_sums

_GATHERED = 4 << 20  # bytes of item vectors or scores per block of a sampled loss


def sampled_softmax_reference(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor, log_q: Tensor | None = None
) -> Tensor:
    """The obvious twin: the vectors of all negatives at once."""
    table = catalogue(table, bias)
    positive = (hidden * table[targets]).sum(-1, keepdim=True) + bias[targets, None]
    vectors = table[negatives].expand(len(hidden), -1, -1)  # [N, K, d]
    scores = torch.einsum("nd,nkd->nk", hidden, vectors) + bias[negatives]
    if log_q is not None:
        scores = scores - (log_q[negatives] + bias.new_tensor(negatives.shape[-1]).log())
    scores = scores.masked_fill(negatives == targets[:, None], float("-inf"))
    return F.cross_entropy(torch.cat([positive, scores], 1), torch.zeros_like(targets))


def _compiled(
    hidden: Tensor, items: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor, shift: Tensor, weights: Tensor,
    d_items: Tensor, d_bias: Tensor, gradients: bool, half: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Losses and gradients of positions whose targets are not among the shared negatives, by the loops of the full loss."""
    own = torch.empty(len(hidden))
    at_targets(hidden.numpy(), items.numpy(), bias.numpy(), targets.numpy(), own.numpy())
    offset = (bias + shift)[negatives]
    logs, found = log_sums(hidden, items[negatives], offset, None, gradients, weights, half, beside=own)
    if found is None:
        return logs - own, hidden
    d_hidden, d_drawn, d_offset = found
    d_items.index_add_(0, negatives, d_drawn)
    d_bias.index_add_(0, negatives, d_offset)
    away = weights * (1.0 - (own - logs).exp())
    arrays = (t.numpy() for t in (d_hidden, d_items, d_bias))
    take_from_targets(hidden.numpy(), items.numpy(), targets.numpy(), away.numpy(), *arrays)
    return logs - own, d_hidden


def _in_blocks(
    hidden: Tensor, items: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor, shift: Tensor, weights: Tensor,
    d_items: Tensor, d_bias: Tensor, gradients: bool, half: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same in plain torch: any device, any precision, any negatives; hits of a target are left out."""
    kind = torch.bfloat16 if half else hidden.dtype
    (count, width), shared, many = hidden.shape, negatives.ndim == 1, negatives.shape[-1]
    offset = bias + shift
    rows = max(1, _GATHERED // (many * (1 if shared else width) * hidden.element_size()))
    losses, d_hidden = hidden.new_empty(count), torch.empty_like(hidden)
    d_shared = hidden.new_zeros(many, width) if shared else None
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        h, y, n = hidden[part], targets[part], negatives if shared else negatives[part]
        own, others = items[y], items.index_select(0, n.reshape(-1))  # [R, d], [R * K, d] or [K, d]
        if shared:
            scores = (h.to(kind) @ others.to(kind).T).to(h.dtype)
        else:
            others = others.view(-1, many, width)
            scores = torch.bmm(h[:, None], others.transpose(1, 2))[:, 0]
        scores.add_(offset[n]).masked_fill_(n == y[:, None], float("-inf"))
        s = torch.cat([(h * own).sum(1, keepdim=True) + bias[y, None], scores], 1)  # the target first
        s.sub_(s.amax(1, keepdim=True))
        at_target = s[:, 0].clone()
        z = s.exp_().sum(1, keepdim=True)
        losses[part] = z[:, 0].log() - at_target
        if not gradients:
            continue
        w = weights[part, None]
        s.mul_(w / z)
        g, g_own = s[:, 1:], s[:, :1] - w
        d_items.index_add_(0, y, g_own * h)
        d_bias.index_add_(0, y, g_own[:, 0])
        d_bias.index_add_(0, n.reshape(-1), g.sum(0) if shared else g.reshape(-1))
        if d_shared is not None:
            rounded = g.to(kind)
            d_hidden[part] = rounded @ others.to(kind) + g_own * own
            d_shared += rounded.T @ h.to(kind)
        else:
            d_hidden[part] = torch.bmm(g[:, None], others)[:, 0] + g_own * own
            outer = torch.mul(g[:, :, None], h[:, None], out=others)  # the vectors are no longer needed
            d_items.index_add_(0, n.reshape(-1), outer.view(-1, width))
    if gradients and d_shared is not None:
        d_items.index_add_(0, negatives, d_shared)
    return losses, d_hidden


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor, log_q: Tensor | None,
        gradients: bool, half: bool,
    ) -> Tensor:  # fmt: skip
        hidden, table, bias = hidden.detach(), table.detach(), bias.detach()
        items, whole, d_bias = catalogue(table, bias), torch.zeros_like(table), torch.zeros_like(bias)
        shift = torch.zeros_like(bias)  # of the score of a negative, beside its bias
        if log_q is not None:
            shift = shift - log_q - bias.new_tensor(negatives.shape[-1]).log()
        weights = hidden.new_full((len(hidden),), 1.0 / max(len(hidden), 1))
        losses, d_hidden = torch.empty_like(weights), torch.empty_like(hidden)
        hit = torch.ones_like(targets, dtype=torch.bool)
        if negatives.ndim == 1 and hidden.device.type == "cpu" and hidden.dtype == torch.float32:
            hit = torch.bincount(negatives, minlength=len(bias))[targets] > 0
        for rows, work in ((hit, _in_blocks), (~hit, _compiled)):
            mine = rows.nonzero()[:, 0]
            if len(mine):
                given = hidden[mine], items, bias, targets[mine], negatives if negatives.ndim == 1 else negatives[mine]
                sums = catalogue(whole, bias), d_bias
                losses[mine], d_hidden[mine] = work(*given, shift, weights[mine], *sums, gradients, half)
        if gradients:
            ctx.save_for_backward(d_hidden, whole, d_bias)
        return losses.mean(dtype=torch.float64).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*scaled(ctx.saved_tensors, grad), None, None, None, None, None)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def sampled_softmax(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    negatives: Tensor,
    log_q: Tensor | None = None,
    half: bool = False,
) -> Tensor:
    """Cross entropy of the target among K sampled negatives: [N, K] per position, or [K] shared by all.

    A negative that is the target by accident is left out. With `log_q` [V], the logarithm of the chance q to draw an
    item, each negative counts 1 / (K q) times, and the target, which is not drawn, once:

        Z = exp(s_target) + sum over negatives n != target of exp(s_n) / (K q_n)

    The expectation of Z is the sum over the whole catalogue, so the more negatives, the nearer the gradient is to that
    of the full softmax. Without `log_q` the target competes with the drawn items alone, as in the paper.

    With `half`, the products with shared negatives are taken in bfloat16, as in lrurec.nn.loss.
    """
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (hidden, table, bias))
    result: Tensor = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
        hidden.contiguous(), table, bias, targets, negatives, log_q, gradients, half
    )
    return result
