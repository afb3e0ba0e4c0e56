"""From the names people give to users and items to the dense numbers the arrays hold. Knows names, not events.

`IdEncoder` turns columns of ids into provisional codes while a log streams by; `finish` gives the
final table, sorted, and the map from provisional to final. Integers sort as numbers, text by its
UTF-8 bytes, so the same log gives the same table whatever order it is read in.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lrurec.errors import FolderError
from lrurec.ids import IdTable, IntIds, TextIds

Codes = NDArray[np.int32]

_MAX_IDS = (1 << 31) - 1


class _Dictionary:
    """64-bit keys to codes 0, 1, 2, ... in order of first arrival; kept sorted by key."""

    def __init__(self) -> None:
        self.keys = np.zeros(0, np.int64)
        self.codes = np.zeros(0, np.int32)

    def codes_for(self, keys: NDArray[np.int64]) -> tuple[Codes, NDArray[np.bool_]]:
        """The codes of sorted distinct keys, and which of them are new."""
        at = np.searchsorted(self.keys, keys)
        inside = np.minimum(at, max(len(self.keys) - 1, 0))
        known = self.keys[inside] == keys if len(self.keys) else np.zeros(len(keys), np.bool_)
        codes = np.empty(len(keys), np.int32)
        if known.any():
            codes[known] = self.codes[inside[known]]
        fresh = ~known
        codes[fresh] = np.arange(len(self.keys), len(self.keys) + int(fresh.sum()), dtype=np.int32)
        self.keys = np.insert(self.keys, at[fresh], keys[fresh])
        self.codes = np.insert(self.codes, at[fresh], codes[fresh])
        return codes, fresh


def factorise(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sorted distinct keys, for each row which one it is, and one row where each occurs."""
    low, high = int(keys.min()), int(keys.max())
    if high - low < 4 * len(keys) + 65536:  # a table over the whole range is the fastest way
        shifted = keys - low
        at = np.full(high - low + 1, -1, np.int64)
        at[shifted] = np.arange(len(keys))
        present = at >= 0
        ranks = np.cumsum(present) - 1
        distinct = np.flatnonzero(present)
        return distinct + low, ranks[shifted], at[distinct]
    order = pl.Series(keys).arg_sort().to_numpy().astype(np.int64)
    ordered = keys[order]
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    inverse = np.empty(len(keys), np.int64)
    inverse[order] = np.cumsum(starts) - 1
    return ordered[starts], inverse, order[starts]


class IdEncoder:
    """Ids to provisional codes, chunk by chunk; integers and text may both occur.

    Provisional codes of integers are 0, 1, 2, ...; those of text are -1, -2, -3, ... Text is looked
    up by a 64-bit hash, and every hit is compared with the text itself: if two texts ever share a
    hash, the dictionary is rebuilt with another seed, so the result is exact.
    """

    def __init__(self) -> None:
        self._ints = _Dictionary()
        self._int_values: list[NDArray[np.int64]] = []
        self._texts = _Dictionary()
        self._text_values = pl.Series([], dtype=pl.String)
        self._seed = 0

    def __len__(self) -> int:
        return len(self._ints.keys) + len(self._texts.keys)

    def encode(self, column: pl.Series, *, digits_are_numbers: bool) -> Codes:
        """Codes of a column without nulls. With `digits_are_numbers`, the text "12" is the number 12."""
        if len(column) == 0:
            return np.zeros(0, np.int32)
        if column.dtype == pl.String and digits_are_numbers:
            numbers = column.cast(pl.Int64, strict=False)
            if numbers.null_count() == 0 and bool((numbers.cast(pl.String) == column).all()):
                column = numbers
        codes = self._encode_text(column) if column.dtype == pl.String else self._encode_ints(column)
        if len(self) > _MAX_IDS:
            raise FolderError("more than 2,147,483,647 different ids; a dataset cannot hold them")
        return codes

    def _encode_ints(self, column: pl.Series) -> Codes:
        keys, inverse, _ = factorise(column.cast(pl.Int64).to_numpy())
        codes, fresh = self._ints.codes_for(keys)
        self._int_values.append(keys[fresh])
        return codes[inverse]

    def _encode_text(self, column: pl.Series) -> Codes:
        while True:
            keys, inverse, where = factorise(self._hash(column))
            distinct = column.gather(where)
            if bool((distinct.gather(inverse) == column).all()):
                codes, fresh = self._texts.codes_for(keys)
                added = distinct.filter(pl.Series(fresh))
                known = distinct.filter(pl.Series(~fresh))
                if bool((self._text_values.gather(codes[~fresh].astype(np.int64)) == known).all()):
                    self._text_values = self._text_values.append(added)
                    return -1 - codes[inverse]
            self._reseed()

    def _hash(self, column: pl.Series) -> NDArray[np.int64]:
        return column.hash(self._seed).to_numpy().view(np.int64)

    def _reseed(self) -> None:
        """Two texts shared a hash: hash all known texts anew; their codes stay."""
        while True:
            self._seed += 1
            keys = self._hash(self._text_values)
            order = np.argsort(keys)
            self._texts.keys, self._texts.codes = keys[order], order.astype(np.int32)
            if not np.any(self._texts.keys[1:] == self._texts.keys[:-1]):
                return

    def finish(self) -> tuple[IdTable, "Final"]:
        """The sorted table, and the map from provisional codes to it."""
        ints = np.concatenate([np.zeros(0, np.int64), *self._int_values])
        if len(self._text_values) == 0:
            order = np.argsort(ints)
            ranks = np.empty(len(ints), np.int32)
            ranks[order] = np.arange(len(ints), dtype=np.int32)
            return IntIds(ints[order]), Final(ranks, np.zeros(0, np.int32))
        texts = pl.concat([pl.Series(ints, dtype=pl.Int64).cast(pl.String), self._text_values])
        table = texts.unique().sort()
        where = pl.DataFrame({"id": table, "rank": np.arange(len(table), dtype=np.int32)})
        found = pl.DataFrame({"id": texts}).join(where, on="id", how="left", maintain_order="left")
        ranks = found["rank"].to_numpy().astype(np.int32)
        return TextIds.of(table), Final(ranks[: len(ints)], ranks[len(ints) :])


class Final:
    """Provisional codes to final indices."""

    def __init__(self, of_ints: Codes, of_texts: Codes) -> None:
        self._table = np.concatenate([of_ints, of_texts[::-1]])  # code -1 is the last entry, -2 the one before

    def __call__(self, codes: Codes) -> Codes:
        return self._table[codes]
