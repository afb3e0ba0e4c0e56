"""Shared by the benchmarks: run a command in its own process, and say what machine this is. Knows no lrurec."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """What a process took: wall-clock seconds, and the most memory it held, in bytes."""

    seconds: float
    peak: int


def run(command: Sequence[str]) -> Cost:
    """Run a command to its end; one that fails stops the benchmark."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed with {process.returncode}: {' '.join(command)}")
    return Cost(time.perf_counter() - started, usage.ru_maxrss * 1024)


def machine() -> str:
    """The machine in one line."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GB, Python {platform.python_version()}"
