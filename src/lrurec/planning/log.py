"""What a plan knows of a log: its sizes, and some histories. Knows numbers, not files."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lrurec.arrays import spans
from lrurec.data.dataset import Dataset
from lrurec.data.split import Sequences
from lrurec.errors import SettingsError

_SHOWN = 4  # windows of a history that a sample holds at most


@dataclass(frozen=True)
class Log:
    """Histories of known lengths over a known number of items. `dataset`: a real one, if there is."""

    items: int
    lengths: NDArray[np.int64]  # events per user
    dataset: Dataset | None = None

    @property
    def users(self) -> int:
        return len(self.lengths)

    @property
    def events(self) -> int:
        return int(self.lengths.sum())

    @property
    def trained(self) -> NDArray[np.int64]:
        """[users]: the events of each that are trained on; the newest two are kept for validation and test."""
        return np.where(self.lengths >= 3, self.lengths - 2, self.lengths)

    @classmethod
    def of(cls, dataset: Dataset) -> "Log":
        lengths: NDArray[np.int64] = np.diff(np.asarray(dataset.offsets)).astype(np.int64)
        return cls(dataset.n_items, lengths, dataset)

    @classmethod
    def made_up(cls, users: int, items: int, events: int | None, length: int | None) -> "Log":
        """Histories of one length, or of two that differ by one."""
        if events is None and length is None:
            raise SettingsError("how many events? pass --events N, or --length N for as many per user")
        if events is None:
            events = users * int(length or 0)
        if events < users:
            raise SettingsError(f"{events:,} events are fewer than {users:,} users")
        if length is not None and not 0.9 <= events / (users * length) <= 1.1:
            raise SettingsError(
                f"{events:,} events of {users:,} users are {events / users:,.0f} per user, not {length:,};"
                " leave out --events or --length"
            )
        lengths = np.full(users, events // users, np.int64)
        lengths[: events % users] += 1
        return cls(items, lengths)

    def windows(self, max_length: int) -> int:
        return int((-(-self.trained // max_length)).sum())

    def sample(self, windows: int, max_length: int, items: int, seed: int = 0) -> Sequences:
        """Histories of about so many windows, as they come in training; items are those of the log, or fewer."""
        rng = np.random.default_rng(seed)
        counts = -(-self.trained // max_length)
        shown = np.minimum(counts, _SHOWN)
        chance = counts / counts.sum()
        many = max(1, round(windows / float((chance * shown).sum())))
        chosen = rng.choice(self.users, many, p=chance)
        lengths = np.minimum(self.trained[chosen], _SHOWN * max_length)
        ends = np.cumsum(lengths)
        if self.dataset is None:
            found = rng.integers(0, items, int(ends[-1]), np.int32)
        else:
            stops = np.asarray(self.dataset.offsets)[chosen] + self.trained[chosen]
            found = self.dataset.items[spans(stops - lengths, lengths)] % np.int32(items)
        return Sequences(found, np.arange(many, dtype=np.int32), ends - lengths, ends)
