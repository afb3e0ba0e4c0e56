"""The weighted average at the heart of RWKV, over packed sequences and for one event. Knows numbers, not layers.

           sum_{i<t} exp(-(t-1-i) w + k_i) v_i + exp(u + k_t) v_t
    y_t = --------------------------------------------------------        a decay w > 0 and a bonus u per channel
           sum_{i<t} exp(-(t-1-i) w + k_i)     + exp(u + k_t)

Numerator a_t and denominator b_t of what came before are a recurrence: a_{t+1} = exp(-w) a_t + exp(k_t) v_t. Both are kept
relative to a running maximum p of the exponents, so that no exponential is above 1.

One contract, two implementations that agree in value and gradient:

    wkv_steps    one step after the other, all sequences side by side: any device
    wkv_packed   a compiled kernel over the packed run, backward derived by hand: CPU

The backward: with D_t the denominator of y_t and n_t = dL/dy_t / D_t, running from the end of each sequence,

    alpha_t = n_t + exp(-w) alpha_{t+1},   beta_t = -n_t y_t + exp(-w) beta_{t+1}           (dL/da_t and dL/db_t)
    dL/dv_t = n_t exp(u + k_t) + exp(k_t) alpha_{t+1}
    dL/dk_t = n_t exp(u + k_t) (v_t - y_t) + exp(k_t) (alpha_{t+1} v_t + beta_{t+1})
    dL/dw   = -sum_t exp(-w) (a_t alpha_{t+1} + b_t beta_{t+1}),   dL/du = sum_t n_t exp(u + k_t) (v_t - y_t)

alpha and beta are relative to a maximum of their own, and every product of both sides has an exponent of 0 at most.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lrurec.config import unknown
from lrurec.kernels import wkv as kernels
from lrurec.nn.scan import chunks_of
from lrurec.nn.threads import at_once

Sums = tuple[Tensor, Tensor, Tensor]  # numerator, denominator, maximum


def wkv(k: Tensor, v: Tensor, w: Tensor, u: Tensor, offsets: Tensor, implementation: str = "auto") -> Tensor:
    """k and v [N, d], w and u [d] to y [N, d]."""
    if implementation == "auto":
        implementation = "packed" if k.device.type == "cpu" else "steps"
    if implementation not in IMPLEMENTATIONS:
        raise unknown("wkv implementation", implementation, IMPLEMENTATIONS)
    result: Tensor = IMPLEMENTATIONS[implementation](k, v, w, u, offsets)
    return result


def nothing(like: Tensor) -> Sums:
    """The sums before anything happened."""
    return torch.zeros_like(like), torch.zeros_like(like), torch.full_like(like, kernels.LOWEST)


def wkv_step(sums: Sums, k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> tuple[Sums, Tensor]:
    """One event: the new sums, and y. The maxima cancel out, so no gradient runs through them."""
    a, b, p = sums
    top = torch.maximum(p, u + k).detach()
    old, new = torch.exp(p - top), torch.exp(u + k - top)
    y = (old * a + new * v) / (old * b + new)
    top = torch.maximum(p - w, k).detach()
    old, new = torch.exp(p - w - top), torch.exp(k - top)
    return (old * a + new * v, old * b + new, top), y


def wkv_steps(k: Tensor, v: Tensor, w: Tensor, u: Tensor, offsets: Tensor) -> Tensor:
    """One step after the other: the longest sequences stand first, so those that go on are always at the front."""
    if len(k) == 0:
        return v
    lengths, order = torch.sort(offsets.diff(), descending=True, stable=True)
    many = (lengths > torch.arange(int(lengths[0]))[:, None]).sum(1).tolist()  # of sequences that have a step t
    rows = torch.cat([offsets[order[:n]] + t for t, n in enumerate(many)]).to(k.device)
    sums, found = nothing(k[: many[0]]), []
    for key, value in zip(torch.split(k[rows], many), torch.split(v[rows], many), strict=True):
        a, b, p = (part[: len(key)] for part in sums)
        sums, y = wkv_step((a, b, p), key, value, w, u)
        found.append(y)
    return torch.cat(found)[torch.argsort(rows)]


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, w: Tensor, u: Tensor, offsets: Tensor) -> Tensor:
        k, v, w, u = (t.detach().contiguous() for t in (k, v, w, u))
        y, kept = torch.empty_like(k), k.new_empty(3, *k.shape)
        arrays = k.numpy(), v.numpy(), w.numpy(), u.numpy(), offsets.numpy()
        chunks = chunks_of(arrays[-1], torch.get_num_threads())
        at_once(lambda run: kernels.forward(*arrays, *run, y.numpy(), kept.numpy()), pairwise(chunks))
        ctx.save_for_backward(k, v, w, u, offsets, kept)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        k, v, w, u, offsets, kept = ctx.saved_tensors
        d_k, d_v = torch.empty_like(k), torch.empty_like(v)
        arrays = grad.contiguous().numpy(), k.numpy(), v.numpy(), w.numpy(), u.numpy(), offsets.numpy()

        def share(run: tuple[int, int]) -> NDArray[np.float64]:
            sums = np.zeros((2, len(w)))
            kernels.backward(*arrays, *run, kept.numpy(), d_k.numpy(), d_v.numpy(), sums)
            return sums

        chunks = chunks_of(arrays[-1], torch.get_num_threads())
        d_w, d_u = torch.from_numpy(sum(at_once(share, pairwise(chunks)))).to(w.dtype)
        return d_k, d_v, d_w, d_u, None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def wkv_packed(k: Tensor, v: Tensor, w: Tensor, u: Tensor, offsets: Tensor) -> Tensor:
    """The compiled kernel: no padding, sequences shared out to threads by their rows."""
    result: Tensor = _Packed.apply(k, v, w, u, offsets)  # type: ignore[no-untyped-call]
    return result


IMPLEMENTATIONS: dict[str, Any] = {"steps": wkv_steps, "packed": wkv_packed}
