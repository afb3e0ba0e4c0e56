"""Causal convolution over packed sequences, channel by channel. Knows numbers, not layers.

    y_k = sum_{j <= k} K_{k-j} x_j                       the sum begins where the sequence of row k begins

Computed with Fourier transforms over groups of similar lengths (lrurec.nn.ragged), each padded to twice its longest, so
that nothing comes around to the front again. On a CPU, threads take some sequences of a group at a time, so that they
stay in the cache. The backward is derived by hand and keeps the transforms of x:

    dL/dx_j = sum_{k >= j} K_{k-j} g_k,   dL/dK_l = sum_k g_k x_{k-l}        both are products of transforms again
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lrurec.nn.ragged import Group, groups_of
from lrurec.nn.threads import at_once

_NUMBERS = 1 << 19  # that a piece may hold on a CPU, with its padding


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def convolved_spectral(x: Tensor, kernel: Tensor, offsets: Tensor) -> Tensor:
    """x [N, d] and kernel [L, d], L at least the longest sequence, to [N, d]."""
    most = _NUMBERS // x.shape[1] if x.device.type == "cpu" else None
    pieces = [piece for group in groups_of(offsets, x.device) for piece in _pieces(group, most)]
    result: Tensor = _Convolution.apply(x, kernel, pieces)  # type: ignore[no-untyped-call]
    return result


def quick_size(least: int) -> int:
    """The smallest size from `least` on without prime factors above 5: the transform of such is quick."""
    size = least
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1


@dataclass(frozen=True)
class _Piece:
    """Some sequences side by side, each at the left of `size` places."""

    count: int
    length: int  # of the longest
    size: int
    rows: Tensor  # [M]: where in the packed run their positions are
    places: Tensor  # [M]: where in the piece, of count * size places

    def spread(self, x: Tensor) -> Tensor:
        """The transforms of its sequences: [count, size / 2 + 1, d]."""
        padded = x.new_zeros(self.count * self.size, x.shape[1])
        padded.index_copy_(0, self.places, x.index_select(0, self.rows))
        turned: Tensor = torch.fft.rfft(padded.view(self.count, self.size, -1), dim=1)
        return turned

    def gather(self, turned: Tensor, out: Tensor) -> None:
        """The sequences of such transforms, into the packed run."""
        whole = torch.fft.irfft(turned, self.size, dim=1).reshape(self.count * self.size, -1)
        out.index_copy_(0, self.rows, whole.index_select(0, self.places))

    def turned(self, kernel: Tensor) -> Tensor:
        turned: Tensor = torch.fft.rfft(kernel[: self.length], self.size, dim=0)
        return turned


def _pieces(group: Group, most: int | None) -> list[_Piece]:
    """A group in pieces of at most so many places, or whole."""
    many, length = group.rows.shape
    size = quick_size(2 * length - 1)
    each = many if most is None else max(1, most // size)
    found = []
    for k in range(0, many, each):
        rows, real = group.rows[k : k + each], group.real[k : k + each]
        which, place = torch.nonzero(real, as_tuple=True)
        found.append(_Piece(len(rows), length, size, rows[real], which * size + place))
    return found


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, pieces: list[_Piece]) -> Tensor:
        out = torch.empty_like(x)

        def work(piece: _Piece) -> Tensor:
            turned = piece.spread(x)
            piece.gather(turned * piece.turned(kernel), out)
            return turned

        ctx.pieces = pieces
        ctx.save_for_backward(kernel, *at_once(work, pieces))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        kernel, *kept = ctx.saved_tensors
        d_x, d_kernel = torch.empty_like(grad), torch.zeros_like(kernel)

        def work(part: tuple[_Piece, Tensor]) -> Tensor:
            piece, turned = part
            g = piece.spread(grad)
            piece.gather(g * piece.turned(kernel).conj(), d_x)
            share: Tensor = torch.fft.irfft((g * turned.conj()).sum(0), piece.size, dim=0)[: piece.length]
            return share

        for share in at_once(work, zip(ctx.pieces, kept, strict=True)):
            d_kernel[: len(share)] += share
        return d_x, d_kernel, None
