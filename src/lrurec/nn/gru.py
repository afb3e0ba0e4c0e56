"""A gated recurrent unit over packed sequences. Knows vectors, not items.

    r_t = sigma(W_r x_t + b_r + U_r h_{t-1} + c_r)          reset
    z_t = sigma(W_z x_t + b_z + U_z h_{t-1} + c_z)          update
    n_t = tanh(W_n x_t + b_n + r_t * (U_n h_{t-1} + c_n))   candidate
    h_t = (1 - z_t) * n_t + z_t * h_{t-1},   h_0 = 0

Two implementations that agree in value and gradient:

    gru_torch       torch's own GRU over its own kind of packed sequences: any device
    gru_packed      one product per step and compiled gates; a backward derived by hand, five times as fast: CPU

Both go through time with all sequences side by side, the longest first, so that those that are still going on are
always the first: no padding anywhere.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from lrurec.kernels import gru as kernels
from lrurec.nn.threads import at_once

_PIECE = 1024  # positions at a time between the products over many steps


class Step(NamedTuple):
    """One step of many sequences."""

    now: slice  # their places
    within: slice  # the same, counted from the first of the piece
    before: slice  # their places in the step before; empty in the first


@dataclass(frozen=True)
class Schedule:
    """Some sequences of a packed run through time: step k is places bounds[k] to bounds[k + 1].

    Sequences keep their order in every step, so the state before the i-th of a step is the i-th of the step before.
    """

    rows: NDArray[np.int64]  # [M]: which row of the run is at a place
    befores: NDArray[np.int64]  # [M]: the place of the same sequence in the step before; in the first step no place
    bounds: NDArray[np.int64]  # [steps + 1]

    @classmethod
    def of(cls, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> "Schedule":
        order = np.argsort(-lengths, kind="stable")
        starts, lengths = starts[order], lengths[order]
        going = np.searchsorted(-lengths, -np.arange(lengths[0] if len(lengths) else 0))  # sequences longer than k
        bounds = np.concatenate([[0], np.cumsum(going)])
        step = np.repeat(np.arange(len(going)), going)
        place = np.arange(len(step))
        return cls(starts[place - bounds[step]] + step, place - going[step - 1], bounds)

    @property
    def widest(self) -> int:
        """How many sequences there are in the first step, which has no states before it."""
        return int(self.bounds[:2][-1])

    def pieces(self, least: int) -> list[tuple[slice, list[Step]]]:
        """Runs of steps that together have at least so many places, and the steps of each."""
        found: list[tuple[slice, list[Step]]] = []
        start, steps = 0, list[Step]()
        for a, b in pairwise(self.bounds.tolist()):
            before = int(self.befores[a]) if a else 0
            steps.append(Step(slice(a, b), slice(a - start, b - start), slice(before, before + b - a if a else 0)))
            if b - start >= least or b == len(self.rows):
                found.append((slice(start, b), steps))
                start, steps = b, []
        return found


def _shares(offsets: NDArray[np.int64], threads: int) -> list[Schedule]:
    """Each thread's sequences: every so many of them by length, so that all have about the same to do."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    return [Schedule.of(starts[order[k::threads]], lengths[order[k::threads]]) for k in range(threads)]


class _Kept(NamedTuple):
    """What the backward needs of one thread's sequences: [M, C] each, in the order of its schedule."""

    r: Tensor
    z: Tensor
    n: Tensor
    m: Tensor  # U_n h + c_n
    h: Tensor


class _Weights(NamedTuple):
    """The three gates one below the other."""

    inner: Tensor  # W [3C, D]
    outer: Tensor  # U [3C, C]
    b: Tensor
    c: Tensor


def _weights_of(cell: Any) -> _Weights:
    return _Weights(cell.weight_ih_l0, cell.weight_hh_l0, cell.bias_ih_l0, cell.bias_hh_l0)


def _forward(schedule: Schedule, x: Tensor, w: _Weights, out: Tensor) -> _Kept:
    """Some sequences on one thread."""
    channels, rows = w.outer.shape[1], torch.from_numpy(schedule.rows)
    kept = _Kept(*(torch.empty(len(rows), channels) for _ in _Kept._fields))
    r, z, n, m, h = (t.numpy() for t in kept)
    state = np.zeros((schedule.widest, channels), np.float32)
    from_state, bias = torch.zeros(schedule.widest, 3 * channels), _by_gate(w.c)
    for piece, steps in schedule.pieces(_PIECE):
        g = _by_gate(torch.addmm(w.b, x.index_select(0, rows[piece]), w.inner.T))
        for now, within, before in steps:
            u = from_state[: now.stop - now.start]
            if now.start:
                torch.mm(kept.h[before], w.outer.T, out=u)
                state = h[before]
            kernels.gates(g[within], _by_gate(u), bias, state, r[now], z[now], n[now], m[now], h[now])
    out.index_copy_(0, rows, kept.h)
    return kept


def _backward(schedule: Schedule, x: Tensor, kept: _Kept, w: _Weights, grad: Tensor, d_x: Tensor) -> _Weights:
    """Writes the gradient of x, gives the share of the weights'. What was kept is used up."""
    share = _Weights(*(torch.zeros_like(t) for t in w))
    rows, befores = torch.from_numpy(schedule.rows), torch.from_numpy(schedule.befores)
    d = grad.index_select(0, rows)
    r, z, n, m, h = (t.numpy() for t in kept)
    d_h, channels = d.numpy(), h.shape[1]
    nothing, nowhere = np.zeros((2, schedule.widest, channels), np.float32)
    for piece, steps in reversed(schedule.pieces(_PIECE)):
        d_u = torch.empty(piece.stop - piece.start, 3 * channels)
        for now, within, before in reversed(steps):
            state, d_state = (h[before], d_h[before]) if now.start else (nothing, nowhere)
            by_gate = _by_gate(d_u[within])
            kernels.gates_backward(d_h[now], state, r[now], z[now], n[now], m[now], by_gate, d_state)
            if now.start:
                d[before].addmm_(d_u[within], w.outer)
        share.c.add_(d_u.sum(0))
        later = max(piece.start, schedule.widest)  # from here on there are states before
        share.outer.addmm_(d_u[later - piece.start :].T, kept.h.index_select(0, befores[later : piece.stop]))
        d_u[:, 2 * channels :] = kept.n[piece]  # the gradient of what came from the inputs, where it is another
        share.b.add_(d_u.sum(0))
        share.inner.addmm_(d_u.T, x.index_select(0, rows[piece]))
        d_x.index_copy_(0, rows[piece], torch.mm(d_u, w.inner))
    return share


def _by_gate(x: Tensor) -> Any:
    """[..., 3C] as an array [..., 3, C]."""
    return x.view(*x.shape[:-1], 3, -1).numpy()


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, offsets: Tensor, *weights: Tensor) -> Tensor:
        x, w = x.detach().contiguous(), _Weights(*(t.detach().contiguous() for t in weights))
        out = torch.empty(len(x), w.outer.shape[1])
        parts = _shares(offsets.numpy(), torch.get_num_threads())
        kept = at_once(lambda part: _forward(part, x, w, out), parts)
        ctx.parts = list(zip(parts, kept, strict=True))
        ctx.save_for_backward(x, *w)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        w, d_x = _Weights(*weights), torch.empty_like(x)
        shares = at_once(lambda part: _backward(part[0], x, part[1], w, grad, d_x), ctx.parts)
        del ctx.parts
        return (d_x, None, *(sum(parts[1:], start=parts[0]) for parts in zip(*shares, strict=True)))


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model calls it as it is
def gru_packed(x: Tensor, offsets: Tensor, cell: nn.GRU) -> Tensor:
    """The compiled gates over packed sequences: [N, D] to [N, C]."""
    result: Tensor = _Packed.apply(x, offsets, *_weights_of(cell))  # type: ignore[no-untyped-call]
    return result


def gru_torch(x: Tensor, offsets: Tensor, cell: nn.GRU) -> Tensor:
    """torch's own: any device, any precision."""
    if len(x) == 0:
        return x.new_zeros(0, cell.hidden_size)
    bounds = offsets.numpy()
    schedule = Schedule.of(bounds[:-1], np.diff(bounds))
    rows = torch.from_numpy(schedule.rows).to(x.device)
    h: PackedSequence = cell(PackedSequence(x.index_select(0, rows), torch.from_numpy(np.diff(schedule.bounds))))[0]
    return torch.empty_like(h.data).index_copy(0, rows, h.data)


class GRU(nn.Module):
    """One layer: all positions of packed sequences, or one step."""

    def __init__(self, width: int, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        # By way of the device that holds nothing: torch would draw from its own generator.
        self.cell = nn.GRU(width, channels, device="meta").to_empty(device="cpu")
        w = _weights_of(self.cell)
        for gate in w.inner.detach().chunk(3):
            nn.init.xavier_uniform_(gate, generator=generator)
        for gate in w.outer.detach().chunk(3):
            nn.init.orthogonal_(gate, generator=generator)  # states neither grow nor shrink at first
        for bias in (w.b, w.c):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """[N, D] to the states [N, C]."""
        compiled = x.device.type == "cpu" and x.dtype == torch.float32
        result: Tensor = (gru_packed if compiled else gru_torch)(x, offsets, self.cell)
        return result

    def step(self, state: Tensor, x: Tensor) -> Tensor:
        """(state [B, C], input [B, D]) to the next state."""
        w = _weights_of(self.cell)
        g_r, g_z, g_n = F.linear(x, w.inner, w.b).chunk(3, 1)
        u_r, u_z, u_n = F.linear(state, w.outer, w.c).chunk(3, 1)
        r, z = torch.sigmoid(g_r + u_r), torch.sigmoid(g_z + u_z)
        n = torch.tanh(g_n + r * u_n)
        return (1 - z) * n + z * state
