"""Stable order by several integer keys, fast. Knows numbers, not events.

Sorting 64-bit integers is many times faster than sorting an index by several keys. So each key is
packed together with the position it stands at, `key << p | position`, and the packed integers are
sorted: the low bits of the result are the order, and equal keys keep their positions. Keys that do
not fit beside the position are sorted digit by digit, the least significant first.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

Keys = Sequence[NDArray[np.integer]]


def stable_order_reference(keys: Keys) -> NDArray[np.int64]:
    """The obvious twin of `stable_order`."""
    return np.lexsort(list(reversed(list(keys))))


def stable_order(keys: Keys) -> NDArray[np.int64]:
    """The positions that sort by keys[0], then keys[1], ...; equal rows keep their order."""
    n = len(keys[0])
    if n < 2:
        return np.arange(n, dtype=np.int64)
    position_bits = (n - 1).bit_length()
    positions = np.arange(n, dtype=np.uint64)
    mask = np.uint64((1 << position_bits) - 1)
    order: NDArray[np.int64] | None = None
    for digit in _digits(keys, 64 - position_bits):
        ordered = digit if order is None else digit[order]
        if np.all(ordered[1:] >= ordered[:-1]):
            continue
        packed = (ordered << np.uint64(position_bits)) | positions
        ranks = (pl.Series(packed).sort().to_numpy() & mask).astype(np.int64)
        order = ranks if order is None else order[ranks]
    return positions.astype(np.int64) if order is None else order


def _digits(keys: Keys, room: int) -> list[NDArray[np.uint64]]:
    """The keys as unsigned digits of at most `room` bits, the least significant digit first."""
    digits: list[NDArray[np.uint64]] = []
    digit, used = None, 0
    for key in reversed(list(keys)):
        low = int(key.min())
        bits = (int(key.max()) - low).bit_length()
        # Subtracting in uint64 wraps around correctly even where int64 would overflow.
        rest = key.astype(np.int64).view(np.uint64) - np.uint64(low % (1 << 64))
        while bits:
            if digit is None:
                digit, used = np.zeros(len(key), np.uint64), 0
            take = min(bits, room - used)
            part = rest if take == bits else rest & np.uint64((1 << take) - 1)
            digit |= part << np.uint64(used)
            used, bits = used + take, bits - take
            if bits:
                rest = rest >> np.uint64(take)
            if used == room:
                digits.append(digit)
                digit = None
    if digit is not None:
        digits.append(digit)
    return digits
