"""What a person sees: progress bars on stderr, tables and small plots on stdout. Knows words and widths, not data."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_BAR = "█"


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float, float], None]]:
    """A function (stage, done, total) that draws a bar per stage; silent when stderr is no terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, object] = {}

        def report(stage: str, done: float, total: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield report


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; the first row is the head."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def as_text(markdown: str) -> str:
    """A page for a terminal: tables aligned, pictures and marks left out."""
    lines: list[str] = []
    rows: list[list[str]] = []
    for line in [*markdown.replace("**", "").rstrip().splitlines(), ""]:
        if line.startswith(("| ", "|-")):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
            continue
        if rows:
            lines.append(table([rows[0], *rows[2:]]))
            rows = []
        if not line.startswith("!["):
            lines.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip()


def plot(title: str, bars: Sequence[tuple[str, int]], width: int = 40) -> str:
    """Labelled horizontal bars."""
    largest = max((count for _, count in bars), default=0) or 1
    label = max((len(name) for name, _ in bars), default=0)
    lines = [title]
    for name, count in bars:
        length = round(width * count / largest)
        drawn = (_BAR if _can_draw() else "#") * max(length, 1 if count else 0)
        lines.append(f"  {name:>{label}} {drawn} {count:,}")
    return "\n".join(lines)


def _can_draw() -> bool:
    try:
        _BAR.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def bytes_text(count: float) -> str:
    """1.5 GB rather than 1500000000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
