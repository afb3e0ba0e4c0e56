"""Cross entropy against sampled negatives, for large catalogues. Knows vectors and numbers of items, not how they are drawn.

Scores and gradients are computed at once, in blocks of positions, as in lrurec.nn.loss; on a CPU, for negatives that all
positions share, by its loops.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lrurec.kernels.softmax import at_targets, take_from_targets
from lrurec.nn.loss import scaled
from lrurec.nn.tiles import Gradients, catalogue, log_sums

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
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    negatives: Tensor,
    log_q: Tensor | None,
    gradients: bool,
) -> tuple[Tensor, Gradients | None]:
    """Shared negatives by the compiled loops of the full loss, over the drawn items alone.

    The sum over all of them is right but for the target: Z = sum + (1 - hits e^d) exp(s_target), where the negatives hit
    it so often, each time with a score that is d higher.
    """
    whole, whole_bias = torch.zeros_like(table), torch.zeros_like(bias)
    items, d_items = catalogue(table, bias), catalogue(whole, bias)
    shift = torch.zeros_like(bias) if log_q is None else -log_q - bias.new_tensor(len(negatives)).log()
    own = torch.empty(len(hidden))
    at_targets(hidden.numpy(), items.numpy(), bias.numpy(), targets.numpy(), own.numpy())
    hits = torch.bincount(negatives, minlength=len(bias))[targets]
    once = 1.0 - hits * shift[targets].exp()
    each = hidden.new_full((len(hidden),), 1.0 / len(hidden))
    offset = (bias + shift)[negatives]
    logs, found = log_sums(hidden, items[negatives], offset, None, gradients, each, beside=(own, once))
    loss = (logs - own).mean(dtype=torch.float64).to(hidden.dtype)
    if found is None:
        return loss, None
    d_hidden, d_drawn, d_offset = found
    d_items.index_add_(0, negatives, d_drawn)
    whole_bias.index_add_(0, negatives, d_offset)
    away = each * (1.0 - once * (own - logs).exp())
    arrays = (t.numpy() for t in (d_hidden, d_items, whole_bias))
    take_from_targets(hidden.numpy(), items.numpy(), targets.numpy(), away.numpy(), *arrays)
    return loss, (d_hidden, whole, whole_bias)


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
        if negatives.ndim == 1 and len(hidden) and hidden.device.type == "cpu" and hidden.dtype == torch.float32:
            loss, found = _compiled(hidden, table, bias, targets, negatives, log_q, gradients)
            if found is not None:
                ctx.save_for_backward(*found)
            return loss
        (count, width), shared, many = hidden.shape, negatives.ndim == 1, negatives.shape[-1]
        offset = bias if log_q is None else bias - log_q - bias.new_tensor(many).log()
        rows = max(1, _GATHERED // (many * (1 if shared else width) * hidden.element_size()))
        scale = 1.0 / max(count, 1)
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        d_hidden, whole, d_bias = torch.empty_like(hidden), torch.zeros_like(table), torch.zeros_like(bias)
        table, d_table = catalogue(table, bias), catalogue(whole, bias)
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
            ctx.save_for_backward(d_hidden, whole, d_bias)
        return total.mul_(scale).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*scaled(ctx.saved_tensors, grad), None, None, None, None)


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
