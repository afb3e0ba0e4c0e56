"""One function per file format: a file to frames with the columns user, item, time, rating.

Knows formats, not what is done with the rows. Frames come as the file has them (text stays text);
`prepare` checks ids and parses times. A row that cannot be taken apart at all is an error that
names its line, or is left out and counted when `skip_bad` is set.
"""

import csv
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from lrurec.data.layout import Layout
from lrurec.data.literals import literal
from lrurec.data.text import Block, Report, blocks, check_utf8, not_utf8
from lrurec.errors import BadRowError, InputError

ROLES = ("user", "item", "time", "rating")
CHUNK = 2_000_000  # rows of a typed source handed on at a time


@dataclass(frozen=True)
class Rows:
    """Some rows of a file. `line(k)` is the line that row k stands on, if lines mean anything there."""

    frame: pl.DataFrame
    bad: int = 0  # rows left out because they could not be taken apart
    line: Callable[[int], int | None] = lambda k: None


Reader = Callable[[Path, Layout, bool, Report], Iterator[Rows]]


def read(path: Path, layout: Layout, *, skip_bad: bool = False, report: Report = lambda n: None) -> Iterator[Rows]:
    """The rows of a file, in order."""
    return READERS[layout.format](path, layout, skip_bad, report)


def _roles(layout: Layout) -> dict[str, str]:
    """Role to column, for the roles that the layout has."""
    return {role: column for role in ROLES if (column := getattr(layout, role)) is not None}


def _empty(roles: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(schema=dict.fromkeys(roles, pl.String))


def _as_utf8(path: Path, block: Block, skip_bad: bool) -> tuple[Block, int]:
    """The block if it is UTF-8; else an error, or the block without its bad lines and their number."""
    at = check_utf8(path, block)
    if at is None:
        return block, 0
    if not skip_bad:
        raise not_utf8(path, block.first_line + at)
    lines = block.data.splitlines(keepends=True)
    good = []
    for line in lines:
        try:
            line.decode("utf-8")
            good.append(line)
        except UnicodeDecodeError:
            good.append(b"\n")  # an empty line keeps the numbering of the lines below
    return Block(b"".join(good), block.first_line), sum(a != b for a, b in zip(lines, good, strict=True))


# --- cells between separators -------------------------------------------------------------------


def delimited(path: Path, layout: Layout, skip_bad: bool, report: Report) -> Iterator[Rows]:
    """CSV, TSV, MovieLens `::`, RecBole `.inter`, `user item` pairs, Amazon ratings."""
    first = True
    for block in blocks(path, quotes=layout.quotes, report=report):
        block, not_text = _as_utf8(path, block, skip_bad)
        if first and layout.header:
            block = _without_header(block, layout.quotes)
        first = False
        if block.data.strip():
            rows = _cells(path, layout, block, skip_bad)
            yield Rows(rows.frame, rows.bad + not_text, rows.line)
        elif not_text:
            yield Rows(_empty(list(_roles(layout))), not_text)


def _without_header(block: Block, quotes: bool) -> Block:
    """The block after its first line that is not blank (quoted line breaks are part of a line)."""
    start, data = 0, block.data
    while True:
        end = data.find(b"\n", start) + 1 or len(data)
        while quotes and data.count(b'"', start, end) % 2 and end < len(data):
            end = data.find(b"\n", end) + 1 or len(data)
        if data[start:end].strip() or end == len(data):
            return Block(data[end:], block.first_line + data.count(b"\n", 0, end))
        start = end


def _normal(layout: Layout, data: bytes) -> bytes:
    """Data with one separator of one byte between cells."""
    if layout.format == "movielens":
        return data.replace(b"::", b"\x1f")
    if layout.format == "pairs":
        data = data.replace(b"\r", b"")
        if b"\t" in data or b"  " in data or b" \n" in data or b"\n " in data or data[:1] == b" ":
            return b"\n".join(b" ".join(line.split()) for line in data.split(b"\n"))
    return data


def _cells(path: Path, layout: Layout, block: Block, skip_bad: bool) -> Rows:
    data, width = _normal(layout, block.data), len(layout.columns)
    roles = {role: layout.columns.index(column) for role, column in _roles(layout).items()}
    # polars gives blank lines as rows, and drops a byte order mark even where it is the first id.
    awkward = data[:1] in (b"\n", b"\r", b"\xef") or b"\n\n" in data or b"\n\r\n" in data
    if not awkward:
        try:
            frame = pl.read_csv(
                data,
                has_header=False,
                separator=layout.separator,
                quote_char='"' if layout.quotes else None,
                schema={f"c{k}": pl.String for k in range(width)},
            ).select(pl.col(f"c{k}").alias(role) for role, k in roles.items())
        except pl.exceptions.PolarsError:
            pass  # some row is malformed: take the rows one by one, to name it or leave it out
        else:
            if b'"' not in data:
                return Rows(frame, line=lambda k: block.first_line + k)
            return Rows(frame, line=lambda k: _one_by_one(path, layout, block, skip_bad=True)[2][k])
    good, bad, lines = _one_by_one(path, layout, block, skip_bad)
    columns = {role: [row[k] if k < len(row) else None for row in good] for role, k in roles.items()}
    frame = pl.DataFrame(columns, schema=dict.fromkeys(roles, pl.String))
    return Rows(frame, bad, lambda k: lines[k])


def _one_by_one(path: Path, layout: Layout, block: Block, skip_bad: bool) -> tuple[list[list[str]], int, list[int]]:
    """The slow, exact way: rows, how many were bad, and the line each good row begins on.

    A bad record costs one line: reading goes on at the line after its first, so that a quote that is never closed
    does not swallow what follows.
    """
    csv.field_size_limit(1 << 30)
    text = [line + "\n" for line in _normal(layout, block.data).decode("utf-8").split("\n")]
    style: Literal[0, 3] = csv.QUOTE_MINIMAL if layout.quotes else csv.QUOTE_NONE
    good: list[list[str]] = []
    lines: list[int] = []
    bad, at = 0, 0
    while at < len(text):
        reader = csv.reader(islice(text, at, None), delimiter=layout.separator, quoting=style, strict=True)
        begin = at
        fault = ""
        while not fault:
            at = begin + reader.line_num
            try:
                row = next(reader)
            except StopIteration:
                return good, bad, lines
            except csv.Error as error:
                fault = f"cannot be taken apart ({error})"
                break
            if len(row) > len(layout.columns):
                fault = f"has {len(row)} fields, {len(layout.columns)} expected"
            elif row:
                good.append(row)
                lines.append(block.first_line + at)
        if not skip_bad:
            raise BadRowError(f"{path}: line {block.first_line + at} {fault}; mend it, or pass --skip-bad-rows")
        bad += 1
        at += 1
    return good, bad, lines


# --- one object per line ------------------------------------------------------------------------


def json_lines(path: Path, layout: Layout, skip_bad: bool, report: Report) -> Iterator[Rows]:
    """JSON lines and Amazon reviews."""
    roles = _roles(layout)
    schema = {column: pl.String() for column in roles.values()}
    for block in blocks(path, quotes=False, report=report):
        block, not_text = _as_utf8(path, block, skip_bad)
        if not block.data.strip():
            frame, bad, lines = _empty(list(roles)), 0, None
        else:
            try:
                raw = pl.read_ndjson(block.data, schema=schema)
                frame, bad, lines = raw.select(pl.col(c).alias(r) for r, c in roles.items()), 0, None
            except (pl.exceptions.PolarsError, ValueError):
                frame, bad, lines = _objects(path, roles, block, skip_bad, _json_object, "JSON object")
        yield Rows(frame, bad + not_text, _line_finder(block, lines))


def _json_object(line: str, wanted: Collection[str]) -> object:
    return json.loads(line)


def python_literals(path: Path, layout: Layout, skip_bad: bool, report: Report) -> Iterator[Rows]:
    """Steam reviews: one Python literal per line, parsed as a literal and never evaluated."""
    roles = _roles(layout)
    for block in blocks(path, quotes=False, report=report, size=4 << 20):
        block, not_text = _as_utf8(path, block, skip_bad)
        frame, bad, lines = _objects(path, roles, block, skip_bad, literal, "Python literal of a dict")
        yield Rows(frame, bad + not_text, _line_finder(block, lines))


def _line_finder(block: Block, lines: list[int] | None) -> Callable[[int], int]:
    if lines is not None:
        return lambda k: lines[k]
    return lambda k: [block.first_line + i for i, t in enumerate(block.data.split(b"\n")) if t.strip()][k]


def _objects(
    path: Path,
    roles: dict[str, str],
    block: Block,
    skip_bad: bool,
    parse: Callable[[str, Collection[str]], object],
    kind: str,
) -> tuple[pl.DataFrame, int, list[int]]:
    found: dict[str, list[str | None]] = {role: [] for role in roles}
    lines: list[int] = []
    bad, wanted = 0, set(roles.values())
    for offset, text in enumerate(block.data.decode("utf-8").split("\n")):
        if not text.strip():
            continue
        try:
            row = parse(text.strip(), wanted)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            row = None
        if not isinstance(row, dict):
            if not skip_bad:
                raise BadRowError(
                    f"{path}: line {block.first_line + offset} is not a {kind} ({text.strip()[:40]!r});"
                    " mend it, or pass --skip-bad-rows"
                )
            bad += 1
            continue
        for role, column in roles.items():
            found[role].append(_scalar(row.get(column)))
        lines.append(block.first_line + offset)
    return pl.DataFrame(found, schema=dict.fromkeys(roles, pl.String)), bad, lines


def _scalar(value: object) -> str | None:
    """A value as text; what is neither text nor a number counts as missing."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return None


# --- a history per line -------------------------------------------------------------------------


def xlong(path: Path, layout: Layout, skip_bad: bool, report: Report) -> Iterator[Rows]:
    """XLong: tab-separated; the third column is the history, the fourth the item that came next."""
    seen: set[str] = set()
    for block in blocks(path, quotes=False, report=report):
        block, bad = _as_utf8(path, block, skip_bad)
        users: list[str] = []
        items: list[list[str]] = []
        lines: list[int] = []
        for offset, text in enumerate(block.data.decode("utf-8").split("\n")):
            if not text.strip():
                continue
            line, cells = block.first_line + offset, text.rstrip("\r").split("\t")
            if len(cells) < 4:
                if not skip_bad:
                    raise BadRowError(f"{path}: line {line} has {len(cells)} columns, XLong has at least 4")
                bad += 1
                continue
            user = str(line) if layout.user == "line" else cells[int(layout.user) - 1]
            if user in seen:
                raise BadRowError(
                    f"{path}: line {line} is a second history of user '{user}'; choose the user column with"
                    " --user 1 or --user 2, or give each line its own user with --user line"
                )
            seen.add(user)
            users.append(user)
            items.append([i for part in cells[2:4] for c in part.split(",") if (i := c.strip())])
            lines.append(line)
        counts = np.array([len(i) for i in items], np.int64)
        flat = pl.DataFrame(
            {
                "user": pl.Series(users, dtype=pl.String).gather(np.repeat(np.arange(len(users)), counts)),
                "item": pl.Series([i for row in items for i in row], dtype=pl.String),
            }
        )
        starts = np.cumsum(counts)
        yield Rows(flat, bad, lambda k, s=starts, n=lines: n[int(np.searchsorted(s, k, side="right"))])  # type: ignore[misc]


# --- typed tables -------------------------------------------------------------------------------


def parquet(path: Path, layout: Layout, skip_bad: bool, report: Report) -> Iterator[Rows]:
    """Parquet, a slice at a time: memory does not grow with the file or its row groups."""
    size = path.stat().st_size
    try:
        table = pl.scan_parquet(path)
        total = table.select(pl.len()).collect().item()
        for start in range(0, total, CHUNK):
            frame = table.select(pl.col(c).alias(r) for r, c in _roles(layout).items()).slice(start, CHUNK).collect()
            report(size * min(start + CHUNK, total) // total)
            yield Rows(frame)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} is not a whole Parquet file ({str(error).splitlines()[0]})") from None


READERS: dict[str, Reader] = {
    "csv": delimited,
    "tsv": delimited,
    "movielens": delimited,
    "recbole": delimited,
    "pairs": delimited,
    "amazon-csv": delimited,
    "jsonl": json_lines,
    "amazon-json": json_lines,
    "steam": python_literals,
    "xlong": xlong,
    "parquet": parquet,
}


def frame_rows(frame: pl.DataFrame) -> Iterator[Rows]:
    """A frame already in memory, a slice at a time."""
    for start in range(0, len(frame), CHUNK):
        yield Rows(frame.slice(start, CHUNK))
