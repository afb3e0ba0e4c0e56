"""What mixes the positions of a sequence inside a block: the contract. Knows vectors, not users."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn


class Mixer(nn.Module, ABC):
    """`forward` over whole sequences gives what `step` gives event by event, beginning with `initial_state`."""

    recurrence: ClassVar[tuple[str, ...]]  # its parameters that say what is kept of the past, and how
    state_shape: tuple[int, ...]  # of one user

    @abstractmethod
    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """All positions of packed sequences at once: [N, width] to [N, width]."""

    @abstractmethod
    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """One event for a batch of users: (state [B, ...], x [B, width]) to (state, y)."""

    def initial_state(self, batch: int = 1) -> Tensor:
        """The state before anything happened: [B, ...]."""
        return next(self.parameters()).new_zeros(batch, *self.state_shape)

    def eigenvalues(self) -> Tensor:
        """What an event multiplies the state with, as pairs: [2, K]; here, nothing is kept for longer than a step."""
        return next(self.parameters()).new_zeros(2, 0)


def recurrences(model: nn.Module) -> set[str]:
    """The names of such parameters in all mixers of a model: what training.decay_recurrence is about."""
    found = ((at, part) for at, part in model.named_modules() if isinstance(part, Mixer))
    return {f"{at}.{name}" for at, part in found for name in part.recurrence}
