"""Times of any spelling to integers that sort. Knows clocks, not events.

Numbers keep their own unit until the whole log has been seen: whether 1700000000000 means
milliseconds is decided once, from the largest value of all (`unit_of`).
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lrurec.errors import SettingsError

Unit = Literal["s", "ms", "us", "ns"]
UNITS: tuple[Unit, ...] = ("s", "ms", "us", "ns")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LIMIT = {"s": 10**11, "ms": 10**14, "us": 10**17}  # 1e11 s is the year 5138, 1e11 ms is 1973

# After "T" became " " and "Z"/"UTC" became "+00:00". Day-first and month-first dates are not here:
# 01/02/2014 has two readings, and a wrong one is worse than none.
_FORMATS = (
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M%#z",
    "%Y/%m/%d %H:%M:%S%.f",
    "%Y/%m/%d %H:%M",
    "%Y/%m/%d",
    "%m %d, %Y",
    "%b %d, %Y",
    "%B %d, %Y",
)


@dataclass(frozen=True)
class Times:
    """Parsed times. `unit` None: plain numbers whose unit is not known yet."""

    values: NDArray[np.int64]
    unit: Unit | None
    bad: NDArray[np.bool_]  # True where the value is empty or does not parse


def unit_of(largest: int) -> Unit:
    """The unit in which `largest` (the largest absolute value) is a plausible Unix time.

    >>> unit_of(1_700_000_000), unit_of(1_700_000_000_000), unit_of(1_700_000_000_000_000)
    ('s', 'ms', 'us')
    """
    for unit in ("s", "ms", "us"):
        if largest < _LIMIT[unit]:
            return unit
    return "ns"


def to_unit(values: NDArray[np.int64], have: Unit, want: Unit) -> NDArray[np.int64]:
    """Convert between units; to a coarser one by rounding down."""
    a, b = _PER_SECOND[have], _PER_SECOND[want]
    return values * (b // a) if b >= a else values // (a // b)


def parse_moment(text: str | date) -> int:
    """A date, an ISO time or a datetime as microseconds since 1970 (UTC where no zone is given)."""
    if isinstance(text, datetime):
        moment = text
    elif isinstance(text, date):
        moment = datetime(text.year, text.month, text.day)
    else:
        try:
            moment = datetime.fromisoformat(text.strip())
        except (ValueError, AttributeError):
            raise SettingsError(f"'{text}' is not a date; write 2024-01-31 or 2024-01-31T12:00:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 10**6 + delta.microseconds


def parse_times(column: pl.Series) -> Times:
    """Integers, floats, dates, datetimes or text to integers."""
    dtype = column.dtype
    if dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
        dtype = column.dtype
    if isinstance(dtype, pl.Datetime):
        return _finish(column.to_physical(), dtype.time_unit)  # physical values are UTC
    if dtype.is_integer():
        return _finish(column.cast(pl.Int64, strict=False), None)
    if dtype.is_float() or dtype.is_decimal():
        return _from_floats(column.cast(pl.Float64), None)
    if dtype == pl.String:
        return _from_text(column)
    return Times(np.zeros(len(column), np.int64), None, np.ones(len(column), np.bool_))


def _finish(column: pl.Series, unit: Unit | None) -> Times:
    return Times(column.fill_null(0).to_numpy().astype(np.int64), unit, column.is_null().to_numpy())


def _from_floats(column: pl.Series, exact: pl.Series | None) -> Times:
    """Whole floats are integers of a unit not known yet; fractions are kept to the microsecond."""
    values = column.fill_null(float("nan")).to_numpy()
    bad = ~np.isfinite(values) | (np.abs(values) > 9e18)
    values = np.where(bad, 0.0, values)
    if np.all(values == np.floor(values)):
        whole = values.astype(np.int64)
        if exact is not None:  # long integers keep digits that a float would lose
            whole = np.where(exact.is_null().to_numpy(), whole, exact.fill_null(0).to_numpy())
        return Times(whole, None, bad)
    unit = unit_of(int(np.abs(values).max()))
    scaled = np.round(values * (_PER_SECOND["us"] / _PER_SECOND[unit]))
    return Times(scaled.astype(np.int64), "us", bad)


def _from_text(column: pl.Series) -> Times:
    text = column.str.strip_chars()
    integers = text.cast(pl.Int64, strict=False)
    if integers.null_count() == 0:
        return _finish(integers, None)
    floats = text.cast(pl.Float64, strict=False)
    if floats.is_finite().sum() * 2 > len(text):
        return _from_floats(floats, integers)
    dates = _from_dates(text)
    if dates.is_not_null().sum() >= floats.is_finite().sum():
        return _finish(dates.to_physical(), "us")
    return _from_floats(floats, integers)


def _from_dates(text: pl.Series) -> pl.Series:
    text = text.str.replace(r"^(\d{4}-\d{2}-\d{2})[Tt]", "${1} ").str.replace(r"\s*(?:Z|z|UTC|GMT)$", "+00:00")
    parsed = pl.Series([None] * len(text), dtype=pl.Datetime("us"))
    for form in _FORMATS:
        missing = parsed.is_null()
        if not missing.any():
            break
        zone = "UTC" if form.endswith("%#z") else None
        # A format without a clock gives midnight.
        attempt = text.str.strptime(
            pl.Date if "%H" not in form else pl.Datetime("us", zone), form, strict=False, exact=True
        ).cast(pl.Datetime("us", zone))
        if zone:
            attempt = attempt.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        parsed = attempt if missing.all() else parsed.zip_with(~missing, attempt)
    return parsed
