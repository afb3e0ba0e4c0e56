"""What every store keeps, whatever happens to it."""

import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrurec.errors import InputError, SettingsError
from lrurec.serving.store.base import Event, Indices, Kept, Store, StoreError
from lrurec.serving.store.embedded import PIECE, EmbeddedStore
from lrurec.serving.store.opening import open_store
from lrurec.serving.store.redis import RedisStore
from redis_server import MISSING, Server, wait_for


class Chain:
    """A model whose state tells every item and their order. It does not know items that begin with a question mark."""

    def __init__(self, id: str = "first") -> None:
        self.id = id

    def index(self, item: str) -> int:
        return -1 if item.startswith("?") else int.from_bytes(blake2b(item.encode(), digest_size=6).digest())

    def replay(self, items: Indices, state: bytes | None = None) -> bytes:
        state = state or self.id.encode()
        for item in items[items >= 0]:
            state = blake2b(state + item.tobytes(), digest_size=8).digest()
        return state

    def replay_many(self, items: Indices, offsets: Indices) -> list[bytes]:
        return [self.replay(items[a:b]) for a, b in pairwise(offsets)]

    def after(self, *items: str) -> bytes:
        return self.replay(self.indices(*items))

    def indices(self, *items: str) -> Indices:
        return np.array([self.index(item) for item in items], np.int64)


FIRST, SECOND = Chain(), Chain("second")


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedStore]:
    made = EmbeddedStore(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if MISSING:
        pytest.skip("there is no redis-server on this machine")
    made = Server(tmp_path_factory.mktemp("redis"))
    yield made.url
    made.kill()


@pytest.fixture(params=["embedded", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every kind of store, empty."""
    if request.param == "embedded":
        yield request.getfixturevalue("embedded")
        return
    made = RedisStore(request.getfixturevalue("redis"), prefix=f"t{secrets.randbits(60)}")
    yield made
    made.close()


def events(*items: str, start: int = 0) -> list[Event]:
    return [Event(item, start + k) for k, item in enumerate(items)]


def items_of(store: Store, user: str) -> list[str]:
    record = store.read(user, FIRST)
    assert record is not None
    items = [e.item for e in record.events]
    (look,) = store.look([user], FIRST)
    assert look is not None and look.state == record.state == FIRST.after(*items)
    assert look.seen.tolist() == [i for i in FIRST.indices(*items).tolist() if i >= 0]
    return items


def test_append_and_read(store: Store) -> None:
    assert store.read("ann", FIRST) is None and store.look(["ann", "bob"], FIRST) == [None, None]
    done = store.append("ann", events("tea", "jam"), FIRST)
    assert (done.stored, done.length, done.state) == (2, 2, FIRST.after("tea", "jam"))
    store.append("ann", events("tea", start=9), FIRST)
    store.append("bob", events("jam"), FIRST)
    assert items_of(store, "ann") == ["tea", "jam", "tea"]
    assert sorted(store.users()) == ["ann", "bob"] and len(store) == 2
    assert store.has(["bob", "zoe", "", "\ud800", "ann"]) == [True, False, False, False, True]


def test_it_is_there_after_opening_again(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s")
    store.append("ann", events("tea"), FIRST)
    store.close()
    again = EmbeddedStore(tmp_path / "s", create=False)
    assert items_of(again, "ann") == ["tea"]
    again.close()


def test_a_retry_is_stored_once(store: Store) -> None:
    event = Event("tea", 5, key="e1")
    assert store.append("ann", [event, event], FIRST).stored == 1
    assert store.append("ann", [event, Event("jam", 6, "e2")], FIRST).stored == 1
    assert store.append("bob", [event], FIRST).stored == 1  # a key belongs to a user
    assert items_of(store, "ann") == ["tea", "jam"]


def test_late_events_are_placed_by_time(store: Store) -> None:
    store.append("ann", [Event("a", 10), Event("c", 30)], FIRST)
    store.append("ann", [Event("b", 20), Event("d", 40), Event("a2", 10)], FIRST)
    assert items_of(store, "ann") == ["a", "a2", "b", "c", "d"]
    store.append("ann", [Event("e", 40)], FIRST)
    assert items_of(store, "ann")[-2:] == ["d", "e"]


def test_a_state_of_another_artifact_is_made_again(store: Store) -> None:
    store.append("ann", events("a", "b"), FIRST)
    first, (look,) = store.look(["ann"], FIRST)[0], store.look(["ann"], SECOND)
    assert first is not None and not first.rebuilt
    assert look is not None and look.state == SECOND.after("a", "b") and look.rebuilt
    assert wait_for(lambda: not store.look(["ann"], SECOND)[0].rebuilt)  # type: ignore[union-attr]  # it is kept
    assert store.append("ann", events("c", start=5), SECOND).state == SECOND.after("a", "b", "c")
    assert items_of(store, "ann") == ["a", "b", "c"]


def test_forgotten_is_gone(store: Store) -> None:
    store.append("ann", [Event("tea", 1, "e1")] * 3, FIRST)
    store.append("bob", events("jam"), FIRST)
    assert store.forget("ann") and not store.forget("ann")
    assert store.read("ann", FIRST) is None and list(store.users()) == ["bob"]
    assert store.append("ann", [Event("tea", 1, "e1")], FIRST).stored == 1  # nothing is remembered, not even the key
    assert items_of(store, "bob") == ["jam"]


def test_no_more_than_the_bound_is_kept(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s", bound=10)
    for k in range(3 * PIECE):
        store.append("ann", [Event(str(k), k, str(k))], FIRST)
        kept = items_of(store, "ann")
        assert kept == [str(n) for n in range(k + 1)][-len(kept) :] and min(k + 1, 10) <= len(kept) < 10 + PIECE
    store.close()


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(
                st.tuples(st.sampled_from("xyz"), st.integers(0, 9), st.sampled_from([None, "1", "2"])), max_size=5
            ),
            st.sampled_from([FIRST, SECOND]),
            st.booleans(),
        ),
        max_size=12,
    )
)
@settings(max_examples=40)
def test_any_order_of_things_against_a_plain_twin(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, list[tuple[str, int, str | None]], Chain, bool]]
) -> None:
    store = EmbeddedStore(tmp_path_factory.mktemp("store") / "s")
    twin: dict[str, list[tuple[int, str]]] = {}
    known: dict[str, set[str]] = {}
    for user, rows, model, forget in story:
        if forget:
            assert store.forget(user) == (user in twin)
            twin.pop(user, None)
            known.pop(user, None)
            continue
        store.append(user, [Event(item, at, key) for item, at, key in rows], model)
        mine, keys = twin.setdefault(user, []), known.setdefault(user, set())
        for item, at, key in rows:
            if key is None or key not in keys:
                mine.append((at, item))
                keys |= {key} if key else set()
        mine.sort(key=lambda row: row[0])
    for user, mine in twin.items():
        assert items_of(store, user) == [item for _, item in mine]
    assert sorted(store.users()) == sorted(twin)
    store.close()


def test_many_threads_lose_nothing(store: Store) -> None:
    def write(thread: int) -> None:
        for k in range(50):
            store.append("ann", [Event(f"{thread}-{k}", 0, f"{thread}-{k}")], FIRST)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    found = items_of(store, "ann")
    assert len(found) == len(set(found)) == 400
    for thread in range(8):  # what one writer wrote stays in its order
        assert [i for i in found if i.startswith(f"{thread}-")] == [f"{thread}-{k}" for k in range(50)]


WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from test_store import FIRST
from lrurec.serving.store.base import Event
from lrurec.serving.store.embedded import EmbeddedStore
store, name = EmbeddedStore(sys.argv[1]), sys.argv[2]
for k in range(int(sys.argv[4])):
    store.append("ann", [Event(f"{name}-{k}", 0, f"{name}-{k}")], FIRST)
    print(f"{name}-{k}", flush=True)
"""


def writer(path: Path, name: str, count: int) -> "subprocess.Popen[str]":
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", WRITER, str(path), name, here, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_write_for_one_user(tmp_path: Path) -> None:
    both = [writer(tmp_path / "s", name, 40) for name in "ab"]
    for process in both:
        process.communicate()
        assert process.returncode == 0
    store = EmbeddedStore(tmp_path / "s", create=False)
    found = items_of(store, "ann")
    store.close()
    for name in "ab":
        assert [i for i in found if i.startswith(name)] == [f"{name}-{k}" for k in range(40)]


def test_killed_at_any_moment_every_acknowledged_event_is_there_once(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for k in range(5):
        process = writer(tmp_path / "s", f"run{k}", 10**6)
        assert process.stdout is not None
        acknowledged.append(process.stdout.readline().strip())  # it has begun
        time.sleep(random.Random(k).uniform(0, 0.2))
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
        process.wait()
        process.stdout.close()
    store = EmbeddedStore(tmp_path / "s", create=False)
    found = items_of(store, "ann")
    store.close()
    assert len(found) == len(set(found))
    assert [i for i in found if i in set(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 5  # at most one per process was on disk and not yet told


def test_a_fault_in_one_append_harms_no_other(store: Store) -> None:
    class Broken(Chain):
        def replay(self, items: Indices, state: bytes | None = None) -> bytes:
            raise ValueError("broken")

    futures = [store.submit("ann", events("tea"), Broken()), store.submit("bob", events("jam"), FIRST)]
    with pytest.raises(ValueError, match="broken"):
        futures[0].result()
    assert futures[1].result().stored == 1
    assert store.read("ann", FIRST) is None


def test_refusals(tmp_path: Path, embedded: EmbeddedStore) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        EmbeddedStore(tmp_path / "nothing", create=False)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "data.mdb").write_bytes(b"no store" * 4096)
    with pytest.raises(StoreError, match="not a store of lrurec, or it is damaged"):
        EmbeddedStore(tmp_path / "bad")
    for user, item in (("", "tea"), ("u" * 501, "tea"), ("ann", ""), ("ann", "i" * 501), ("\ud800", "tea")):
        with pytest.raises(InputError, match="1 to 500 bytes"):
            embedded.append(user, [Event(item, 0)], FIRST)


def test_items_that_the_model_does_not_know_are_kept(store: Store) -> None:
    store.append("ann", events("a", "?x", "b"), FIRST)
    assert items_of(store, "ann") == ["a", "?x", "b"]
    assert store.append("ann", events("?y", start=9), FIRST).state == FIRST.after("a", "b")


def test_numbers_of_an_abandoned_transaction_are_not_remembered(embedded: EmbeddedStore) -> None:
    """An append fails behind one that gave new items their numbers: they get others, and nobody mixes them up."""

    class Broken(Chain):
        def replay(self, items: Indices, state: bytes | None = None) -> bytes:
            raise ValueError("broken")

    with embedded._committing:  # so that both wait for the same commit
        futures = [
            embedded.submit("zoe", events("never-stored"), Broken()),
            embedded.submit("ann", events("tea", "jam"), FIRST),
            embedded.submit("zoe", events("never-stored-either"), Broken()),
            embedded.submit("ann", events("egg", start=5), FIRST),
        ]
    assert [f.exception() is None for f in futures] == [False, True, False, True]
    assert items_of(embedded, "ann") == ["tea", "jam", "egg"]


def test_load_is_append_for_many(store: Store) -> None:
    store.append("bob", [Event("old", 5, "e1")], FIRST)
    (known,) = store.read("bob", FIRST).events  # type: ignore[union-attr]
    rows = [
        ("ann", [Kept("b", 2), Kept("a", 1), Kept("c", 2)]),
        ("bob", [Kept("early", 1), known]),
        ("ann", [Kept("d", 9)]),
        ("eve", []),
    ]
    assert store.load(rows, FIRST) == 5
    assert items_of(store, "ann") == ["a", "b", "c", "d"]
    assert items_of(store, "bob") == ["early", "old"]
    assert items_of(store, "eve") == [] and len(store) == 3


def test_load_keeps_to_the_bound(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s", bound=3)
    store.load([("ann", [Kept(str(k), k, bytes([k + 1] * 16)) for k in range(200)])], FIRST)
    assert items_of(store, "ann") == ["197", "198", "199"]
    assert store.append("ann", [Event("again", 500)], FIRST).length == 4
    store.close()


def test_states_in_bulk(store: Store) -> None:
    for k in range(20):
        store.append(f"u{k}", events(*"abc"[: k % 4]), FIRST)
    (portion,) = store.portions(SECOND)
    assert portion.states == [None] * 20 and sorted(portion.users) == sorted(store.users())
    states = SECOND.replay_many(portion.items, portion.offsets)
    store.append("u7", events("late", start=50), FIRST)  # changed meanwhile: not to be overwritten
    store.forget("u8")
    assert store.put_states(portion, states, SECOND) == 18
    looks = store.look(["u3", "u7"], SECOND)
    assert [look.rebuilt for look in looks if look] == [False, True]
    assert items_of(store, "u7") == ["a", "b", "c", "late"]


def test_portions_leave_nobody_out(embedded: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrurec.serving.store.embedded._PORTION", 7)
    for k in range(40):
        embedded.append(f"u{k}", events(*"abcde"[: k % 6]), FIRST)
    found = [user for portion in embedded.portions(FIRST) for user in portion.users]
    assert sorted(found) == sorted(f"u{k}" for k in range(40))
    assert embedded.info() | {"bytes": 0} == {
        "kind": "embedded",
        "users": 40,
        "events": sum(k % 6 for k in range(40)),
        "items": 5,
        "bytes": 0,
        "states": {"first": 40},
    }


def test_a_time_that_cannot_be_kept(store: Store) -> None:
    with pytest.raises(InputError, match="64 bits"):
        store.append("ann", [Event("tea", 1 << 63)], FIRST)


def test_whoever_gives_up_waiting_harms_nobody(embedded: EmbeddedStore) -> None:
    with embedded._committing:
        gone, stays = embedded.submit("ann", events("tea"), FIRST), embedded.submit("bob", events("jam"), FIRST)
        assert gone.cancel()
    assert stays.result().stored == 1
    assert embedded.read("ann", FIRST) is None


FULL = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from test_store import FIRST
from lrurec.serving.store.base import Event, StoreError
from lrurec.serving.store.embedded import EmbeddedStore
store, stored, refused = EmbeddedStore(sys.argv[1]), 0, ""
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
for k in range(20_000):
    try:
        store.append(f"user{k}", [Event("tea", k)] * 50, FIRST)
    except StoreError as error:
        refused = str(error)
        break
    stored += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert "cannot be used" in refused or "refuses" in refused, refused
assert len(store) == stored > 10, (len(store), stored)
store.append("after", [Event("jam", 1)], FIRST)
assert len(store) == stored + 1
store.close()
"""


def test_a_full_disk_is_told_and_harms_nothing(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "s"), here], check=True)


def test_a_store_that_is_removed_takes_no_more_events(embedded: EmbeddedStore) -> None:
    embedded.append("ann", events("tea"), FIRST)
    embedded.check()
    shutil.rmtree(embedded.path)
    for work in (embedded.check, lambda: embedded.append("ann", events("jam", start=9), FIRST)):
        with pytest.raises(StoreError, match="was removed or replaced"):
            work()


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = EmbeddedStore(path)
    store.load([(f"user{k}", [Kept(f"item{j}", j) for j in range(30)]) for k in range(300)], FIRST)
    store.close()
    whole = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match="cut short"):
        EmbeddedStore(path)
    changed = bytearray(whole)
    for at in range(8192, len(whole), 97):  # in every page, except the two that tell where all begins
        changed[at] ^= 0xFF
    (path / "data.mdb").write_bytes(changed)
    with pytest.raises(StoreError):
        store = EmbeddedStore(path)
        list(store.portions(FIRST))
        [store.read(user, FIRST) for user in store.users()]


def test_what_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "file").write_text("x")
    for path in ("photos", "file"):
        with pytest.raises(StoreError, match="store"):
            EmbeddedStore(tmp_path / path)
    assert [p.name for p in (tmp_path / "photos").iterdir()] == ["cat.jpg"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "data.mdb").touch()
    with pytest.raises(StoreError, match="not a store"):
        EmbeddedStore(tmp_path / "empty", create=False)
    assert (tmp_path / "empty" / "data.mdb").stat().st_size == 0
    with pytest.raises(SettingsError, match="no store"):
        open_store("http://localhost")


def test_after_closing(store: Store) -> None:
    store.append("ann", events("tea"), FIRST)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.append("ann", events("tea"), FIRST)
