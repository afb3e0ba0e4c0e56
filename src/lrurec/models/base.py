"""The contract every model keeps. Loss, ranking and serving work from these methods alone.

A batch is packed: the items of all sequences in one run, and offsets. Item numbers are those of the dataset; the
model itself adds what else it needs (a start token, a mask).
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from lrurec.nn.dropout import Keys


@dataclass(frozen=True)
class Batch:
    """Packed sequences. `inputs` are shifted: position k holds what was seen before target k.

    inputs    [N]      item + 1, or 0 for the start of a history
    targets   [N]      item, the answer at each position
    offsets   [S + 1]  sequence s is rows offsets[s] to offsets[s + 1]
    """

    inputs: Tensor
    targets: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@runtime_checkable
class Model(Protocol):
    """What loss, ranking and evaluation need."""

    def encode(self, inputs: Tensor, offsets: Tensor, keys: Keys | None = None) -> Tensor:
        """Hidden vectors of all positions: [N, d]. With keys, dropout is on."""

    def item_table(self) -> tuple[Tensor, Tensor]:
        """(E [V, d], bias [V]): the score of item v at a position is E[v] . hidden + bias[v]."""


@runtime_checkable
class RecurrentModel(Model, Protocol):
    """A model that updates a state of fixed size per event."""

    def initial_state(self, batch: int = 1) -> Tensor:
        """The states of users before anything happened."""

    def step(self, state: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """One event per user: (state, input [B]) to (state, hidden [B, d])."""
