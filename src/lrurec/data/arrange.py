"""Numbered events to histories: order them, drop repeats, rare items and short users. Knows numbers, not ids.

Nothing here holds the whole log: ordering goes part by part, filtering block by block.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lrurec.arrays import ArrayFile
from lrurec.data.dataset import user_blocks
from lrurec.data.order import stable_order
from lrurec.data.progress import Progress
from lrurec.data.settings import Log, Settings
from lrurec.data.spill import PART, Events
from lrurec.data.times import Unit, to_unit
from lrurec.errors import NothingLeftError
from lrurec.ids import IdTable


def order(
    parts: Iterator[tuple[int, int, Events]],
    counts: NDArray[np.int64],
    settings: Settings,
    has_times: bool,
    unit: Unit,
    work: Path,
    log: Log,
    progress: Progress,
) -> NDArray[np.int64]:
    """Write items.npy and times.npy in final order; gives the number of events per user."""
    lengths = counts.copy()
    total = int(counts.sum())
    with contextlib.ExitStack() as stack:
        items = stack.enter_context(ArrayFile(work / "items.npy", np.int32))
        times = stack.enter_context(ArrayFile(work / "times.npy", np.int64)) if has_times else None
        done = 0
        progress("ordering", 0, total)
        for first, last, events in parts:
            events = events[_positions(events, settings, has_times)]
            if settings.drop_repeats and len(events):
                same = (events["user"][1:] == events["user"][:-1]) & (events["item"][1:] == events["item"][:-1])
                keep = np.concatenate([[True], ~same])
                log.repeats_dropped += int(len(keep) - keep.sum())
                events = events[keep]
                lengths[first:last] = np.bincount(events["user"] - first, minlength=last - first)
            items.append(events["item"])
            if times is not None:
                times.append(to_unit(events["time"], unit, "us"))
            done += len(events)
            progress("ordering", done, total)
    return lengths


def _positions(events: Events, settings: Settings, has_times: bool) -> NDArray[np.int64]:
    keys: list[NDArray[np.integer]] = [events["user"]]
    if has_times:
        keys.append(events["time"])
        if settings.ties == "item":
            keys.append(events["item"])
        elif settings.ties == "shuffle":
            keys.append(_shuffle_key(events["user"], settings.seed))
    return stable_order(keys)


def _shuffle_key(users: NDArray[np.int32], seed: int) -> NDArray[np.int64]:
    """A random number per event that depends on the seed, the user and the event's place in their history alone."""
    order = stable_order([users])
    ordered = users[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    place = np.arange(len(users)) - np.repeat(starts, np.diff(np.append(starts, len(users))))
    with np.errstate(over="ignore"):  # the arithmetic of a hash: wrapping is meant (SplitMix64's finaliser)
        x = ordered.astype(np.uint64) << np.uint64(32) | place.astype(np.uint64)
        x = x + np.uint64(seed % (1 << 64)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    key = np.empty(len(users), np.int64)
    key[order] = (x >> np.uint64(24)).astype(np.int64)
    return key


def filter_rare(
    work: Path,
    lengths: NDArray[np.int64],
    user_ids: IdTable,
    item_ids: IdTable,
    settings: Settings,
    log: Log,
    progress: Progress,
) -> tuple[IdTable, IdTable, NDArray[np.int64]]:
    """Drop rare items, then short users; rewrite the arrays if anything goes."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    items: NDArray[np.int32] = np.load(work / "items.npy", mmap_mode="r")
    keep_user, keep_item, left = _survivors(items, offsets, len(item_ids), settings, progress)
    if int(left.sum()) == 0:
        raise NothingLeftError(
            f"nothing is left with --min-user {settings.min_user} --min-item {settings.min_item}"
            f"{' --k-core' if settings.k_core else ''}: of {log.rows:,} rows {len(items):,} events came to the filter, by {len(user_ids):,} users on"
            f" {len(item_ids):,} items; lower them"
        )
    if int(left.max()) < 2:
        skipped = f" ({log.bad_rows:,} bad rows were skipped)" if log.bad_rows else ""
        raise NothingLeftError(
            "no user has two events, so there is no next item to learn;"
            f" check that --user names the right column{skipped}"
        )
    log.users_filtered = int(len(user_ids) - keep_user.sum())
    log.items_filtered = int(len(item_ids) - keep_item.sum())
    log.events_filtered = int(len(items) - left.sum())
    if log.events_filtered == 0:
        return user_ids, item_ids, offsets
    number = (np.cumsum(keep_item) - 1).astype(np.int32)
    has_times = (work / "times.npy").exists()
    columns = [("items.npy", np.int32), *([("times.npy", np.int64)] if has_times else [])]
    for name, dtype in columns:
        source = np.load(work / name, mmap_mode="r")
        with ArrayFile(work / f"{name}.new", dtype) as file:
            for first, last in user_blocks(offsets, PART):
                span = slice(offsets[first], offsets[last])
                alive = keep_item[items[span]] & np.repeat(keep_user[first:last], lengths[first:last])
                values = source[span][alive]
                file.append(number[values] if name == "items.npy" else values)
    del items, source
    for name, _ in columns:
        (work / f"{name}.new").replace(work / name)
    kept = left[keep_user]
    return (
        user_ids.take(np.flatnonzero(keep_user)),
        item_ids.take(np.flatnonzero(keep_item)),
        np.concatenate([[0], np.cumsum(kept)]).astype(np.int64),
    )


def _survivors(
    items: NDArray[np.int32],
    offsets: NDArray[np.int64],
    n_items: int,
    settings: Settings,
    progress: Progress,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """Which users and items stay, and how many events each user then has."""
    lengths = np.diff(offsets)
    keep_user, keep_item = np.ones(len(lengths), np.bool_), np.ones(n_items, np.bool_)
    if settings.min_item <= 1 and settings.min_user <= 1:
        return keep_user, keep_item, lengths
    while True:
        before = int(keep_user.sum()) + int(keep_item.sum())
        keep_item &= _item_counts(items, offsets, keep_user, keep_item) >= settings.min_item
        left = _user_counts(items, offsets, keep_item)
        keep_user &= left >= settings.min_user
        after = int(keep_user.sum()) + int(keep_item.sum())
        progress("filtering", len(lengths) + n_items - after, len(lengths) + n_items)
        if not settings.k_core or after == before:
            break
    keep_item &= _item_counts(items, offsets, keep_user, keep_item) > 0  # those only short users had
    return keep_user, keep_item, np.where(keep_user, left, 0)


def _item_counts(
    items: NDArray[np.int32],
    offsets: NDArray[np.int64],
    keep_user: NDArray[np.bool_],
    keep_item: NDArray[np.bool_],
) -> NDArray[np.int64]:
    counts = np.zeros(len(keep_item), np.int64)
    for first, last in user_blocks(offsets, PART):
        part = items[offsets[first] : offsets[last]]
        if not keep_user[first:last].all():
            part = part[np.repeat(keep_user[first:last], np.diff(offsets[first : last + 1]))]
        counts += np.bincount(part, minlength=len(counts))
    return np.where(keep_item, counts, 0)


def _user_counts(
    items: NDArray[np.int32], offsets: NDArray[np.int64], keep_item: NDArray[np.bool_]
) -> NDArray[np.int64]:
    counts = np.zeros(len(offsets) - 1, np.int64)
    for first, last in user_blocks(offsets, PART):
        alive = np.concatenate([[0], np.cumsum(keep_item[items[offsets[first] : offsets[last]]])])
        at = offsets[first : last + 1] - offsets[first]
        counts[first:last] = np.diff(alive[at])
    return counts
