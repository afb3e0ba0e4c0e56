"""What a dataset looks like in numbers. Knows arrays, not how they are shown.

Everything is computed block by block, so a dataset larger than memory is no trouble.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lrurec.data.dataset import Dataset
from lrurec.data.progress import Progress, no_progress


@dataclass(frozen=True)
class Statistics:
    """The paper's row (users to density) and what else is worth knowing before training."""

    users: int
    items: int
    interactions: int
    mean_length: float
    density: float
    length_quantiles: dict[str, int]
    popularity_quantiles: dict[str, int]
    length_histogram: list[tuple[int, int, int]]  # (from, to, users)
    popularity_histogram: list[tuple[int, int, int]]  # (from, to, items)
    top_tenth_share: float  # share of the interactions that fall on the most popular tenth of the items
    repeat_share: float  # events whose item the user had before
    immediate_repeat_share: float  # events whose item is the one just before
    tie_share: float | None  # events with the same time as the one before; None without times
    first_time: int | None
    last_time: int | None
    single_event_users: int
    train_only_users: int  # fewer than three events
    test_users: int
    cold_test_items: int  # test targets of leave-last-out that never occur in training
    cold_test_share: float


def statistics(dataset: Dataset, progress: Progress = no_progress) -> Statistics:
    """Compute all of it in one pass over the events."""
    offsets = np.asarray(dataset.offsets)
    lengths = np.diff(offsets)
    popularity = np.zeros(dataset.n_items, np.int64)
    trained = np.zeros(dataset.n_items, np.bool_)
    repeats = immediate = ties = pairs = 0
    first_time, last_time = None, None
    for first, last in dataset.user_blocks():
        at = offsets[first : last + 1] - offsets[first]
        items = np.asarray(dataset.items[offsets[first] : offsets[last]])
        owner = np.repeat(np.arange(last - first), np.diff(at))
        popularity += np.bincount(items, minlength=dataset.n_items)
        training = np.ones(len(items), np.bool_)
        tested = np.diff(at) >= 3
        training[at[1:][tested] - 1] = False
        training[at[1:][tested] - 2] = False
        trained[items[training]] = True
        key = np.sort(owner.astype(np.int64) * dataset.n_items + items)
        repeats += int((key[1:] == key[:-1]).sum())
        same_user = owner[1:] == owner[:-1]
        pairs += int(same_user.sum())
        immediate += int((same_user & (items[1:] == items[:-1])).sum())
        if dataset.times is not None and len(items):
            times = np.asarray(dataset.times[offsets[first] : offsets[last]])
            ties += int((same_user & (times[1:] == times[:-1])).sum())
            low, high = int(times.min()), int(times.max())
            first_time = low if first_time is None else min(first_time, low)
            last_time = high if last_time is None else max(last_time, high)
        progress("counting", offsets[last], dataset.n_events)
    tested = lengths >= 3
    answers = np.asarray(dataset.items[offsets[1:][tested] - 1])
    cold = int((~trained[answers]).sum())
    ordered = np.sort(popularity)[::-1]
    top = ordered[: max(1, len(ordered) // 10)]
    return Statistics(
        users=dataset.n_users,
        items=dataset.n_items,
        interactions=dataset.n_events,
        mean_length=dataset.n_events / dataset.n_users,
        density=dataset.n_events / (dataset.n_users * dataset.n_items),
        length_quantiles=_quantiles(lengths),
        popularity_quantiles=_quantiles(popularity),
        length_histogram=_histogram(lengths),
        popularity_histogram=_histogram(popularity),
        top_tenth_share=float(top.sum() / dataset.n_events),
        repeat_share=repeats / dataset.n_events,
        immediate_repeat_share=immediate / max(pairs, 1),
        tie_share=None if dataset.times is None else ties / max(pairs, 1),
        first_time=first_time,
        last_time=last_time,
        single_event_users=int((lengths == 1).sum()),
        train_only_users=int((~tested).sum()),
        test_users=int(tested.sum()),
        cold_test_items=cold,
        cold_test_share=cold / max(int(tested.sum()), 1),
    )


def _quantiles(values: NDArray[np.int64]) -> dict[str, int]:
    marks = {"min": 0, "25%": 25, "median": 50, "75%": 75, "95%": 95, "max": 100}
    found = np.percentile(values, list(marks.values()), method="lower")
    return {name: int(v) for name, v in zip(marks, found, strict=True)}


def _histogram(values: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Counts in ranges that double: 1, 2-3, 4-7, 8-15, ..."""
    exponents = np.floor(np.log2(np.maximum(values, 1))).astype(np.int64)
    counts = np.bincount(exponents)
    lowest = int(exponents.min())
    return [(1 << k, (2 << k) - 1, int(counts[k])) for k in range(lowest, len(counts))]
