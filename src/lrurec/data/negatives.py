"""Negatives: the items that a sampled loss holds against the target. Knows counts, not models.

The negatives of step t are a function of (seed, t) alone, so that a run continues exactly where it stopped. They are
drawn with replacement and may hit the target; the loss leaves such hits out.
"""

import numpy as np
from numpy.typing import NDArray

_SLOTS = 1 << 24


class Negatives:
    """`count` items per position or per step: uniform, or with counts in proportion to them.

    By popularity a draw is one look into a list that holds every item as often as it counts. Items that count 0 are
    in it once; a list of more than 16 million places is scaled down to about that. `log_q` describes the list itself.
    """

    def __init__(self, items: int, count: int, seed: int, counts: NDArray[np.int64] | None = None) -> None:
        self.items, self.count, self.seed = items, count, seed
        self._slots: NDArray[np.int32] | None = None
        places = np.ones(items, np.int64)
        if counts is not None:
            share = min(1.0, _SLOTS / max(int(counts.sum()), 1))
            places = np.maximum(np.rint(counts * share).astype(np.int64), 1)
            self._slots = np.repeat(np.arange(items, dtype=np.int32), places)
        self.log_q: NDArray[np.float64] = np.log(places) - np.log(places.sum())  # [V]: the chance of each item

    def drawn(self, step: int, positions: int | None) -> NDArray[np.int64]:
        """The negatives of a step: [positions, count], or [count] shared by all positions."""
        shape = (self.count,) if positions is None else (positions, self.count)
        rng = np.random.default_rng([self.seed, step, 1])  # (seed, epoch) orders the windows; this is another stream
        if self._slots is None:
            return rng.integers(0, self.items, shape)
        return self._slots[rng.integers(0, len(self._slots), shape)].astype(np.int64)
