"""Tables of ids: the names of users or items in a fixed order, in files that are mapped, not loaded. Knows names alone.

Integers sort as numbers, text by its UTF-8 bytes; looking an id up is a binary search.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lrurec.arrays import mapped, save_array
from lrurec.errors import FolderError

if TYPE_CHECKING:
    import polars as pl

Id = int | str


class IdTable(ABC):
    """Index to id and back. `table[3]` is an id; `table.index(id)` its index, or None."""

    kind: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Id: ...

    @abstractmethod
    def index(self, name: Id) -> int | None:
        """The index of an id. 7 and "7" find the same entry; None if there is none."""

    @abstractmethod
    def take(self, indices: NDArray[np.integer]) -> "IdTable":
        """The table of some of the entries."""

    @abstractmethod
    def series(self) -> "pl.Series":
        """All ids, in index order."""

    @abstractmethod
    def save(self, folder: Path, stem: str) -> None: ...

    @abstractmethod
    def in_memory(self) -> "IdTable":
        """The same table without a file behind it."""

    def indices(self, names: Iterable[Id]) -> NDArray[np.int64]:
        """The indices of many ids, -1 where unknown."""
        return np.array([-1 if (k := self.index(n)) is None else k for n in names], np.int64)

    @staticmethod
    def open(folder: Path, stem: str, kind: str) -> "IdTable":
        if kind == "int":
            return IntIds(mapped(folder / f"{stem}.npy"))
        if kind == "text":
            return TextIds(
                mapped(folder / f"{stem}.text.npy"),
                mapped(folder / f"{stem}.offsets.npy"),
            )
        raise FolderError(f"{folder}: unknown id kind '{kind}'")


class IntIds(IdTable):
    """Sorted integers; looking one up is a binary search in the mapped file."""

    kind = "int"

    def __init__(self, values: NDArray[np.int64]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        return int(self.values[index])

    def index(self, name: Id) -> int | None:
        if isinstance(name, str):
            try:
                number = int(name)
            except ValueError:
                return None
            if str(number) != name:
                return None
            name = number
        if not -(1 << 63) <= name < 1 << 63:
            return None
        at = int(np.searchsorted(self.values, name))
        return at if at < len(self.values) and self.values[at] == name else None

    def take(self, indices: NDArray[np.integer]) -> "IntIds":
        return IntIds(np.asarray(self.values[indices]))

    def series(self) -> "pl.Series":
        import polars as pl  # serving, which loads tables, does without it

        return pl.Series(np.array(self.values))

    def save(self, folder: Path, stem: str) -> None:
        save_array(folder / f"{stem}.npy", self.values)

    def in_memory(self) -> "IntIds":
        return IntIds(np.array(self.values))


class TextIds(IdTable):
    """Sorted UTF-8 text in one run of bytes with offsets; looking one up is a binary search."""

    kind = "text"

    def __init__(self, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self.text, self.offsets = text, offsets

    @classmethod
    def of(cls, names: "pl.Series") -> "TextIds":
        """From text already in the order wanted."""
        joined = "".join(names.to_list()).encode()
        offsets = np.zeros(len(names) + 1, np.int64)
        np.cumsum(names.str.len_bytes().to_numpy(), out=offsets[1:])
        return cls(np.frombuffer(joined, np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def _bytes(self, index: int) -> bytes:
        return self.text[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def __getitem__(self, index: int) -> str:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._bytes(index).decode()

    def index(self, name: Id) -> int | None:
        wanted = str(name).encode()
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._bytes(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self) and self._bytes(low) == wanted else None

    def take(self, indices: NDArray[np.integer]) -> "TextIds":
        return TextIds.of(self.series().gather(indices.astype(np.int64)))

    def series(self) -> "pl.Series":
        import polars as pl

        raw, at = self.text.tobytes(), self.offsets.tolist()
        return pl.Series([raw[a:b].decode() for a, b in pairwise(at)], dtype=pl.String)

    def save(self, folder: Path, stem: str) -> None:
        save_array(folder / f"{stem}.text.npy", self.text)
        save_array(folder / f"{stem}.offsets.npy", self.offsets)

    def in_memory(self) -> "TextIds":
        return TextIds(np.array(self.text), np.array(self.offsets))
