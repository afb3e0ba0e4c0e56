"""The token shift of RWKV over packed sequences: each row mixed with the one before it. Knows numbers, not layers.

    out_m,t = mu_m x_t + (1 - mu_m) x_{t-1}              x_{t-1} is 0 where a sequence begins

One contract, two implementations that agree in value and gradient: `shift_whole` in plain torch, for any device, and
`shift_packed`, a compiled kernel that makes all mixtures in one pass, on a CPU. Its backward:

    dL/dx_t  = sum_m mu_m g_m,t + (1 - mu_m) g_m,t+1,    dL/dmu_m = sum_t g_m,t (x_t - x_{t-1})
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lrurec.kernels import shift as kernels
from lrurec.nn.scan import chunks_of
from lrurec.nn.threads import at_once


def shift(x: Tensor, mu: Tensor, offsets: Tensor) -> Tensor:
    """x [N, d] and mu [M, d] to the M mixtures: [M, N, d]."""
    result: Tensor = (shift_packed if x.device.type == "cpu" else shift_whole)(x, mu, offsets)
    return result


def shift_whole(x: Tensor, mu: Tensor, offsets: Tensor) -> Tensor:
    """The obvious twin, on any device."""
    starts = offsets[:-1][offsets.diff() > 0].to(x.device)
    before = torch.cat([x[:1], x[:-1]]).index_fill(0, starts, 0.0)
    return torch.lerp(before, x, mu[:, None])


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mu: Tensor, offsets: Tensor) -> Tensor:
        x, mu = x.detach().contiguous(), mu.detach().contiguous()
        out = x.new_empty(len(mu), *x.shape)
        arrays = x.numpy(), mu.numpy(), offsets.numpy()
        chunks = chunks_of(arrays[-1], torch.get_num_threads())
        at_once(lambda run: kernels.mix(*arrays, *run, out.numpy()), pairwise(chunks))
        ctx.save_for_backward(x, mu, offsets)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, mu, offsets = ctx.saved_tensors
        d_x = torch.empty_like(x)
        arrays = grad.contiguous().numpy(), x.numpy(), mu.numpy(), offsets.numpy()

        def share(run: tuple[int, int]) -> NDArray[np.float64]:
            sums = np.zeros(mu.shape)
            kernels.mix_backward(*arrays, *run, d_x.numpy(), sums)
            return sums

        chunks = chunks_of(arrays[-1], torch.get_num_threads())
        return d_x, torch.from_numpy(sum(at_once(share, pairwise(chunks)))).to(mu.dtype), None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def shift_packed(x: Tensor, mu: Tensor, offsets: Tensor) -> Tensor:
    """The compiled kernel: sequences shared out to threads by their rows."""
    result: Tensor = _Packed.apply(x, mu, offsets)  # type: ignore[no-untyped-call]
    return result
