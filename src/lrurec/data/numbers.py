"""The numbers that another program gave our items, 1 to V. Knows ids and numbers, not what they are for.

A file says them in one of three ways:

    {"tea": 1, "jam": 2}          JSON: item id to number
    tea,1                         two columns, comma or tab: item, number; a header with these names is optional
    tea                           a list: the item of line n has number n
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lrurec.data.text import raw_bytes
from lrurec.errors import InputError
from lrurec.ids import IdTable, IntIds

_HEADER = ["item", "number"]


def own_numbers(items: IdTable) -> NDArray[np.int64] | None:
    """The ids themselves, if they are the integers 1 to V; else None."""
    if isinstance(items, IntIds) and len(items) and items[0] == 1 and items[-1] == len(items):
        return np.array(items.values)
    return None


def read_numbers(path: Path, items: IdTable) -> NDArray[np.int64]:
    """The number of every item of the table; each item must have one, and each number from 1 to V an item."""
    ids, numbers = _pairs(path)
    wrong = next((k for k, n in enumerate(numbers) if not 1 <= n <= len(items)), None)
    if wrong is not None:
        raise InputError(
            f"{path} gives item '{ids[wrong]}' the number {numbers[wrong]};"
            f" numbers run from 1 to {len(items)}, as many as the dataset has items"
        )
    given = pl.DataFrame({"item": ids, "number": numbers}, schema={"item": pl.String, "number": pl.Int64})
    for column in _HEADER:
        twice = given.filter(pl.col(column).is_duplicated())
        if len(twice):
            raise InputError(f"{path} has the {column} '{twice[column][0]}' more than once")
    wanted = pl.DataFrame({"item": items.series().cast(pl.String)})
    strange = given.join(wanted, on="item", how="anti", maintain_order="left")
    if len(strange):
        raise InputError(f"{path}: {_some(strange)} not in the dataset; prepare it with the same input and filters")
    found = wanted.join(given, on="item", how="left", maintain_order="left")
    absent = found.filter(pl.col("number").is_null())
    if len(absent):
        raise InputError(
            f"{path} gives no number to {len(absent):,} items of the dataset, such as '{absent['item'][0]}'"
        )
    return found["number"].to_numpy()


def _some(rows: pl.DataFrame) -> str:
    more = f" and {len(rows) - 1:,} more items are" if len(rows) > 1 else " is"
    return f"item '{rows['item'][0]}'{more}"


def _pairs(path: Path) -> tuple[list[str], list[int]]:
    try:
        text = b"".join(raw_bytes(path)).removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8; convert it (iconv -f latin1 -t utf-8)") from None
    if not text.strip():
        raise InputError(f"{path} is empty; it should say which item has which number")
    if text.lstrip().startswith("{"):
        return _from_json(path, text)
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    separator = next((s for s in "\t," if s in lines[0]), None)
    if separator is None:
        return lines, list(range(1, len(lines) + 1))
    return _from_columns(path, text, separator)


def _from_json(path: Path, text: str) -> tuple[list[str], list[int]]:
    try:
        pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error})") from None
    for item, number in pairs:
        if type(number) is not int:
            raise InputError(f"{path} gives item '{item}' no whole number; it should be an object of item id to number")
    return [item for item, _ in pairs], [number for _, number in pairs]


def _from_columns(path: Path, text: str, separator: str) -> tuple[list[str], list[int]]:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    ids, numbers, head = [], [], _HEADER
    try:
        for row in rows:
            names = [cell.strip().lower() for cell in row]
            if not row or (rows.line_num == 1 and sorted(names) == _HEADER):
                head = names or head
                continue
            number = row[head.index("number")].strip() if len(row) == 2 else ""
            if not (number.isascii() and number.isdigit() and len(number) < 19):
                shown = separator.join(row)[:60]
                raise InputError(f"{path}: line {rows.line_num} should be item and number, not {shown!r}")
            ids.append(row[head.index("item")])
            numbers.append(int(number))
    except csv.Error as error:
        raise InputError(f"{path} cannot be taken apart ({error})") from None
    return ids, numbers
