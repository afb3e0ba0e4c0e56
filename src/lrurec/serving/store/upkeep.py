"""What is done to a whole store: states made again, checked, histories carried from one store to another.

Knows stores and models, not files. Servers may go on using the store meanwhile.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from lrurec.serving.store.base import Indices, Kept, Model, Portion, Store

TOLERANCE = 1e-4  # between a state that was stepped and one that was computed at once, of the largest number in it
Watch = Callable[[int], None]


@dataclass
class Found:
    """What a walk over everybody came to."""

    users: int = 0
    events: int = 0
    written: int = 0
    foreign: int = 0  # states of other artifacts, which are made again when needed
    known: int = 0  # events that were there already
    unknown: int = 0  # events of items that the model does not know
    wrong: list[str] = field(default_factory=list)


class NoModel:
    """For those who want histories alone."""

    id = ""

    def index(self, item: str) -> int:
        return -1

    def replay(self, items: Indices, state: bytes | None = None) -> bytes:
        return b""

    def replay_many(self, items: Indices, offsets: Indices) -> list[bytes]:
        return [b""] * (len(offsets) - 1)


_NOTHING = NoModel()


def rebuild(store: Store, model: Model, *, everything: bool = False, watch: Watch = lambda users: None) -> Found:
    """Give every user a state of this model; those who have one are passed over, unless `everything` is wanted."""
    found = Found()
    for portion, states in _replayed(store, model, everything):
        found.users += len(portion.users)
        if states is not None:
            found.events += len(portion.items)
            found.written += store.put_states(portion, states, model)
        watch(found.users)
    return found


def verify(store: Store, model: Model, *, watch: Watch = lambda users: None) -> Found:
    """Compute every state from its history and name the users whose stored one is another."""
    found = Found()
    for portion, states in _replayed(store, model, everything=True):
        found.users += len(portion.users)
        found.events += len(portion.items)
        for user, stored, made in zip(portion.users, portion.states, states or [], strict=True):
            if stored is None:
                found.foreign += 1
            elif not _same(stored, made) and _still_differs(store, model, user):
                found.wrong.append(user)
        watch(found.users)
    return found


def histories(store: Store) -> Iterator[tuple[str, tuple[Kept, ...]]]:
    """Everybody and their events."""
    for user in store.users():
        record = store.read(user, _NOTHING)
        if record is not None:
            yield user, record.events


def load(
    store: Store, model: Model, everybody: Iterable[tuple[str, list[Kept]]], *, watch: Watch = lambda users: None
) -> Found:
    """Add histories, some thousand events at a time.

    An event that is there already - the same item at the same time, as often - is left out: what was stopped in the
    middle can be done again.
    """
    found = Found()
    some: dict[str, list[Kept]] = {}
    size = 0

    def put() -> None:
        nonlocal some, size
        new = []
        for user, there in zip(some, store.has(list(some)), strict=True):
            fresh = _missing(store, user, some[user]) if there else some[user]
            found.known += len(some[user]) - len(fresh)
            new.append((user, fresh))
        found.written += store.load(new, model)
        some, size = {}, 0
        watch(found.users)

    for user, events in everybody:
        found.users += user not in some
        some.setdefault(user, []).extend(events)
        size += len(events) + 8
        found.events += len(events)
        found.unknown += sum(model.index(event.item) < 0 for event in events)
        if size > 1 << 16:
            put()
    if some:
        put()
    return found


def _missing(store: Store, user: str, events: list[Kept]) -> list[Kept]:
    """The events that a user does not have yet."""
    record = store.read(user, _NOTHING)
    there = Counter((event.item, event.time) for event in record.events) if record else Counter[tuple[str, int]]()
    fresh = []
    for event in events:
        if there[event.item, event.time]:
            there[event.item, event.time] -= 1
        else:
            fresh.append(event)
    return fresh


def _replayed(store: Store, model: Model, everything: bool) -> Iterator[tuple[Portion, list[bytes] | None]]:
    """Portions with their states, computed in all cores some portions ahead."""
    cores = os.cpu_count() or 1
    running: deque[tuple[Portion, Future[list[bytes]] | None]] = deque()
    with ThreadPoolExecutor(cores) as pool:
        for portion in store.portions(model):
            if everything or any(state is None for state in portion.states):
                running.append((portion, pool.submit(model.replay_many, portion.items, portion.offsets)))
            else:
                running.append((portion, None))
            while len(running) > cores + 1:
                first, work = running.popleft()
                yield first, work.result() if work else None
        for first, work in running:
            yield first, work.result() if work else None


def _still_differs(store: Store, model: Model, user: str) -> bool:
    """Whether it is so when both are read at once: an event may have come in between."""
    record = store.read(user, model)
    if record is None:
        return False
    items = np.array([model.index(e.item) for e in record.events], np.int64)
    return not _same(record.state, model.replay_many(items, np.array([0, len(items)]))[0])


def _same(stored: bytes, made: bytes) -> bool:
    if len(stored) != len(made):
        return False
    a, b = np.frombuffer(stored, np.float32), np.frombuffer(made, np.float32)
    return bool(np.abs(a - b).max(initial=0) <= TOLERANCE * max(1.0, float(np.abs(b).max(initial=0))))
