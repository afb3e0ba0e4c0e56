"""Work on several threads at once, each with torch to itself. Knows functions, not tensors.

One thread per part beats several threads inside one product: nobody waits for anybody. These are also the threads of
the compiled loops. numba's own would set the number of threads of torch, too, whatever the user asked for.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import torch

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "lrurec", initializer=torch.set_num_threads, initargs=(1,))


def shares(count: int, least: int) -> list[slice]:
    """`count` elements as slices of about the same size, one per thread, but none much smaller than `least`."""
    parts = max(1, min(torch.get_num_threads(), count // least))
    bounds = [count * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(bounds)]


def at_once(work: Callable[[_Part], _Result], parts: Iterable[_Part]) -> list[_Result]:
    """The results of the parts, in order, on as many threads as torch has here."""

    def quietly(part: _Part) -> _Result:
        with torch.no_grad():  # it is a setting of each thread
            return work(part)

    parts, threads = list(parts), torch.get_num_threads()
    if threads == 1 or len(parts) == 1:
        return [quietly(part) for part in parts]
    return list(_workers(threads).map(quietly, parts))
