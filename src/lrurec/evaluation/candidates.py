"""The items that a target is ranked among when it is not all of them. Knows numbers, not models.

The draw is a function of (seed, number of the target) alone: every model, every block size and every order of work
meets the same items. They are distinct and never the target itself, so a rank counts each rival once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Candidates:
    """`count` items beside each target, drawn uniformly without replacement."""

    count: int
    seed: int = 0

    def beside(self, number: int, answer: int, items: int) -> NDArray[np.int64]:
        """The rivals of target `number` in a catalogue of `items`; where there are no more than `count`, all of them."""
        if self.covers(items):
            return np.delete(np.arange(items), answer)
        drawn = np.random.default_rng([self.seed, number]).choice(items - 1, self.count, replace=False, shuffle=False)
        rivals: NDArray[np.int64] = drawn + (drawn >= answer)  # over the gap that the answer leaves
        return rivals

    def covers(self, items: int) -> bool:
        """Whether a catalogue has no more rivals than would be drawn."""
        return self.count >= items - 1
