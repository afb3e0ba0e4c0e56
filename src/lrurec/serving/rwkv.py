"""The engine of models whose blocks mix with RWKV: the equations of lrurec.nn.rwkv, without torch. Pure: no files, no users."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lrurec.kernels import rwkv_step
from lrurec.kernels.wkv import LOWEST
from lrurec.serving.engine import Floats, groups, length_of
from lrurec.serving.half import Table, rows_of

_ROWS = 5  # of a state: the input before, numerator, denominator, maximum; the input of the channel mixing before


@dataclass(frozen=True)
class RwkvShape:
    """The model's size, and the switches of the ablation that it has."""

    width: int
    blocks: int
    layer_norm: bool = True
    residual: bool = True
    pffn: bool = True
    mixer: str = "rwkv"
    copies: int = 1
    temperature: float = 0.0

    @property
    def state_floats(self) -> int:
        return self.copies * self.blocks * _ROWS * self.width

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every weight beside the item table, and its shape. Blocks are stacked; matrices are [in, out]."""
        n, d = self.blocks, self.width
        return {
            "start": (d,),
            "gain": (d,),
            "shift": (d,),
            "mu": (n, 3, d),
            "weight": (n, 3, d, d),
            "decay": (n, d),
            "bonus": (n, d),
            "out": (n, d, d),
            "gain1": (n, d),
            "shift1": (n, d),
            "mu2": (n, 2, d),
            "gate": (n, d, d),
            "wide": (n, d, 4 * d),
            "narrow": (n, 4 * d, d),
            "gain2": (n, d),
            "shift2": (n, d),
        }


class RwkvEngine:
    """The model's weights, laid out for stepping; `decay` is w > 0."""

    def __init__(self, shape: RwkvShape, weights: Mapping[str, Floats], table: Table) -> None:
        self.shape, self.table = shape, table
        self.w = {name: np.ascontiguousarray(weights[name], np.float32) for name in shape.tensors()}
        self._arrays = tuple(array for name, array in self.w.items() if name != "start")
        self._length = length_of(shape.temperature)
        self._switches = (shape.layer_norm, shape.residual, shape.pffn)
        self._scratch = threading.local()
        one = np.array([0, 1])
        self.start: Floats = self._run(self.initial(1), self.w["start"][None], np.zeros(1, np.int64), one, None)[0]

    def initial(self, users: int) -> Floats:
        """States before anything happened: [users, blocks, 5, width]."""
        states = np.zeros((users, self.shape.blocks, _ROWS, self.shape.width), np.float32)
        states[:, :, 3] = LOWEST
        return states

    def step(self, states: Floats, items: NDArray[np.int64], out: Floats | None = None) -> Floats:
        """One event per user: `states` is updated in place; gives the hidden vectors [B, D]."""
        return self._run(states, self.table, items, np.arange(len(items) + 1), out)

    def encode(self, items: NDArray[np.integer], offsets: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Packed histories to (states, hidden vectors) at their ends; an empty history gives those of a new user."""
        users = len(offsets) - 1
        states, hidden = self.initial(users), np.tile(self.start, (users, 1))
        for first, last in groups(offsets):
            some = items[offsets[first] : offsets[last]].astype(np.int64, copy=False)
            span = slice(first, last)
            self._run(states[span], self.table, some, offsets[first : last + 1] - offsets[first], hidden[span])
        return states, hidden

    def _run(
        self, states: Floats, table: Table, items: NDArray[np.int64], offsets: NDArray[np.int64], out: Floats | None
    ) -> Floats:
        x = np.empty((len(offsets) - 1, self.shape.width), np.float32) if out is None else out
        scratch = getattr(self._scratch, "rows", None)
        if scratch is None:  # one per thread
            scratch = self._scratch.rows = np.empty((6, 4 * self.shape.width), np.float32)
        rwkv_step.run(states, *rows_of(table, items), offsets, x, scratch, self._length, *self._switches, *self._arrays)
        return x

    def magnitudes(self, states: Floats) -> Floats:
        """What the average of a channel has come to, without its sign: [..., blocks, width]."""
        found: Floats = np.abs(states[..., 1, :] / np.maximum(states[..., 2, :], 1e-12)).astype(np.float32)
        return found

    @property
    def kept(self) -> Floats:
        """What one event leaves of the sums: [blocks, width]."""
        found: Floats = np.exp(-self.w["decay"])
        return found
