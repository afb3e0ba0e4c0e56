"""The numbers that the paper prints: published.json, which names the table of each. Knows names and numbers."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Published:
    """One table of the paper, or what it says of a figure."""

    target: str
    paper: str
    table: str
    caption: str
    split: str
    values: dict[str, dict[str, dict[str, float]]]  # dataset, row, metric
    notes: dict[str, str]  # of a dataset: what is odd about the printed numbers

    def of(self, dataset: str, row: str) -> dict[str, float] | None:
        """The metrics of a row on a dataset; None where the paper has none."""
        return self.values.get(dataset.lower(), {}).get(row)

    def improvement(self, dataset: str, metric: str) -> float | None:
        """How far the paper's LRURec is above the best of its baselines: 0.04 is 4%."""
        rows = self.values.get(dataset.lower(), {})
        others = [row[metric] for model, row in rows.items() if model != "lrurec"]
        return rows["lrurec"][metric] / max(others) - 1 if others else None


@cache
def published(target: str) -> Published:
    """The table (or figure) that a target makes again."""
    text = resources.files("lrurec.experiments").joinpath("published.json").read_text(encoding="utf-8")
    whole: dict[str, Any] = json.loads(text)
    found = whole[target]
    return Published(target, whole["paper"], *(found[k] for k in ("table", "caption", "split", "values", "notes")))
