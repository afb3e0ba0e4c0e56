"""A cell: one model trained once on one dataset, in a folder that explains itself. Knows folders, not processes.

OUT/main/ml-1m/sasrec/seed-0/
    cell.json   what it is and what it came to; written whole, when the cell has ended
    run/        the run folder of `lrurec train`
    log.txt     what the training said, with the command before it
    ranks.npy   the ranks of the test items, once somebody asked for them
    .lock       held by whoever works on the cell; a process that is killed lets go of it
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lrurec.errors import FolderError, SettingsError
from lrurec.experiments.datasets import Found
from lrurec.experiments.settings import Chosen
from lrurec.folder import MANIFEST
from lrurec.training.config import RunConfig, from_values
from lrurec.training.learner import settled
from lrurec.training.run import Run, write_json

RECORD, RUN, LOG, RANKS = "cell.json", "run", "log.txt", "ranks.npy"
FORMAT, VERSION = "lrurec-cell", 1
MISSING, UNFINISHED, DONE, FAILED, OTHER = "missing", "unfinished", "done", "failed", "other settings"


@dataclass(frozen=True)
class Cell:
    """What is to be trained, and where it goes."""

    target: str
    dataset: Found
    row: str  # of the table
    model: str
    seed: int
    chosen: Chosen
    given: tuple[str, ...]  # the settings of the command line
    out: Path

    @property
    def name(self) -> str:
        """What people call it; the folder without OUT, and without the target where that is the main table."""
        return str(self.folder.relative_to(self.out)).removeprefix("main/")

    @property
    def folder(self) -> Path:
        return self.out / self.target / self.dataset.name / self.row / f"seed-{self.seed}"

    @property
    def run(self) -> Path:
        return self.folder / RUN

    @property
    def record(self) -> dict[str, Any] | None:
        """cell.json, if it is there."""
        return read_record(self.folder)

    def state(self) -> tuple[str, str]:
        """One of the five states above, and the reason where it is `other settings`."""
        record = self.record
        if record is not None:
            found = config_of(record)
            reason = self._difference(found, record["dataset"]["content_id"])
            if record["state"] == FAILED:
                return FAILED, reason or ""
            return (OTHER, reason) if reason else (DONE, "")
        if not (self.run / MANIFEST).exists():
            return MISSING, ""
        try:
            run = Run.open(self.run)
        except (FolderError, SettingsError) as error:
            return OTHER, str(error)
        reason = self._difference(run.config, run.manifest["dataset"]["content_id"])
        return (OTHER, reason) if reason else (UNFINISHED, "")

    def _difference(self, found: RunConfig | None, content_id: str) -> str | None:
        """Why what is recorded is not what is asked for; None if it is."""
        if self.dataset.content_id not in (None, content_id):
            return "the dataset is another one"
        if found is None:
            return "its settings are those of another version of lrurec"
        asked = self.chosen.config.values()["training"]
        open_ones = {name: value for name, value in asked.items() if value == "auto"}  # a run records what they came to
        found = replace(found, training=replace(found.training, **open_ones))
        if found == self.chosen.config:
            return None
        was, now = found.values(), self.chosen.config.values()
        changed = [(f"{p}.{k}", was[p].get(k), v) for p in now for k, v in now[p].items() if was[p].get(k) != v]
        key, old, new = changed[0]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"{key} was {old}, is {new} now{more}"

    def clear(self) -> None:
        """Forget what is there; the lock stays."""
        for name in (RECORD, RANKS):
            (self.folder / name).unlink(missing_ok=True)
        if self.run.exists():
            shutil.rmtree(self.run)

    def describe(self) -> dict[str, Any]:
        """What it is, for cell.json."""
        d = self.dataset
        return {
            "format": FORMAT,
            "version": VERSION,
            "target": self.target,
            "dataset": {
                "name": d.name,
                "given": d.given,
                "path": str(d.path.resolve()),
                "content_id": d.content_id,
                "kind": d.kind,
                "users": d.users,
                "items": d.items,
                "events": d.events,
                "not_the_papers": d.strange(),
            },
            "row": self.row,
            "model": self.model,
            "seed": self.seed,
            "recipe": self.chosen.recipe,
            "settings": list(self.chosen.assignments),
            "given": list(self.given),
            "config": self.chosen.config.values(),
        }

    def write(self, **outcome: object) -> dict[str, Any]:
        """cell.json, whole or not at all."""
        record = {**self.describe(), **outcome}
        write_json(self.folder / RECORD, record)
        return record


def read_record(folder: Path) -> dict[str, Any] | None:
    """The cell.json of a folder; None where there is none."""
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read ({error}); delete it to do the cell again") from None
    if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise FolderError(
            f"{path} is not what this version writes; delete it to do the cell again, or choose another --out"
        )
    return record


def records(out: Path, target: str) -> Iterator[dict[str, Any]]:
    """All cells of a target that have ended, by dataset, row and seed; `folder` says where each is."""
    for path in sorted((out / target).glob(f"*/*/seed-*/{RECORD}")):
        record = read_record(path.parent)
        if record is not None:
            yield {"row": record["model"], **record, "folder": path.parent}


def config_of(record: dict[str, Any]) -> RunConfig | None:
    """The settings of a cell, those that are newer than it as a run of today has them; None where some are not known."""
    try:
        return settled(from_values(record["config"]))
    except SettingsError:
        return None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for a lock file, and hold it."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def try_lock(folder: Path) -> int | None:
    """The lock of a cell as a file that is to be closed; None where another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
