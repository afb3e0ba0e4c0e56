"""Cells done one after another, or some at once, each in a process of its own. Knows processes, not what they train.

Several queues may work on one folder: each cell is locked by who works on it. The lock is handed on to the process that
trains, so that it is held for as long as anybody writes into the cell, and free as soon as nobody does.
"""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import lrurec
from lrurec.experiments.cells import DONE, FAILED, LOG, MISSING, OTHER, RECORD, Cell, try_lock
from lrurec.experiments.machine import cores, machine
from lrurec.folder import MANIFEST
from lrurec.training.trainer import RESULT

POLL, LOOK = 0.1, 1.0  # seconds between two looks at our processes, and at cells that others work on
Launch = Callable[[Sequence[str]], list[str]]  # arguments of lrurec to a command


class Watch(Protocol):
    """Who hears of it."""

    def started(self, cell: Cell, resumed: bool) -> None: ...
    def ended(self, cell: Cell, record: dict[str, Any]) -> None: ...
    def tick(self, queue: "Queue") -> None: ...


@dataclass
class _Running:
    cell: Cell
    process: subprocess.Popen[bytes]
    lock: int
    said: int  # where its part of the log begins
    threads: int
    started: float
    told: int = 0  # signals it was sent


@dataclass
class Queue:
    """Does what is missing of some cells."""

    cells: Sequence[Cell]
    launch: Launch
    watch: Watch
    jobs: int = 1
    minutes: float | None = None
    again: bool = False
    done: list[Cell] = field(default_factory=list)
    failed: list[Cell] = field(default_factory=list)
    waiting: list[Cell] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)
    stops: int = 0  # set from outside: 1 lets the cells save, 2 does not
    _failures: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # records of failure from before

    def run(self) -> None:
        """Until all cells have ended, the minutes are over, or somebody stops it. What is left is in `waiting`."""
        for cell in self.cells:
            state = cell.state()[0]
            (self.done if state == DONE else self.waiting).append(cell)
            if state == FAILED:
                self._failures[cell.name] = cell.record
        ends = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        look = 0.0  # when to look for the next cell: not at every turn, while other queues work on all that is left
        try:
            while True:
                if self._reap():
                    look = 0.0
                starts = not self.stops and (ends is None or time.monotonic() < ends)
                while starts and len(self.running) < self.jobs and time.monotonic() >= look:
                    look = 0.0 if self._start_one() else time.monotonic() + LOOK
                if self.stops:
                    self._tell()
                self.watch.tick(self)
                if not self.running and not (starts and self.waiting):
                    return
                time.sleep(POLL)
        finally:
            while self.running:  # after an error of our own
                self.stops = max(self.stops, 1)
                self._tell()
                self._reap()
                time.sleep(POLL)

    def _start_one(self) -> bool:
        """Start the first cell that nobody works on; those that turn out to be done are crossed off."""
        for cell in list(self.waiting):
            if cell.state()[0] == DONE:
                self._ended(cell, self.done)
                continue
            lock = try_lock(cell.folder)
            if lock is None:
                continue
            try:
                state, reason = cell.state()  # once more: now nobody changes it
                if state == DONE:
                    self._ended(cell, self.done)
                elif state == FAILED and cell.record != self._failures.get(cell.name):
                    self._ended(cell, self.failed)  # in another queue, just now
                elif state == OTHER and not self.again:
                    self._fail(cell, f"another queue has just done it with other settings ({reason})", keep=True)
                else:
                    self._start(cell, state, reason, lock)
                    lock = None
                    return True
            finally:
                if lock is not None:
                    os.close(lock)
        return False

    def _start(self, cell: Cell, state: str, reason: str, lock: int) -> None:
        if state in (MISSING, OTHER) or (state == FAILED and (reason or self.again)):
            cell.clear()
        (cell.folder / RECORD).unlink(missing_ok=True)  # of a failure: it is being tried again
        resumed = (cell.run / MANIFEST).exists()
        arguments = _train(cell, resumed)
        threads = self._threads(cell, resumed)
        log = cell.folder / LOG
        with log.open("ab") as file:
            file.write(f"$ lrurec {shlex.join(arguments)}\n".encode())
            file.flush()
            said = file.tell()
            process = subprocess.Popen(
                self.launch(arguments),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                pass_fds=(lock,),
                process_group=0,  # Ctrl-C is for us to pass on
            )
        self.waiting.remove(cell)
        self.running.append(_Running(cell, process, lock, said, threads, time.monotonic()))
        self.watch.started(cell, resumed)

    def _threads(self, cell: Cell, resumed: bool) -> int:
        """A resumed run goes on with as many as it began with: only then its weights are the same to the bit."""
        if resumed:
            environment = json.loads((cell.run / MANIFEST).read_text(encoding="utf-8"))["environment"]
            return int(environment["threads"])
        said = os.environ.get("OMP_NUM_THREADS", "")
        return int(said) if said.isdigit() and int(said) else max(1, cores() // self.jobs)

    def _reap(self) -> bool:
        """Record what has ended; whether anything has."""
        ended = False
        for one in list(self.running):
            pid, status, usage = os.wait4(one.process.pid, os.WNOHANG)
            if pid == 0:
                continue
            one.process.returncode = os.waitstatus_to_exitcode(status)
            self.running.remove(one)
            ended = True
            try:
                self._record(one, usage.ru_maxrss * 1024)
            finally:
                os.close(one.lock)
        return ended

    def _record(self, one: _Running, peak: int) -> None:
        cell, code = one.cell, one.process.returncode
        result = cell.run / RESULT
        facts = {
            "command": f"lrurec {shlex.join(_train(cell))}",
            "process_seconds": round(time.monotonic() - one.started, 1),
            "peak_memory": peak,
            "threads": one.threads,
            "lrurec": lrurec.__version__,
            "machine": machine(),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if code == 0 and result.exists():
            found = json.loads(result.read_text(encoding="utf-8"))
            cell.write(state=DONE, **found, **facts)
            self._ended(cell, self.done)
        elif self.stops:
            self.waiting.append(cell)
        else:
            self._fail(cell, *_last_lines(cell.folder / LOG, one.said, code), facts=facts)

    def _fail(self, cell: Cell, *lines: str, facts: dict[str, Any] | None = None, keep: bool = False) -> None:
        """A cell that did not work out; `keep` leaves the record of somebody else alone."""
        outcome = {"state": FAILED, "error": list(lines), **(facts or {})}
        record = {**cell.describe(), **outcome} if keep else cell.write(**outcome)
        self.failed.append(cell)
        if cell in self.waiting:
            self.waiting.remove(cell)
        self.watch.ended(cell, record)

    def _ended(self, cell: Cell, where: list[Cell]) -> None:
        where.append(cell)
        if cell in self.waiting:
            self.waiting.remove(cell)
        record = cell.record
        assert record is not None
        self.watch.ended(cell, record)

    def _tell(self) -> None:
        """Pass on that we stop: once gently, then not."""
        for one in self.running:
            if one.told < self.stops:
                one.told = self.stops
                number = signal.SIGINT if self.stops == 1 else signal.SIGKILL
                os.kill(one.process.pid, number)


def _train(cell: Cell, resumed: bool = False) -> list[str]:
    how = ["--resume"] if resumed else cell.chosen.options(cell.model)
    return ["train", str(cell.dataset.path), "--out", str(cell.run), *how]


def _last_lines(log: Path, since: int, code: int, most: int = 5) -> list[str]:
    """The end of what a process said; what its exit code means, where it said nothing."""
    with log.open("rb") as file:
        file.seek(since)
        said = [line.rstrip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if code < 0:
        name = signal.Signals(-code).name
        said.append(f"killed by {name}" + ("; was there enough memory?" if code == -signal.SIGKILL else ""))
    return said[-most:] or [f"ended with code {code} and said nothing"]
