"""From a few measurements at small sizes to what the whole would take. Knows sizes and seconds, not how they are shown.

Two probes (lrurec.planning.probe) run the real code with the real settings, the catalogue and the users scaled down if
they are many. Everything measured is taken for a straight line in that scale, which is what its parts are: tables with
a row per item or user, and work on what does not depend on them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrurec.errors import LrurecError
from lrurec.memory.transitions import ITEM_BYTES, PAIR_BYTES
from lrurec.models.base import CountingModel
from lrurec.models.registry import model_class
from lrurec.nn.loss import multiplies_half
from lrurec.planning.log import Log
from lrurec.planning.probe import TIMED, WARM, Measured, line
from lrurec.training.config import RunConfig
from lrurec.training.learner import settled
from lrurec.training.remembering import held_back, learning_bytes, learning_steps

FULL, SAMPLED = 100_000, 1_000_000  # items or users in a probe, at most, by the loss
_COMMAND = ["-m", "lrurec.planning.probe"]
_QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}  # as the command line has it
_WINDOW = 64  # bytes that training keeps per window of the log
_EVENT, _USER, _ID = 4, 8, 12  # bytes in a dataset folder: per event, per user, and about so many per id


class PlanFailed(LrurecError):
    """A probe did not end; the message says why."""


@dataclass(frozen=True)
class Plan:
    """Seconds and bytes of the whole."""

    log: Log
    config: RunConfig
    scales: tuple[float, ...]
    all: Measured
    threads: int

    @property
    def counts(self) -> bool:
        """Whether the model counts once instead of being trained."""
        return issubclass(model_class(self.config.name), CountingModel)

    @property
    def steps_per_epoch(self) -> int:
        t = self.config.training
        return 1 if self.counts else -(-self.log.windows(t.max_length) // t.batch)

    @property
    def steps(self) -> int:
        t = self.config.training
        return 1 if self.counts else (t.steps or t.epochs * self.steps_per_epoch) + t.finish

    @property
    def epoch(self) -> float:
        return self.steps_per_epoch * self.all.step

    @property
    def validation(self) -> float:
        return self.all.ranked * int((self.log.lengths >= 3).sum())

    @property
    def validations(self) -> int:
        return max(1, -(-self.steps // self.config.training.validate_every))

    @property
    def whole(self) -> float:
        """The run: its steps, its validations, the test at the end, and the learning of a memory, which is tested apart."""
        tests = 3 if self.config.memory.use else 1
        return self.steps * self.all.step + (self.validations + tests) * self.validation + self.remembering

    @property
    def remembering(self) -> float:
        """Seconds that counting, twice, and learning how much to believe it take."""
        events, config = int(self.log.trained.sum()), self.config.memory
        if not config.use:
            return 0.0
        examples = held_back(events, config)
        learning = examples * self.all.example + learning_steps(examples) * self.all.learned
        return 2 * events * self.all.counted + learning

    @property
    def remembered(self) -> float:
        """Bytes of the transition memory, if the run has one: at most, for it may not fill all of its rows."""
        m, log = self.config.memory, self.log
        if not m.use:
            return 0.0
        counts = np.full(log.items, -(-log.events // log.items))
        if log.dataset is not None:
            counts = np.bincount(log.dataset.items, minlength=log.items)
        pairs = np.minimum(2 * m.window * counts, m.of_each(log.items)).sum()
        return float(PAIR_BYTES * pairs + ITEM_BYTES * log.items)

    @property
    def memory(self) -> float:
        """Of the process that trains, beside what it reads of the dataset, which the system can take back."""
        learning = 0.0
        if self.config.memory.use:  # all pairs, and those of a part while they are written; the learning
            learning = 2 * self.remembered + learning_bytes(self.log.events, self.config.memory)
        return self.all.peak + _WINDOW * self.log.windows(self.config.training.max_length) + learning

    @property
    def dataset_bytes(self) -> float:
        folder = self.log.dataset.path if self.log.dataset else None
        if folder is not None:
            return float(sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))
        return float(_EVENT * self.log.events + _USER * self.log.users + _ID * (self.log.users + self.log.items))

    @property
    def run_bytes(self) -> float:
        """Best and last checkpoint, and the next one while it is written; the transition memory."""
        return self.all.weights + 2 * self.all.resumable + self.remembered

    @property
    def artifact_bytes(self) -> float | None:
        if self.all.observe is None:
            return None
        return self.all.weights + _ID * self.log.items + self.all.index + self.remembered

    def values(self) -> dict[str, Any]:
        """Everything, for JSON."""
        log = {"users": self.log.users, "items": self.log.items, "events": self.log.events}
        names = (
            "steps_per_epoch", "steps", "epoch", "validations", "validation", "whole", "dataset_bytes", "run_bytes",
            "artifact_bytes", "memory", "remembering",
        )  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        measured = {**self.all.__dict__, "items_per_second": self.all.positions / self.all.step}
        probes = [{"items": _scaled(self.log.items, s), "users": _scaled(self.log.users, s)} for s in self.scales]
        return {
            **log, **found, "measured": measured, "probes": probes, "threads": self.threads,
            "config": self.config.values(), "advice": self.advice(),
        }  # fmt: skip

    def advice(self) -> list[str]:
        """What would make it faster or smaller, or fit at all."""
        t, found = self.config.training, []
        free, own = free_memory(), self.memory
        if free and own > 0.9 * free:
            tables = self.all.resumable > 0.2 * own
            what = (
                "a smaller model.width, or fewer items (lrurec prepare --min-item 5)"
                if tables
                else "a smaller training.batch or training.max_length"
            )
            found.append(
                f"training wants {own / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free here: {what}"
            )
        room = shutil.disk_usage(Path.cwd()).free
        if self.run_bytes > room:
            found.append(
                f"the run wants {self.run_bytes / 1e9:,.1f} GB of disk, and {room / 1e9:,.1f} GB are free here"
            )
        if not (self.log.lengths >= 3).any():
            found.append("nobody has three events or more, so that there is nothing to validate or test on")
        if self.counts:
            return found
        if t.loss == "full" and self.log.items >= 50_000:
            found.append(
                "most of a step goes over the whole catalogue: --set training.loss=sampled --set training.negatives=4096"
                " --set training.shared_negatives=true looks at few items, and updates the rows it touches"
            )
        if t.loss == "sampled" and not t.shared_negatives and t.negatives >= 64:
            found.append(
                "negatives of each position are the paper's way; shared ones (--set training.shared_negatives=true"
                " --set training.negatives=4096) cost less per step"
            )
        if t.precision == "float32" and self.config.name == "lrurec" and multiplies_half(torch.device(t.device)):
            found.append("this processor multiplies bfloat16: --set training.precision=bfloat16 takes half of the time")
        mean = self.log.events / self.log.users
        if mean > 1.5 * t.max_length and not t.carry_state:
            more = " or --set training.carry_state=true" if self.config.name == "lrurec" else ""
            found.append(
                f"histories have {mean:,.0f} events on average, and the model is shown {t.max_length}:"
                f" --set training.max_length={_round_up(mean)}{more} shows it more"
            )
        if (
            not t.candidates
            and self.validations > 1
            and self.validation * self.validations > 0.5 * self.steps * self.all.step
        ):
            found.append(
                f"validations take {self.validation * self.validations / self.whole:.0%} of the time: raise"
                " training.validate_every, or rank among samples (--set training.candidates=10000)"
            )
        return found


def plan(log: Log, config: RunConfig, watch: Callable[[int, int], None] = lambda done, total: None) -> Plan:
    """Probe, and extend to the whole."""
    config = settled(config)
    threads = torch.get_num_threads()
    most = SAMPLED if config.training.loss == "sampled" else FULL
    largest = min(1.0, most / max(log.items, log.users))
    scales = (1.0,) if largest == 1.0 else (largest / 4, largest)
    found = []
    for k, scale in enumerate(scales):
        watch(k, len(scales))
        found.append(probe(log, config, scale, threads))
    watch(len(scales), len(scales))
    return Plan(log, config, scales, _extended(scales, found), threads)


def _scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))


def _extended(scales: tuple[float, ...], found: list[Measured]) -> Measured:
    """The straight line through the measurements, at the whole."""
    last = found[-1]
    if len(found) == 1:
        return last
    values: dict[str, float | None] = {}
    for field in fields(Measured):
        a, b = (getattr(m, field.name) for m in found)
        values[field.name] = None if a is None or b is None else line(scales, (a, b), 1.0)
    for name in (
        "positions",
        "counted",
        "learned",
        "observe",
        "exact",
        "scanned",
        "approximate",
        "index",
    ):  # these are of the whole already
        values[name] = getattr(last, name)
    return Measured(**values)  # type: ignore[arg-type]


def probe(log: Log, config: RunConfig, scale: float, threads: int) -> Measured:
    """Measure a part of the log in a process of its own."""
    t = config.training
    items, users = _scaled(log.items, scale), _scaled(log.users, scale)
    train = log.sample((WARM + TIMED) * t.batch, t.max_length, items)
    question = {
        "items": items,
        "users": max(users, len(train)),
        "served": log.items,
        "threads": threads,
        "config": config.values(),
    }
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "question.json").write_text(json.dumps(question))
        for name in ("items", "users", "starts", "stops"):
            np.save(where / f"{name}.npy", np.asarray(getattr(train, name)))
        done = subprocess.run(
            [sys.executable, *_COMMAND, folder],
            env=_QUIET | os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode < 0:
        raise PlanFailed(
            f"a trial with {items:,} items was killed (signal {-done.returncode}), as the system does for want of memory;"
            " lower training.batch or training.max_length"
        )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise PlanFailed(f"a trial with {items:,} items did not end: {said[-1]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def free_memory() -> float | None:
    """Bytes of memory that are free or can be made so, where the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * int(found[0]) if found else None


def _round_up(length: float) -> int:
    """The next of 50, 100, 200, 500, 1000, ..."""
    step = 50
    for factor in (2, 2, 2.5, 2, 2, 2.5, 2, 2, 2.5):
        if step >= length:
            return step
        step = int(step * factor)
    return step
