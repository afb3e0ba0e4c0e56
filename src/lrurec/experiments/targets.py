"""What can be reproduced: one row per table or figure of the paper. A new one is a row here."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrurec.config import unknown
from lrurec.experiments.cells import Cell, locked, records
from lrurec.experiments.datasets import Found
from lrurec.experiments.markdown import page
from lrurec.experiments.published import published
from lrurec.experiments.settings import settings_for
from lrurec.experiments.tables import tables
from lrurec.training.run import write_json


@dataclass(frozen=True)
class Asked:
    """What the user wants of a target."""

    datasets: Sequence[Found]
    models: Sequence[str]
    seeds: Sequence[int]
    given: tuple[str, ...]  # settings
    out: Path


@dataclass(frozen=True)
class Target:
    """One of the paper's tables."""

    name: str
    about: str
    result: str  # what it is called among the results of a repository
    cells: Callable[[str, Asked], list[Cell]]
    tables: Callable[[str, Path, Sequence[str]], dict[str, Any]]

    def plan(self, asked: Asked) -> list[Cell]:
        """The cells that it takes."""
        return self.cells(self.name, asked)

    def write(self, out: Path, wanted: Sequence[Cell], results: Path | None = None) -> dict[str, Any]:
        """OUT/NAME.json and OUT/NAME.md from all cells that are there, and copies among the results; gives the numbers."""
        with locked(out / f".{self.name}.lock"):  # another queue may be about to write what it read before us
            missing = [cell.name for cell in wanted if cell.record is None]
            whole = self.tables(self.name, out, missing)
            _put(out / f"{self.name}.md", page(whole))
            write_json(out / f"{self.name}.json", whole)
            if results is not None:
                results.mkdir(parents=True, exist_ok=True)
                for end in ("md", "json"):
                    shutil.copyfile(out / f"{self.name}.{end}", results / f"{self.result}.{end}")
        return whole


def _one_per_model(target: str, asked: Asked) -> list[Cell]:
    """Every model on every dataset with every seed; the seeds outermost, so that the table fills evenly."""
    return [
        Cell(
            target,
            dataset,
            model,
            seed,
            settings_for(dataset.kind, model, seed, asked.given),
            asked.given,
            asked.out / target / dataset.name / model / f"seed-{seed}",
        )
        for seed in asked.seeds
        for dataset in asked.datasets
        for model in asked.models
    ]


def _main_tables(target: str, out: Path, missing: Sequence[str]) -> dict[str, Any]:
    paper, found = published(target), list(records(out, target))
    return {
        "target": target,
        "paper": paper.paper,
        "table": paper.table,
        "caption": paper.caption,
        "machines": sorted({r["machine"] for r in found}),
        "datasets": tables(found, paper),
        "missing": list(missing),
    }


TARGETS = {
    row.name: row
    for row in (Target("main", "Table 3: every model on every dataset", "baselines", _one_per_model, _main_tables),)
}


def target(name: str) -> Target:
    """The row of a name; an unknown one is an error that suggests the right one."""
    if name not in TARGETS:
        raise unknown("target", name, TARGETS)
    return TARGETS[name]


def _put(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
