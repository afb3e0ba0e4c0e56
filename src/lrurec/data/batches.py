"""Training sequences as packed batches: windows, packing, sampling that can be resumed. Knows positions, not models.

A window is a run of at most `max_length` targets of one user. Histories are cut from the end, so that the newest
windows are full, and every target is kept. Each target is predicted from the item before it; the first item of a
history is predicted from the start token, a sequence of its own (the start carries nothing into what follows).

The batches of an epoch are a permutation drawn from (seed, epoch): step t is always the same batch, whatever
happened before, so a run continues exactly where it stopped.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrurec.arrays import spans
from lrurec.data.split import Gaps, Sequences
from lrurec.errors import NothingLeftError

START = 0  # the input before the first item; item i is input i + 1


@dataclass(frozen=True)
class PackedArrays:
    """inputs [N] (item + 1, or START), offsets [S + 1], users [S] (user + 1, or 0 for nobody known).

    For training also targets [N], and the windows [W + 1] that the sequences were cut from. gaps [N]: how long before the event
    of an input the one before it was, where the sequences have them.
    """

    inputs: NDArray[np.int64]
    offsets: NDArray[np.int64]
    users: NDArray[np.int64]
    targets: NDArray[np.int64]
    windows: NDArray[np.int64]
    gaps: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Windows:
    """Target positions starts[w] to stops[w]; `opens` where the first of them has nothing before it."""

    items: NDArray[np.int32]
    users: NDArray[np.int32]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    opens: NDArray[np.bool_]
    gaps: Gaps | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def n_targets(self) -> int:
        return int((self.stops - self.starts).sum())

    @classmethod
    def of(cls, train: Sequences, max_length: int, *, drop_rest: bool = False) -> "Windows":
        """All windows of the training sequences.

        `drop_rest` is the windowing of the authors' code: of a history of two windows or more, what is left at
        the front is dropped, and a history between one and two windows long is its last window alone.
        """
        lengths = train.stops - train.starts
        counts = -(-lengths // max_length)
        if drop_rest:
            counts = np.maximum(lengths // max_length, np.minimum(counts, 1))
        whose = np.repeat(np.arange(len(lengths)), counts)
        back = spans(np.zeros(len(counts), np.int64), counts)  # 0: the newest
        stops = train.stops[whose] - back * max_length
        starts = np.maximum(stops - max_length, train.starts[whose])
        if len(starts) == 0:
            raise NothingLeftError("there is nothing to train on: every history is empty")
        return cls(train.items, train.users[whose], starts, stops, starts == train.starts[whose], train.gaps)

    def pack(self, chosen: NDArray[np.int64]) -> PackedArrays:
        """The chosen windows in one run."""
        starts, stops, opens = self.starts[chosen], self.stops[chosen], self.opens[chosen]
        lengths = stops - starts
        ends = np.cumsum(lengths)
        first = ends - lengths  # row of each window's first target
        positions = spans(starts, lengths)
        targets = self.items[positions].astype(np.int64)
        before = np.maximum(positions - 1, 0)
        inputs = self.items[before].astype(np.int64) + 1
        inputs[first[opens]] = START
        gaps = None if self.gaps is None else self.gaps[before].astype(np.int64)
        if gaps is not None:
            gaps[first[opens]] = 0
        # The start token stands alone: a boundary behind it, where anything follows.
        behind = first[opens & (lengths > 1)] + 1
        windows = np.concatenate([[0], ends]).astype(np.int64)
        offsets = np.union1d(windows, behind).astype(np.int64)
        whose = np.searchsorted(windows, offsets[:-1], side="right") - 1
        return PackedArrays(inputs, offsets, self.users[chosen][whose].astype(np.int64) + 1, targets, windows, gaps)


@dataclass(frozen=True)
class Sampler:
    """Step t to the windows of its batch."""

    windows: int
    batch: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.windows // self.batch)

    def chosen(self, step: int) -> NDArray[np.int64]:
        epoch, place = divmod(step, self.steps_per_epoch)
        return _order(self.seed, epoch, self.windows)[place * self.batch : (place + 1) * self.batch]


@lru_cache(2)
def _order(seed: int, epoch: int, windows: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(windows)


@dataclass(frozen=True, eq=False)
class Lanes:
    """Step t to the windows of its batch, such that each window of a history is in the place of the one before it.

    The histories of an epoch stand in a random order, their windows from the oldest to the newest, in one line. The line
    is cut into as many lanes as a batch has places; a step takes the next window of each.
    """

    windows: Windows
    batch: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.windows) // self.batch)

    def _places(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        epoch, place = divmod(step, self.steps_per_epoch)
        line = _line(self, epoch)
        return line, np.arange(place, len(line), self.steps_per_epoch), place

    def chosen(self, step: int) -> NDArray[np.int64]:
        line, places, _ = self._places(step)
        return line[places]

    def go_on(self, step: int) -> NDArray[np.bool_]:
        """Whether what is chosen follows what stood in its place a step before."""
        line, places, place = self._places(step)
        users = self.windows.users
        follows: NDArray[np.bool_] = users[line[places]] == users[line[places - 1]]
        return follows & (place > 0)


@lru_cache(2)
def _line(lanes: Lanes, epoch: int) -> NDArray[np.int64]:
    """All windows, history by history."""
    users = lanes.windows.users
    firsts = np.flatnonzero(np.diff(users, prepend=-1))  # the windows of a history stand together, the newest first
    counts = np.diff(firsts, append=len(users))
    order = np.random.default_rng([lanes.seed, epoch]).permutation(len(firsts))
    firsts, counts = firsts[order], counts[order]
    return np.repeat(2 * firsts + counts - 1, counts) - spans(firsts, counts)


def pack_histories(
    items: NDArray[np.int32],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    max_length: int,
    users: NDArray[np.integer[Any]] | None = None,
    gaps: Gaps | None = None,
) -> PackedArrays:
    """The last `max_length` items of histories as inputs, one sequence each; an empty one is the start token.

    `users` are theirs, -1 where nobody knows whose a history is. `gaps` lie beside the items.
    """
    starts = np.maximum(starts, stops - max_length)
    lengths = stops - starts
    rows = np.maximum(lengths, 1)
    ends = np.cumsum(rows)
    first = ends - rows
    positions = spans(starts, rows)
    at = np.minimum(positions, max(len(items) - 1, 0))
    inputs = items[at].astype(np.int64) + 1
    inputs[first[lengths == 0]] = START
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    who = np.zeros(len(starts), np.int64) if users is None else users.astype(np.int64) + 1
    apart = None if gaps is None else np.where(inputs == START, 0, gaps[at]).astype(np.int64)
    return PackedArrays(inputs, offsets, who, np.zeros(0, np.int64), np.zeros(1, np.int64), apart)
