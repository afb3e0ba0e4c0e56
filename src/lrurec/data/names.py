"""What people call the items: a table of ids and titles. Knows two columns, nothing else."""

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from lrurec.data.columns import find, find_title
from lrurec.data.text import cannot_read, raw_bytes
from lrurec.errors import InputError
from lrurec.ids import IdTable, TextIds


@dataclass(frozen=True)
class Names:
    """Item ids and their titles, both as text, and how the file was read."""

    ids: pl.Series
    titles: pl.Series
    encoding: str


def read_names(path: Path) -> Names:
    """A table of any of the known formats; Latin-1 if it is not UTF-8 (as MovieLens is)."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise cannot_read(path, error) from None
    if magic == b"PAR1":
        try:
            return _two_columns(path, pl.read_parquet(path), "parquet")
        except pl.exceptions.PolarsError as error:
            raise InputError(f"{path} is not a whole Parquet file ({str(error).splitlines()[0]})") from None
    raw = b"".join(raw_bytes(path)).removeprefix(b"\xef\xbb\xbf")
    try:
        text, encoding = raw.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        text, encoding = raw.decode("latin-1"), "latin-1"
    if not text.strip():
        raise InputError(f"{path} is empty; it should list item ids and names")
    return _two_columns(path, _table(path, text), encoding)


def _table(path: Path, text: str) -> pl.DataFrame:
    lines = [line for line in text.splitlines() if line.strip()]
    if lines[0].lstrip().startswith("{"):
        try:
            found = [json.loads(line) for line in lines]
        except ValueError as error:
            raise InputError(f"{path} is not JSON lines ({error})") from None
        keys = list(dict.fromkeys(k for row in found for k in row))
        return pl.DataFrame({k: [None if (v := row.get(k)) is None else str(v) for row in found] for k in keys})
    if "::" in lines[0]:
        rows = [line.split("::") for line in lines]
    else:
        separator = next((s for s in "\t|;," if s in lines[0]), ",")
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if separator in ",;" else csv.QUOTE_NONE
        try:
            source = io.StringIO(text, newline="")
            rows = [r for r in csv.reader(source, delimiter=separator, quoting=quoting) if r]
        except csv.Error as error:
            raise InputError(f"{path} cannot be taken apart ({error})") from None
    head = [re.sub(r":(token|token_seq|float|float_seq)$", "", c.strip()) for c in rows[0]]
    if find("item", head) is None and find_title(head) is None:
        head = [("item", "title")[k] if k < 2 else f"column {k + 1}" for k in range(len(head))]
    else:
        rows = rows[1:]
    return pl.DataFrame(
        {name: [r[k] if k < len(r) else None for r in rows] for k, name in enumerate(head)},
        schema=dict.fromkeys(head, pl.String),
    )


def _two_columns(path: Path, table: pl.DataFrame, encoding: str) -> Names:
    columns = table.columns
    item = find("item", columns) or next((c for c in columns if c.lower() == "id"), columns[0])
    title = find_title([c for c in columns if c != item]) or next((c for c in columns if c != item), None)
    if title is None:
        raise InputError(f"{path} has one column only; it should list item ids and names")
    both = table.select(pl.col(item).cast(pl.String).alias("i"), pl.col(title).cast(pl.String).alias("t"))
    both = both.drop_nulls().unique("i", keep="first", maintain_order=True)
    return Names(both["i"], both["t"].str.strip_chars(), encoding)


def join_names(path: Path, names: Names, table: IdTable) -> tuple[TextIds, int]:
    """A title for every item of the table (empty where there is none), and how many have one."""
    wanted = pl.DataFrame({"i": table.series().cast(pl.String), "at": np.arange(len(table))})
    found = wanted.join(pl.DataFrame({"i": names.ids, "t": names.titles}), on="i", how="left", maintain_order="left")
    hits = int((found["t"].fill_null("") != "").sum())
    if hits == 0:
        raise InputError(
            f"{path} names none of the items (its first id is '{names.ids[0] if len(names.ids) else ''}',"
            f" the log's is '{table[0]}'); check that both use the same ids"
        )
    return TextIds.of(found["t"].fill_null("")), hits
