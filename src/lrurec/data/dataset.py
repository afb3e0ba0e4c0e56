"""The dataset folder: all histories in one flat run of items, memory-mapped. Knows arrays and ids, not files to import.

items.npy        int32 [interactions]   item index of every event, user after user, oldest first
offsets.npy      int64 [users + 1]      user u's events are items[offsets[u]:offsets[u + 1]]
times.npy        int64 [interactions]   microseconds since 1970, UTC; only where the log has times
user_ids.npy     int64 [users]          the ids, sorted (text ids: .text.npy and .offsets.npy)
item_ids.npy     int64 [items]
item_names.*     text                   titles, only where a table of names was joined
manifest.json    format version, counts, hashes, where it came from
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lrurec.data.progress import Progress, counted, no_progress
from lrurec.errors import FolderError, InputError
from lrurec.folder import check_hashes, check_sizes, read_manifest, sha256_json
from lrurec.ids import Id, IdTable, TextIds

KIND, VERSION = "dataset", 1


@dataclass(frozen=True)
class LogSize:
    """How much there is of a log; nothing: nobody knows yet."""

    users: int = 0
    items: int = 0
    events: int = 0

    @property
    def per_user(self) -> float:
        """How many events a user has on average."""
        return self.events / max(self.users, 1)


@dataclass(frozen=True)
class Dataset:
    """Histories of users over items. Indices are 0, 1, 2, ...; ids are what the log called them."""

    items: NDArray[np.int32]
    offsets: NDArray[np.int64]
    times: NDArray[np.int64] | None
    user_ids: IdTable
    item_ids: IdTable
    item_names: TextIds | None
    manifest: dict[str, Any]
    path: Path | None = None

    @classmethod
    def open(cls, path: str | Path) -> "Dataset":
        """Open a folder made by `lrurec prepare`. Nothing is read but the manifest; arrays are mapped."""
        folder = Path(path)
        manifest = read_manifest(folder, KIND, VERSION)
        while True:  # until the folder was not replaced by another while it was being opened
            try:
                dataset = cls._map(folder, manifest)
                fault = None
            except (KeyError, ValueError, OSError) as error:
                fault = FolderError(f"{folder} is damaged ({error}); prepare it again")
            except FolderError as error:
                fault = error
            again = read_manifest(folder, KIND, VERSION)
            if again == manifest:
                break
            manifest = again
        if fault is not None:
            raise fault from None
        return dataset

    @classmethod
    def _map(cls, folder: Path, manifest: dict[str, Any]) -> "Dataset":
        check_sizes(folder, manifest, KIND)
        return cls(
            items=np.load(folder / "items.npy", mmap_mode="r"),
            offsets=np.load(folder / "offsets.npy", mmap_mode="r"),
            times=np.load(folder / "times.npy", mmap_mode="r") if manifest["times"] else None,
            user_ids=IdTable.open(folder, "user_ids", manifest["ids"]["user"]),
            item_ids=IdTable.open(folder, "item_ids", manifest["ids"]["item"]),
            item_names=_names(folder) if manifest["names"] else None,
            manifest=manifest,
            path=folder,
        )

    def verify(self, progress: Progress = no_progress) -> None:
        """Compare every file with the hash in the manifest; an error names the first that differs."""
        if self.path is not None:
            total = sum(facts["bytes"] for facts in self.manifest["files"].values())
            check_hashes(self.path, self.manifest, KIND, counted(progress, "verifying", total))

    def check(self) -> None:
        """Refuse histories that cannot be: in seconds where `verify` reads everything."""
        ends, fault = np.asarray(self.offsets), ""
        if (
            len(ends) != len(self.user_ids) + 1
            or ends[0] != 0
            or ends[-1] != self.n_events
            or (np.diff(ends) < 0).any()
        ):
            fault = "offsets.npy does not fit its other files"
        elif self.n_events and not 0 <= int(self.items.min()) <= int(self.items.max()) < self.n_items:
            fault = "items.npy names items that are not in it"
        if fault:
            raise FolderError(f"{self.path or 'the dataset'} is damaged ({fault}); prepare it again (prepare --force)")

    def in_memory(self) -> "Dataset":
        """A copy that needs no folder."""
        names = self.item_names.in_memory() if self.item_names is not None else None
        return Dataset(
            np.array(self.items),
            np.array(self.offsets),
            None if self.times is None else np.array(self.times),
            self.user_ids.in_memory(),
            self.item_ids.in_memory(),
            names,
            self.manifest,
        )

    @property
    def content_id(self) -> str:
        """A hash of what is in it: two datasets with the same id are the same dataset."""
        return sha256_json({name: facts["sha256"] for name, facts in self.manifest["files"].items()})

    @property
    def n_users(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def n_events(self) -> int:
        return len(self.items)

    @property
    def size(self) -> LogSize:
        return LogSize(self.n_users, self.n_items, self.n_events)

    def __repr__(self) -> str:
        return f"Dataset({self.n_users:,} users, {self.n_items:,} items, {self.n_events:,} interactions)"

    def history(self, user: Id) -> list[Id]:
        """The item ids of one user, oldest first."""
        index = self.user_ids.index(user)
        if index is None:
            raise InputError(f"user '{user}' is not in the dataset")
        return [self.item_ids[int(i)] for i in self.items[self.offsets[index] : self.offsets[index + 1]]]

    def name(self, item: int) -> str:
        """What people call the item of this index: its title, or its id where it has none."""
        title = self.item_names[item] if self.item_names is not None else ""
        return title or str(self.item_ids[item])

    def events(self) -> pl.DataFrame:
        """All events with their original ids: user, item and, where there are times, time."""
        users = np.repeat(np.arange(self.n_users), np.diff(self.offsets))
        columns = {
            "user": self.user_ids.series().gather(users),
            "item": self.item_ids.series().gather(np.asarray(self.items).astype(np.int64)),
        }
        if self.times is not None:
            columns["time"] = pl.Series(np.array(self.times)).cast(pl.Datetime("us", "UTC"))
        return pl.DataFrame(columns)

    def user_blocks(self, size: int = 1 << 22) -> Iterator[tuple[int, int]]:
        """Ranges of users with about `size` events each: for work that must not load everything."""
        return user_blocks(self.offsets, size)


def user_blocks(offsets: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Ranges of users with at most `size` events each, or a single user with more."""
    first, users = 0, len(offsets) - 1
    while first < users:
        last = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        last = min(max(last, first + 1), users)
        yield first, last
        first = last


def _names(folder: Path) -> TextIds:
    table = IdTable.open(folder, "item_names", "text")
    assert isinstance(table, TextIds)
    return table
