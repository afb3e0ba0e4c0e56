"""(state, item) to (state, hidden): the trained model without torch. Pure: no files, no users.

One event costs one step of all blocks, whatever came before it; a whole history is encoded at once, in large products,
to rebuild states. The equations are those of lrurec.models.lrurec.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrurec.kernels import block, step
from lrurec.serving.half import Table, rows_of

Floats = NDArray[np.float32]
_ROWS = 2048  # positions encoded together
_NONE = np.uint32(0)  # no dropout: every hash is kept


@dataclass(frozen=True)
class Shape:
    """The model's size, and the switches of the paper's ablation."""

    width: int
    channels: int
    blocks: int
    layer_norm: bool = True
    residual: bool = True
    pffn: bool = True
    outer_gelu: bool = False

    mixer: str = "lru"
    copies: int = 1  # models side by side (lrurec.serving.copies); all else is of one of them
    temperature: float = 0.0

    @property
    def state_floats(self) -> int:
        """How many numbers the state of a user has."""
        return self.copies * self.blocks * 2 * self.channels

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every weight the engine needs beside the item table, and its shape. Blocks are stacked; matrices are [in, out].

        lam is the eigenvalues (real, imaginary parts); b includes gamma.
        """
        n, d, c, inside = self.blocks, self.width, 2 * self.channels, 4 * self.width
        return {
            "start": (d,),
            "gain": (d,),
            "shift": (d,),
            "lam": (n, 2, self.channels),
            "b": (n, d, c),
            "b_bias": (n, c),
            "c": (n, c, d),
            "c_bias": (n, d),
            "gain1": (n, d),
            "shift1": (n, d),
            "w1": (n, d, inside),
            "b1": (n, inside),
            "w2": (n, inside, d),
            "b2": (n, d),
            "gain2": (n, d),
            "shift2": (n, d),
        }


def length_of(temperature: float) -> np.float32:
    """Of vectors whose products with those of items are cosines over a temperature; 0: any.

    >>> float(length_of(0.5)), float(length_of(0.0))
    (2.0, 0.0)
    """
    return np.float32(1.0 / temperature if temperature else 0.0)


class Engine:
    """The model's weights, laid out for stepping."""

    def __init__(self, shape: Shape, weights: Mapping[str, Floats], table: Table) -> None:
        self.shape, self.table = shape, table
        self.w = {name: np.ascontiguousarray(weights[name], np.float32) for name in shape.tensors()}
        w = self.w
        blocks = ("lam", "b", "b_bias", "c", "c_bias", "gain1", "shift1", "w1", "b1", "w2", "b2", "gain2", "shift2")
        self._arrays = (w["gain"], w["shift"], *(w[name] for name in blocks))
        self._length = length_of(shape.temperature)
        self._switches = (shape.layer_norm, shape.residual, shape.pffn, shape.outer_gelu)
        self._scratch = threading.local()
        # What comes out for somebody without history.
        self.start: Floats = self._advance(self.initial(1), w["start"][None], np.zeros(1, np.int64), None)[0]

    def initial(self, users: int) -> Floats:
        """States before anything happened: [users, blocks, 2, channels]."""
        return np.zeros((users, self.shape.blocks, 2, self.shape.channels), np.float32)

    def step(self, states: Floats, items: NDArray[np.int64], out: Floats | None = None) -> Floats:
        """One event per user: `states` [B, blocks, 2, C] is updated in place; gives the hidden vectors [B, D].

        With `out` to write them to, nothing is allocated.
        """
        return self._advance(states, self.table, items, out)

    def _advance(self, states: Floats, table: Table, items: NDArray[np.int64], out: Floats | None) -> Floats:
        x = np.empty((len(items), self.shape.width), np.float32) if out is None else out
        scratch = getattr(self._scratch, "rows", None)
        if scratch is None:  # one per thread
            inside = max(self.w["b1"].shape[1], self.w["b_bias"].shape[1])
            scratch = self._scratch.rows = np.empty((2, inside), np.float32)
        flat = states.reshape(len(states), self.shape.blocks, 2 * self.shape.channels)
        step.advance(flat, *rows_of(table, items), x, scratch, self._length, *self._switches, *self._arrays)
        return x

    def encode(self, items: NDArray[np.integer], offsets: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Packed histories to (states, hidden vectors) at their ends; an empty history gives those of a new user."""
        users = len(offsets) - 1
        states, hidden = self.initial(users), np.tile(self.start, (users, 1))
        for first, last in groups(offsets):
            lengths = np.diff(offsets[first : last + 1])
            full = np.flatnonzero(lengths) + first
            if len(full):
                rows = items[offsets[first] : offsets[last]]
                ends = np.cumsum(lengths)[full - first]
                states[full], hidden[full] = self._encode(rows, np.concatenate([[0], ends]))
        return states, hidden

    def _encode(self, items: NDArray[np.integer], offsets: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """The same for histories that are not empty, in one run."""
        s, w = self.shape, self.w
        x = self._normalised(self.table[items], w["gain"], w["shift"])
        opens, nothing = block.openings(offsets, len(x)), np.zeros((len(offsets) - 1, 2 * s.channels), np.float32)
        ends = offsets[1:] - 1
        states = np.empty((len(ends), s.blocks, 2, s.channels), np.float32)
        for k in range(s.blocks):
            h = x @ w["b"][k] + w["b_bias"][k]
            block.recur(h, w["lam"][k], opens, nothing, 0, len(h))
            states[:, k] = h[ends].reshape(-1, 2, s.channels)
            if k == s.blocks - 1:  # behind the last recurrence, only the ends matter
                h, x = h[ends], x[ends]
            y = h @ w["c"][k] + w["c_bias"][k]
            x = self._normalised(y + x if s.residual else y, w["gain1"][k], w["shift1"][k])
            if s.pffn:
                y = _gelu(x @ w["w1"][k] + w["b1"][k]) @ w["w2"][k] + w["b2"][k]
                y = _gelu(y) if s.outer_gelu else y
                x = self._normalised(y + x if s.residual else y, w["gain2"][k], w["shift2"][k])
        step.all_at_length(x, self._length)
        return states, x

    def magnitudes(self, states: Floats) -> Floats:
        """|h| per block and channel: [..., blocks, channels]."""
        found: Floats = np.hypot(states[..., 0, :], states[..., 1, :])
        return found

    @property
    def kept(self) -> Floats:
        """|lambda|: what one event leaves of a state, [blocks, channels]."""
        found: Floats = np.hypot(self.w["lam"][:, 0], self.w["lam"][:, 1])
        return found

    def _normalised(self, x: Floats, gain: Floats, shift: Floats) -> Floats:
        if not self.shape.layer_norm:
            return x
        out, spread = np.empty_like(x), np.empty(len(x), np.float32)
        nothing = np.zeros_like(x)
        block.add_and_normalise(nothing, x, 0, _NONE, _NONE, np.float32(1), gain, shift, np.empty_like(x), spread, out)
        return out


def _gelu(a: Floats) -> Floats:
    step.gelu(a)
    return a


def groups(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Runs of histories of about _ROWS events."""
    first, count = 0, len(offsets) - 1
    while first < count:
        last = int(np.searchsorted(offsets, offsets[first] + _ROWS, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def check_tensors(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Any]) -> list[str]:
    """What is wrong with the weights, if anything: names that are missing or have another shape."""
    return [
        name
        for name, shape in wanted.items()
        if name not in found or tuple(found[name].shape) != shape or found[name].dtype != np.float32
    ]
