"""Which format a file has and which of its columns are user, item, time and rating.

Knows the look of files; reads only the first lines. `readers` does the reading.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from lrurec.config import unknown
from lrurec.data.columns import ROLES, find, find_time_like, plain
from lrurec.data.glance import cells_of, is_time, json_row, lines_of, literal_row, number_of, separator_of
from lrurec.data.text import cannot_read, head_of
from lrurec.errors import InputError

_PACKED = {b"PK\x03\x04": "a zip archive (or a spreadsheet)", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"7z\xbc": "7-Zip"}
_TYPED = re.compile(r"[^:\s]+:(token|token_seq|float|float_seq)")
_AMAZON_USER = re.compile(r"A[0-9A-Z]{8,25}")
_AMAZON_ITEM = re.compile(r"B[0-9A-Z]{9}|[0-9]{9}[0-9X]")


@dataclass(frozen=True)
class Wanted:
    """What the caller insists on: column names (or numbers, from 1) and whether there is a header."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None
    header: bool | None = None


@dataclass(frozen=True)
class Layout:
    """How to read one file. `user`, `item`, `time`, `rating` are entries of `columns`."""

    format: str
    columns: tuple[str, ...]
    user: str
    item: str
    time: str | None = None
    rating: str | None = None
    separator: str = ","
    quotes: bool = False
    header: bool = False
    digits_are_numbers: bool = True  # False where the file itself says that ids are text


def recognise(path: Path, format: str | None, wanted: Wanted) -> Layout:
    """The layout of a file, from its first lines."""
    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file; lrurec reads its input twice, so write it to a file first")
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise cannot_read(path, error) from None
    if magic == b"PAR1" or format == "parquet":
        return _parquet(path, wanted)
    head = head_of(path)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is UTF-16; convert it with: iconv -f utf-16 -t utf-8")
    for start, kind in _PACKED.items():
        if head.startswith(start):
            raise InputError(f"{path} is {kind}; unpack it first (gzip and zstd are read as they are)")
    if (at := head.find(b"\0")) >= 0:
        line = head.count(b"\n", 0, at) + 1
        raise InputError(f"{path} is neither text nor Parquet (a zero byte in line {line}); lrurec cannot read it")
    # Whether all of the text is UTF-8 is checked when rows are read.
    text = head.decode("utf-8", errors="replace")
    if not text.strip():
        raise InputError(f"{path} is empty; there is nothing to prepare")
    return FORMATS[format or _guess(path, text)](path, text, wanted)


def _guess(path: Path, text: str) -> str:
    lines = lines_of(text)
    first = lines[0].strip()
    if first.startswith("{"):
        row = json_row(first)
        if row is not None:
            return "amazon-json" if {"reviewerID", "asin"} <= row.keys() else "jsonl"
        return "steam" if literal_row(first) is not None else "jsonl"
    if first.startswith("["):
        raise InputError(f"{path} is one JSON array; write one object per line (jq -c '.[]' FILE)")
    if "::" in first and all("::" in line for line in lines):
        return "movielens"
    if "\t" in first and all(_TYPED.fullmatch(cell.strip()) for cell in first.split("\t")):
        return "recbole"
    if all(_is_xlong(line) for line in lines):
        return "xlong"
    separator = separator_of(lines)
    if separator is None:
        if all(len(line.split()) == 2 for line in lines):
            return "pairs"
        raise InputError(
            f"{path} is in no format that lrurec knows (first line: {first[:60]!r});"
            f" name it with --format ({', '.join(FORMATS)})"
        )
    if separator == "\t":
        return "tsv"
    rows = cells_of(text, separator)
    if separator == "," and all(len(r) == 4 for r in rows) and _amazon_columns(rows):
        return "amazon-csv"
    return "csv"


def _is_xlong(line: str) -> bool:
    cells = line.split("\t")
    return len(cells) >= 4 and "," in cells[2] and "," not in cells[0] and "," not in cells[1]


def _amazon_columns(rows: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """Where user and item stand: Amazon's 2014 files put the user first, those of 2018 the item."""

    def share(column: int, pattern: re.Pattern[str]) -> float:
        return sum(bool(pattern.fullmatch(r[column])) for r in rows) / len(rows)

    if share(0, _AMAZON_USER) > 0.9 and share(1, _AMAZON_ITEM) > 0.9:
        return 0, 1
    if share(1, _AMAZON_USER) > 0.9 and share(0, _AMAZON_ITEM) > 0.9:
        return 1, 0
    return None


# --- choosing columns ---------------------------------------------------------------------------


def _pick(path: Path, role: str, given: str | None, columns: Sequence[str]) -> str | None:
    if given is None:
        return find(role, columns)
    if given in columns:
        return given
    if given == "none" and role in ("time", "rating"):
        return None
    loose = [c for c in columns if plain(c) == plain(given)]
    if loose and plain(given):
        return loose[0]
    if given.isdigit() and 1 <= int(given) <= len(columns):
        return columns[int(given) - 1]
    raise InputError(f"{path} has no column '{given}' (--{role}); its columns: {', '.join(columns)}")


def choose(path: Path, layout: Layout, wanted: Wanted, moments: Sequence[str] = ()) -> Layout:
    """Fill in the roles from the column names; without a user or an item it is an error.

    `moments` are the columns that the source itself says are dates or times.
    """
    roles = {r: _pick(path, r, getattr(wanted, r), layout.columns) for r in ROLES}
    if roles["time"] is None and wanted.time is None:
        free = [c for c in layout.columns if c not in roles.values()]
        roles["time"] = moments[0] if len(moments) == 1 else find_time_like(free)
    for role in ("user", "item"):
        if roles[role] is None:
            raise InputError(
                f"{path} has no {role} column that lrurec recognises; name it with --{role}."
                f" Its columns: {', '.join(layout.columns)}"
            )
    if roles["user"] == roles["item"]:
        raise InputError(f"{path}: --user and --item both name the column '{roles['user']}'")
    return replace(layout, **roles)  # type: ignore[arg-type]


def _empty(format: str, columns: Sequence[str], **more: object) -> Layout:
    return Layout(format, tuple(columns), user="", item="", **more)  # type: ignore[arg-type]


# --- one function per format --------------------------------------------------------------------


def _delimited(path: Path, text: str, wanted: Wanted, format: str = "csv") -> Layout:
    separator = "\t" if format == "tsv" else separator_of(lines_of(text)) or ","
    rows = cells_of(text, separator)
    header = wanted.header if wanted.header is not None else _has_header(rows, wanted)
    if header is None:
        raise InputError(
            f"{path} has no user column that lrurec recognises (first line: {', '.join(rows[0])[:80]}); name the columns"
            " with --user and --item, and say with --header yes or no whether that line is a header"
        )
    quotes = '"' in text or format == "csv"
    if header:
        columns = [c.strip() or str(k) for k, c in enumerate(rows[0], 1)]
        layout = _empty(format, columns, separator=separator, quotes=quotes, header=True)
        return choose(path, layout, wanted)
    columns = [str(k) for k in range(1, len(rows[0]) + 1)]
    layout = _empty(format, columns, separator=separator, quotes=quotes)
    if len(columns) < 2:
        raise InputError(f"{path} has one column only; an event needs a user and an item")
    guessed = _by_content(rows)
    guessed = guessed or {"user": "1", "item": "2"}
    return choose(path, layout, _complete(wanted, guessed))


def _complete(wanted: Wanted, guessed: dict[str, str]) -> Wanted:
    """What the caller insists on, and guesses for the columns that are still free."""
    taken = {getattr(wanted, r) for r in ROLES}
    more = {r: c for r, c in guessed.items() if getattr(wanted, r) is None and c not in taken}
    return replace(wanted, **more)  # type: ignore[arg-type]


def _is_value(cell: str) -> bool:
    return number_of(cell) is not None or is_time(cell)


def _has_header(rows: Sequence[Sequence[str]], wanted: Wanted) -> bool | None:
    """Whether the first line names the columns; None where nobody can tell."""
    first = [c.strip() for c in rows[0]]
    if any(find(role, first) for role in ("user", "item", "time")):
        return True
    given = [c for r in ROLES if (c := getattr(wanted, r)) is not None and c != "none"]
    if any(not c.isdigit() for c in given):
        return True  # only a header has names
    if any(_is_value(c) for c in first):
        return False
    # No number or date in the first line but some below: those are names nobody told us about.
    if any(_is_value(row[k]) for row in rows[1:] for k in range(min(len(row), len(first)))):
        return True
    return None


def _by_content(rows: Sequence[Sequence[str]]) -> dict[str, str]:
    """Roles of nameless columns: user, item, then whichever looks like a time and like a rating."""
    if not any(number_of(c) is not None for c in rows[0]) and not any(is_time(c) for c in rows[0]):
        return {}
    guess = {"user": "1", "item": "2"}
    for k in range(2, min(len(r) for r in rows) if rows else 0):
        cells = [r[k] for r in rows]
        role = "time" if all(is_time(c) for c in cells) else "rating"
        if role == "rating" and not all(number_of(c) is not None for c in cells):
            continue
        guess.setdefault(role, str(k + 1))
    return guess


def _tsv(path: Path, text: str, wanted: Wanted) -> Layout:
    return _delimited(path, text, wanted, "tsv")


def _recbole(path: Path, text: str, wanted: Wanted) -> Layout:
    columns = [c.strip().split(":")[0] for c in lines_of(text)[0].split("\t")]
    return choose(path, _empty("recbole", columns, separator="\t", header=True), wanted)


def _movielens(path: Path, text: str, wanted: Wanted) -> Layout:
    count = lines_of(text)[0].count("::") + 1
    columns = ["user", "item", "rating", "timestamp"][:count] + [str(k) for k in range(5, count + 1)]
    return choose(path, _empty("movielens", columns, separator="\x1f"), wanted)


def _pairs(path: Path, text: str, wanted: Wanted) -> Layout:
    first = lines_of(text)[0].split()
    named = wanted.header if wanted.header is not None else bool(find("user", first) and find("item", first))
    columns = first if named else ["user", "item"]
    return choose(path, _empty("pairs", columns, separator=" ", header=named), wanted)


def _amazon_csv(path: Path, text: str, wanted: Wanted) -> Layout:
    swapped = _amazon_columns(cells_of(text, ",")) == (1, 0)
    columns = ["item", "user"] if swapped else ["user", "item"]
    return choose(path, _empty("amazon-csv", [*columns, "rating", "timestamp"], quotes=True), wanted)


def _json(path: Path, text: str, wanted: Wanted, format: str = "jsonl") -> Layout:
    rows = [row for line in lines_of(text) if (row := json_row(line)) is not None]
    if not rows:
        raise InputError(f"{path}: the first line is not a JSON object; write one object per line")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    layout = choose(path, _empty(format, columns), wanted)
    for role, column in (("user", layout.user), ("item", layout.item)):
        odd = next((v for r in rows if isinstance(v := r.get(column), bool | list | dict)), None)
        if odd is not None:
            raise InputError(f"{path}: the {role} ids are such as {json.dumps(odd)}; ids are integers or text")
    as_text = all(isinstance(row.get(c), str) for row in rows for c in (layout.user, layout.item))
    return replace(layout, digits_are_numbers=not as_text)


def _amazon_json(path: Path, text: str, wanted: Wanted) -> Layout:
    return _json(path, text, wanted, "amazon-json")


def _steam(path: Path, text: str, wanted: Wanted) -> Layout:
    rows = [row for line in lines_of(text) if (row := literal_row(line)) is not None]
    if not rows:
        raise InputError(f"{path}: the first line is not a Python literal such as {{'user': 'a', 'item': 'b'}}")
    columns = list(dict.fromkeys(str(key) for row in rows for key in row))
    if "username" in columns and wanted.user is None:  # Steam's user_id is missing from most of its rows
        wanted = replace(wanted, user="username")
    return replace(choose(path, _empty("steam", columns), wanted), digits_are_numbers=False)


def _xlong(path: Path, text: str, wanted: Wanted) -> Layout:
    columns = [str(k) for k in range(1, len(lines_of(text)[0].split("\t")) + 1)]
    user = wanted.user or "1"
    if user != "line" and user not in columns:
        raise InputError(f"{path}: --user must be a column number of the XLong file, or 'line'")
    return Layout("xlong", tuple(columns), user=user, item="3", separator="\t")


def _parquet(path: Path, wanted: Wanted) -> Layout:
    try:
        schema = pl.read_parquet_schema(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} is not a whole Parquet file ({str(error).splitlines()[0]})") from None
    layout = choose(path, _empty("parquet", list(schema)), wanted, [c for c, t in schema.items() if t.is_temporal()])
    return replace(layout, digits_are_numbers=False)


def _parquet_by_name(path: Path, text: str, wanted: Wanted) -> Layout:
    return _parquet(path, wanted)


FORMATS: dict[str, Callable[[Path, str, Wanted], Layout]] = {
    "csv": _delimited,
    "tsv": _tsv,
    "parquet": _parquet_by_name,
    "jsonl": _json,
    "movielens": _movielens,
    "recbole": _recbole,
    "pairs": _pairs,
    "amazon-csv": _amazon_csv,
    "amazon-json": _amazon_json,
    "steam": _steam,
    "xlong": _xlong,
}
