"""Parts of one search on several threads at once. Knows functions, not vectors.

Only for a question that stands alone: several of them already share the cores out.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _others(process: int) -> ThreadPoolExecutor | None:
    """The threads beside the one that asks; None on one core. A forked process has none of its parent's."""
    return ThreadPoolExecutor(cores() - 1, "lrurec-search") if cores() > 1 else None


def at_once(work: Callable[[_Part], _Result], parts: Sequence[_Part]) -> list[_Result]:
    """The results of the parts, in order; the first on the thread that asks."""
    others = _others(os.getpid()) if len(parts) > 1 else None
    if others is None:
        return [work(part) for part in parts]
    rest = [others.submit(work, part) for part in parts[1:]]
    return [work(parts[0]), *(future.result() for future in rest)]
