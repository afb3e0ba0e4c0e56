"""Store, engine and retrieval together: observe, recommend, forget. Knows people's ids; nothing of the network.

live = Live("artifacts/mine", "store/")
live.observe("ann", "tea")
live.recommend("ann", k=5)
"""

import contextlib
import time as clock
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lrurec.errors import InputError, LrurecError
from lrurec.ids import Id
from lrurec.serving.artifact import Artifact
from lrurec.serving.engine import Floats
from lrurec.serving.retrieval import Found, Retriever
from lrurec.serving.store.base import Appended, Event, Indices, Look, Store, microseconds
from lrurec.serving.store.opening import open_store

_FEW = 16  # items that are stepped; more are encoded at once
_MOST_WAITING = 10_000  # appends that a memory has still to learn from
_NOBODY: Indices = np.zeros(0, np.int64)


class UnknownItem(InputError):
    """An item that the artifact does not have."""


class Recommendation(NamedTuple):
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
        nothing = artifact.engine.initial(1)
        self._shape = nothing.shape
        self._new = self._pack(nothing, artifact.engine.start[None])
        self._known: dict[str, int] = {}

    def index(self, item: str) -> int:
        found = self._known.get(item)
        if found is None:
            at = self.artifact.item_ids.index(item)
            if at is None:
                return -1
            found = self._known[item] = at
        return found

    def replay(self, items: Indices, state: bytes | None = None) -> bytes:
        engine = self.artifact.engine
        if len(items) != 1 or items[0] < 0:
            items = items[items >= 0]
            if not len(items):
                return state or self._new
        if state is None and len(items) > _FEW:
            return self._pack(*engine.encode(items, np.array([0, len(items)])))
        states, hidden = self._unpack(state or self._new)
        for k in range(len(items)):
            hidden = engine.step(states, items[k : k + 1])
        return self._pack(states, hidden)

    def replay_many(self, items: Indices, offsets: Indices) -> list[bytes]:
        known = items >= 0
        at = np.concatenate([[0], np.cumsum(known)])[offsets]
        states, hidden = self.artifact.engine.encode(items[known], at)
        flat = np.concatenate([states.reshape(len(states), -1), hidden], 1)
        empty = np.diff(at) == 0
        return [self._new if none else row.tobytes() for row, none in zip(flat, empty.tolist(), strict=True)]

    def hidden(self, state: bytes) -> Floats:
        """What the items are scored with: [width]."""
        return np.frombuffer(state, np.float32)[self.artifact.engine.shape.state_floats :]

    def magnitudes(self, state: bytes) -> Floats:
        """How much is in every channel of every block."""
        return self.artifact.engine.magnitudes(self._unpack(state)[0][0])

    def _pack(self, states: Floats, hidden: Floats) -> bytes:
        return states.tobytes() + hidden.astype(np.float32, copy=False).tobytes()

    def _unpack(self, raw: bytes) -> tuple[Floats, Floats]:
        floats, flat = self.artifact.engine.shape.state_floats, np.frombuffer(raw, np.float32)
        return flat[:floats].reshape(self._shape).copy(), flat[floats:].reshape(1, -1)


class Served:
    """One artifact, ready to answer. It never changes: a request that began with it ends with it."""

    def __init__(self, artifact: Artifact, learn: bool = False) -> None:
        """`learn`: its memory, if it has one, goes on counting."""
        self.artifact = artifact
        self.memory = artifact.memory.going_on() if learn and artifact.memory else artifact.memory
        self.states = States(artifact)
        self.retriever: Retriever = artifact.retriever()
        self._labels: dict[int, tuple[Id, str | None]] = {}
        self._popular = [self.line(int(item), 0.0) for item in artifact.popular]

    def warm(self) -> None:
        """Answer a question of nobody, so that no user waits for what is compiled or read at first."""
        items = np.resize(self.artifact.popular, _FEW + 1).astype(np.int64)
        for history in (items[:1], items):
            hidden = self.states.hidden(self.states.replay(history))[None]
            for vector in (hidden, hidden.copy()):  # of a state as it is kept, and among others
                self.best(vector, 1, [history], [history])

    def index(self, item: Id) -> int:
        found = self.states.index(str(item))
        if found < 0:
            raise UnknownItem(f"item '{item}' is not in the artifact")
        return found

    def indices(self, items: Iterable[Id]) -> Indices:
        """The numbers of items; unknown ones are an error that names them all."""
        if isinstance(items, str):
            raise InputError(f"a list of items is wanted, not the text '{items}'; write ['{items}']")
        names = [str(item) for item in items]
        found = np.array([self.states.index(name) for name in names], np.int64)
        if (found < 0).any():
            missing = [f"'{name}'" for name, k in zip(names, found, strict=True) if k < 0]
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            several = len(missing) > 1
            raise UnknownItem(
                f"item{'s' * several} {', '.join(missing[:5])}{more} {'are' if several else 'is'} not in the artifact"
            )
        return found

    def line(self, item: int, score: float) -> Recommendation:
        label = self._labels.get(item)
        if label is None:
            label = self._labels[item] = self.artifact.item_ids[item], self.artifact.name(item)
        return Recommendation(*label, score)

    def lines(self, items: Indices, scores: Floats) -> list[Recommendation]:
        return [self.line(item, score) for item, score in zip(items.tolist(), scores.tolist(), strict=True)]

    def best(
        self, hidden: Floats, k: int, histories: Sequence[Indices], out: Sequence[Indices], allow: Indices | None = None
    ) -> Found:
        """The k best items for each row of `hidden`, none of its `out`: the model's best, and what the memory brings to mind."""
        memory = self.memory
        if memory is None:
            return self.retriever.search(hidden, k, out, allow)
        table, bias = self.artifact.engine.table, self.artifact.bias
        recalled = [memory.added(h, vector, table, bias) for h, vector in zip(histories, hidden, strict=True)]
        others = [np.concatenate([gone, items]) for gone, (items, _, _) in zip(out, recalled, strict=True)]
        found = self.retriever.search(hidden, k, others, allow)
        if allow is not None:
            kept = [np.isin(items, allow) for items, _, _ in recalled]
            recalled = [(i[at], s[at], more[at]) for (i, s, more), at in zip(recalled, kept, strict=True)]
        return [memory.best(f, r, gone, k) for f, r, gone in zip(found, recalled, out, strict=True)]

    def popular(self, k: int, allow: Indices | None, deny: Indices) -> list[Recommendation]:
        """What is shown to strangers, with score 0."""
        if allow is None and not len(deny):
            return self._popular[:k]
        items = self.artifact.popular.astype(np.int64)
        if allow is not None:
            items = items[np.isin(items, allow)]
        return [self.line(int(i), 0.0) for i in items[~np.isin(items, deny)][:k]]

    def similar(self, item: Id, k: int) -> list[Recommendation]:
        """The items whose vectors point the same way; the score is the cosine."""
        at = self.index(item)
        cosines = self.artifact.cosines(at)
        cosines[at] = -np.inf
        k = min(k, len(cosines) - 1)
        best = np.argpartition(-cosines, k)[:k] if k < len(cosines) - 1 else np.flatnonzero(cosines > -np.inf)
        best = best[np.lexsort((best, -cosines[best]))]
        return [self.line(int(i), float(cosines[i])) for i in best]


@dataclass(frozen=True)
class Query:
    """A recommendation that is asked for, with all names looked up: nothing in it can be wrong any more."""

    served: Served
    user: str | None
    history: Indices
    k: int
    filter_seen: bool
    allow: Indices | None
    deny: Indices


@dataclass(frozen=True)
class Answer:
    """`known`: whether there was anything to go by; if not, these are the popular items."""

    known: bool
    lines: list[Recommendation]


class Live:
    """Recommendations that follow every event.

    `store`: a folder, a Redis address, or an opened store. `bound`: how many events of a user are kept (0: all). `learn`: the
    memory of the artifact counts the events that come in here, until another artifact takes its place.
    """

    def __init__(
        self, artifact: Artifact | str | Path, store: Store | str | Path, *, bound: int = 0, learn: bool = False
    ) -> None:
        self.learn = learn
        self._learner = ThreadPoolExecutor(1, "lrurec-learn")
        self._waiting = 0
        self.use(artifact)  # first: where it cannot be used, no store is made
        self.store: Store = open_store(store, bound=bound) if isinstance(store, str | Path) else store
        self.looked: Callable[[int, int], None] = lambda ready, rebuilt: None  # set from outside: who counts
        self.learned: Callable[[int], None] = lambda events: None  # set from outside, too

    @property
    def artifact(self) -> Artifact:
        return self.served.artifact

    def use(self, artifact: Artifact | str | Path) -> None:
        """Go over to another artifact; what has begun ends with the old one."""
        opened = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
        if self.learn:
            opened.need_memory()
        served = Served(opened, self.learn)
        served.warm()
        self.served = served

    def observe(
        self, user: Id, item: Id, *, time: float | str | datetime | None = None, id: str | None = None
    ) -> Appended:
        """Somebody met an item; on disk when this returns.

        `time`: seconds since 1970, ISO 8601 or a datetime (without a zone: UTC); now, if it is left out. `id` names the event:
        observed again, it is stored once.
        """
        served, name = self.served, _name(user, "a user")
        events = [self.event(served, item, time, id)]
        appended = self.store.append(name, events, served.states)
        if self.learn:
            self._count(name, events, served, appended)
        return appended

    def history(self, user: Id) -> list[tuple[Id, float]]:
        """(item, time in seconds since 1970) of all that is kept of a user, the oldest first."""
        served = self.served
        record = self.store.read(_name(user, "a user"), served.states)
        found = []
        for event in record.events if record else ():
            known = served.states.index(event.item)
            found.append((event.item if known < 0 else served.line(known, 0.0).item, event.time / 1e6))
        return found

    def submit(self, user: Id, events: Sequence[Event], served: Served) -> "Future[Appended]":
        """The same for events of `event`, without waiting."""
        future = self.store.submit(str(user), events, served.states)
        if self.learn:
            future.add_done_callback(lambda done: self._count_later(str(user), events, served, done))
        return future

    def _count_later(self, user: str, events: Sequence[Event], served: Served, done: "Future[Appended]") -> None:
        """The same as `_count`, by and by: whoever stored the events is not held up. Under too much of it, some are left out."""
        if done.cancelled() or done.exception() is not None or self._waiting >= _MOST_WAITING:
            return
        appended = done.result()
        self._waiting += 1

        def work() -> None:
            try:
                self._count(user, events, served, appended)
            finally:
                self._waiting -= 1

        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._learner.submit(work)

    def _count(self, user: str, events: Sequence[Event], served: Served, appended: Appended) -> None:
        """Let the memory learn from events that were stored. Late ones, which are not the newest of their user, are left out."""
        if not appended.stored or served.memory is None:
            return
        with contextlib.suppress(LrurecError):  # the events are stored; to learn from them is a courtesy
            (look,) = self.store.look([user], served.states)
            if look is None:
                return
            new = np.array([served.states.index(event.item) for event in events[-appended.stored :]], np.int64)
            new = new[new >= 0]
            seen = look.seen
            if not len(new) or not np.array_equal(seen[len(seen) - len(new) :], new):
                return
            for k in range(len(seen) - len(new), len(seen)):
                served.memory.observe(seen[:k], int(seen[k]))
            self.learned(len(new))

    def event(self, served: Served, item: Id, time: float | str | datetime | None, id: str | None) -> Event:
        """An event with a known item and a time that can be kept."""
        served.index(item)
        if id is not None and not isinstance(id, str):
            raise InputError(f"the id of an event is text, not {id!r}")
        return Event(str(item), clock.time_ns() // 1000 if time is None else microseconds(time), id)

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
        return self.one(self.query(_name(user, "a user"), None, k, filter_seen, allow, deny)).lines

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
        return self.one(self.query(None, history, k, filter_seen, allow, deny)).lines

    def similar_items(self, item: Id, k: int = 10) -> list[Recommendation]:
        """The items whose vectors point the same way."""
        return self.served.similar(item, k)

    def forget(self, user: Id) -> bool:
        """Erase all of a user; whether there was anything."""
        return self.store.forget(_name(user, "a user"))

    def close(self) -> None:
        self._learner.shutdown()
        self.store.close()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def query(
        self,
        user: Id | None,
        history: Iterable[Id] | None,
        k: int,
        filter_seen: bool,
        allow: Iterable[Id] | None,
        deny: Iterable[Id] | None,
    ) -> Query:
        """A question about a user or a history; unknown items are an error here, and not later."""
        served = self.served
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"k must be a whole number of 1 or more, not {k!r}")
        return Query(
            served,
            None if user is None else _name(user, "a user"),
            _NOBODY if history is None else served.indices(history),
            k,
            filter_seen,
            None if allow is None else served.indices(allow),
            _NOBODY if deny is None else served.indices(deny),
        )

    def one(self, query: Query) -> Answer:
        """A single one, without the ado of many."""
        served, look = query.served, None
        if query.user is not None:
            (look,) = self.store.look([query.user], served.states)
            if look is not None:
                self.looked(not look.rebuilt, look.rebuilt)
        hidden, history, out = self._asked(query, look)
        if hidden is None:
            return Answer(False, served.popular(query.k, query.allow, query.deny))
        ((items, scores),) = served.best(hidden[None], query.k, [history], [out], query.allow)
        return Answer(True, served.lines(items, scores))

    def _asked(self, query: Query, look: Look | None) -> tuple[Floats | None, Indices, Indices]:
        """(what items are scored with, None for strangers; the history; what is left out)"""
        states = query.served.states
        if query.user is None:
            state, seen = (states.replay(query.history) if len(query.history) else None), query.history
        else:
            state, seen = (None, _NOBODY) if look is None else (look.state, look.seen)
        if state is None:
            return None, _NOBODY, _NOBODY
        if not query.filter_seen:
            return states.hidden(state), seen, query.deny
        return states.hidden(state), seen, np.concatenate([seen, query.deny]) if len(query.deny) else seen

    def answer(self, queries: Sequence[Query]) -> list[Answer | LrurecError]:
        """Many at once: one look into the store, one pass over the table for all that can share it."""
        answers: list[Answer | LrurecError] = [Answer(False, [])] * len(queries)
        for served in {id(q.served): q.served for q in queries}.values():
            mine = [k for k, q in enumerate(queries) if q.served is served]
            try:
                self._answer(served, queries, mine, answers)
            except LrurecError as error:
                for k in mine:
                    answers[k] = error
        return answers

    def _answer(
        self, served: Served, queries: Sequence[Query], mine: list[int], answers: list[Answer | LrurecError]
    ) -> None:
        users = [k for k in mine if queries[k].user is not None]
        looks = dict(zip(users, self.store.look([queries[k].user or "" for k in users], served.states), strict=True))
        known = [look.rebuilt for look in looks.values() if look is not None]
        self.looked(len(known) - sum(known), sum(known))
        together: list[int] = []
        hidden: list[Floats] = []
        left_out: list[Indices] = []
        histories: list[Indices] = []
        for k in mine:
            q = queries[k]
            vector, history, out = self._asked(q, looks.get(k))
            if vector is None:
                answers[k] = Answer(False, served.popular(q.k, q.allow, q.deny))
            elif q.allow is not None:
                ((items, scores),) = served.best(vector[None], q.k, [history], [out], q.allow)
                answers[k] = Answer(True, served.lines(items, scores))
            else:
                together.append(k)
                hidden.append(vector)
                histories.append(history)
                left_out.append(out)
        if together:
            most = max(queries[k].k for k in together)
            found = served.best(np.stack(hidden), most, histories, left_out)
            for k, (items, scores) in zip(together, found, strict=True):
                answers[k] = Answer(True, served.lines(items[: queries[k].k], scores[: queries[k].k]))


def _name(id: Id, what: str) -> str:
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise InputError(f"{what} id is text or a whole number, not {id!r}")
    return str(id)
