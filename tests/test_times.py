"""Times of any spelling."""

from datetime import UTC, date, datetime
from typing import Literal

import numpy as np
import polars as pl
import pytest

from lrurec.data.times import parse_moment, parse_times, to_unit, unit_of
from lrurec.errors import SettingsError

MOMENT = datetime(2014, 1, 2, 3, 4, 5, tzinfo=UTC)
SECONDS = int(MOMENT.timestamp())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2014-01-02T03:04:05", SECONDS),
        ("2014-01-02 03:04:05", SECONDS),
        ("2014-01-02T03:04:05Z", SECONDS),
        ("2014-01-02 03:04:05 UTC", SECONDS),
        ("2014-01-02T05:04:05+02:00", SECONDS),
        ("2014-01-02T05:04:05+0200", SECONDS),
        ("2014-01-02 03:04", SECONDS - 5),
        ("2014-01-02T03:04Z", SECONDS - 5),
        ("2014/01/02 03:04:05", SECONDS),
        ("2014-01-02", SECONDS - 3 * 3600 - 245),
        ("2014/01/02", SECONDS - 3 * 3600 - 245),
        ("01 2, 2014", SECONDS - 3 * 3600 - 245),
        ("Jan 2, 2014", SECONDS - 3 * 3600 - 245),
        ("1969-12-31", -86_400),
    ],
)
def test_dates(text: str, seconds: int) -> None:
    times = parse_times(pl.Series([text, text]))
    assert (times.unit, times.values.tolist()) == ("us", [seconds * 10**6] * 2)
    assert not times.bad.any()


def test_fractions_of_a_second_are_kept() -> None:
    assert parse_times(pl.Series(["2014-01-02T03:04:05.250Z"])).values.tolist() == [SECONDS * 10**6 + 250_000]
    assert parse_times(pl.Series(["1388631845.25", "1388631846"])).values.tolist() == [
        SECONDS * 10**6 + 250_000,
        (SECONDS + 1) * 10**6,
    ]


def test_several_spellings_in_one_column() -> None:
    times = parse_times(pl.Series(["2014-01-02", "2014-01-02T00:00:00Z", "Jan 2, 2014", "nonsense", None]))
    assert len(set(times.values[:3].tolist())) == 1
    assert times.bad.tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("text", ["01/02/2014", "yesterday", "2014-13-01", "2014-02-30", "12:30", "nan", "inf", ""])
def test_what_is_no_time(text: str) -> None:
    assert parse_times(pl.Series(["2014-01-02", text])).bad.tolist() == [False, True]


@pytest.mark.parametrize("text", ["x", "nan", "inf", "", "1e300"])
def test_what_is_no_number(text: str) -> None:
    assert parse_times(pl.Series(["10", "11", "12", text])).bad.tolist() == [False, False, False, True]


def test_numbers_keep_every_digit() -> None:
    times = parse_times(pl.Series(["1700000000123456789", "1700000000123456790", "bad"]))
    assert times.values[:2].tolist() == [1700000000123456789, 1700000000123456790]
    assert times.bad.tolist() == [False, False, True]


def test_whole_floats_are_integers() -> None:
    for column in (pl.Series([881250949.0]), pl.Series(["881250949.0"])):
        times = parse_times(column)
        assert (times.unit, times.values.tolist()) == (None, [881250949])


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_datetimes(unit: Literal["ms", "us", "ns"]) -> None:
    column = pl.Series([MOMENT.replace(tzinfo=None)]).cast(pl.Datetime(unit))
    times = parse_times(column)
    assert times.unit == unit
    assert to_unit(times.values, unit, "us").tolist() == [SECONDS * 10**6]


def test_zones_count() -> None:
    column = pl.Series([MOMENT]).dt.convert_time_zone("Asia/Tokyo")
    assert to_unit(parse_times(column).values, "us", "s").tolist() == [SECONDS]


def test_days() -> None:
    assert parse_times(pl.Series([date(1970, 1, 2)])).values.tolist() == [86_400 * 10**6]


def test_a_type_that_is_no_time() -> None:
    assert parse_times(pl.Series([True, False])).bad.all()


def test_units_by_size() -> None:
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        assert unit_of(1_700_000_000 * factor) == unit


def test_conversion_rounds_down() -> None:
    assert to_unit(np.array([1999, -1]), "ms", "s").tolist() == [1, -1]


def test_moments() -> None:
    assert parse_moment("2014-01-02T03:04:05") == SECONDS * 10**6
    assert parse_moment("2014-01-02T05:04:05+02:00") == SECONDS * 10**6
    assert parse_moment(MOMENT) == SECONDS * 10**6
    with pytest.raises(SettingsError, match="is not a date"):
        parse_moment("soon")
