"""The store in a Redis: what every store promises, and what happens when Redis is away, shared or not itself."""

import itertools
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis._parsers.base import BaseParser

from lrurec.errors import InputError
from lrurec.serving.store import redis as wire
from lrurec.serving.store.base import (
    NO_KEY,
    SLACK,
    Appended,
    Event,
    Indices,
    Kept,
    Look,
    Store,
    StoreAway,
    StoreError,
    hash_key,
)
from lrurec.serving.store.redis import RedisStore
from redis_server import PASSWORD, Server, free_port, wait_for
from server import Server as HttpServer

pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no redis-server on this machine")


class Words:
    """A model whose state is the list of what it has seen. It does not know items that begin with a question mark."""

    def __init__(self, id: str = "first", during: Callable[[], object] = lambda: None) -> None:
        self.id, self.during = id, during

    def index(self, item: str) -> int:
        return -1 if item.startswith("?") else int.from_bytes(item.encode()[:7])

    def replay(self, items: Indices, state: bytes | None = None) -> bytes:
        self.during()
        return (state or self.id.encode()) + b"".join(b" %d" % item for item in items[items >= 0])

    def replay_many(self, items: Indices, offsets: Indices) -> list[bytes]:
        return [self.replay(items[a:b]) for a, b in pairwise(offsets)]

    def after(self, *items: str) -> bytes:
        return self.id.encode() + b"".join(b" %d" % i for i in map(self.index, items) if i >= 0)


FIRST, SECOND = Words(), Words("second")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("redis"))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with server.client() as made:
        yield made


Open = Callable[..., RedisStore]
_prefixes = (f"test{k}" for k in itertools.count())


@pytest.fixture
def open_store(server: Server) -> Iterator[Open]:
    """Opens stores that share their data with each other and with no other test."""
    prefix, opened = next(_prefixes), list[RedisStore]()

    def open_(**options: Any) -> RedisStore:
        opened.append(RedisStore(server.url, **{"prefix": prefix, **options}))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> RedisStore:
    return open_store()


def hold(store: RedisStore) -> Callable[[], None]:
    """Keep the writer busy, so that what is submitted from here on waits together; gives what lets it go."""
    held, go = threading.Event(), threading.Event()

    def wait() -> None:
        held.set()
        go.wait(10)
        raise TimeoutError

    store.submit("nobody", [], Words("hold", wait))
    assert held.wait(10)
    return go.set


def events(*items: str, start: int = 0) -> list[Event]:
    return [Event(item, start + k) for k, item in enumerate(items)]


def look_at(store: Store, user: str, model: Words) -> Look:
    (look,) = store.look([user], model)
    assert look is not None
    return look


def kept_of(store: Store, user: str) -> tuple[Kept, ...]:
    record = store.read(user, FIRST)
    assert record is not None and record.state == look_at(store, user, FIRST).state
    return record.events


def items_of(store: Store, user: str) -> list[str]:
    items = [e.item for e in kept_of(store, user)]
    look = look_at(store, user, FIRST)
    assert look.state == FIRST.after(*items)
    assert look.seen.tolist() == [i for i in map(FIRST.index, items) if i >= 0]
    return items


def keys_left(client: Any, store: RedisStore) -> list[bytes]:
    return sorted(client.scan_iter(f"{store.prefix}:*", count=1000))


# What every store does


def test_append_and_read(store: RedisStore, server: Server) -> None:
    assert store.read("ann", FIRST) is None and store.look(["ann", "bob"], FIRST) == [None, None]
    done = store.append("ann", events("tea", "?new", "jam"), FIRST)
    assert (done.stored, done.length, done.state) == (3, 3, FIRST.after("tea", "jam"))
    assert store.append("ann", events("tea", start=9), FIRST).state == FIRST.after("tea", "jam", "tea")
    store.append("bob", [], FIRST)
    assert items_of(store, "ann") == ["tea", "?new", "jam", "tea"] and items_of(store, "bob") == []
    found = store.look(["bob", "nobody", "ann", "bob"], FIRST)
    assert [look and len(look.seen) for look in found] == [0, None, 3, 0]
    assert sorted(store.users()) == ["ann", "bob"] and len(store) == 2
    assert store.where == f"unix://{server.socket}" and not store.quick


def test_it_is_there_after_opening_again(store: RedisStore, open_store: Open) -> None:
    store.append("ann", [Event("tea", -5, "e1")], FIRST)
    store.close()
    again = open_store()
    assert kept_of(again, "ann") == (Kept("tea", -5, hash_key("e1")),) and items_of(again, "ann") == ["tea"]


def test_a_retry_is_stored_once(store: RedisStore) -> None:
    event = Event("tea", 5, key="e1")
    assert store.append("ann", [event, event, Event("tea", 5)], FIRST).stored == 2
    assert store.append("ann", [event, Event("jam", 6, "e2")], FIRST).stored == 1
    assert store.append("ann", [Event("early", 1, "e3"), event], FIRST).stored == 1  # here the whole is read
    assert store.append("bob", [event], FIRST).stored == 1  # a key belongs to a user
    assert items_of(store, "ann") == ["early", "tea", "tea", "jam"]
    (before,) = store.portions(FIRST)
    assert store.append("ann", [event], FIRST).length == 4
    (after,) = store.portions(FIRST)
    assert dict(zip(before.users, before.versions, strict=True)) == dict(zip(after.users, after.versions, strict=True))


def test_late_events_are_placed_by_time(store: RedisStore) -> None:
    store.append("ann", [Event("a", 10), Event("c", 30)], FIRST)
    store.append("ann", [Event("b", 20), Event("d", 40), Event("a2", 10)], FIRST)
    assert items_of(store, "ann") == ["a", "a2", "b", "c", "d"]
    store.append("ann", [Event("f", 50), Event("e", 40)], FIRST)
    assert items_of(store, "ann")[-3:] == ["d", "e", "f"]
    done = store.append("ann", [Event("0", -1)], FIRST)
    assert done.length == 8 and done.state == FIRST.after("0", "a", "a2", "b", "c", "d", "e", "f")


def test_a_state_of_another_model_is_made_again_and_kept(store: RedisStore) -> None:
    store.append("ann", events("a", "b"), FIRST)
    look = look_at(store, "ann", SECOND)
    assert look.state == SECOND.after("a", "b") and look.rebuilt
    assert wait_for(lambda: not look_at(store, "ann", SECOND).rebuilt)
    assert store.append("ann", events("c", start=5), FIRST).state == FIRST.after("a", "b", "c")
    assert store.append("ann", [], SECOND).state == SECOND.after("a", "b", "c")
    assert not look_at(store, "ann", SECOND).rebuilt
    assert store.append("ann", events("d", start=9), SECOND).state == SECOND.after("a", "b", "c", "d")


def test_forgotten_is_gone(store: RedisStore, client: Any) -> None:
    store.append("ann", [Event("tea", 1, "e1")] * 3, FIRST)
    assert len(keys_left(client, store)) == 4
    assert store.forget("ann") and not store.forget("ann") and not store.forget("")
    assert keys_left(client, store) == [f"{store.prefix}:facts".encode()]
    assert store.read("ann", FIRST) is None and list(store.users()) == []
    assert store.append("ann", [Event("tea", 1, "e1")], FIRST).stored == 1


def test_no_more_than_the_bound_is_kept(open_store: Open) -> None:
    store = open_store(bound=10)
    store.append("ann", [Event(str(k), k, str(k)) for k in range(9 + SLACK)], FIRST)
    assert len(items_of(store, "ann")) == 9 + SLACK
    done = store.append("ann", [Event("late", 5)], FIRST)
    assert done.length == 10 and items_of(store, "ann") == [str(k) for k in range(SLACK - 1, SLACK + 9)]
    again = [Event("a", 99, "0"), Event("b", 99, str(SLACK))]
    assert store.append("ann", again, FIRST).stored == 1  # the first is forgotten
    release = hold(store)
    cut = store.submit("bob", [Event(str(k), k, str(k)) for k in range(10 + SLACK)], FIRST)
    known = store.submit("bob", again, FIRST)
    release()
    assert (cut.result().length, known.result().stored) == (10, 1)


def test_load_is_append_for_many(store: RedisStore) -> None:
    store.append("bob", [Event("old", 5, "e1")], FIRST)
    (known,) = kept_of(store, "bob")
    rows = [
        ("ann", [Kept("b", 2), Kept("a", 1), Kept("c", 2)]),
        ("bob", [Kept("early", 1), known]),
        ("ann", [Kept("d", 9)]),
        ("eve", []),
        ("zoe", [Kept(str(k), k, hash_key(str(k))) for k in range(2500)]),
    ]
    assert store.load(rows, FIRST) == 2505
    assert items_of(store, "ann") == ["a", "b", "c", "d"]
    assert items_of(store, "bob") == ["early", "old"] and items_of(store, "eve") == []
    assert items_of(store, "zoe") == [str(k) for k in range(2500)]
    assert store.load(rows[4:], FIRST) == 0  # all keys are known


def test_a_fault_in_a_load_harms_no_other(store: RedisStore) -> None:
    release = hold(store)
    other = store.submit("bob", events("a"), FIRST)
    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(store.load, [("ann", [Kept("a", 1)])], Words("broken", lambda: 1 // 0))
        assert wait_for(lambda: store._waiting.qsize() == 2)
        release()
    with pytest.raises(ZeroDivisionError):
        loaded.result()
    assert other.result().stored == 1 and list(store.users()) == ["bob"]


def test_load_keeps_to_the_bound(open_store: Open) -> None:
    store = open_store(bound=3)
    assert store.load([("ann", [Kept(str(k), k) for k in range(9)])], FIRST) == 3
    assert items_of(store, "ann") == ["6", "7", "8"]


def test_states_in_bulk(store: RedisStore) -> None:
    for k in range(9):
        store.append(f"u{k}", events(*"abc"[: k % 4], "?"), FIRST)
    (portion,) = store.portions(SECOND)
    assert portion.states == [None] * 9 and sorted(portion.users) == sorted(store.users())
    states = SECOND.replay_many(portion.items, portion.offsets)
    store.append("u7", events("d", start=50), FIRST)  # changed meanwhile: not to be overwritten
    store.forget("u6")
    store.forget("u5")
    store.append("u5", events("a", "?"), FIRST)  # as it was, and yet somebody else
    assert store.put_states(portion, states, SECOND) == 6
    looks = [look_at(store, user, SECOND) for user in ("u3", "u5", "u7")]
    assert [look.rebuilt for look in looks] == [False, True, True]
    assert looks[0].state == SECOND.after("a", "b", "c") and items_of(store, "u7") == ["a", "b", "c", "?", "d"]
    (portion,) = store.portions(FIRST)
    at = portion.users.index("u3")
    assert portion.items[portion.offsets[at] : portion.offsets[at + 1]].tolist() == [97, 98, 99, -1]


def test_a_walk_of_many_steps_leaves_nobody_out(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SCAN", 5)
    monkeypatch.setattr(wire, "_PORTION", 7)
    shown, scan = list[bytes](), store._redis.scan

    def scan_again(*arguments: Any, **options: Any) -> tuple[int, list[bytes]]:
        """Redis may show a key more than once."""
        cursor, keys = scan(*arguments, **options)
        shown.extend(keys)
        return cursor, keys + shown[:9]

    monkeypatch.setattr(store._redis, "scan", scan_again)
    store.load([(f"u{k}", [Kept("a", 1)] * (k % 3)) for k in range(40)], FIRST)
    portions = list(store.portions(FIRST))
    assert len(portions) > 2 and all(p.states == FIRST.replay_many(p.items, p.offsets) for p in portions)
    assert sorted(user for p in portions for user in p.users) == sorted(f"u{k}" for k in range(40))
    info = store.info()
    assert info.pop("memory") > 0
    assert len(store) == 40 and info == {
        "kind": "redis",
        "users": 40,
        "events": 39,
        "states": {"first": 40},
        "durable": True,
    }


@pytest.mark.parametrize(
    "user", ["{", "}", "a}b{c", "a:b", "*?[a]", "\n\r\0", "a b", "é%C3", "ü🙂", "u" * 500, "%", "\\"]
)
def test_strange_names(store: RedisStore, user: str) -> None:
    store.append(user, [Event(user, 1, user)], FIRST)
    store.append("other", [Event("tea", 1)], FIRST)
    assert items_of(store, user) == [user] and sorted(store.users()) == sorted([user, "other"])
    assert store.forget(user) and list(store.users()) == ["other"]


def test_what_cannot_be_kept_is_refused(store: RedisStore) -> None:
    for user, item in (("", "tea"), ("u" * 501, "tea"), ("ann", ""), ("ann", "i" * 501), ("\ud800", "tea")):
        with pytest.raises(InputError, match="1 to 500 bytes"):
            store.append(user, [Event(item, 0)], FIRST)
    with pytest.raises(InputError, match="64 bits"):
        store.append("ann", [Event("tea", 1 << 63)], FIRST)
    with pytest.raises(InputError, match="16 bytes"):
        store.load([("ann", [Kept("tea", 1, b"short")])], FIRST)
    assert store.look(["", "\ud800", "u" * 501], FIRST) == [None] * 3 and len(store) == 0


# Against a plain twin


class Twin:
    """What a store should do, as plainly as it can be said."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.users: dict[str, list[Event]] = {}

    def append(self, user: str, new: Sequence[Event]) -> int:
        mine = self.users.setdefault(user, [])
        stored = 0
        for event in new:
            if event.key is None or event.key not in {e.key for e in mine}:
                mine.append(event)
                stored += 1
        mine.sort(key=lambda event: event.time)
        if self.bound and len(mine) >= self.bound + SLACK:
            del mine[: -self.bound]
        return stored

    def load(self, user: str, new: Sequence[Event]) -> int:
        first = user not in self.users
        stored = self.append(user, new)
        if first and self.bound:  # there is no slack yet
            del self.users[user][: -self.bound]
            return len(self.users[user])
        return stored


few = st.lists(
    st.builds(Event, st.sampled_from(["x", "y", "?z"]), st.integers(-3, 9), st.sampled_from([None, "1", "2", "3"])),
    max_size=5,
)
many = st.builds(
    lambda start, step: [Event("m", start + step * k, f"m{k}") for k in range(SLACK)],
    st.integers(-3, 9),
    st.sampled_from([0, 1, -1]),
)
steps = st.tuples(
    st.sampled_from("ab"),
    st.one_of(few, few, many),
    st.sampled_from([FIRST, FIRST, SECOND]),
    st.sampled_from(["append", "append", "append", "load", "forget"]),
)


@given(st.lists(steps, max_size=12), st.sampled_from([0, 4]), st.booleans())
@settings(max_examples=60)
def test_any_order_of_things_against_a_plain_twin(
    server: Server, client: Any, story: list[tuple[str, list[Event], Words, str]], bound: int, together: bool
) -> None:
    store, twin = RedisStore(server.url, bound=bound, prefix=next(_prefixes)), Twin(bound)
    release = hold(store) if together else lambda: None
    waiting: list[tuple[Future[Any], object]] = []
    for user, new, model, how in story:
        packed = [wire._event(e.item, e.time, hash_key(e.key)) for e in new]
        if how == "forget":
            promised: object = twin.users.pop(user, None) is not None
            job = wire._Job(user)
        elif how == "load":
            promised = twin.load(user, new)
            job = wire._Job(user, packed, model, bulk=True)
        else:
            stored = twin.append(user, new)
            mine = twin.users[user]
            promised = Appended(stored, len(mine), model.after(*(e.item for e in mine)))
            job = wire._Job(user, packed, model)
        waiting.append((store._enqueue(job), promised))
        if not together:
            waiting[-1][0].result()
    release()
    for future, promised in waiting:
        done = future.result()
        assert done == promised or (isinstance(done, Appended) and done.stored == promised)
    assert sorted(store.users()) == sorted(twin.users)
    for user, mine in twin.users.items():
        kept = kept_of(store, user)
        assert kept == tuple(Kept(e.item, e.time, hash_key(e.key)) for e in mine)
        assert items_of(store, user) == [e.item for e in mine]
        assert client.smembers(store._keys(user)[2]) == {e.key for e in kept} - {NO_KEY}
    store.close()


# Several writers


def test_what_waits_together_is_written_together_and_in_order(store: RedisStore, client: Any) -> None:
    release = hold(store)
    futures = [store.submit("ann", events(str(k), start=k), FIRST) for k in range(50)]
    broken = store.submit("ann", events("never", start=60), Words("broken", lambda: 1 // 0))
    others = [store.submit(f"u{k}", events("a"), FIRST) for k in range(50)]
    forgotten = [store.submit("eve", events("a"), FIRST), store._enqueue(wire._Job("eve"))]
    after = store.submit("eve", events("b"), FIRST)
    withdrawn = store.submit("ann", events("withdrawn", start=70), FIRST)
    assert withdrawn.cancel()
    client.config_resetstat()
    release()
    assert [f.result().length for f in futures] == list(range(1, 51))
    assert all(f.result().stored == 1 for f in others)
    with pytest.raises(ZeroDivisionError):
        broken.result()
    assert forgotten[1].result() is True and after.result().length == 1
    assert items_of(store, "ann") == [str(k) for k in range(50)] and items_of(store, "eve") == ["b"]
    counts = client.info("commandstats")
    assert counts["cmdstat_evalsha"]["calls"] == 2 * (50 + 2) and counts["cmdstat_exec"]["calls"] == 1


def test_who_comes_second_reads_again(store: RedisStore, open_store: Open) -> None:
    other, tries = open_store(), itertools.count()
    store.append("ann", events("a"), FIRST)
    meddle = Words("first", lambda: next(tries) < 3 and other.append("ann", events("b", start=1), FIRST))
    done = store.append("ann", [Event("c", 1, "key")], meddle)
    assert next(tries) == 4 and (done.stored, done.length) == (1, 5)
    assert items_of(store, "ann") == ["a", "b", "b", "b", "c"]
    tries = itertools.count()
    once = Words("first", lambda: next(tries) < 1 and other.append("ann", [Event("d", 2, "same")], FIRST))
    assert store.append("ann", [Event("d", 2, "same")], once).stored == 0  # somebody else has just stored it


def test_a_user_who_was_forgotten_and_came_back_is_somebody_else(store: RedisStore, open_store: Open) -> None:
    other, tries = open_store(), itertools.count()
    store.append("ann", events("a"), FIRST)

    def meddle() -> None:
        if next(tries) < 1:
            assert other.forget("ann")
            other.append("ann", events("b"), FIRST)

    assert store.append("ann", events("c", start=1), Words("first", meddle)).state == FIRST.after("b", "c")
    assert items_of(store, "ann") == ["b", "c"]


def test_a_read_between_two_writes_gives_what_belongs_together(
    store: RedisStore, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, meddled = open_store(), list[int]()
    together: Callable[..., list[Any]] = redis.client.Pipeline._execute_pipeline
    store.append("ann", events("a", "b"), FIRST)

    def apart(pipe: Any, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        at = len(meddled) + 1
        if commands[0][0][0] != "HMGET" or at > 2:
            return together(pipe, connection, commands, raise_on_error)
        answers = together(pipe, connection, commands[:at], raise_on_error)
        meddled.append(at)
        other.forget("ann")
        other.append("ann", events("c", str(at)), FIRST)
        return answers + together(pipe, connection, commands[at:], raise_on_error)

    monkeypatch.setattr(redis.client.Pipeline, "_execute_pipeline", apart)
    assert items_of(store, "ann") == ["c", "2"] and meddled == [1, 2]


def test_many_threads_and_stores_lose_nothing(open_store: Open) -> None:
    stores = [open_store(), open_store()]

    def write(thread: int) -> None:
        for k in range(20):
            stores[thread % 2].append("ann", [Event(f"{thread}-{k}", 0)], FIRST)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    found = items_of(stores[0], "ann")
    assert len(found) == 120
    for thread in range(6):  # what one writer wrote stays in its order
        assert [i for i in found if i.startswith(f"{thread}-")] == [f"{thread}-{k}" for k in range(20)]


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_redis import FIRST, Event, RedisStore
store, name = RedisStore(sys.argv[2], prefix=sys.argv[3]), sys.argv[4]
print("ready", flush=True)
sys.stdin.readline()
for k in range(60):
    store.append("ann", [Event(f"{name}-{k}", k % 7 if name == "late" else 9)], FIRST)
store.close()
"""


def test_two_processes_write_for_one_user(store: RedisStore, server: Server) -> None:
    here = str(Path(__file__).parent)
    both = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, here, server.url, store.prefix, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("late", "last")
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        process.communicate("\n")
        assert process.returncode == 0
    found = items_of(store, "ann")
    assert found[:60] == [f"late-{k}" for _, k in sorted((k % 7, k) for k in range(60))]
    assert found[60:] == [f"last-{k}" for k in range(60)]


def test_forgetting_during_writes(store: RedisStore, open_store: Open) -> None:
    other, stop, forgot = open_store(), threading.Event(), list[bool]()

    def forget() -> None:
        while not stop.wait(0.01):
            forgot.append(other.forget("ann"))

    thread = threading.Thread(target=forget)
    thread.start()
    lengths = list[int]()
    try:
        while sum(forgot) < 5 and len(lengths) < 5000:
            lengths.append(store.append("ann", [Event(str(len(lengths)), len(lengths))], FIRST).length)
    finally:
        stop.set()
        thread.join()
    assert sum(forgot) >= 5 and all(b in (1, a + 1) for a, b in pairwise(lengths))
    left = items_of(store, "ann") if store.read("ann", FIRST) else []
    assert left == [str(k) for k in range(len(lengths))][len(lengths) - len(left) :]
    assert len(left) in (0, lengths[-1])


# When Redis is away, full, or not itself


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Server]:
    """A Redis of one test, with a port and a password."""
    port = free_port()
    made = Server(tmp_path, port, "--bind", "127.0.0.1", "--requirepass", PASSWORD)
    made.url = f"redis://:se%3Acr%40t@127.0.0.1:{port}/1"
    yield made
    made.kill()


def test_killed_under_load_every_acknowledged_event_is_there_once_and_in_order(mortal: Server) -> None:
    store, stop, refused = RedisStore(mortal.url), threading.Event(), []
    assert store.where == f"redis://127.0.0.1:{mortal.port}/1"

    def stored(key: str) -> bool:
        try:
            store.append("ann", [Event(key, 0, key)], FIRST)
        except StoreAway as error:
            refused.append(str(error))
            return False
        return True

    def write(name: str) -> int:
        count = 0
        while not stop.is_set():
            assert wait_for(lambda key=f"{name}-{count}": stored(key))  # type: ignore[misc]
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        written = {name: pool.submit(write, name) for name in "abc"}
        try:
            for _ in range(2):
                time.sleep(0.3)
                mortal.kill()
                with pytest.raises(StoreAway, match="cannot be reached"):
                    store.look(["ann"], FIRST)
                with pytest.raises(StoreAway, match="cannot be reached"):
                    store.append("bob", events("tea"), FIRST)
                mortal.start()
            time.sleep(0.3)
        finally:
            stop.set()
    assert refused and not [text for text in refused if PASSWORD in text or "\n" in text]
    found = items_of(store, "ann")
    for name, future in written.items():
        assert future.result() > 10
        assert [i for i in found if i.startswith(name)] == [f"{name}-{k}" for k in range(future.result())]
    assert len(found) == sum(future.result() for future in written.values())
    store.close()


def test_a_redis_that_was_away_while_nobody_asked_is_not_missed(mortal: Server) -> None:
    store = RedisStore(mortal.url)
    store.append("ann", events("a"), FIRST)
    store.look(["ann"], FIRST)
    mortal.kill()
    mortal.start()
    assert items_of(store, "ann") == ["a"]
    assert store.append("ann", events("b", start=9), FIRST).length == 2
    store.close()


class Cutter:
    """Stands before a Redis, and once, when asked to, swallows the answer to what contains some bytes."""

    def __init__(self, server: Server) -> None:
        self.server, self.swallow = server, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}"
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.threads.append(threading.Thread(target=self.serve, args=(near,), daemon=True))
            self.threads[-1].start()

    def serve(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(str(self.server.socket))
            while data := near.recv(1 << 16):
                cut = self.swallow and self.swallow in data
                far.sendall(data)
                answer = far.recv(1 << 16)
                if cut:
                    self.swallow = b""
                    return
                near.sendall(answer)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join()


def test_a_write_whose_answer_was_lost_is_not_sent_again(store: RedisStore, server: Server) -> None:
    cutter = Cutter(server)
    between = RedisStore(cutter.url, prefix=store.prefix)
    between.append("ann", [Event("tea", 1)], FIRST)
    cutter.swallow = wire._WRITE.sha.encode()
    with pytest.raises(StoreAway, match="may be stored: send it again with the same keys"):
        between.append("ann", [Event("jam", 2, "e1")], FIRST)
    assert items_of(store, "ann") == ["tea", "jam"]
    assert between.append("ann", [Event("jam", 2, "e1")], FIRST).stored == 0
    cutter.swallow = wire._READ.sha.encode()
    with pytest.raises(StoreAway):
        between.append("ann", [Event("egg", 3)], FIRST)
    assert items_of(between, "ann") == ["tea", "jam"]
    between.close()
    cutter.close()


def test_a_redis_that_forgot_its_scripts(store: RedisStore, client: Any) -> None:
    store.append("ann", events("a"), FIRST)
    client.script_flush()
    store.load([(f"u{k}", [Kept("a", 1)]) for k in range(9)] + [("ann", [Kept("b", 9)])], FIRST)
    client.script_flush()
    assert store.put_states(next(store.portions(SECOND)), [b"state"] * 10, SECOND) == 10
    assert items_of(store, "ann") == ["a", "b"] and len(store) == 10


def test_a_full_redis_writes_nothing_by_halves(store: RedisStore, client: Any) -> None:
    store.append("ann", [Event("a", 10, "e1"), Event("b", 20, "e2")], FIRST)
    client.config_set("maxmemory", 1)
    try:
        for user, at in (("ann", 30), ("ann", 15), ("ann", 5), ("new", 1)):
            with pytest.raises(StoreAway, match="out of memory; raise its maxmemory"):
                store.append(user, [Event("c", at, "e3")], FIRST)
        futures = [store.submit(f"u{k}", events("a"), FIRST) for k in range(20)]
        assert all(isinstance(f.exception(), StoreAway) for f in futures)
        assert items_of(store, "ann") == ["a", "b"] and list(store.users()) == ["ann"]
        assert look_at(store, "ann", SECOND).state == SECOND.after("a", "b")  # that it cannot be kept is no harm
        assert store.forget("ann")
    finally:
        client.config_set("maxmemory", 0)
    assert store.append("ann", [Event("c", 15, "e3")], FIRST).length == 1


def test_a_replica_takes_no_writes(mortal: Server) -> None:
    store = RedisStore(mortal.url)
    store.append("ann", events("a"), FIRST)
    with mortal.client() as client:
        client.replicaof("127.0.0.1", free_port())
        with pytest.raises(StoreAway, match="is a replica"):
            store.append("ann", events("b", start=9), FIRST)
        assert items_of(store, "ann") == ["a"]
        client.replicaof("NO", "ONE")
        assert store.append("ann", events("b", start=9), FIRST).length == 2
    store.close()


def test_a_user_with_few_rights(mortal: Server) -> None:
    with mortal.client() as client:
        client.execute_command("ACL", "SETUSER", "meek", "on", ">pw", "~*", "+@all", "-config")
        store = RedisStore(mortal.url.replace(":se%3Acr%40t", "meek:pw"))
        store.append("ann", events("a"), FIRST)
        assert store.durable() is None and store.info()["events"] == 1
        client.execute_command("ACL", "SETUSER", "meek", "-evalsha")
    for future in [store.submit(user, events("b"), FIRST) for user in ("ann", "bob")]:
        with pytest.raises(StoreError, match="refuses .*; check the user and the password"):
            future.result()
    store.close()


def test_durable_is_what_survives_a_kill(mortal: Server) -> None:
    store = RedisStore(mortal.url)
    with mortal.client() as client:
        assert store.durable() is True
        for setting, careless, careful in (("appendfsync", "everysec", "always"), ("appendonly", "no", "yes")):
            client.config_set(setting, careless)
            assert store.durable() is False
            client.config_set(setting, careful)
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert store.durable() is True  # there is no limit
        client.config_set("maxmemory", 10**9)
        assert store.durable() is False
    store.close()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("MISCONF Errors writing to the AOF file", "cannot write to its disk"),
        ("LOADING Redis is loading the dataset in memory", "still reading its data"),
        ("NOREPLICAS Not enough good replicas to write.", "too few replicas"),
        ("BUSY Redis is busy running a script.", "is busy"),
        ("ERR Error running script (call to f_1): @user_script:9: -OOM command not allowed", "out of memory"),
    ],
)
def test_answers_that_pass(store: RedisStore, answer: str, sentence: str) -> None:
    parse: Callable[[str], Exception] = BaseParser.parse_error
    found = store._translated(parse(answer))
    assert type(found) is StoreAway and sentence in str(found)


@pytest.mark.parametrize(
    "harm",
    [
        lambda client, head, history, keys: client.delete(history),
        lambda client, head, history, keys: client.delete(head),
        lambda client, head, history, keys: client.lpop(history),
        lambda client, head, history, keys: client.hdel(head, "state"),
        lambda client, head, history, keys: client.hset(head, "version", "x"),
        lambda client, head, history, keys: client.set(head, "x"),
        lambda client, head, history, keys: client.set(history, "x"),
    ],
)
def test_damage_is_noticed_and_can_be_forgotten(store: RedisStore, client: Any, harm: Callable[..., object]) -> None:
    store.append("ann", [Event("a", 1, "e1"), Event("b", 2, "e2")], FIRST)
    store.append("bob", events("a"), FIRST)
    harm(client, *store._keys("ann"))
    for what in (
        lambda: store.read("ann", FIRST),
        lambda: store.look(["bob", "ann"], FIRST),
        lambda: store.append("ann", [Event("c", 3)], FIRST),
        lambda: store.append("ann", [Event("c", 0)], SECOND),
    ):
        with pytest.raises(StoreError, match="the history of 'ann' .* is damaged; forget|WRONGTYPE.*another prefix"):
            what()
    assert items_of(store, "bob") == ["a"]
    release = hold(store)
    gone, new = store._enqueue(wire._Job("ann")), store.submit("ann", [Event("a", 1, "e1")], FIRST)
    release()
    assert gone.result() and new.result().length == 1 and items_of(store, "ann") == ["a"]
    harm(client, *store._keys("ann"))
    assert store.forget("ann") and store.read("ann", FIRST) is None


def test_damaged_events_are_noticed(store: RedisStore, client: Any) -> None:
    store.append("ann", events("a", "b"), FIRST)
    history, good = store._keys("ann")[1], client.lindex(store._keys("ann")[1], 1)
    for bad in (good[:24], good[:24] + b"\xff", b"\7" + good[1:]):  # no item, no text, not the newest time
        client.lset(history, 1, bad)
        with pytest.raises(StoreError, match="is damaged"):
            store.look(["ann"], FIRST)
    client.lset(history, 1, good)
    assert items_of(store, "ann") == ["a", "b"]


# Opening and closing


def test_what_is_no_redis_url(server: Server) -> None:
    for url in (
        "localhost:6379",
        "http://localhost",
        "redis://:geheim/1@localhost",
        "redis://localhost:port",
        "redis://localhost/name",
        "redis://:geheim@localhost?decode_responses=true",
        "redis://localhost?geheim",
        "unix://:ge/heim@/socket",
    ):
        with pytest.raises(StoreError, match="the Redis URL cannot be read; write redis://") as refused:
            RedisStore(url)
        assert "geheim" not in str(refused.value)
    for prefix in ("", "a{b", "a*", "a b"):
        with pytest.raises(StoreError, match="prefix"):
            RedisStore(server.url, prefix=prefix)


def test_nobody_there() -> None:
    with pytest.raises(StoreAway, match=r"redis://127.0.0.1:\d+/2 cannot be reached .*is it running\?") as refused:
        RedisStore(f"redis://:geheim@127.0.0.1:{free_port()}/2")
    assert "geheim" not in str(refused.value)
    with pytest.raises(StoreAway, match=r"unix:///nowhere\?db=1 cannot be reached"):
        RedisStore("unix:///nowhere?db=1&password=geheim")


def test_a_wrong_password(mortal: Server) -> None:
    for wrong in ("wrong@", ":wrong@", "somebody:se%3Acr%40t@", ""):
        with pytest.raises(StoreError, match="refuses .*; check the user and the password") as refused:
            RedisStore(f"redis://{wrong}127.0.0.1:{mortal.port}")
        assert not isinstance(refused.value, StoreAway) and "wrong" not in str(refused.value)


def test_something_else_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            near, _ = listener.accept()
            with near:
                near.recv(1 << 16)
                near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StoreError, match="does not answer like a Redis; check host and port"):
            RedisStore(f"redis://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_another_format(store: RedisStore, open_store: Open, client: Any) -> None:
    client.hset(f"{store.prefix}:facts", "version", 99)
    with pytest.raises(StoreError, match="store format version 99, this lrurec reads 1"):
        open_store()


def test_closing_finishes_what_was_begun(store: RedisStore, open_store: Open) -> None:
    futures = [store.submit("ann", events(str(k), start=k), FIRST) for k in range(300)]
    store.close()
    store.close()
    assert all(f.done() and f.result().stored == 1 for f in futures)
    assert len(items_of(open_store(), "ann")) == 300
    for call in (
        lambda: store.append("ann", [], FIRST),
        lambda: store.read("ann", FIRST),
        lambda: store.look(["ann"], FIRST),
        lambda: store.forget("ann"),
        lambda: store.load([("ann", [])], FIRST),
        lambda: list(store.portions(FIRST)),
        lambda: len(store),
        store.durable,
    ):
        with pytest.raises(StoreError, match="is closed"):
            call()


def test_a_server_lives_through_the_death_of_its_redis(mortal: Server, sample: Path) -> None:
    """Requests answer 503 with a reason while Redis is away, and work again by themselves."""
    url = f"redis://:{PASSWORD.replace('@', '%40').replace(':', '%3A')}@127.0.0.1:{mortal.port}/0"
    with HttpServer(sample, url) as server:
        client = server.client()
        for k in range(5):
            assert client.observe("ann", 1 + k, id=str(k), time=k).status == 200
        before = client.recommend("ann").json["recommendations"]
        mortal.kill()
        for reply in (client.observe("ann", 7, id="away"), client.recommend("ann"), client.get("/readyz")):
            assert reply.status == 503 and reply.headers["retry-after"] == "1"
            assert "cannot be reached" in reply.json["error"] or "the log says why" in reply.json["error"]
            assert PASSWORD not in reply.json["error"]
        assert client.get("/healthz").status == 200
        mortal.start()
        assert wait_for(lambda: client.get("/readyz").status == 200)
        assert client.recommend("ann").json["recommendations"] == before
        assert client.observe("ann", 7, id="4").json["stored"] == 0  # its keys are there, too
        assert client.get("/v1/users/ann").json["length"] == 5
        assert PASSWORD not in "".join(server.log) and "%40" not in "".join(server.log)
