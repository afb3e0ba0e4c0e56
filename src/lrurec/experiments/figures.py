"""Pictures, as PNG and as SVG. Knows lines and axes, not what they mean. matplotlib comes with lrurec[reproduce]."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrurec.experiments.made import Draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"lrurec": "#c0392b", "sasrec": "#2c6fbb", "gru4rec": "#3a8f4d"}


@dataclass(frozen=True)
class Line:
    """Points that belong together."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str | None = None
    dashed: bool = False


def lines(axes: "Axes", drawn: Sequence[Line], x: str, y: str, title: str = "", **more: Any) -> None:
    """Lines with marks in one panel; `more` are properties of the axes."""
    for one in drawn:
        marks = "o" if len(one.x) <= 40 else None
        axes.plot(
            one.x,
            one.y,
            label=one.label,
            color=one.colour,
            marker=marks,
            markersize=3,
            linestyle="--" if one.dashed else "-",
        )
    axes.set(xlabel=x, ylabel=y, title=title, **more)
    axes.grid(alpha=0.25)
    if len(drawn) > 1:
        axes.legend(frameon=False)


def save(draw: Draw, stem: Path, size: tuple[float, float] = (9, 3.6)) -> list[Path]:
    """Draw it into STEM.png and STEM.svg, each whole or not at all; the same numbers give the same SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    paths = []
    for end in ("png", "svg"):
        with matplotlib.rc_context({"svg.hashsalt": "lrurec", "font.size": 9}):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            path = stem.with_name(f"{stem.name}.{end}")
            aside = path.with_name(f".{path.name}.{os.getpid()}")
            plain = {"Date": None} if end == "svg" else {"Software": None}
            figure.savefig(aside, format=end, dpi=150, metadata=plain)
            aside.replace(path)
            paths.append(path)
    return paths
