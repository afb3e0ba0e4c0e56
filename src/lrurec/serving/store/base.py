"""What a store is, whatever keeps it. Knows users, events and states as bytes, not what a model does with them.

A history is a list of events in the order of their times; events of one time keep the order of their arrival. A state
is the bytes that `Model.replay` makes of the items of a history, in order. Whatever happens - a crash, a retry, a late
event, another artifact - a state that `read` gives belongs to the history beside it and to the artifact that asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from lrurec.errors import LrurecError


class StoreError(LrurecError):
    """The store cannot be opened, read or written; nothing that was acknowledged is lost."""


@dataclass(frozen=True)
class Event:
    """Somebody met an item. `time` in microseconds since 1970; `key` names the event, so that a retry is stored once."""

    item: str
    time: int
    key: str | None = None


@dataclass(frozen=True)
class Record:
    """All that is known of a user: the events, oldest first, and the state after them."""

    events: tuple[Event, ...]
    state: bytes


@dataclass(frozen=True)
class Appended:
    """What became of an append: how many events were new, how many the history has now, and the state after it."""

    stored: int
    length: int
    state: bytes


class Model(Protocol):
    """How states are made. `id` names the artifact; a state with another id is made again from the history."""

    id: str

    def replay(self, items: Sequence[str], state: bytes | None = None) -> bytes:
        """The state after some items: from the beginning, or from an earlier state."""


class Store(Protocol):
    """An acknowledged event is on disk."""

    def read(self, user: str, model: Model) -> Record | None:
        """The record of a user with a state of this model; None if nobody by that name has been here."""

    def state(self, user: str, model: Model) -> bytes | None:
        """The state alone."""

    def append(self, user: str, events: Sequence[Event], model: Model) -> Appended:
        """Add events; when this returns, they and the state are on disk. Known keys are left out."""

    def forget(self, user: str) -> bool:
        """Erase all of a user; whether there was anything."""

    def users(self) -> Iterator[str]:
        """Everybody, in no particular order."""

    def close(self) -> None:
        """Finish what was begun; nothing may be asked afterwards."""
