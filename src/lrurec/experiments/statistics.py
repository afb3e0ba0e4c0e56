"""The paper's Table 2: how large each dataset is after preparation."""

from collections.abc import Sequence
from typing import Any

from lrurec.experiments.datasets import Found
from lrurec.experiments.made import Made, grid
from lrurec.experiments.published import published


def made(datasets: Sequence[Found]) -> Made:
    paper = published("datasets")
    rows = [_row(found, paper.of(found.name, "dataset")) for found in datasets]
    missing = [name for name in paper.values if name not in {found.name.lower() for found in datasets}]
    whole = {"target": "datasets", "paper": paper.paper, "table": paper.table, "datasets": rows, "not_here": missing}
    head = ["dataset", "users", "items", "events", "mean length", "density", "in the paper", "verdict"]
    lines = [
        f"# {paper.table}: how large the datasets are",
        "",
        f"Published numbers: {paper.table} of {paper.paper}.",
        "",
    ]
    lines += grid(head, [_cells(row) for row in rows])
    if missing:
        lines += ["", f"Not at hand here: {', '.join(missing)}. Once prepared, the same command takes them:"]
    lines += ["", "    lrurec reproduce datasets", ""]
    return Made(whole, "\n".join(lines))


def _row(found: Found, printed: dict[str, float] | None) -> dict[str, Any]:
    density = found.events / (found.users * found.items)
    ours = {"users": found.users, "items": found.items, "events": found.events, "mean length": found.mean_length}
    return {
        "dataset": found.name,
        **ours,
        "density": density,
        "published": printed,
        "verdict": _verdict(found, printed),
    }


def _verdict(found: Found, printed: dict[str, float] | None) -> str:
    """Users and items to the number; events and length as far as they are printed."""
    if printed is None:
        return "not in the paper"
    same = (found.users, found.items) == (printed["users"], printed["items"])
    near = abs(found.events / printed["events"] - 1) < 0.02 and abs(found.mean_length - printed["mean length"]) < 0.06
    return "reproduced" if same and near else "other data"


def _cells(row: dict[str, Any]) -> list[str]:
    p = row["published"]
    printed = (
        f"{p['users']:,} / {p['items']:,} / {p['events']:,} / {p['mean length']} / {p['density']:.0e}" if p else "-"
    )
    counts = [f"{row[key]:,}" for key in ("users", "items", "events")]
    return [row["dataset"], *counts, f"{row['mean length']:.1f}", f"{row['density']:.0e}", printed, row["verdict"]]
