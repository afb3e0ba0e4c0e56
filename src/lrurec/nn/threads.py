"""Work on several threads at once, each with torch to itself. Knows functions, not tensors.

One thread per part beats several threads inside one product: nobody waits for anybody. These are also the threads of
the compiled loops. numba's own would set the number of threads of torch, too, whatever the user asked for.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import torch

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


def _have(threads: int) -> None:
    """Give torch so many threads in the thread that calls."""
    torch.get_num_threads()  # the first question takes whatever number was set last, anywhere: it must come before ours
    torch.set_num_threads(threads)


@cache
def _workers(count: int, threads: int) -> ThreadPoolExecutor:
    """`count` workers, in each of which torch has so many threads."""
    return ThreadPoolExecutor(count, "lrurec", initializer=_have, initargs=(threads,))


def side_by_side(tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """The results of tasks that have nothing to do with each other, in order: the threads of torch are shared out among them.

    Unlike the parts of `at_once`, a task may be long, learn (gradients are on), and share its own work out again.
    """
    threads = torch.get_num_threads()
    if threads < 2 or len(tasks) < 2:
        return [task() for task in tasks]
    at_a_time = min(threads, len(tasks))
    return list(_workers(at_a_time, threads // at_a_time).map(lambda task: task(), tasks))


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
    return list(_workers(threads, 1).map(quietly, parts))
