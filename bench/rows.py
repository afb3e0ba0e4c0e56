"""Rows of a table of runs: a recipe with some settings, and several seeds of it.

A run that is missing is trained, an unfinished one resumed. A table that was written before keeps what it says of a row, as long
as the row's settings are the same: seeds may come from several machines. Knows `lrurec train` and its folders.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrurec.data.dataset import Dataset
from lrurec.training.config import RunConfig, config_for
from lrurec.training.learner import settled
from lrurec.training.run import Run


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "lrurec.cli.main", *(str(a) for a in arguments)]


@dataclass(frozen=True)
class Row:
    """What `lrurec train` is called with; its runs are in the folders NAME-SEED."""

    name: str
    data: Path
    recipe: str
    settings: tuple[str, ...] = ()

    def folder(self, runs: Path, seed: int) -> Path:
        return runs / f"{self.name}-{seed}"

    def done(self, runs: Path, seed: int) -> Path | None:
        """The folder of a finished run."""
        folder = self.folder(runs, seed)
        return folder if (folder / "result.json").exists() else None

    def train(self, runs: Path, seed: int) -> None:
        folder = self.folder(runs, seed)
        if not self.done(runs, seed):
            words = [word for s in (*self.settings, f"training.seed={seed}") for word in ("--set", s)]
            go_on = (folder / "manifest.json").exists()
            own = ["--resume"] if go_on else ["--recipe", self.recipe, *words]
            subprocess.run(command("train", self.data, "--out", folder, *own), check=True)

    def config(self, seed: int = 0) -> RunConfig:
        dataset, settings = Dataset.open(self.data), [*self.settings, f"training.seed={seed}"]
        return config_for(self.recipe, None, settings, None, dataset.size)

    def gathered(self, runs: Path, seeds: int, before: dict[str, Any] | None) -> dict[str, Any] | None:
        """The settings, and the results by seed: those of the folder, and those that a table had before."""
        config = self.config().values()
        known = dict(before["runs"]) if before and before["config"] == config else {}
        for seed in range(seeds):
            if folder := self.done(runs, seed):
                if Run.open(folder).config != settled(self.config(seed)):
                    raise SystemExit(f"{folder} was trained with other settings than this table has; move it away")
                known[str(seed)] = json.loads((folder / "result.json").read_text())
        return {"config": config, "runs": dict(sorted(known.items()))} if known else None


def results(row: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What `gathered` found, one result a seed."""
    return list(row["runs"].values()) if row else []


def table_before(path: Path) -> dict[str, Any]:
    """The JSON of a table, if there is one."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
