"""The recurrence h_k = lambda h_{k-1} + u_k, with h_0 = 0, over packed sequences. Knows numbers, not layers.

One contract, three implementations that agree in value and gradient:

    scan_steps      one step after the other: obvious, slow
    scan_recursive  the paper's recursive parallelisation: any device, log2(L) passes
    scan_packed     a compiled kernel over the packed run, backward derived by hand: CPU

Complex numbers are pairs of reals: `u` and the result are [N, 2, C] (real part, imaginary part, channel),
`lam` is [2, C]. Sequence s is rows offsets[s] to offsets[s + 1]; there is no padding anywhere.

The backward: with a_k = dL/dh_k + conj(lambda) a_{k+1}, running from the end of each sequence,
dL/du_k = a_k and dL/dlambda = sum_k a_k conj(h_{k-1}).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lrurec.config import unknown
from lrurec.nn.threads import at_once

Scan = Callable[[Tensor, Tensor, Tensor], Tensor]


def scan(u: Tensor, lam: Tensor, offsets: Tensor, implementation: str = "auto") -> Tensor:
    """The states of all sequences: [N, 2, C]."""
    if implementation == "auto":
        implementation = "packed" if u.device.type == "cpu" else "recursive"
    if implementation not in IMPLEMENTATIONS:
        raise unknown("scan implementation", implementation, IMPLEMENTATIONS)
    return IMPLEMENTATIONS[implementation](u, lam, offsets)


def times(a: Tensor, b: Tensor) -> Tensor:
    """The product of complex numbers held as pairs: [..., 2, C]."""
    real = a[..., 0, :] * b[..., 0, :] - a[..., 1, :] * b[..., 1, :]
    imaginary = a[..., 0, :] * b[..., 1, :] + a[..., 1, :] * b[..., 0, :]
    return torch.stack([real, imaginary], -2)


def scan_steps(u: Tensor, lam: Tensor, offsets: Tensor) -> Tensor:
    """One step after the other."""
    states = [u[:0]]
    for start, stop in pairwise(offsets.tolist()):
        h = torch.zeros_like(lam)
        for k in range(start, stop):
            h = times(lam, h) + u[k]
            states.append(h[None])
    return torch.cat(states)


def scan_recursive(u: Tensor, lam: Tensor, offsets: Tensor) -> Tensor:
    """The paper's recursion: in pass i, halves of length 2^i are joined, all of them at once.

    Sequences stand at the left of their rows, so what lies right of their end never reaches them.
    """
    if len(u) == 0:
        return u
    lengths = offsets.diff().to(u.device)
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=u.device), lengths)
    places = torch.arange(len(u), device=u.device) - offsets.to(u.device)[rows]
    longest = int(lengths.max())
    width = 1 << (longest - 1).bit_length()
    h = torch.complex(u[:, 0], u[:, 1])
    padded = h.new_zeros(len(lengths), width, h.shape[-1]).index_put((rows, places), h)
    powers = torch.complex(lam[0], lam[1])[None]  # lambda^1, ..., lambda^half
    half = 1
    while half < width:
        padded = padded.reshape(-1, 2 * half, h.shape[-1])
        left, right = padded[:, :half], padded[:, half:]
        padded = torch.cat([left, right + powers * left[:, -1:]], 1)
        powers = torch.cat([powers, powers * powers[-1]])
        half *= 2
    states = padded.reshape(len(lengths), width, -1)[rows, places]
    return torch.stack([states.real, states.imag], 1)


def chunks_of(offsets: NDArray[np.int64], threads: int) -> list[int]:
    """Bounds of runs of sequences with about the same number of rows each, one per thread."""
    marks = np.linspace(0, offsets[-1], threads + 1)[1:-1]
    inner = np.searchsorted(offsets[1:], marks)
    return [0, *inner.tolist(), len(offsets) - 1]


@numba.njit(nogil=True, cache=True)
def _forward(u: Any, lam: Any, offsets: Any, first: Any, last: Any, h: Any) -> None:
    """The states of sequences [first, last)."""
    channels = u.shape[2]
    for s in range(first, last):
        for k in range(offsets[s], offsets[s + 1]):
            if k == offsets[s]:
                for c in range(channels):
                    h[k, 0, c] = u[k, 0, c]
                    h[k, 1, c] = u[k, 1, c]
            else:
                for c in range(channels):
                    real, imaginary = h[k - 1, 0, c], h[k - 1, 1, c]
                    h[k, 0, c] = lam[0, c] * real - lam[1, c] * imaginary + u[k, 0, c]
                    h[k, 1, c] = lam[0, c] * imaginary + lam[1, c] * real + u[k, 1, c]


@numba.njit(nogil=True, cache=True)
def _backward(g: Any, h: Any, lam: Any, offsets: Any, first: Any, last: Any, a: Any, sums: Any) -> None:
    """a_k of sequences [first, last) into `a`, and their share of dL/dlambda into `sums` [2, C], in double precision."""
    channels = g.shape[2]
    for s in range(first, last):
        end = offsets[s + 1] - 1
        for k in range(end, offsets[s] - 1, -1):
            if k == end:
                for c in range(channels):
                    a[k, 0, c] = g[k, 0, c]
                    a[k, 1, c] = g[k, 1, c]
            else:
                for c in range(channels):
                    real, imaginary = a[k + 1, 0, c], a[k + 1, 1, c]
                    a[k, 0, c] = lam[0, c] * real + lam[1, c] * imaginary + g[k, 0, c]
                    a[k, 1, c] = lam[0, c] * imaginary - lam[1, c] * real + g[k, 1, c]
                    sums[0, c] += real * h[k, 0, c] + imaginary * h[k, 1, c]
                    sums[1, c] += imaginary * h[k, 0, c] - real * h[k, 1, c]


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, lam: Tensor, offsets: Tensor) -> Tensor:
        u, lam = u.contiguous(), lam.contiguous()
        bounds = offsets.numpy()
        h = torch.empty_like(u)
        chunks = chunks_of(bounds, torch.get_num_threads())
        arrays = u.detach().numpy(), lam.detach().numpy(), bounds
        at_once(lambda run: _forward(*arrays, *run, h.numpy()), pairwise(chunks))
        ctx.save_for_backward(h, lam, offsets)
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        h, lam, offsets = ctx.saved_tensors
        bounds = offsets.numpy()
        chunks = chunks_of(bounds, torch.get_num_threads())
        a = torch.empty_like(h)
        arrays = grad.contiguous().numpy(), h.detach().numpy(), lam.detach().numpy(), bounds

        def share(run: tuple[int, int]) -> NDArray[np.float64]:
            sums = np.zeros(lam.shape)
            _backward(*arrays, *run, a.numpy(), sums)
            return sums

        return a, torch.from_numpy(sum(at_once(share, pairwise(chunks)))).to(lam.dtype), None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def scan_packed(u: Tensor, lam: Tensor, offsets: Tensor) -> Tensor:
    """The compiled kernel: no padding, sequences shared out to threads by their rows."""
    result: Tensor = _Packed.apply(u, lam, offsets)  # type: ignore[no-untyped-call]
    return result


IMPLEMENTATIONS: dict[str, Scan] = {"steps": scan_steps, "recursive": scan_recursive, "packed": scan_packed}
