"""What can be reproduced: one row per table or figure of the paper. A new one is a row here."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrurec.config import unknown
from lrurec.errors import SettingsError
from lrurec.experiments import (
    curves,
    eigenvalues,
    latency,
    markdown,
    rows,
    sensitivity,
    significance,
    statistics,
    tuning,
)
from lrurec.experiments.borrowed import borrowed
from lrurec.experiments.cells import Cell, locked, records
from lrurec.experiments.datasets import Found
from lrurec.experiments.figures import save
from lrurec.experiments.made import Made
from lrurec.experiments.published import published
from lrurec.experiments.rows import Row, telling_first
from lrurec.experiments.settings import settings_for
from lrurec.experiments.tables import tables
from lrurec.folder import write_text
from lrurec.training.run import write_json


@dataclass(frozen=True)
class Asked:
    """What the user wants of a target."""

    datasets: Sequence[Found]
    rows: Sequence[str] | None  # None: all
    seeds: Sequence[int]
    given: tuple[str, ...]  # settings
    out: Path
    say: Callable[[str], None] = lambda text: None  # what takes a while
    results: Path | None = None  # where tables of before may be, and go


@dataclass(frozen=True)
class Target:
    """One of the paper's tables or figures."""

    name: str
    about: str
    result: str  # what it is called among the results of a repository
    rows: Callable[[str], list[Row]]  # by the kind of the dataset
    make: Callable[[str, Asked], Made]
    part: str = "train"  # what must be installed
    measure: Callable[[Path, bool, Callable[[str], None]], None] | None = None  # what is not trained but timed
    alone: bool = False  # whether it wants more of a cell than the main table does, and takes none of its cells
    like: str = ""  # the target that has the same datasets, where the paper has nothing of its own to show

    @property
    def datasets(self) -> list[str]:
        """Those that the paper has for it."""
        return list(published(self.like or self.name).values)

    def known(self) -> list[Row]:
        """All rows that there are, of any kind of dataset."""
        return self.rows("dense")

    def check(self, names: Sequence[str] | None) -> None:
        """Refuse rows that the table does not have."""
        known = [name for row in self.known() for name in (row.group, row.name) if name]
        if names and not known:
            raise SettingsError(f"{self.name} has no models to choose from; leave out --models")
        for name in names or ():
            if name not in known:
                what = "model" if self.name == "main" else f"row of {self.name}"
                raise unknown(what, name, dict.fromkeys(known))

    def select(self, names: Sequence[str] | None) -> list[Row]:
        """The rows of these names, and of groups of these names, in their order; of none, the most telling first."""
        if names is None:
            return telling_first(self.known())
        found = [row for name in names for row in self.known() if name in (row.name, row.group)]
        return list(dict.fromkeys(found))

    def plan(self, asked: Asked) -> list[Cell]:
        """The cells that it takes; the seeds outermost, so that the table fills evenly, then the most telling rows.

        A cell whose settings are those of the main table is a cell of the main table: it is trained once.
        """
        cells = []
        for seed in asked.seeds:
            for known in self.select(asked.rows):
                for dataset in asked.datasets:
                    row = next(row for row in self.rows(dataset.kind) if row.name == known.name)
                    plain = settings_for(dataset.kind, row.model, seed, asked.given)
                    chosen = settings_for(dataset.kind, row.model, seed, asked.given, row.settings, row.usual)
                    shared = chosen.config == plain.config and not self.alone
                    target, folder = ("main", row.model) if shared else (self.name, row.folder or row.name)
                    shown = plain if target == "main" else chosen
                    cells.append(Cell(target, dataset, folder, row.model, seed, shown, asked.given, asked.out))
        return list({cell.folder: cell for cell in cells}.values())  # two rows may be one cell of the main table

    def write(self, asked: Asked, wanted: Sequence[Cell], results: Path | None = None) -> dict[str, Any]:
        """OUT/NAME.json and OUT/NAME.md from all cells that are there, and copies among the results; gives the numbers."""
        out = asked.out
        with locked(out / f".{self.name}.lock"):  # another queue may be about to write what it read before us
            made = self.make(self.name, asked)
            missing = [cell.name for cell in wanted if cell.record is None]
            whole = {**made.whole, "missing": missing}
            text = made.text + (f"\nNot done yet: {', '.join(missing)}.\n" if missing else "")
            files = [f"{self.name}.md", f"{self.name}.json"]
            write_text(out / files[0], text)
            write_json(out / files[1], whole)
            for stem, draw in made.figures.items():
                files += [path.name for path in save(draw, out / stem)]
            if results is not None:
                results.mkdir(parents=True, exist_ok=True)
                for file in files:
                    shutil.copyfile(out / file, results / file.replace(self.name, self.result, 1))
        return whole


def _beside_the_papers(target: str, asked: Asked) -> Made:
    """A table of metrics with the published ones beside them."""
    paper, known = published(target), TARGETS[target].known()
    found = list(records(asked.out, target))
    if target == "xlong":  # its rows are those of the main table, on long histories
        names = {row.name for row in known}
        shared = [r for r in records(asked.out, "main") if r["dataset"]["kind"] == "long"]
        found += [record for record in shared if record["row"] in names]
    elif target != "main":
        found += borrowed(asked.out, found, known)
    whole = {
        "target": target,
        "paper": paper.paper,
        "table": paper.table,
        "caption": paper.caption,
        "split": paper.split,
        "machines": sorted({r["machine"] for r in found}),
        "datasets": tables(found, paper, known),
    }
    return Made(whole, markdown.page(whole))


def _nothing(kind: str) -> list[Row]:
    return []


TARGETS: dict[str, Target] = {
    row.name: row
    for row in (
        Target("datasets", "Table 2: how large each dataset is", "datasets", _nothing, lambda t, a: statistics.made(a.datasets)),
        Target("main", "Table 3: every model on every dataset", "baselines", rows.main, _beside_the_papers),
        Target("significance", "LRURec against the others, user by user: better, or luck?", "significance", rows.main, lambda t, a: significance.made(a.out, a.say), like="main"),
        Target("tuning", "every model with other dropouts and rates, by validation: are the rivals tuned as LRURec is?", "tuning", rows.tuning, lambda t, a: tuning.made(a.out, a.given, a.results), like="main"),
        Target("xlong", "Table 4: long histories, ranked among 10,000 sampled items", "xlong", rows.xlong, _beside_the_papers),
        Target("lambda", "Table 5: the average |lambda| of each block", "lambda", rows.eigenvalues, lambda t, a: eigenvalues.made(a.out)),
        Target("ablation", "Table 6: LRURec without its parts, and with RWKV and S4", "ablation", rows.ablation, _beside_the_papers),
        Target("curves", "Figure 1, left: Recall@10 in training, by step and by second", "curves", rows.curves, lambda t, a: curves.made(a.out), "figures", alone=True),
        Target("latency", "Figure 1, right: the time of 2,048 predictions while a history grows", "latency", _nothing, lambda t, a: latency.made(a.out), "figures", latency.measure),
        Target("sensitivity", "Figure 4: Recall@10 by weight decay and by dropout", "sensitivity", rows.sensitivity, lambda t, a: sensitivity.made(a.out), "figures"),
    )
}  # fmt: skip


def target(name: str) -> Target:
    """The row of a name; an unknown one is an error that suggests the right one."""
    if name not in TARGETS:
        raise unknown("target", name, [*TARGETS, "all"])
    return TARGETS[name]
