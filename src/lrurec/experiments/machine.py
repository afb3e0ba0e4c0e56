"""What machine this is, in one line."""

import os
import platform
from pathlib import Path


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> str:
    """Cores, processor, memory, Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    name = next(named, platform.machine())
    return f"{cores()} cores of {name}, {memory:.0f} GB, Python {platform.python_version()}"
