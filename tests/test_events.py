"""`load_events`: frames of both kinds, paths of all kinds."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lrurec
from conftest import histories
from lrurec.errors import InputError, SettingsError

ROWS: dict[str, list[Any]] = {"user": ["b", "a", "a", "b"], "item": [3, 1, 2, 1], "time": [4, 9, 2, 1]}
EXPECTED = {"a": [2, 1], "b": [1, 3]}


def test_polars() -> None:
    assert histories(lrurec.load_events(pl.DataFrame(ROWS))) == EXPECTED
    assert histories(lrurec.load_events(pl.LazyFrame(ROWS))) == EXPECTED


def test_pandas() -> None:
    assert histories(lrurec.load_events(pd.DataFrame(ROWS))) == EXPECTED
    assert histories(lrurec.load_events(pd.DataFrame(ROWS).astype({"user": object}))) == EXPECTED
    assert histories(lrurec.load_events(pd.DataFrame(ROWS).astype({"user": "category"}))) == EXPECTED
    assert histories(lrurec.load_events(pd.DataFrame(ROWS).astype({"item": "Int64"}))) == EXPECTED
    assert histories(lrurec.load_events(pd.DataFrame(ROWS).astype({"item": float}))) == EXPECTED
    shuffled = pd.DataFrame(ROWS, index=[7, 7, 3, 1])  # an index says nothing
    assert histories(lrurec.load_events(shuffled)) == EXPECTED


def test_pandas_times() -> None:
    frame = pd.DataFrame(ROWS)
    for unit in ("s", "ms", "us", "ns"):
        dataset = lrurec.load_events(
            frame.assign(time=pd.to_datetime(frame["time"], unit="s").astype(f"datetime64[{unit}]"))
        )
        assert histories(dataset) == EXPECTED
        assert dataset.times is not None and dataset.times.tolist() == [
            2_000_000,
            9_000_000,
            1_000_000,
            4_000_000,
        ]
    aware = frame.assign(time=pd.to_datetime(frame["time"], unit="s", utc=True).dt.tz_convert("Asia/Tokyo"))
    assert histories(lrurec.load_events(aware)) == EXPECTED
    days = frame.assign(time=[datetime(2020, 1, d) for d in ROWS["time"]]).astype({"time": object})
    assert histories(lrurec.load_events(days)) == EXPECTED


def test_pandas_mixed_and_missing() -> None:
    mixed = pd.DataFrame({"user": [1, "1", "x", 1], "item": [1, 2, 3, 4]})
    assert histories(lrurec.load_events(mixed)) == {"1": [1, 2, 4], "x": [3]}
    big = pd.DataFrame({"user": [1 << 70, 1 << 70], "item": [1, 2]}).astype(object)
    assert histories(lrurec.load_events(big)) == {str(1 << 70): [1, 2]}
    holed = pd.DataFrame({"user": ["a", None, "a"], "item": [1, 2, np.nan]})
    with pytest.raises(InputError, match="the frame: row 2 has no user id"):
        lrurec.load_events(holed)
    more = pd.concat([holed, pd.DataFrame({"user": ["a"], "item": [5.0]})])
    assert histories(lrurec.load_events(more, skip_bad_rows=True)) == {"a": [1, 5]}
    with pytest.raises(InputError, match="truth values"):
        lrurec.load_events(pd.DataFrame({"user": [True, False], "item": [1, 2]}))
    with pytest.raises(InputError, match="holds tuple"):
        lrurec.load_events(pd.DataFrame({"user": [(1, 2), (3, 4)], "item": [1, 2]}))


def test_columns_and_ratings() -> None:
    frame = pl.DataFrame({"who": [1, 1, 1], "what": [1, 2, 3], "stars": [5.0, 1.0, 4.0]})
    dataset = lrurec.load_events(frame, user="who", item="what", min_rating=4)
    assert histories(dataset) == {1: [1, 3]}
    assert dataset.manifest["log"]["below_min_rating"] == 1
    with pytest.raises(InputError, match="no column 'whom'"):
        lrurec.load_events(frame, user="whom", item="what")
    with pytest.raises(InputError, match="no rating column"):
        lrurec.load_events(frame.drop("stars"), user="who", item="what", min_rating=4)


def test_a_folder_is_kept_where_asked(tmp_path: Path) -> None:
    kept = lrurec.load_events(pl.DataFrame(ROWS), out=tmp_path / "d")
    assert kept.path == tmp_path / "d"
    assert histories(lrurec.Dataset.open(tmp_path / "d")) == EXPECTED
    assert histories(lrurec.load_events(tmp_path / "d")) == EXPECTED  # a dataset is opened, not read anew
    in_memory = lrurec.load_events(pl.DataFrame(ROWS))
    assert in_memory.path is None and not isinstance(in_memory.items, np.memmap)


def test_several_paths(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"user,item\n{name},1\n{name},2\n")
    assert lrurec.load_events([tmp_path / "a", str(tmp_path / "b")]).n_users == 2


def test_wrong_words() -> None:
    with pytest.raises(SettingsError, match="did you mean 'min_user'"):
        lrurec.load_events(pl.DataFrame(ROWS), min_usr=3)
    with pytest.raises(SettingsError, match="did you mean 'shuffle'"):
        lrurec.load_events(pl.DataFrame(ROWS), ties="shufle")
    with pytest.raises(SettingsError, match="min_user must be a whole number"):
        lrurec.load_events(pl.DataFrame(ROWS), min_user="3")
    with pytest.raises(SettingsError, match="path of a table"):
        lrurec.load_events(pl.DataFrame(ROWS), item_names=pl.DataFrame())  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="not int"):
        lrurec.load_events(5)


def test_events_come_back_as_a_frame() -> None:
    events = lrurec.load_events(pl.DataFrame(ROWS)).events()
    assert events.select("user", "item").rows() == [("a", 2), ("a", 1), ("b", 1), ("b", 3)]
    assert events["time"].dt.epoch("s").to_list() == [2, 9, 1, 4]
    assert lrurec.load_events(pl.DataFrame(ROWS).drop("time")).events().columns == ["user", "item"]
