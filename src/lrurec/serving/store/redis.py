"""The store in a Redis, which several servers share. Knows keys, scripts and broken connections, not models.

    PREFIX:{user}:head       version, length, newest time, artifact id, state
    PREFIX:{user}:history    a list, oldest first: time, hash of the event's key, item id
    PREFIX:{user}:keys       a set: the hashes of the keys
    PREFIX:facts             format version

Every write is one script that first compares the version; who comes second reads again. A version is never used
twice, so a user who was forgotten and came back is not taken for the old one. An append reads and writes the head and
the end of the history, so it costs the same after a million events as after one.

A write that was sent and not answered is never sent again: its events may be there. The caller is told, and whoever
asks again with the keys of the events stores them once. Redis keeps what it acknowledged through a crash if it is set
to `appendonly yes` and `appendfsync always`; see `durable`.
"""

import hashlib
import itertools
import queue
import random
import re
import secrets
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import numpy as np
import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from lrurec.errors import InputError
from lrurec.serving.store.base import (
    LONGEST_ID,
    NO_KEY,
    SLACK,
    Appended,
    Event,
    Indices,
    Kept,
    Look,
    Model,
    Portion,
    Record,
    StoreAway,
    StoreError,
    check_ids,
    hash_key,
)

VERSION = 1
_MOST = 1024  # appends that are written together
_MOST_BYTES = 8 << 20  # and no more than this at once
_SCAN = 3000  # keys looked at in a step of a walk
_PORTION = 1000  # users handed over at a time, at least
_MODELS = 3  # models whose item numbers are remembered
_FIRST = -(1 << 63)  # before all times
_HEAD = ("version", "length", "newest", "artifact", "state")
_ANY = "*"  # whatever the version is
_OPTIONS = {"db", "username", "password", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile"}
_EVENT = struct.Struct("<q16s")  # time, hash of the key; the item follows


class _Script(NamedTuple):
    text: str
    sha: str


def _script(text: str) -> _Script:
    return _Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


# In: hashes of keys. Out: the head, the length of the history, which of the keys are known.
_READ = _script("""
local head = redis.call('HMGET', KEYS[1], 'version', 'length', 'newest', 'artifact', 'state')
local known = {}
for at = 1, #ARGV[1], 16 do
  known[#known + 1] = redis.call('SISMEMBER', KEYS[3], string.sub(ARGV[1], at, at + 15))
end
return {head, redis.call('LLEN', KEYS[2]), table.concat(known)}
""")

# In: the version expected ('': nobody, '*': any), the new one ('': erase), artifact, state, length, newest time, how many
# events stay, the others. The first write is one that Redis refuses when it is out of memory: then nothing is written.
_WRITE = _script("""
if ARGV[1] ~= '*' and (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
if ARGV[1] == '*' or ARGV[2] == '' then redis.call('DEL', KEYS[1], KEYS[2], KEYS[3]) end
if ARGV[2] == '' then return 1 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'artifact', ARGV[3], 'state', ARGV[4],
  'length', ARGV[5], 'newest', ARGV[6])
local keep = tonumber(ARGV[7])
if keep == 0 then
  redis.call('DEL', KEYS[2], KEYS[3])
elseif keep < redis.call('LLEN', KEYS[2]) then
  redis.call('LTRIM', KEYS[2], 0, keep - 1)
end
local events, keys, none, at = {}, {}, string.rep('\\0', 16), 1
for k = 1, #ARGV[8], 4 do
  local size = struct.unpack('<I4', ARGV[8], k)
  events[#events + 1] = string.sub(ARGV[9], at, at + size - 1)
  local key = string.sub(ARGV[9], at + 8, at + 23)
  if key ~= none then keys[#keys + 1] = key end
  at = at + size
end
local function add(command, to, values)
  for k = 1, #values, 1000 do
    redis.call(command, to, unpack(values, k, math.min(k + 999, #values)))
  end
end
add('RPUSH', KEYS[2], events)
add('SADD', KEYS[3], keys)
return 1
""")

# In: the version expected, artifact, state. The version is that of the history, and stays.
_PUT_STATE = _script("""
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'artifact', ARGV[2], 'state', ARGV[3])
return 1
""")

_HEALS = {  # by itself, or once somebody has seen to it; the store needs no restart
    "LOADING": "is still reading its data; ask again in a moment",
    "OOM": "is out of memory; raise its maxmemory",
    "READONLY": "is a replica and takes no writes; give the address of the primary",
    "MISCONF": "cannot write to its disk; free some room there and see its log",
    "NOREPLICAS": "has too few replicas to take writes; see its log",
    "BUSY": "is busy with somebody's script; ask again in a moment",
    "MASTERDOWN": "is a replica without a primary; see its log",
    "CLUSTERDOWN": "is a cluster that is down; see its log",
    "TRYAGAIN": "is moving its data; ask again in a moment",
}
_CLASSES = {
    "LOADING": exceptions.BusyLoadingError,
    "OOM": exceptions.OutOfMemoryError,
    "READONLY": exceptions.ReadOnlyError,
    "MASTERDOWN": exceptions.MasterDownError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "TRYAGAIN": exceptions.TryAgainError,
}
_REFUSES = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.AuthorizationError,
    exceptions.NoPermissionError,
)


class _Unread(Exception):
    """The whole history is needed, and was not read."""


@dataclass
class _User:
    """What Redis has of a user, and what jobs make of it until it is written.

    The history is the first `keep` events that Redis has, and then `rest`.
    """

    version: str = ""  # as it was read
    exists: bool = False
    newest: int = _FIRST
    artifact: str | None = None  # None: the state is still to be made
    state: bytes = b""
    front: list[bytes] | None = field(default_factory=list)  # what Redis has; None: not read
    keep: int = 0
    rest: list[bytes] = field(default_factory=list)
    known: set[bytes] = field(default_factory=set)  # of the keys that were asked for
    owed: Model | None = None  # who is to make the state
    changed: bool = False
    fault: StoreError | None = None

    def whole(self) -> list[bytes]:
        if self.front is None:
            raise _Unread
        return self.front[: self.keep] + self.rest

    def arguments(self) -> tuple[str | bytes | int, ...]:
        """For the script that writes."""
        if not self.exists:
            return self.version, ""
        version, length = secrets.randbits(63), self.keep + len(self.rest)
        sizes = np.array([len(event) for event in self.rest], "<u4").tobytes()
        head = self.version, version, self.artifact or "", self.state, length, self.newest
        return *head, self.keep, sizes, b"".join(self.rest)

    def forget(self) -> bool:
        existed = self.exists or self.fault is not None
        self.exists, self.newest, self.known, self.fault = False, _FIRST, set(), None
        self.artifact, self.state, self.owed = None, b"", None
        self.front, self.keep, self.rest = [], 0, []
        self.changed = self.version != ""
        return existed


@dataclass
class _Job:
    """Events to append, or (None) a user to forget; and who waits for it."""

    user: str
    events: Sequence[bytes] | None = None
    model: Model | None = None
    bulk: bool = False
    future: "Future[Any]" = field(default_factory=Future)


class _State(NamedTuple):
    """A state that was made on the way and is worth keeping."""

    user: str
    version: str
    artifact: str
    state: bytes


class RedisStore:
    """Histories and states in a Redis. `bound`: how many events of a user are kept (0: all).

    `url`: redis://[user:password@]host:port/database, rediss:// for TLS, unix:///path?db=0 for a socket.
    """

    quick = False

    def __init__(self, url: str, *, bound: int = 0, prefix: str = "lrurec") -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.:-]+", prefix):
            raise StoreError("the prefix of the keys in Redis may have letters, digits and _ . : - alone")
        self.where, self._redis = _client(url)
        self.bound, self.prefix = bound, prefix
        self._numbers: dict[str, dict[bytes, int]] = {}
        try:
            self._check_version()
        except BaseException:
            self._redis.close()
            raise
        self._waiting: queue.SimpleQueue[_Job | _State | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._open = True
        self._writer = threading.Thread(target=self._write, name="lrurec-store", daemon=True)
        self._writer.start()

    # Reading

    def read(self, user: str, model: Model) -> Record | None:
        found = self._fetch([user]).get(user)
        if found is None:
            return None
        history = found.whole()
        state = found.state if found.artifact == model.id else model.replay(self._indices(history, model))
        events = []
        for event in history:
            at, key = _EVENT.unpack_from(event)
            events.append(Kept(self._text(event[_EVENT.size :]), at, key))
        return Record(tuple(events), state)

    def has(self, users: Sequence[str]) -> list[bool]:
        self._check_open()
        with self._sentences(), self._redis.pipeline(transaction=False) as pipe:
            for user in users:
                pipe.exists(self._keys(user if _fits(user) else "")[0])
            return [bool(there) for there in pipe.execute()]

    def look(self, users: Sequence[str], model: Model) -> list[Look | None]:
        found = self._fetch(users)
        seen = {name: self._indices(user.whole(), model) for name, user in found.items()}
        stale = [name for name, user in found.items() if user.artifact != model.id]
        if stale:
            for name, state in zip(stale, model.replay_many(*_packed([seen[n] for n in stale])), strict=True):
                found[name].state = state
                with suppress(StoreError):
                    self._put(_State(name, found[name].version, model.id, state))
        looks = {
            name: Look(user.state, seen[name][seen[name] >= 0], user.artifact != model.id)
            for name, user in found.items()
        }
        return [looks.get(name) for name in users]

    def users(self) -> Iterator[str]:
        for names in self._walk():
            yield from names

    def portions(self, model: Model) -> Iterator[Portion]:
        for names in self._walk():
            found = self._fetch(names)
            items, offsets = _packed([self._indices(user.whole(), model) for user in found.values()])
            yield Portion(
                list(found),
                [int(user.version) for user in found.values()],
                items,
                offsets,
                [user.state if user.artifact == model.id else None for user in found.values()],
            )

    def __len__(self) -> int:
        """Walks over all keys of the database: exact, and slow where there are millions."""
        return sum(len(names) for names in self._walk())

    def info(self) -> dict[str, Any]:
        users, events, states = 0, 0, dict[str, int]()
        for names in self._walk():
            with self._sentences(), self._redis.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hmget(self._keys(name)[0], "length", "artifact")
                heads = pipe.execute()
            users += len(names)
            for length, artifact in heads:
                events += int(length or 0)
                states[(artifact or b"").decode()] = states.get((artifact or b"").decode(), 0) + 1
        with self._sentences():
            memory = self._redis.info("memory")["used_memory"]
        found = {"kind": "redis", "users": users, "events": events, "memory": memory, "states": states}
        return found | {"durable": self.durable()}

    def check(self) -> None:
        self._check_open()
        with self._sentences():
            self._redis.ping()

    def durable(self) -> bool | None:
        """Whether Redis keeps all that it acknowledges, also when it is killed; None if it does not tell."""
        self._check_open()
        try:
            with self._sentences():
                settings = {**self._redis.config_get("append*"), **self._redis.config_get("maxmemory*")}
        except StoreAway:
            raise
        except StoreError:
            return None
        evicts = settings.get("maxmemory") != "0" and settings.get("maxmemory-policy", "").startswith("allkeys")
        return (settings.get("appendonly"), settings.get("appendfsync"), evicts) == ("yes", "always", False)

    # Writing

    def append(self, user: str, events: Sequence[Event], model: Model) -> Appended:
        return self.submit(user, events, model).result()

    def submit(self, user: str, events: Sequence[Event], model: Model) -> "Future[Appended]":
        check_ids(user, [event.item for event in events])
        packed = [_event(event.item, event.time, hash_key(event.key)) for event in events]
        return self._enqueue(_Job(user, packed, model))

    def load(self, histories: Sequence[tuple[str, Sequence[Kept]]], model: Model) -> int:
        """Each user is written whole or not at all; if this fails, some may be written and others not."""
        jobs = []
        for user, events in histories:
            check_ids(user, [event.item for event in events])
            jobs.append(_Job(user, [_event(e.item, e.time, e.key) for e in events], model, bulk=True))
        futures = [self._enqueue(job) for job in jobs]
        wait(futures)
        return sum(future.result().stored for future in futures)

    def put_states(self, portion: Portion, states: Sequence[bytes], model: Model) -> int:
        self._check_open()
        rows = zip(portion.users, portion.versions, states, strict=True)
        return self._put_states([_State(user, str(version), model.id, state) for user, version, state in rows])

    def forget(self, user: str) -> bool:
        return _fits(user) and bool(self._enqueue(_Job(user)).result())

    def close(self) -> None:
        with self._gate:
            if self._open:
                self._open = False
                self._waiting.put(None)
        self._writer.join()
        self._redis.close()

    # The writer's thread

    def _enqueue(self, job: _Job) -> "Future[Any]":
        self._put(job)
        return job.future

    def _put(self, what: _Job | _State) -> None:
        with self._gate:
            self._check_open()
            self._waiting.put(what)

    def _write(self) -> None:
        """Whatever waits is read and written together, in two round trips for all."""
        last = False
        while not last:
            batch = [self._waiting.get()]
            size = _size(batch[-1])
            while len(batch) < _MOST and size < _MOST_BYTES and batch[-1] is not None and not self._waiting.empty():
                batch.append(self._waiting.get())
                size += _size(batch[-1])
            last = batch[-1] is None
            with suppress(Exception):
                self._put_states([state for state in batch if isinstance(state, _State)])
            jobs = [job for job in batch if isinstance(job, _Job) and job.future.set_running_or_notify_cancel()]
            try:
                self._commit(jobs)
            except BaseException as error:  # whatever it is, nobody waits for ever, and the thread goes on
                for job in jobs:
                    if not job.future.done():
                        _settle(job.future, error)

    def _commit(self, jobs: list[_Job]) -> None:
        left: dict[str, list[_Job]] = {}
        for job in jobs:
            left.setdefault(job.user, []).append(job)
        for tries in itertools.count():
            left = self._attempt(left)
            if not left:
                return
            time.sleep(random.uniform(0, 0.001 * 2 ** min(tries, 5)))  # or two writers get in each other's way again

    def _attempt(self, work: Mapping[str, list[_Job]]) -> dict[str, list[_Job]]:
        """Do the work of some users; gives that of those whom somebody else has changed in the meantime."""
        users = self._heads({name: b"".join(_keys_of(jobs)) for name, jobs in work.items()})
        results: dict[str, list[Any]] = {}
        for name, user in users.items():
            with suppress(_Unread):
                results[name] = self._results(user, work[name])
        for name, user in self._wholes([name for name in work if name not in results]).items():
            user.known = {_key(event) for event in user.front or ()} - {NO_KEY}
            users[name], results[name] = user, self._results(user, work[name])
        self._make_states(users, results)
        changed = {name: user.arguments() for name, user in users.items() if user.changed}
        answers = dict(zip(changed, self._run(_WRITE, changed.items(), writes=True), strict=True))
        for name, jobs in work.items():
            answer = answers.get(name)
            if answer != 0:
                for job, result in zip(jobs, results[name], strict=True):
                    _settle(job.future, answer if isinstance(answer, StoreError) else result)
        return {name: work[name] for name, answer in answers.items() if answer == 0}

    def _results(self, user: _User, jobs: Sequence[_Job]) -> list[Any]:
        """Do the jobs of a user, in order; one that fails leaves all as it was."""
        results: list[Any] = []
        for job in jobs:
            try:
                results.append(user.forget() if job.events is None else self._append(user, job))
            except _Unread:
                raise
            except Exception as error:
                results.append(error)
        return results

    def _append(self, user: _User, job: _Job) -> Appended:
        assert job.events is not None and job.model is not None
        if user.fault:
            raise user.fault
        model, first = job.model, job.bulk and not user.exists
        fresh, known = _unknown(job.events, user.known)
        late = bool(fresh) and _time(fresh[0]) < user.newest
        length = user.keep + len(user.rest) + len(fresh)
        crowded = 0 < self.bound < (length if first else length - SLACK + 1)
        continues = user.artifact == model.id and not late and not crowded
        stored, owed = len(fresh), None
        if continues:
            keep, rest = user.keep, user.rest + fresh
            state = model.replay(self._indices(fresh, model), user.state) if fresh else user.state
        else:  # a late event, another artifact, or too many: all is replayed
            before = user.whole()
            whole = sorted(before + fresh, key=_time)
            keep = min([user.keep, *(bisect_right(before, _time(event), key=_time) for event in fresh[:1])])
            if crowded:
                known -= {_key(event) for event in whole[: -self.bound]}
                keep, whole = 0, whole[-self.bound :]
            rest = whole[keep:]
            if first:
                state, owed, stored = b"", model, len(whole)
            else:
                state = model.replay(self._indices(whole, model))
        user.keep, user.rest, user.known, user.exists = keep, rest, known, True
        user.artifact, user.state, user.owed = None if owed else model.id, state, owed
        user.newest = _time(rest[-1]) if rest else user.newest
        user.changed = user.changed or bool(fresh) or not continues
        return Appended(stored, keep + len(rest), state)

    def _make_states(self, users: Mapping[str, _User], results: dict[str, list[Any]]) -> None:
        """The states of all who were loaded, in large products."""
        models = {user.owed.id: user.owed for user in users.values() if user.owed}
        for model in models.values():
            mine = {name: user for name, user in users.items() if user.owed and user.owed.id == model.id}
            try:
                states = model.replay_many(*_packed([self._indices(user.whole(), model) for user in mine.values()]))
            except Exception as error:
                for name, user in mine.items():
                    user.changed, results[name] = False, [error] * len(results[name])
                continue
            for user, state in zip(mine.values(), states, strict=True):
                user.artifact, user.state = model.id, state

    # What goes over the wire

    def _fetch(self, names: Iterable[str]) -> dict[str, _User]:
        """Those of the users who exist, with their histories."""
        self._check_open()
        users = self._wholes([name for name in dict.fromkeys(names) if _fits(name)])
        for user in users.values():
            if user.fault:
                raise user.fault
        return {name: user for name, user in users.items() if user.exists}

    def _heads(self, asked: Mapping[str, bytes]) -> dict[str, _User]:
        """The users without their histories, and which of the keys asked for they have."""
        users = {}
        replies = self._run(_READ, [(name, (hashes,)) for name, hashes in asked.items()])
        for (name, hashes), reply in zip(asked.items(), replies, strict=True):
            if isinstance(reply, StoreError):
                users[name] = _User(_ANY, fault=reply)
                continue
            head, length, known = reply
            users[name] = self._user(name, head, length)
            users[name].known = {hashes[16 * k :][:16] for k, there in enumerate(known) if there == ord("1")}
        return users

    def _wholes(self, names: Sequence[str]) -> dict[str, _User]:
        """The users with their histories. A version that is the same before and after belongs to what lies between."""
        users: dict[str, _User] = {}
        while left := [name for name in names if name not in users]:
            with self._sentences(), self._redis.pipeline(transaction=False) as pipe:
                for name in left:
                    head, history, _ = self._keys(name)
                    pipe.hmget(head, _HEAD).lrange(history, 0, -1).hget(head, "version")
                replies = pipe.execute(raise_on_error=False)
            for name, *reply in zip(left, replies[::3], replies[1::3], replies[2::3], strict=True):
                errors = [part for part in reply if isinstance(part, exceptions.RedisError)]
                if errors:
                    users[name] = _User(_ANY, fault=self._translated(errors[0]))
                elif reply[0][0] == reply[2]:
                    users[name] = self._user(name, reply[0], len(reply[1]), reply[1])
        return users

    def _user(self, name: str, head: Sequence[Any], length: int, front: list[bytes] | None = None) -> _User:
        try:
            return _parsed(head, length, front)
        except ValueError:
            return _User(_ANY, fault=self._damaged(f"the history of {name!r}"))

    def _put_states(self, states: Sequence[_State]) -> int:
        answers = self._run(_PUT_STATE, [(s.user, (s.version, s.artifact, s.state)) for s in states], writes=True)
        for answer in answers:
            if isinstance(answer, StoreError):
                raise answer
        return sum(answers)

    def _run(self, script: _Script, calls: Iterable[tuple[str, Sequence[Any]]], *, writes: bool = False) -> list[Any]:
        """A script for many users in one round trip. Gives an answer for each, or the StoreError that it met.

        Writes go out as one transaction, which Redis takes to disk at once; by themselves, a few at a time.
        """
        calls = list(calls)
        answers: list[Any] = [None] * len(calls)
        left = list(range(len(calls)))
        while left:
            with self._sentences(sent=writes), self._redis.pipeline(transaction=writes and len(left) > 1) as pipe:
                for k in left:
                    name, arguments = calls[k]
                    pipe.evalsha(script.sha, 3, *self._keys(name), *arguments)
                for k, answer in zip(left, pipe.execute(raise_on_error=False), strict=True):
                    answers[k] = answer
            left = [k for k in left if isinstance(answers[k], exceptions.NoScriptError)]  # those did nothing
            if left:
                with self._sentences():
                    self._redis.script_load(script.text)
        return [self._translated(a) if isinstance(a, exceptions.RedisError) else a for a in answers]

    def _walk(self) -> Iterator[list[str]]:
        """Everybody once, about a thousand at a time; Redis itself may show a key twice."""
        start, end = f"{self.prefix}:{{", "}:head"
        cursor, shown, names = -1, set[bytes](), list[str]()
        while cursor != 0:
            self._check_open()
            with self._sentences():
                cursor, keys = self._redis.scan(max(cursor, 0), match=f"{start}*{end}", count=_SCAN)
            names += [unquote(key.decode()[len(start) : -len(end)]) for key in set(keys) - shown]
            shown.update(keys)
            if len(names) >= _PORTION or (names and cursor == 0):
                yield names
                names = []

    def _keys(self, user: str) -> tuple[str, str, str]:
        """In a cluster, what stands between the braces decides where a key lives."""
        start = f"{self.prefix}:{{{quote(user, safe='')}}}:"
        return start + "head", start + "history", start + "keys"

    def _indices(self, events: Sequence[bytes], model: Model) -> Indices:
        """What the model calls the items; -1 what it does not know."""
        with self._gate:
            while model.id not in self._numbers and len(self._numbers) >= _MODELS:
                self._numbers.pop(next(iter(self._numbers)))
            numbers = self._numbers.setdefault(model.id, {})
        items = [event[_EVENT.size :] for event in events]
        for item in items:
            if item not in numbers:
                numbers[item] = model.index(self._text(item))
        return np.array([numbers[item] for item in items], np.int64)

    def _text(self, item: bytes) -> str:
        try:
            return item.decode()
        except UnicodeDecodeError:
            raise self._damaged("an item id") from None

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"{what} in {self.where} is damaged; forget the user, or restore a backup of Redis")

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"{self.where} is closed")

    def _check_version(self) -> None:
        facts = f"{self.prefix}:facts"
        with self._sentences():
            found = self._redis.hget(facts, "version")
            if found is None:
                self._redis.hsetnx(facts, "version", VERSION)
                found = self._redis.hget(facts, "version")
        if found != str(VERSION).encode():
            found = found.decode(errors="replace") if found else "unknown"
            raise StoreError(f"{self.where} has store format version {found}, this lrurec reads {VERSION}")

    @contextmanager
    def _sentences(self, *, sent: bool = False) -> Iterator[None]:
        """The library's errors as ours."""
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            raise self._translated(error, sent=sent) from None

    def _translated(self, error: Exception, *, sent: bool = False) -> StoreError:
        """`sent`: a write may have gone out before."""
        text = " ".join(str(error).split()).rstrip(".")
        if isinstance(error, _REFUSES):
            return StoreError(f"{self.where} refuses ({text}); check the user and the password in its URL")
        if isinstance(error, exceptions.InvalidResponse):
            return StoreError(f"{self.where} does not answer like a Redis; check host and port")
        if isinstance(error, exceptions.AskError):
            return StoreError(f"{self.where} is a part of a Redis cluster; give the address of a single Redis")
        for word, meaning in _HEALS.items():
            if isinstance(error, _CLASSES.get(word, ())) or re.search(rf"\b{word}\b", text):
                return StoreAway(f"{self.where} {meaning}")
        if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
            stored = "; what was sent may be stored: send it again with the same keys" if sent else "; is it running?"
            return StoreAway(f"{self.where} cannot be reached ({text}){stored}")
        return StoreError(f"{self.where} refuses ({text}); if its keys belong to somebody else, choose another prefix")


def _client(url: str) -> tuple[str, Any]:
    """The address as it may be shown, and the client. It never repeats a command by itself."""
    wrong = StoreError(
        "the Redis URL cannot be read; write redis://[user:password@]host:port/database "
        "(rediss:// for TLS, unix:///path?db=0 for a socket), with %xx for what is special in a password"
    )
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        database = parts.scheme == "unix" or re.fullmatch(r"(/\d*)?", parts.path)
        if "@" in parts.path or parts.fragment or not database or set(options) - _OPTIONS:
            raise ValueError
        client = redis.Redis.from_url(
            url,
            protocol=2,  # which every server speaks
            socket_timeout=5,
            socket_connect_timeout=1,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        raise wrong from None
    shown = f"?db={options['db'][0]}" if "db" in options else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{shown}", client


def _parsed(head: Sequence[Any], found: int, front: list[bytes] | None) -> _User:
    """A ValueError if it does not fit together."""
    if not found and not any(head):
        return _User()
    if None in head:
        raise ValueError
    version, length, newest, artifact, state = head
    whole = front or []
    short = min(map(len, whole), default=LONGEST_ID) <= _EVENT.size
    if int(version) < 0 or int(length) != found or short or (whole and _time(whole[-1]) != int(newest)):
        raise ValueError
    return _User(
        version=version.decode(),
        exists=True,
        newest=int(newest),
        artifact=artifact.decode(),
        state=state,
        front=whole if front is not None or not found else None,
        keep=found,
    )


def _event(item: str, at: int, key: bytes) -> bytes:
    if len(key) != len(NO_KEY) or not _FIRST <= at < -_FIRST:
        raise InputError("an event needs a time in microseconds of 64 bits, and a key hash of 16 bytes")
    return _EVENT.pack(at, key) + item.encode()


def _time(event: bytes) -> int:
    return int.from_bytes(event[:8], "little", signed=True)


def _key(event: bytes) -> bytes:
    return event[8 : _EVENT.size]


def _keys_of(jobs: Iterable[_Job]) -> Iterator[bytes]:
    """The hashes of all keys in some jobs, each once."""
    yield from {_key(event) for job in jobs for event in job.events or ()} - {NO_KEY}


def _unknown(events: Sequence[bytes], known: set[bytes]) -> tuple[list[bytes], set[bytes]]:
    """The events whose keys are new, by time; and what is known with them."""
    fresh, known = [], set(known)
    for event in events:
        key = _key(event)
        if key not in known:
            fresh.append(event)
            known |= {key} - {NO_KEY}
    return sorted(fresh, key=_time), known


def _packed(histories: Sequence[Indices]) -> tuple[Indices, Indices]:
    """Histories one behind the other, and where each begins."""
    offsets = np.cumsum([0, *map(len, histories)], dtype=np.int64)
    return np.concatenate([np.zeros(0, np.int64), *histories]), offsets


def _settle(future: "Future[Any]", result: Any) -> None:
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def _size(what: _Job | _State | None) -> int:
    return sum(map(len, what.events or ())) if isinstance(what, _Job) else 0


def _fits(user: str) -> bool:
    """Whether anybody can have this name."""
    try:
        return 0 < len(user.encode()) <= LONGEST_ID
    except UnicodeEncodeError:
        return False
