"""The store in a folder of its own (LMDB): no server to install. Knows pages and keys, not models.

    users     user id                      -> number, version, length, newest time, artifact id, state
    history   number, piece                -> 64 events: time, item number, hash of the event's key
    keys      number, hash of a key        -> nothing: the event is known
    items     item id                      -> item number;  names: the other way round
    facts     format, next number, ...

An append touches one user entry and the newest piece, so it costs the same after a million events as after one.
Appends that wait for the disk at the same time share one commit. One writer at a time, over all threads and
processes; readers never wait. Item numbers are given once and never taken back.
"""

import errno
import os
import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np
from numpy.typing import NDArray

from lrurec.kernels.select import look_up
from lrurec.serving.store.base import (
    LONGEST_ID,
    SLACK,
    Appended,
    Event,
    Indices,
    Kept,
    Look,
    Model,
    Portion,
    Record,
    StoreError,
    check_ids,
    check_times,
    hash_key,
)

VERSION = 2
PIECE = 64  # events per piece of history
_MOST = 1024  # appends that share a commit
_PORTION = 1 << 18  # events handed over at a time
_LEAST = 1 << 20  # bytes of room that a store needs to begin
_MAP = 1 << 40  # addresses, not bytes: the file grows as it is filled
_ROW = np.dtype([("time", "<i8"), ("item", "<u4"), ("key", "V16")])
_ROW_WORDS, _ITEM_WORD = _ROW.itemsize // 4, 2  # of 32 bits: in a row, and before the item
_PIECE_BYTES = PIECE * _ROW.itemsize
_EVENT = struct.Struct("<qI16s")  # the same as _ROW
_HEAD = struct.Struct("<QQQq16s")
_FIRST = -(1 << 63)  # before all times
_MODELS = 4  # models whose numbers of our items are remembered
_UNASKED = -2  # the model has not been asked for its number of an item
_NOBODY: Indices = np.zeros(0, np.int64)
_NOT_OURS = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError)
_TABLES = (b"users", b"history", b"keys", b"items", b"names", b"facts")

Rows = NDArray[Any]


class _Entry(NamedTuple):
    number: int
    version: int
    length: int
    newest: int
    artifact: str
    state: bytes

    @classmethod
    def unpack(cls, raw: bytes) -> "_Entry":
        number, version, length, newest, artifact = _HEAD.unpack_from(raw)
        return cls(number, version, length, newest, artifact.rstrip(b"\0").decode(), raw[_HEAD.size :])

    def pack(self) -> bytes:
        head = _HEAD.pack(self.number, self.version, self.length, self.newest, self.artifact.encode())
        return head + self.state


@dataclass
class _Job:
    """Something to do inside a write transaction, and who waits for it."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: "Future[Any]" = field(default_factory=Future)


class _JobFailed(Exception):
    """A job, not the store, is to blame."""


class EmbeddedStore:
    """Histories and states in an LMDB folder.

    `bound`: how many events of a user are kept (0: all). `durable=False` does not wait for the disk: a power cut may
    then lose what was acknowledged last.
    """

    quick = True

    def __init__(self, path: str | Path, *, bound: int = 0, create: bool = True, durable: bool = True) -> None:
        self.path, self.where, self.bound, self._durable = Path(path), str(path), bound, durable
        self._file, self._open, self._guard = self.path / "data.mdb", True, _Guard(self.path)
        with self._guard:
            self._refuse(create)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            tables = len(_TABLES)
            self._env = lmdb.open(
                str(self.path), map_size=_MAP, max_dbs=tables, max_readers=1024, max_spare_txns=8, sync=durable
            )
            self._env.reader_check()  # those that were killed
            self._refuse_cut()
            self._name = str(self._file)
            self._identity = self._file.stat().st_ino
            self._db = {name: self._env.open_db(name) for name in _TABLES}
            with self._env.begin(write=True) as txn:
                found = txn.get(b"version", db=self._db[b"facts"])
                if found is None:
                    txn.put(b"version", str(VERSION).encode(), db=self._db[b"facts"])
                elif found != str(VERSION).encode():
                    raise StoreError(
                        f"{self.path} has store format version {found.decode()}, this lrurec reads {VERSION}"
                    )
        self._waiting: deque[_Job] = deque()
        self._committing, self._gate = threading.Lock(), threading.Lock()
        self._something = threading.Event()
        self._writer: threading.Thread | None = None
        # What the models of late call our items. The writer has its own: it may know numbers that are never committed.
        self._seen_by_readers: dict[str, Indices] = {}
        self._seen_by_writer: dict[str, Indices] = {}
        self._numbers: dict[str, int] = {}
        none = np.frombuffer(bytes(_ROW.itemsize), _ROW)[:0]  # compiled now, so that no user waits for it
        look_up(none.view(np.uint32), _ITEM_WORD, _ROW_WORDS, _NOBODY, np.empty(0, np.int64))

    def _refuse(self, create: bool) -> None:
        """Refuse what is there and is no store, and a disk without room: LMDB would die of it."""
        if not self.path.exists():
            if not create:
                raise StoreError(f"{self.path} does not exist; check the path")
        elif not self.path.is_dir():
            raise StoreError(f"{self.path} is a file; a store is a folder")
        elif not self._is_store() and (not create or any(self.path.iterdir())):
            raise StoreError(f"{self.path} is not a store (it has no data.mdb); check the path")
        near = next(p for p in (self.path.resolve(), *self.path.resolve().parents) if p.exists())
        free = os.statvfs(near)
        if create and free.f_blocks and free.f_bavail * free.f_frsize < _LEAST:
            raise StoreError(f"the disk of {self.path} is full; free some room")

    def _is_store(self) -> bool:
        return self._file.exists() and self._file.stat().st_size > 0

    def _refuse_cut(self) -> None:
        pages = self._env.info()["last_pgno"] + 1
        if self._file.stat().st_size < pages * self._env.stat()["psize"]:
            self._env.close()
            raise StoreError(f"{self._file} is cut short; restore it from a backup")

    def check(self) -> None:
        """Whether the file that is open is the one that is there: one that was removed would take events with it."""
        try:
            same = os.stat(self._name).st_ino == self._identity  # noqa: PTH116 (half the time)
        except OSError:
            same = False
        if not same:
            raise StoreError(f"{self.path} was removed or replaced while it was open; start again")

    # Reading

    def read(self, user: str, model: Model) -> Record | None:
        with self._guard, self._env.begin() as txn:
            entry = self._entry(txn, user)
            if entry is None:
                return None
            rows = self._rows(txn, entry.number, entry.length)
            names = self._names(txn, rows["item"])
            events = tuple(
                Kept(name, time, key)
                for name, time, key in zip(names, rows["time"].tolist(), rows["key"].tolist(), strict=True)
            )
            state = entry.state
            if entry.artifact != model.id:
                state = model.replay(self._indices(txn, rows, model, self._seen_by_readers))
        return Record(events, state)

    def has(self, users: Sequence[str]) -> list[bool]:
        with self._guard, self._env.begin() as txn:
            return [self._entry(txn, user) is not None for user in users]

    def look(self, users: Sequence[str], model: Model) -> list[Look | None]:
        found: list[Look | None] = []
        rebuilt: list[tuple[str, int, bytes]] = []
        with self._guard, self._env.begin() as txn:
            for user in users:
                entry = self._entry(txn, user)
                if entry is None:
                    found.append(None)
                    continue
                rows = self._rows(txn, entry.number, entry.length)
                seen = self._indices(txn, rows, model, self._seen_by_readers)
                state = entry.state
                if entry.artifact != model.id:
                    state = model.replay(seen)
                    rebuilt.append((user, entry.version, state))
                seen = seen if not len(seen) or seen.min() >= 0 else seen[seen >= 0]
                found.append(Look(state, seen, entry.artifact != model.id))
        if rebuilt:
            self._later(self._put_states, rebuilt, model.id)
        return found

    def users(self) -> Iterator[str]:
        for entries in self._chunks(1 << 12):
            yield from (user for user, _ in entries)

    def portions(self, model: Model) -> Iterator[Portion]:
        for entries in self._chunks(1 << 12):
            with self._guard, self._env.begin() as txn:
                rows = [self._rows(txn, entry.number, entry.length) for _, entry in entries]
                items = [self._indices(txn, r, model, self._seen_by_readers) for r in rows]
            offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
            yield Portion(
                [user for user, _ in entries],
                [entry.version for _, entry in entries],
                np.concatenate(items),
                offsets,
                [entry.state if entry.artifact == model.id else None for _, entry in entries],
            )

    def _chunks(self, users: int) -> Iterator[list[tuple[str, _Entry]]]:
        """All entries, some at a time, each time as they are then: a reader that stays for long keeps pages from reuse."""
        after = b""
        while True:
            chunk: list[tuple[str, _Entry]] = []
            with self._guard, self._env.begin() as txn:
                cursor = txn.cursor(self._db[b"users"])
                more = cursor.set_range(after) if after else cursor.first()
                events = 0
                while more and len(chunk) < users and events < _PORTION:
                    key, raw = cursor.item()
                    if key != after:
                        entry = _Entry.unpack(raw)
                        chunk.append((key.decode(), entry))
                        events += entry.length
                    more = cursor.next()
            if not chunk:
                return
            after = chunk[-1][0].encode()
            yield chunk

    def __len__(self) -> int:
        with self._guard, self._env.begin() as txn:
            return int(txn.stat(self._db[b"users"])["entries"])

    def durable(self) -> bool:
        return self._durable

    def info(self) -> dict[str, Any]:
        users, events, states = 0, 0, dict[str, int]()
        for entries in self._chunks(1 << 12):
            users += len(entries)
            for _, entry in entries:
                events += entry.length
                states[entry.artifact] = states.get(entry.artifact, 0) + 1
        with self._guard, self._env.begin() as txn:
            items = int(txn.stat(self._db[b"items"])["entries"])
        size = (self.path / "data.mdb").stat().st_blocks * 512
        return {"kind": "embedded", "users": users, "events": events, "items": items, "bytes": size, "states": states}

    # Writing

    def append(self, user: str, events: Sequence[Event], model: Model) -> Appended:
        _check(user, events)
        kept = _kept(events)
        if self._committing.acquire(blocking=False):
            try:
                if self._open and not self._waiting:  # nobody to share a commit with
                    return self._alone(user, kept, model)
            finally:
                self._committing.release()
        return self._now(self._append, user, kept, model)  # type: ignore[no-any-return]

    def _alone(self, user: str, events: Sequence[Kept], model: Model) -> Appended:
        try:
            with self._guard, self._env.begin(write=True) as txn:
                done = self._append(txn, user, events, model)
            self.check()
        except BaseException:
            self._take_back()
            raise
        return done

    def submit(self, user: str, events: Sequence[Event], model: Model) -> "Future[Appended]":
        _check(user, events)
        return self._later(self._append, user, _kept(events), model)

    def load(self, histories: Sequence[tuple[str, Sequence[Kept]]], model: Model) -> int:
        for user, events in histories:
            _check(user, events)
        return int(self._now(self._load, histories, model))

    def put_states(self, portion: Portion, states: Sequence[bytes], model: Model) -> int:
        rows = list(zip(portion.users, portion.versions, states, strict=True))
        return int(self._now(self._put_states, rows, model.id))

    def forget(self, user: str) -> bool:
        return bool(self._now(self._forget, user))

    def close(self) -> None:
        with self._gate:
            if not self._open:
                return
            self._open = False
        self._something.set()
        if self._writer is not None:
            self._writer.join()
        with self._committing:
            self._drain()
            self._env.sync(True)
            self._env.close()

    def _now(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do it and wait. Whoever comes first commits for all who wait behind; they find their work done."""
        job = self._enqueue(work, arguments)
        with self._committing:
            if not job.future.done():
                self._drain()
        return job.future.result()

    def _later(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        job = self._enqueue(work, arguments)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="lrurec-store", daemon=True)
            self._writer.start()
        self._something.set()
        return job.future

    def _enqueue(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> _Job:
        job = _Job(work, arguments)
        with self._gate:
            if not self._open:
                raise StoreError(f"{self.path} is closed")
            self._waiting.append(job)
        return job

    def _write(self) -> None:
        """The writer's thread, for those who do not wait themselves."""
        while self._open:
            self._something.wait()
            self._something.clear()
            with self._committing:
                self._drain()

    def _drain(self) -> None:
        while self._waiting:
            jobs: list[_Job] = []
            while self._waiting and len(jobs) < _MOST:
                job = self._waiting.popleft()
                if job.future.set_running_or_notify_cancel():  # nobody can call it back from here on
                    jobs.append(job)
            self._commit(jobs)

    def _commit(self, jobs: list[_Job]) -> None:
        """One transaction for all; each is acknowledged once it is on disk. One that fails is left out."""
        while jobs:
            results: list[Any] = []
            try:
                with self._guard, self._env.begin(write=True) as txn:
                    for job in jobs:
                        try:
                            results.append(job.work(txn, *job.arguments))
                        except lmdb.Error:
                            raise
                        except Exception as error:
                            raise _JobFailed from error
                self.check()
            except _JobFailed as failed:
                self._take_back()
                jobs.pop(len(results)).future.set_exception(failed.__cause__)
                continue
            except BaseException as error:
                self._take_back()
                for job in jobs:
                    job.future.set_exception(error)
                return
            for job, result in zip(jobs, results, strict=True):
                job.future.set_result(result)
            return

    def _take_back(self) -> None:
        """Forget numbers that were given in a transaction that did not happen."""
        self._numbers.clear()
        self._seen_by_writer.clear()

    def _append(self, txn: Any, user: str, events: Sequence[Kept], model: Model) -> Appended:
        entry = self._entry(txn, user)
        if entry is None:
            entry = _Entry(
                self._next(txn, b"user"), _version(), 0, _FIRST, model.id, model.replay(np.zeros(0, np.int64))
            )
        fresh = self._unknown(txn, entry.number, events)
        rows = self._new_rows(txn, fresh)
        length, newest, late = entry.length + len(fresh), entry.newest, False
        for event in fresh:
            late, newest = late or event.time < newest, max(newest, event.time)
        crowded = 0 < self.bound < length - SLACK + 1
        if late or crowded:
            whole = _by_time(np.concatenate([self._rows(txn, entry.number, entry.length), rows]))
            whole = self._cut(txn, entry.number, whole) if crowded else whole
            self._delete_all(txn, b"history", entry.number)
            self._extend(txn, entry.number, 0, whole)
            length, state = len(whole), model.replay(self._indices(txn, whole, model, self._seen_by_writer))
        else:
            self._extend(txn, entry.number, entry.length, rows)
            if entry.artifact == model.id:
                state = self._step(fresh, entry.state, model)
            else:
                whole = self._rows(txn, entry.number, length)
                state = model.replay(self._indices(txn, whole, model, self._seen_by_writer))
        entry = _Entry(entry.number, _version(), length, newest, model.id, state)
        txn.put(user.encode(), entry.pack(), db=self._db[b"users"])
        return Appended(len(fresh), length, state)

    def _step(self, fresh: Sequence[Kept], state: bytes, model: Model) -> bytes:
        return model.replay(np.array([model.index(e.item) for e in fresh], np.int64), state) if fresh else state

    def _cut(self, txn: Any, number: int, rows: Rows) -> Rows:
        """The newest `bound` of the rows; the keys of the others are forgotten."""
        for row in rows[: -self.bound]:
            txn.delete(_key(number, row["key"].tobytes()), db=self._db[b"keys"])
        return rows[-self.bound :]

    def _load(self, txn: Any, histories: Sequence[tuple[str, Sequence[Kept]]], model: Model) -> int:
        """Many users. Those who are new, as most are, get their states at once, in large products."""
        new: dict[str, tuple[int, Rows]] = {}
        stored = 0
        for user, events in histories:
            if user in new or self._entry(txn, user) is not None:
                if user in new:
                    self._load_new(txn, new, model)
                stored += self._append(txn, user, events, model).stored
                continue
            number = self._next(txn, b"user")
            rows = _by_time(self._new_rows(txn, self._unknown(txn, number, events)))
            if 0 < self.bound < len(rows):
                rows = self._cut(txn, number, rows)
            new[user] = number, rows
            stored += len(rows)
        self._load_new(txn, new, model)
        return stored

    def _load_new(self, txn: Any, new: dict[str, tuple[int, Rows]], model: Model) -> None:
        if not new:
            return
        offsets = np.concatenate([[0], np.cumsum([len(rows) for _, rows in new.values()])]).astype(np.int64)
        whole = np.concatenate([rows for _, rows in new.values()])
        states = model.replay_many(self._indices(txn, whole, model, self._seen_by_writer), offsets)
        for (user, (number, rows)), state in zip(new.items(), states, strict=True):
            self._extend(txn, number, 0, rows)
            newest = int(rows["time"][-1]) if len(rows) else _FIRST
            entry = _Entry(number, _version(), len(rows), newest, model.id, state)
            txn.put(user.encode(), entry.pack(), db=self._db[b"users"])
        new.clear()

    def _put_states(self, txn: Any, rows: Sequence[tuple[str, int, bytes]], artifact: str) -> int:
        """States of users whose version is still the one that was read; the history is not touched."""
        written = 0
        for user, version, state in rows:
            entry = self._entry(txn, user)
            if entry is not None and entry.version == version:
                txn.put(user.encode(), entry._replace(artifact=artifact, state=state).pack(), db=self._db[b"users"])
                written += 1
        return written

    def _forget(self, txn: Any, user: str) -> bool:
        entry = self._entry(txn, user)
        if entry is None:
            return False
        for table in (b"history", b"keys"):
            self._delete_all(txn, table, entry.number)
        txn.delete(user.encode(), db=self._db[b"users"])
        return True

    # Inside a transaction

    def _entry(self, txn: Any, user: str) -> _Entry | None:
        try:
            key = user.encode()
        except UnicodeEncodeError:
            return None
        raw = txn.get(key, db=self._db[b"users"]) if 0 < len(key) <= LONGEST_ID else None
        return None if raw is None else _Entry.unpack(raw)

    def _rows(self, txn: Any, number: int, length: int) -> Rows:
        """The history of a user, who has `length` events."""
        table, get = self._db[b"history"], txn.get
        pieces = [get(_piece(number, k), b"", db=table) for k in range(-(-length // PIECE))]
        raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(raw) != length * _ROW.itemsize:
            raise StoreError(f"{self.path} is damaged (a history has lost a piece); restore it from a backup")
        return np.frombuffer(raw, _ROW)

    def _extend(self, txn: Any, number: int, length: int, rows: Rows) -> None:
        """Add rows behind the `length` that are there, touching the newest piece alone."""
        if not len(rows):
            return
        table = self._db[b"history"]
        at, inside = divmod(length, PIECE)
        old = (txn.get(_piece(number, at), db=table) or b"") if inside else b""
        if len(old) != inside * _ROW.itemsize:
            raise StoreError(f"{self.path} is damaged (a history has lost a piece); see `lrurec store verify`")
        raw = old + rows.tobytes()
        for k in range(0, len(raw), _PIECE_BYTES):
            txn.put(_piece(number, at + k // _PIECE_BYTES), raw[k : k + _PIECE_BYTES], db=table)

    def _delete_all(self, txn: Any, table: bytes, number: int) -> None:
        prefix = struct.pack(">Q", number)
        cursor = txn.cursor(self._db[table])
        while cursor.set_range(prefix) and cursor.key().startswith(prefix):
            cursor.delete()

    def _unknown(self, txn: Any, number: int, events: Sequence[Kept]) -> list[Kept]:
        """The events whose keys are new; their keys are known from here on."""
        table = self._db[b"keys"]
        return [
            event
            for event in events
            if not any(event.key) or txn.put(_key(number, event.key), b"", overwrite=False, db=table)
        ]

    def _new_rows(self, txn: Any, events: Sequence[Kept]) -> Rows:
        packed = [_EVENT.pack(event.time, self._item(txn, event.item), event.key) for event in events]
        return np.frombuffer(b"".join(packed), _ROW)

    def _item(self, txn: Any, item: str) -> int:
        number = self._numbers.get(item)
        if number is None:
            raw = txn.get(item.encode(), db=self._db[b"items"])
            if raw is not None:
                number = int.from_bytes(raw, "little")
            else:
                number = self._next(txn, b"item")
                packed = number.to_bytes(4, "little")
                txn.put(item.encode(), packed, db=self._db[b"items"])
                txn.put(packed, item.encode(), db=self._db[b"names"])
            self._numbers[item] = number
        return number

    def _names(self, txn: Any, numbers: NDArray[Any]) -> list[str]:
        table = self._db[b"names"]
        found = [txn.get(n.tobytes(), db=table) for n in numbers.astype("<u4")]
        if None in found:
            raise StoreError(f"{self.path} is damaged (an item has lost its name); restore it from a backup")
        return [name.decode() for name in found]

    def _indices(self, txn: Any, rows: Rows, model: Model, known: dict[str, Indices]) -> Indices:
        """What the model calls the items of rows; -1 what it does not know."""
        out = np.empty(len(rows), np.int64)
        table, words = known.get(model.id, _NOBODY), rows.view(np.uint32)
        least = look_up(words, _ITEM_WORD, _ROW_WORDS, table, out)
        if least > _UNASKED:
            return out
        numbers = rows["item"]
        if least < _UNASKED:  # an item that is new to us
            more = np.full(max(int(numbers.max()) + 1, 2 * len(table)) - len(table), _UNASKED)
            while len(known) >= _MODELS and model.id not in known:
                known.pop(next(iter(known)))
            known[model.id] = table = np.concatenate([table, more])
        new = np.unique(numbers[table[numbers] == _UNASKED])
        table[new] = [model.index(name) for name in self._names(txn, new)]
        look_up(words, _ITEM_WORD, _ROW_WORDS, table, out)
        return out

    def _next(self, txn: Any, what: bytes) -> int:
        raw = txn.get(what, db=self._db[b"facts"])
        number = int.from_bytes(raw, "little") if raw else 0
        txn.put(what, (number + 1).to_bytes(8, "little"), db=self._db[b"facts"])
        return number


class _Guard:
    """The library's errors as ours. (A generator would take as long as reading a user.)"""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, StoreError):
            return
        if isinstance(error, _NOT_OURS):
            raise StoreError(f"{self.path} is not a store of lrurec, or it is damaged") from None
        if isinstance(error, UnicodeDecodeError | struct.error | IndexError):
            raise StoreError(f"{self.path} is damaged ({error}); restore it from a backup") from None
        if isinstance(error, lmdb.DiskError):
            raise StoreError(f"the disk of {self.path} refuses ({error}); free some room") from None
        if isinstance(error, lmdb.Error | OSError):
            what = "is its disk full?" if _may_be_full(error) else "choose another place for it"
            raise StoreError(f"{self.path} cannot be used ({error}); {what}") from None


def _may_be_full(error: Exception) -> bool:
    """LMDB does not always say why it cannot write; the system does."""
    return not isinstance(error, OSError) or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def _check(user: str, events: Sequence[Event | Kept]) -> None:
    check_ids(user, [event.item for event in events])
    check_times(event.time for event in events)


def _kept(events: Sequence[Event]) -> list[Kept]:
    return [Kept(event.item, event.time, hash_key(event.key)) for event in events]


def _version() -> int:
    """A number that a user has never had, also after being forgotten."""
    return secrets.randbits(63)


def _by_time(rows: Rows) -> Rows:
    return rows[np.argsort(rows["time"], kind="stable")]


def _piece(number: int, piece: int) -> bytes:
    return struct.pack(">QI", number, piece)


def _key(number: int, hashed: bytes) -> bytes:
    return struct.pack(">Q", number) + hashed
