"""Rows of any source to numbers set aside on disk: checks ids and times, gives ids codes. Knows rows, not formats."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lrurec.data.ids import IdEncoder
from lrurec.data.layout import Layout
from lrurec.data.progress import Progress
from lrurec.data.readers import Rows
from lrurec.data.settings import Log, Settings
from lrurec.data.spill import Spill
from lrurec.data.times import Times, parse_times
from lrurec.errors import BadRowError, InputError, NothingLeftError


@dataclass(frozen=True)
class Source:
    """Something with rows: a file or a frame."""

    label: str
    layout: Layout
    rows: Callable[[bool, Callable[[int], None]], Iterable[Rows]]  # (skip bad rows, report bytes read)
    size: int


class Counts:
    """How often each provisional code occurs; codes run from -below to above - 1."""

    def __init__(self) -> None:
        self._above, self._below = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, codes: NDArray[np.int32]) -> None:
        self._above = _plus(self._above, np.bincount(codes[codes >= 0]))
        self._below = _plus(self._below, np.bincount(-1 - codes[codes < 0]))

    @property
    def above(self) -> int:
        return len(self._above)

    @property
    def below(self) -> int:
        return len(self._below)

    def values(self) -> NDArray[np.int64]:
        return np.concatenate([self._below[::-1], self._above])


def _plus(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(b) > len(a):
        a, b = b.astype(np.int64), a
    a[: len(b)] += b
    return a


def gather(
    sources: Sequence[Source],
    settings: Settings,
    spill: Spill,
    users: IdEncoder,
    items: IdEncoder,
    log: Log,
    progress: Progress,
) -> Counts:
    counts = Counts()
    total = sum(s.size for s in sources)
    before = 0
    for source in sources:
        _same_kind_of_time(sources[0], source)
        if settings.min_rating is not None and source.layout.rating is None:
            raise InputError(
                f"{source.label} has no rating column for --min-rating; name it with --rating."
                f" Its columns: {', '.join(source.layout.columns)}"
            )
        row = 0
        spill.has_times = source.layout.time is not None

        def report(done: int, before: int = before) -> None:
            progress("reading", before + done, total)

        for rows in source.rows(settings.skip_bad_rows, report):
            frame, times = _checked(source, rows, row, settings, log)
            row += len(rows.frame) + rows.bad
            natural = source.layout.digits_are_numbers
            user = users.encode(frame["user"], digits_are_numbers=natural)
            item = items.encode(frame["item"], digits_are_numbers=natural)
            counts.add(user)
            spill.add(user, item, times)
        log.rows += row
        before += source.size
    if len(spill) == 0:
        what = "there are no rows"
        if log.rows:
            what = f"all {log.rows:,} rows were left out ({log.bad_rows:,} bad"
            what += f", {log.below_min_rating:,} rated below {settings.min_rating:g})" if settings.min_rating else ")"
        raise NothingLeftError(f"{sources[0].label}: {what}, so there is nothing to prepare")
    return counts


def _same_kind_of_time(first: Source, other: Source) -> None:
    if (first.layout.time is None) != (other.layout.time is None):
        having, lacking = (other, first) if first.layout.time is None else (first, other)
        raise InputError(
            f"{having.label} has times and {lacking.label} has none; prepare them apart, or name a --time column"
        )


def _checked(
    source: Source, rows: Rows, before: int, settings: Settings, log: Log
) -> tuple[pl.DataFrame, Times | None]:
    """The rows without the bad ones (or an error naming the first), ids ready to be encoded."""
    frame, layout = rows.frame, source.layout
    log.bad_rows += rows.bad
    bad = np.zeros(len(frame), np.bool_)
    faults: list[tuple[NDArray[np.bool_], str, str | None]] = []
    for role in ("user", "item"):
        column, missing = _ids(frame[role], source.label, role)
        frame = frame.with_columns(column.alias(role))
        faults.append((missing, f"has no {role} id (column '{getattr(layout, role)}' is empty)", None))
    times: Times | None = None
    if layout.time is not None:
        times = parse_times(frame["time"])
        faults.append((times.bad, "has a time that does not parse", "time"))
    low = np.zeros(len(frame), np.bool_)
    if settings.min_rating is not None:
        ratings = frame["rating"].cast(pl.Float64, strict=False)
        faults.append(((~ratings.is_finite().fill_null(False)).to_numpy(), "has a rating that is no number", "rating"))
        low = (ratings < settings.min_rating).fill_null(False).to_numpy()
    for mask, _, _ in faults:
        bad |= mask
    if bad.any() and not settings.skip_bad_rows:
        first = int(np.flatnonzero(bad)[0])
        _, what, culprit = next(fault for fault in faults if fault[0][first])
        raise _bad_row(source, rows, before, first, what, culprit)
    log.bad_rows += int(bad.sum())
    log.below_min_rating += int((low & ~bad).sum())
    drop = bad | low
    if drop.any():
        frame = frame.filter(pl.Series(~drop))
        times = times and Times(times.values[~drop], times.unit, times.bad[~drop])
    return frame, times


def _bad_row(source: Source, rows: Rows, before: int, at: int, what: str, role: str | None) -> BadRowError:
    line = rows.line(at)
    place = f"row {before + at + 1}" + (f" (line {line})" if line is not None else "")
    value = rows.frame[role][at] if role else None
    advice = "mend it"
    if role is not None and value in (None, ""):
        what = f"has no {role} (column '{getattr(source.layout, role)}' is empty)"
    elif role is not None:
        what = f"{what}: {value!r}"
        if role == "time":
            advice = "write Unix times (s, ms, us) or ISO dates such as 2024-01-31"
        if role == "time" and re.fullmatch(r"\d{1,2}[/.-]\d{1,2}[/.-]\d{2,4}.*", str(value)):
            advice = "it can be read in two ways, so write it as 2024-01-31"
    return BadRowError(f"{source.label}: {place} {what}; {advice}, or pass --skip-bad-rows")


def _ids(column: pl.Series, label: str, role: str) -> tuple[pl.Series, NDArray[np.bool_]]:
    """A column of ids as integers or text, and where it has none."""
    dtype = column.dtype
    if dtype == pl.String or isinstance(dtype, pl.Categorical | pl.Enum):
        column = column.cast(pl.String)
        return column, (column.is_null() | (column == "")).fill_null(True).to_numpy()
    if dtype.is_float():
        whole = column.is_finite() & (column == column.floor()) & (column.abs() < 2.0**63)
        missing = ~whole.fill_null(False)
        if bool((missing & column.is_finite().fill_null(False)).any()):
            raise InputError(f"{label}: the {role} ids are fractions; ids are integers or text")
        return column.cast(pl.Int64, strict=False), missing.to_numpy()
    if dtype.is_integer():
        missing = column.is_null()
        small = column.cast(pl.Int64, strict=False)
        beyond = bool((small.is_null() & ~missing).any())  # more than 64 bits with a sign: kept as text
        return column.cast(pl.String) if beyond else small, missing.to_numpy()
    if dtype == pl.Null:
        return pl.Series(column.name, [None] * len(column), dtype=pl.String), np.ones(len(column), np.bool_)
    raise InputError(f"{label}: the {role} ids have the type {dtype}; ids are integers or text")
