"""What a target comes to: numbers, a page, pictures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[["Figure"], None]


@dataclass(frozen=True)
class Made:
    """Numbers as JSON has them, a page of Markdown, and how each picture is drawn, by the name of its file."""

    whole: dict[str, Any]
    text: str
    figures: dict[str, Draw] = field(default_factory=dict)


def line(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def grid(head: list[str], rows: list[list[str]], left: int = 1) -> list[str]:
    """A Markdown table whose first columns are text and whose others are numbers."""
    return [line(head), "|" + "---|" * left + "---:|" * (len(head) - left), *map(line, rows)]
