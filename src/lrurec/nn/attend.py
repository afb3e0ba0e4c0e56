"""Who sees whom in packed sequences, and the softmax of it. Knows queries, keys and values, not where they come from.

    attend(q, k, v) = concat_h(softmax(q_h k_h' / sqrt(d_h)) v_h)        within each sequence

On a CPU the loops of lrurec.kernels.attention work on the packed run, each thread on sequences of its own. Elsewhere torch's
fused attention works on groups of sequences of similar lengths (lrurec.nn.ragged); that is the obvious twin.
Neither keeps a square of scores, and neither drops attention weights.
"""

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lrurec.kernels import attention as kernels
from lrurec.nn.ragged import Spread
from lrurec.nn.threads import at_once


class Reach:
    """Every query sees the keys of its sequence; if causal, only those up to its own.

    asked   [S + 1]  the queries of sequence s are rows asked[s] to asked[s + 1], at least one
    seen    [S + 1]  its keys and values are rows seen[s] to seen[s + 1]; if causal, the same as asked
    """

    def __init__(self, asked: Tensor, seen: Tensor, device: torch.device, *, causal: bool) -> None:
        assert not causal or asked is seen
        self.asked, self.seen, self.device, self.causal = asked, seen, device, causal

    @cached_property
    def keys(self) -> Spread:
        return Spread.of(self.seen, self.device)

    @cached_property
    def queries(self) -> Spread:
        return self.keys if self.asked is self.seen else Spread.of(self.asked, self.device, self.keys.sequences)

    def shares(self, threads: int) -> list[slice]:
        """The sequences for each thread, about as many pairs of a query and a key for each."""
        if threads == 1:
            return [slice(0, len(self.asked))]
        pairs = (self.asked.diff() * self.seen.diff()).cumsum(0).numpy()
        marks = np.searchsorted(pairs, np.linspace(0, pairs[-1], threads + 1)[1:-1])
        bounds = [0, *marks.tolist(), len(pairs)]
        return [slice(a, b + 1) for a, b in pairwise(bounds) if b > a]


def attend_reference(q: Tensor, k: Tensor, v: Tensor, reach: Reach, heads: int) -> Tensor:
    """The obvious twin, on any device: q [M, d], k and v [N, d] to [M, d]."""
    found = []
    several = (reach.queries.apart(q), reach.keys.apart(k), reach.keys.apart(v), reach.keys.groups)
    for *parts, group in zip(*several, strict=True):
        a, b, c = (part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in parts)
        # Padding stands behind the items: what is causal never sees it.
        mask = None if reach.causal else group.real[:, None, None, :]
        mixed = F.scaled_dot_product_attention(a, b, c, attn_mask=mask, is_causal=reach.causal)
        found.append(mixed.transpose(1, 2).flatten(2))
    return reach.queries.together(found)


class _Attend(torch.autograd.Function):
    """Queries in one array, keys and values beside each other in another; or all three in the first."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor | None, reach: Reach, heads: int) -> Tensor:
        q = q.detach().contiguous()
        seen = q if kv is None else kv.detach().contiguous()
        width = seen.shape[1] // (3 if kv is None else 2)
        out, log_sums = q.new_empty(len(q), width), q.new_empty(len(q), heads)
        ctx.reach, ctx.heads, ctx.alone = reach, heads, kv is None
        ctx.save_for_backward(q, seen, out, log_sums)
        _on_threads(kernels.attend, reach, q, seen, width if kv is None else 0, heads, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, seen, out, log_sums = ctx.saved_tensors
        column = out.shape[1] if ctx.alone else 0
        d_q = torch.empty_like(q)
        d_kv = d_q if ctx.alone else torch.empty_like(seen)
        arrays = (out, log_sums, grad.contiguous(), d_q, d_kv)
        _on_threads(kernels.attend_backward, ctx.reach, q, seen, column, ctx.heads, *arrays)
        return d_q, None if ctx.alone else d_kv, None, None


def _on_threads(
    work: Callable[..., None], reach: Reach, q: Tensor, kv: Tensor, column: int, heads: int, *others: Tensor
) -> None:
    asked, seen, arrays = reach.asked.numpy(), reach.seen.numpy(), [t.numpy() for t in others]
    at_once(
        lambda part: work(q.numpy(), asked[part], kv.numpy(), seen[part], column, heads, reach.causal, *arrays),
        reach.shares(torch.get_num_threads()),
    )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend(q: Tensor, kv: Tensor | None, reach: Reach, heads: int) -> Tensor:
    """Queries [M, d], keys and values beside each other [N, 2d]; or without these, all three [N, 3d]. Gives [M, d]."""
    if q.device.type == "cpu" and q.dtype == torch.float32:
        mixed: Tensor = _Attend.apply(q, kv, reach, heads)  # type: ignore[no-untyped-call]
        return mixed
    q, k, v = q.chunk(3, 1) if kv is None else (q, *kv.chunk(2, 1))
    return attend_reference(q, k, v, reach, heads)
