"""Rows of a table of runs: a recipe with some settings, and several seeds of it.

A run that is missing is trained, an unfinished one resumed. A table that was written before keeps what it says of a row, as long
as the row's settings are the same: seeds may come from several machines. So that users can be compared across machines, too, the
ranks of the test targets are kept in results/ranks.npz, where a table asks for it. Knows `lrurec train` and its folders.
"""

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrurec.data.dataset import Dataset
from lrurec.evaluation.ranking import rank
from lrurec.training.config import RunConfig, config_for
from lrurec.training.learner import settled
from lrurec.training.run import Run

KEPT = Path(__file__).parents[1] / "results" / "ranks.npz"
_BEYOND = 255  # the 20 best places are kept apart; all others are this one


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "lrurec.cli.main", *(str(a) for a in arguments)]


@dataclass(frozen=True)
class Row:
    """What `lrurec train` is called with; its runs are in the folders NAME-SEED."""

    name: str
    data: Path
    recipe: str
    settings: tuple[str, ...] = ()
    keeps_ranks: bool = False  # so that users can be compared

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
        config = essential(self.config().values())
        known = dict(before["runs"]) if before and essential(before["config"]) == config else {}
        for seed in range(seeds):
            if folder := self.done(runs, seed):
                if Run.open(folder).config != settled(self.config(seed)):
                    raise SystemExit(f"{folder} was trained with other settings than this table has; move it away")
                known[str(seed)] = json.loads((folder / "result.json").read_text())
                if self.keeps_ranks:
                    known[str(seed)]["ranks"] = self._kept(folder, seed)
        return {"config": config, "runs": dict(sorted(known.items()))} if known else None

    def _kept(self, folder: Path, seed: int) -> str:
        """Keeps the ranks of a run's test targets; a hash of them, by which `ranks` knows that they are of this run."""
        if not (own := folder / "test_ranks.npy").exists():
            run = Run.open(folder)
            found = rank(run.model(), run.split(run.dataset()).test, run.config.training.seen).ranks
            np.save(own, np.where(found < 20, found, _BEYOND).astype(np.uint8))
        ranks, all_kept = np.load(own), _all_kept()
        all_kept[f"{self.name}-{seed}"] = ranks
        np.savez_compressed(KEPT, allow_pickle=False, **dict(sorted(all_kept.items())))
        return _hash(ranks)

    def ranks(self, gathered: dict[str, Any] | None) -> dict[str, NDArray[np.int64]]:
        """By seed, the ranks of the test targets of what `gathered` found."""
        all_kept, found = _all_kept(), {}
        for seed, result in (gathered or {"runs": {}})["runs"].items():
            ranks = all_kept.get(f"{self.name}-{seed}")
            if ranks is not None and _hash(ranks) == result.get("ranks"):
                found[seed] = ranks.astype(np.int64)
        return found


def _all_kept() -> dict[str, NDArray[np.uint8]]:
    return dict(np.load(KEPT)) if KEPT.exists() else {}


def _hash(ranks: NDArray[np.uint8]) -> str:
    return hashlib.sha256(ranks.tobytes()).hexdigest()[:16]


def essential(config: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings without those of a memory that is not used: new ones of these make no new row."""
    return config if config["memory"]["use"] else {**config, "memory": {"use": False}}


def results(row: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What `gathered` found, one result a seed."""
    return list(row["runs"].values()) if row else []


def table_before(path: Path) -> dict[str, Any]:
    """The JSON of a table, if there is one."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
