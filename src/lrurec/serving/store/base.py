"""What a store is, whatever keeps it. Knows users, events and states as bytes, not what a model does with them.

A history is a list of events in the order of their times; events of one time keep the order of their arrival. A state
is the bytes that `Model.replay` makes of the items of a history, in order. Whatever happens - a crash, a retry, a late
event, another artifact - a state that a store gives belongs to the history beside it and to the model that asked.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lrurec.errors import InputError, LrurecError

LONGEST_ID = 500  # bytes of a user or item id
SLACK = 64  # events that a bounded history may have too many before it is cut
NO_KEY = bytes(16)

Indices = NDArray[np.int64]


class StoreError(LrurecError):
    """The store cannot be opened, read or written; nothing that was acknowledged is lost."""


class StoreAway(StoreError):
    """The store cannot be reached now; what is asked again later may succeed."""


@dataclass(frozen=True)
class Event:
    """Somebody met an item. `time` in microseconds since 1970; `key` names the event, so that a retry is stored once."""

    item: str
    time: int
    key: str | None = None


@dataclass(frozen=True)
class Kept:
    """An event as a store keeps it: of its key, a hash (NO_KEY: there is none)."""

    item: str
    time: int
    key: bytes = NO_KEY


@dataclass(frozen=True)
class Record:
    """All that is known of a user: the events, oldest first, and the state after them."""

    events: tuple[Kept, ...]
    state: bytes


@dataclass(frozen=True)
class Look:
    """What a recommendation needs of a user: the state, and the items seen, as the model numbers them.

    `rebuilt`: the state was not at hand for this model, and was made from the history.
    """

    state: bytes
    seen: Indices
    rebuilt: bool = False


@dataclass(frozen=True)
class Appended:
    """What became of an append: how many events were new, how many the history has now, and the state after it."""

    stored: int
    length: int
    state: bytes = field(repr=False)


@dataclass(frozen=True)
class Portion:
    """Some users in bulk: packed histories as the model numbers them, and the states as they are stored.

    A state is None where another model made it. `versions` say whether a user has changed since.
    """

    users: list[str]
    versions: list[int]
    items: Indices
    offsets: Indices
    states: list[bytes | None]


class Model(Protocol):
    """How states are made. `id` names the artifact; a state with another id is made again from the history."""

    id: str

    def index(self, item: str) -> int:
        """The model's number of an item, or -1."""

    def replay(self, items: Indices, state: bytes | None = None) -> bytes:
        """The state after some items: from the beginning, or from an earlier state. Unknown items (-1) are left out."""

    def replay_many(self, items: Indices, offsets: Indices) -> list[bytes]:
        """The states after packed histories."""


class Store(Protocol):
    """An acknowledged event is on disk."""

    where: str
    quick: bool  # whether reading takes microseconds, and needs no thread of its own

    def read(self, user: str, model: Model) -> Record | None:
        """The record of a user with a state of this model; None if nobody by that name has been here."""

    def has(self, users: Sequence[str]) -> list[bool]:
        """Who of them has been here."""

    def look(self, users: Sequence[str], model: Model) -> list[Look | None]:
        """What recommendations need, for many users at once."""

    def append(self, user: str, events: Sequence[Event], model: Model) -> Appended:
        """Add events; when this returns, they and the state are on disk. Known keys are left out."""

    def submit(self, user: str, events: Sequence[Event], model: Model) -> "Future[Appended]":
        """An append whose result comes when it is on disk; until then the caller may do other things."""

    def load(self, histories: Sequence[tuple[str, Sequence[Kept]]], model: Model) -> int:
        """Add the events of many users, as another store kept them; gives how many were new."""

    def portions(self, model: Model) -> Iterator[Portion]:
        """Everybody, some at a time."""

    def put_states(self, portion: Portion, states: Sequence[bytes], model: Model) -> int:
        """Write states of users who have not changed since; gives how many they were."""

    def forget(self, user: str) -> bool:
        """Erase all of a user; whether there was anything."""

    def users(self) -> Iterator[str]:
        """Everybody, in no particular order."""

    def __len__(self) -> int: ...

    def check(self) -> None:
        """An error if it cannot be used now."""

    def durable(self) -> bool | None:
        """Whether all that is acknowledged survives a crash; None if nobody knows."""

    def info(self) -> dict[str, Any]:
        """What is in it, for people to read."""

    def close(self) -> None:
        """Finish what was begun; nothing may be asked afterwards."""


def check_ids(user: str, items: Sequence[str]) -> None:
    """Refuse ids that a store cannot keep."""
    for kind, name in (("a user id", user), *(("an item id", item) for item in items)):
        try:
            fits = 0 < len(name.encode()) <= LONGEST_ID
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise InputError(f"{kind} must be text of 1 to {LONGEST_ID} bytes in UTF-8")


def check_times(times: Iterable[int]) -> None:
    """Refuse times that a store cannot keep."""
    if not all(-(1 << 63) <= at < 1 << 63 for at in times):
        raise InputError("a time must fit into 64 bits of microseconds")


def microseconds(time: float | str | datetime) -> int:
    """Seconds since 1970, ISO 8601 or a datetime (without a zone: UTC), to microseconds."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            raise InputError(f"the time '{time}' is neither seconds since 1970 nor ISO 8601") from None
    if isinstance(time, datetime):
        span = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return span // timedelta(microseconds=1)
    if isinstance(time, bool) or not isinstance(time, int | float) or not abs(time) < 1e12:
        raise InputError(f"the time {time!r} is not in seconds since 1970")
    return round(time * 1e6)


def hash_key(key: str | None) -> bytes:
    """What is kept of the key of an event."""
    return NO_KEY if key is None else hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()
