"""`lrurec doctor`: versions, cores, memory, optional parts, and what is missing for what."""

import argparse
import json
import os
import platform
import shutil
import textwrap
from importlib import metadata
from pathlib import Path
from typing import Any

import lrurec
from lrurec.cli.arguments import Commands
from lrurec.cli.console import bytes_text

# What each part of lrurec needs beyond the default install, and the extra that brings it.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "prepare data": ("", ("numpy", "polars", "rich", "zstandard")),
    "train": ("train", ("torch", "numba", "safetensors")),
    "figures": ("reproduce", ("matplotlib",)),
    "search": ("reproduce", ("matplotlib", "optuna")),
    "serve": (
        "serve",
        (
            "numba",
            "safetensors",
            "lmdb",
            "redis",
            "uvicorn",
            "uvloop",
            "httptools",
            "msgspec",
            "prometheus_client",
        ),
    ),
    "cluster": ("cluster", ("ray",)),
}
PROGRAMS = {"redis-server": "a shared store for serving"}


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "doctor",
        help="what this machine has, and what is missing for what",
        description="Versions, cores, memory, optional parts present, and what is missing for what.",
        epilog="examples:\n  lrurec doctor\n  lrurec doctor --json\n",
    )
    p.add_argument("--json", action="store_true", help="print it as JSON")
    p.set_defaults(run=run, parser=p)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory() -> tuple[int | None, int | None]:
    """Bytes in all and free now; the smaller of the machine's and the container's limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        facts = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if "kB" in line}
        total, free = facts["MemTotal"], facts["MemAvailable"]
    except (OSError, KeyError, ValueError):
        return None, None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        return total, free
    return min(total, limit), min(free, limit)


def examine() -> dict[str, Any]:
    """Everything the doctor looks at."""
    total, free = _memory()
    parts = {}
    for name, (extra, needs) in PARTS.items():
        versions = {package: _version(package) for package in needs}
        missing = [package for package, version in versions.items() if version is None]
        parts[name] = {"extra": extra, "packages": versions, "missing": missing}
    return {
        "lrurec": lrurec.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": total,
        "memory_free": free,
        "disk_free": shutil.disk_usage(Path.cwd()).free,
        "parts": parts,
        "programs": {name: shutil.which(name) for name in PROGRAMS},
    }


def run(options: argparse.Namespace) -> int:
    found = examine()
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    memory = "unknown"
    if found["memory"] is not None:
        memory = f"{bytes_text(found['memory'])}, {bytes_text(found['memory_free'])} free"
    print(f"lrurec {found['lrurec']}, Python {found['python']}, {found['system']}")
    print(f"{found['cores']} cores, memory {memory}, disk {bytes_text(found['disk_free'])} free here\n")
    for name, part in found["parts"].items():
        state = "ready"
        if part["missing"]:
            state = f"install the extra '{part['extra']}' for it; missing: {', '.join(part['missing'])}"
        print(f"{name:<14}{state}")
        have = ", ".join(f"{p} {v}" for p, v in part["packages"].items() if v)
        for line in textwrap.wrap(have, 80):
            print(f"{'':<14}{line}")
    for program, use in PROGRAMS.items():
        print(f"{program:<14}{'found' if found['programs'][program] else 'not found'} (a program, for {use})")
    return 0
