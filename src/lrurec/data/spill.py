"""Events as numbers, set aside on disk while a log streams by. Knows numbers, not files to import.

A log of any size passes through here in bounded memory: chunks are appended as they are read, then
dealt out to parts, each a range of users small enough to sort in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from lrurec.data.ids import Codes, Final
from lrurec.data.times import Times, Unit, to_unit, unit_of
from lrurec.errors import SettingsError

PART = 1 << 22  # events sorted in memory at a time
_MOST_PARTS = 200  # files open at once

EVENT = np.dtype([("user", "<i4"), ("item", "<i4"), ("time", "<i8")])
Events = NDArray[np.void]


def _write(file: BinaryIO, events: Events) -> None:
    view = memoryview(events.view(np.uint8).data)
    while len(view):
        view = view[file.write(view) :]


def _read(file: BinaryIO, count: int) -> Events:
    data = bytearray(count * EVENT.itemsize)
    view = memoryview(data)
    while len(view):
        got = file.readinto(view)  # type: ignore[attr-defined]
        assert got, "a temporary file was cut short"
        view = view[got:]
    return np.frombuffer(data, EVENT)


class Spill:
    """Chunks of (user code, item code, time) in one temporary file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "events.spill"
        self._file = self._path.open("wb", buffering=0)
        self._chunks: list[tuple[int, Unit | None]] = []
        self._largest = 0  # of the times whose unit is not known yet
        self.has_times: bool | None = None

    def __len__(self) -> int:
        return sum(n for n, _ in self._chunks)

    def add(self, users: Codes, items: Codes, times: Times | None) -> None:
        events = np.zeros(len(users), EVENT)
        events["user"], events["item"] = users, items
        unit: Unit | None = None
        if times is not None and len(users):
            events["time"], unit = times.values, times.unit
            if unit is None:
                self._largest = max(self._largest, int(times.values.max()), -int(times.values.min()))
        _write(self._file, events)
        self._chunks.append((len(users), unit))

    def unit(self, given: Unit | None) -> tuple[Unit, Unit]:
        """The unit of plain numbers, and the one in which events are sorted: us, or ns where the log has it."""
        numbers = given or unit_of(self._largest)
        units = {unit or numbers for _, unit in self._chunks}
        work: Unit = "ns" if "ns" in units else "us"
        factor = int(to_unit(np.ones(1, np.int64), numbers, work)[0])
        if self._largest * max(factor, 1) >= 1 << 63:
            raise SettingsError(f"times up to {self._largest} cannot be '{numbers}'; choose another --time-unit")
        return numbers, work

    def chunks(self, user: Final, item: Final, numbers: Unit, work: Unit) -> Iterator[Events]:
        """The events with final indices and times in one unit, in the order they came."""
        self._file.close()
        with self._path.open("rb", buffering=0) as file:
            for count, unit in self._chunks:
                events = _read(file, count)
                events["user"], events["item"] = user(events["user"]), item(events["item"])
                if self.has_times:
                    events["time"] = to_unit(events["time"], unit or numbers, work)
                yield events

    def parts(self, chunks: Iterator[Events], counts: NDArray[np.int64]) -> Iterator[tuple[int, int, Events]]:
        """The same events, part by part: (first user, last user + 1, events of those users in file order)."""
        users, total = len(counts), int(counts.sum())
        size = max(PART, -(-total // _MOST_PARTS))
        part_of = ((np.cumsum(counts) - counts) // size).astype(np.uint16)
        bounds = np.concatenate([np.flatnonzero(np.diff(part_of, prepend=-1) != 0), [users]])
        part_of = np.repeat(np.arange(len(bounds) - 1, dtype=np.uint16), np.diff(bounds))
        paths = [self._folder / f"{k}.spill" for k in range(len(bounds) - 1)]
        files = [path.open("wb", buffering=0) for path in paths]
        try:
            sizes = np.zeros(len(paths), np.int64)
            for events in chunks:
                part = part_of[events["user"]]
                ends = np.cumsum(np.bincount(part, minlength=len(paths)))
                if len(paths) > 1:
                    events = events[np.argsort(part, kind="stable")]
                for k, file in enumerate(files):
                    begin = ends[k - 1] if k else 0
                    if ends[k] > begin:
                        _write(file, events[begin : ends[k]])
                        sizes[k] += ends[k] - begin
        finally:
            for file in files:
                file.close()
        self._path.unlink()
        for k, path in enumerate(paths):
            with path.open("rb", buffering=0) as file:
                events = _read(file, int(sizes[k]))
            path.unlink()
            yield int(bounds[k]), int(bounds[k + 1]), events

    def close(self) -> None:
        self._file.close()
