"""Work on several threads at once, each with torch to itself. Knows functions, not tensors.

One thread per part beats several threads inside one product: nobody waits for anybody.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "lrurec", initializer=torch.set_num_threads, initargs=(1,))


def at_once(work: Callable[[_Part], _Result], parts: Iterable[_Part]) -> list[_Result]:
    """The results of the parts, in order, on as many threads as torch has here."""

    def quietly(part: _Part) -> _Result:
        with torch.no_grad():  # it is a setting of each thread
            return work(part)

    parts, threads = list(parts), torch.get_num_threads()
    if threads == 1 or len(parts) == 1:
        return [quietly(part) for part in parts]
    return list(_workers(threads).map(quietly, parts))
