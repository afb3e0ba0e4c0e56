"""Store, engine and retrieval together: observe, recommend, forget. Knows people's ids; nothing of the network.

live = Live("artifacts/mine", "store/")
live.observe("ann", "tea")
live.recommend("ann", k=5)
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lrurec.errors import InputError
from lrurec.ids import Id
from lrurec.serving.artifact import Artifact
from lrurec.serving.engine import Floats
from lrurec.serving.retrieval import Exact, Indices
from lrurec.serving.store.base import Appended, Event, Store
from lrurec.serving.store.embedded import EmbeddedStore

_FEW = 16  # items that are stepped; more are encoded at once


@dataclass(frozen=True)
class Recommendation:
    """One line of the answer; `name` where the artifact has titles."""

    item: Id
    name: str | None
    score: float


class States:
    """States as bytes: the recurrence of every block, and the vector that comes out behind the last item.

    Items that the artifact does not know stay in the history and leave the state as it is.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact, self.id = artifact, artifact.id
        self._new = self._pack(artifact.engine.initial(1), artifact.engine.start[None])

    def replay(self, items: Sequence[str], state: bytes | None = None) -> bytes:
        engine = self.artifact.engine
        known = [i for item in items if (i := self.artifact.item_ids.index(item)) is not None]
        if not known:
            return state or self._new
        if state is None and len(known) > _FEW:
            return self._pack(*engine.encode(np.array(known), np.array([0, len(known)])))
        states, hidden = self._unpack(state or self._new)
        for item in known:
            hidden = engine.step(states, np.array([item]))
        return self._pack(states, hidden)

    def hidden(self, state: bytes | None) -> Floats:
        """What the items are scored with: [1, width]."""
        return self._unpack(state or self._new)[1]

    def _pack(self, states: Floats, hidden: Floats) -> bytes:
        return states.tobytes() + hidden.astype(np.float32).tobytes()

    def _unpack(self, raw: bytes) -> tuple[Floats, Floats]:
        shape = self.artifact.engine.shape
        flat = np.frombuffer(raw, np.float32)
        states = flat[: shape.state_floats].reshape(1, shape.blocks, 2, shape.channels)
        return states.copy(), flat[shape.state_floats :].reshape(1, shape.width)


class Live:
    """Recommendations that follow every event."""

    def __init__(self, artifact: Artifact | str | Path, store: Store | str | Path) -> None:
        self.artifact = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
        self.store: Store = EmbeddedStore(store) if isinstance(store, str | Path) else store
        self.states = States(self.artifact)
        self.retriever = Exact(self.artifact.engine.table, self.artifact.bias)

    def observe(self, user: Id, item: Id, *, at: int | None = None, key: str | None = None) -> Appended:
        """Somebody met an item; on disk when this returns. `at`: microseconds since 1970 (default: now)."""
        self._index(item)
        event = Event(str(item), time.time_ns() // 1000 if at is None else at, key)
        return self.store.append(str(user), [event], self.states)

    def recommend(
        self,
        user: Id,
        k: int = 10,
        *,
        filter_seen: bool = True,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> list[Recommendation]:
        """What to show next; somebody unknown gets what is popular."""
        record = self.store.read(str(user), self.states)
        if record is None:
            return self._popular(k, allow, deny)
        seen = [e.item for e in record.events] if filter_seen else []
        return self._best(record.state, seen, k, allow, deny)

    def recommend_for(
        self,
        history: Iterable[Id],
        k: int = 10,
        *,
        filter_seen: bool = True,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> list[Recommendation]:
        """The same for a history that is given; nothing is stored."""
        items = [str(item) for item in history]
        for item in items:
            self._index(item)
        return self._best(self.states.replay(items), items if filter_seen else [], k, allow, deny)

    def forget(self, user: Id) -> bool:
        """Erase all of a user; whether there was anything."""
        return self.store.forget(str(user))

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _best(
        self, state: bytes, seen: Iterable[Id], k: int, allow: Iterable[Id] | None, deny: Iterable[Id] | None
    ) -> list[Recommendation]:
        known = [i for item in seen if (i := self.artifact.item_ids.index(item)) is not None]
        out = np.unique(np.array([*known, *self._indices(deny or ())], np.int64))
        allowed = None if allow is None else self._indices(allow)
        items, scores = self.retriever.search(self.states.hidden(state), k, [out], allowed)[0]
        return [self._line(int(i), float(s)) for i, s in zip(items, scores, strict=True)]

    def _popular(self, k: int, allow: Iterable[Id] | None, deny: Iterable[Id] | None) -> list[Recommendation]:
        out = set(self._indices(deny or ()).tolist())
        allowed = None if allow is None else set(self._indices(allow).tolist())
        chosen = [int(i) for i in self.artifact.popular if i not in out and (allowed is None or i in allowed)][:k]
        return [self._line(i, 0.0) for i in chosen]

    def _line(self, item: int, score: float) -> Recommendation:
        return Recommendation(self.artifact.item_ids[item], self.artifact.name(item), score)

    def _indices(self, items: Iterable[Id]) -> Indices:
        return np.array([self._index(item) for item in items], np.int64)

    def _index(self, item: Id) -> int:
        found = self.artifact.item_ids.index(item)
        if found is None:
            raise InputError(f"item '{item}' is not in the artifact")
        return found
