"""Training, validation and test as views over a dataset: positions, no copies. Knows arrays, not models.

A training sequence is `items[start:stop]`. An example for validation or test is a target position p and
the start of its history: the input is `items[start:p]`, the answer `items[p]`.

Where a model wants them, gaps lie beside the items: how long after the event before it each one came. The gap of an answer
is not part of its input.
"""

from dataclasses import dataclass, replace
from datetime import date

import numpy as np
from numpy.typing import NDArray

from lrurec.arrays import GAPS, spans
from lrurec.data.dataset import Dataset
from lrurec.data.times import parse_moment
from lrurec.errors import NothingLeftError, SettingsError

Positions = NDArray[np.int64]

Gaps = NDArray[np.uint8]

_TOGETHER = 1 << 14  # sequences that are counted at once
_SECOND = 1_000_000  # microseconds


@dataclass(frozen=True)
class Sequences:
    """Training sequences: user `users[k]` trains on `items[starts[k]:stops[k]]`."""

    items: NDArray[np.int32]
    users: NDArray[np.int32]
    starts: Positions
    stops: Positions
    gaps: Gaps | None = None  # beside the items

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, k: int) -> NDArray[np.int32]:
        return self.items[self.starts[k] : self.stops[k]]

    @property
    def n_events(self) -> int:
        return int((self.stops - self.starts).sum())

    def counts(self, items: int) -> NDArray[np.int64]:
        """[items]: how often each occurs."""
        total = np.zeros(items, np.int64)
        for first in range(0, len(self), _TOGETHER):
            span = slice(first, first + _TOGETHER)
            positions = spans(self.starts[span], self.stops[span] - self.starts[span])
            total += np.bincount(self.items[positions], minlength=items)
        return total


@dataclass(frozen=True)
class Targets:
    """Examples to predict: the history `items[starts[k]:positions[k]]`, the answer `items[positions[k]]`."""

    items: NDArray[np.int32]
    users: NDArray[np.int32]
    starts: Positions
    positions: Positions
    gaps: Gaps | None = None  # beside the items

    def __len__(self) -> int:
        return len(self.users)

    def part(self, first: int, last: int) -> "Targets":
        """Some of them, in a row."""
        span = slice(first, last)
        return replace(self, users=self.users[span], starts=self.starts[span], positions=self.positions[span])

    def history(self, k: int) -> NDArray[np.int32]:
        return self.items[self.starts[k] : self.positions[k]]

    def answer(self, k: int) -> int:
        return int(self.items[self.positions[k]])

    def answers(self) -> NDArray[np.int32]:
        return self.items[self.positions]


@dataclass(frozen=True)
class Split:
    """Three views over the same arrays."""

    train: Sequences
    valid: Targets
    test: Targets

    def with_gaps(self, dataset: Dataset) -> "Split":
        """The same with the gaps between the events."""
        gaps = gaps_of(dataset)
        return Split(replace(self.train, gaps=gaps), replace(self.valid, gaps=gaps), replace(self.test, gaps=gaps))


def gaps_between(times: NDArray[np.int64]) -> Gaps:
    """How long after the event before it each of some events came, which happened at these times (in microseconds).

    0 for the first one, 1 for less than a second, 2 for less than three, 3 for less than seven, and so on.
    """
    found = np.zeros(len(times), np.uint8)
    seconds = np.maximum(np.diff(times) // _SECOND, 0)
    found[1:] = np.minimum(1 + np.log2(1 + seconds), GAPS - 1)
    return found


def gaps_of(dataset: Dataset) -> Gaps:
    """[interactions]: the gaps between the events of each person."""
    times = times_of(dataset)
    found = np.zeros(dataset.n_events, np.uint8)
    for first, last in dataset.user_blocks():
        begin, end = dataset.offsets[first], dataset.offsets[last]
        found[begin:end] = gaps_between(times[begin:end])
        begins = dataset.offsets[first:last]
        found[begins[begins < end]] = 0
    return found


def times_of(dataset: Dataset) -> NDArray[np.int64]:
    """The times of all events, where gaps between them are wanted."""
    if dataset.times is None:
        raise SettingsError("this dataset has no times, so there are no gaps between its events; leave out model.gaps")
    return dataset.times


def leave_last_out(dataset: Dataset) -> Split:
    """The paper's split: the last item is test, the one before it validation, the rest trains.

    The history of the test item includes the validation item. Users with fewer than three events only train.
    """
    starts, stops = np.array(dataset.offsets[:-1]), np.array(dataset.offsets[1:])
    users = np.arange(dataset.n_users, dtype=np.int32)
    tested = stops - starts >= 3
    train_stops = np.where(tested, stops - 2, stops)
    return Split(
        Sequences(dataset.items, users, starts, train_stops),
        Targets(dataset.items, users[tested], starts[tested], stops[tested] - 2),
        Targets(dataset.items, users[tested], starts[tested], stops[tested] - 1),
    )


def everything(dataset: Dataset) -> Split:
    """All of it trains; nothing is left to validate or test on."""
    starts, stops = np.array(dataset.offsets[:-1]), np.array(dataset.offsets[1:])
    users, nobody = np.arange(dataset.n_users, dtype=np.int32), np.zeros(0, np.int64)
    none = Targets(dataset.items, users[:0], nobody, nobody)
    return Split(Sequences(dataset.items, users, starts, stops), none, none)


def by_time(
    dataset: Dataset,
    test_from: str | date,
    valid_from: str | date | None = None,
    *,
    first_only: bool = False,
) -> Split:
    """Split at moments: everything from `test_from` on is test, nothing of it trains.

    With `valid_from`, what lies between the two moments is validation and does not train either. Every later
    event with a history is a target, its history being all that came before it; `first_only` keeps one per user.
    """
    if dataset.times is None:
        raise SettingsError("this dataset has no times, so it cannot be split by time; use leave-last-out")
    test_at = parse_moment(test_from)
    valid_at = parse_moment(valid_from) if valid_from is not None else test_at
    if valid_at > test_at:
        raise SettingsError(f"valid_from ({valid_from}) must not lie after test_from ({test_from})")
    starts, stops = np.array(dataset.offsets[:-1]), np.array(dataset.offsets[1:])
    valid, test = _first_from(dataset, valid_at), _first_from(dataset, test_at)
    users = np.arange(dataset.n_users, dtype=np.int32)
    trains = valid > starts
    if not trains.any():
        raise NothingLeftError(f"no event lies before {valid_from or test_from}; choose a later moment")
    if not (test < stops).any():
        raise NothingLeftError(f"no event lies at or after {test_from}; choose an earlier moment")
    return Split(
        Sequences(dataset.items, users[trains], starts[trains], valid[trains]),
        _targets(dataset, users, starts, valid, test, first_only),
        _targets(dataset, users, starts, test, stops, first_only),
    )


def _first_from(dataset: Dataset, moment: int) -> Positions:
    """For each user the position of the first event at or after a moment (their end if there is none)."""
    assert dataset.times is not None
    found = np.empty(dataset.n_users, np.int64)
    for first, last in dataset.user_blocks():
        at = dataset.offsets[first : last + 1]
        earlier = np.concatenate([[0], np.cumsum(dataset.times[at[0] : at[-1]] < moment)])
        found[first:last] = at[:-1] + np.diff(earlier[at - at[0]])
    return found


def _targets(
    dataset: Dataset,
    users: NDArray[np.int32],
    starts: Positions,
    begin: Positions,
    end: Positions,
    first_only: bool,
) -> Targets:
    begin = np.maximum(begin, starts + 1)  # a target needs a history
    counts = np.maximum(end - begin, 0)
    if first_only:
        counts = np.minimum(counts, 1)
    whose = np.repeat(np.arange(len(users)), counts)
    return Targets(dataset.items, users[whose], starts[whose], spans(begin, counts))
