"""A glance at the first lines of a file: cells, objects, numbers. Knows text, not events."""

import ast
import csv
import io
import json
import re
from collections.abc import Sequence


def lines_of(text: str, limit: int = 200) -> list[str]:
    """The first lines that are not blank."""
    return [line for line in text.split("\n") if line.strip()][:limit]


def separator_of(lines: Sequence[str]) -> str | None:
    """The separator that splits most lines into as many cells as the first; of several, the one with most cells."""
    best, most = None, (0.5, 1)
    for separator in "\t,;|":
        counts = [len(row) for row in cells_of("\n".join(lines), separator)]
        alike = sum(c == counts[0] for c in counts) / len(counts)
        if counts[0] > 1 and (alike, counts[0]) >= most:
            best, most = separator, (alike, counts[0])
    if best is None and (words := {len(line.split(" ")) for line in lines}) == {max(words)} and max(words) > 2:
        return " "
    return best


def cells_of(text: str, separator: str) -> list[list[str]]:
    """The first lines taken apart, quotes understood."""
    lines = io.StringIO("\n".join(lines_of(text)))
    try:
        return [row for row in csv.reader(lines, delimiter=separator) if row]
    except csv.Error:
        return [line.split(separator) for line in lines_of(text)]


def json_row(line: str) -> dict[str, object] | None:
    """A line as a JSON object, or None."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def literal_row(line: str) -> dict[str, object] | None:
    """A line as the Python literal of a dict, or None; literals only, nothing is ever evaluated."""
    try:
        row = ast.literal_eval(line)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return row if isinstance(row, dict) else None


def number_of(cell: str) -> float | None:
    """A cell as a number, or None."""
    try:
        return float(cell)
    except ValueError:
        return None


def is_time(cell: str) -> bool:
    """True for a number that is a plausible Unix time, and for an ISO date."""
    number = number_of(cell)
    return number >= 1e8 if number is not None else bool(re.match(r"\d{4}-\d\d-\d\d", cell.strip()))
