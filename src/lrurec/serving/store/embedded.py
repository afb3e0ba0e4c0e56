"""The store in a folder of its own (LMDB): no server to install. Knows pages and keys, not models.

    users     user id                      -> number, length, newest time, artifact id, state
    history   number, piece                -> 64 events: time, item number, hash of the event's key
    keys      number, hash of a key        -> nothing: the event is known
    items     item id                      -> item number;  names: the other way round
    facts     format, next number, ...

An append touches one user entry and the newest piece, so it costs the same after a million events as after one.
Appends that wait for the disk at the same time share one commit. One writer at a time, over all threads and
processes; readers never wait.
"""

import hashlib
import queue
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from lrurec.serving.store.base import Appended, Event, Model, Record, StoreError

VERSION = 1
PIECE = 64  # events per piece of history
_MOST = 1024  # appends that share a commit
_MAP = 1 << 40  # addresses, not bytes: the file grows as it is filled
_ROW = np.dtype([("time", "<i8"), ("item", "<u4"), ("key", "V16")])
_NO_KEY = bytes(16)
_HEAD = struct.Struct("<QQq16s")  # number, length, newest time, artifact id
_TABLES = (b"users", b"history", b"keys", b"items", b"names", b"facts")

Rows = NDArray[Any]


class EmbeddedStore:
    """Histories and states in an LMDB folder. `bound`: how many events of a user are kept (0: all)."""

    def __init__(self, path: str | Path, *, bound: int = 0, create: bool = True) -> None:
        self.path, self.bound = Path(path), bound
        if not create and not (self.path / "data.mdb").exists():
            raise StoreError(f"{self.path} is not a store; check the path after --store")
        with self._sentences():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._env = lmdb.open(str(self.path), map_size=_MAP, max_dbs=len(_TABLES), max_readers=1024)
            self._db = {name: self._env.open_db(name) for name in _TABLES}
            with self._env.begin(write=True) as txn:
                found = txn.get(b"version", db=self._db[b"facts"])
                if found is None:
                    txn.put(b"version", str(VERSION).encode(), db=self._db[b"facts"])
                elif found != str(VERSION).encode():
                    raise StoreError(
                        f"{self.path} has store format version {found.decode()}, this lrurec reads {VERSION}"
                    )
        self._waiting: queue.SimpleQueue[tuple[Any, tuple[Any, ...], Future[Any]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="lrurec-store", daemon=True)
        self._writer.start()

    # Reading

    def read(self, user: str, model: Model) -> Record | None:
        with self._sentences(), self._env.begin() as txn:
            entry = self._entry(txn, user)
            if entry is None:
                return None
            rows = self._rows(txn, entry[0])
            names = self._names(txn, rows["item"])
            events = tuple(
                Event(name, int(row["time"])) for name, row in zip(names, rows, strict=True)
            )  # the key itself is not kept
            state = entry[4] if entry[3] == model.id else model.replay(names)
        return Record(events, state)

    def state(self, user: str, model: Model) -> bytes | None:
        with self._sentences(), self._env.begin() as txn:
            entry = self._entry(txn, user)
            if entry is None:
                return None
            if entry[3] == model.id:
                return entry[4]
            return model.replay(self._names(txn, self._rows(txn, entry[0])["item"]))

    def users(self) -> Iterator[str]:
        with self._sentences(), self._env.begin() as txn:
            for key in txn.cursor(self._db[b"users"]).iternext(keys=True, values=False):
                yield bytes(key).decode()

    def __len__(self) -> int:
        with self._sentences(), self._env.begin() as txn:
            return int(txn.stat(self._db[b"users"])["entries"])

    # Writing

    def append(self, user: str, events: Sequence[Event], model: Model) -> Appended:
        return self.submit(user, events, model).result()

    def submit(self, user: str, events: Sequence[Event], model: Model) -> "Future[Appended]":
        """An append whose result comes when it is on disk; until then the caller may do other things."""
        if not 0 < len(user.encode()) <= 500:
            raise StoreError("a user id must have 1 to 500 bytes")
        for event in events:
            if not 0 < len(event.item.encode()) <= 500:
                raise StoreError("an item id must have 1 to 500 bytes")
        return self._enqueue(self._append, user, tuple(events), model)

    def forget(self, user: str) -> bool:
        return bool(self._enqueue(self._forget, user).result())

    def close(self) -> None:
        self._waiting.put(None)
        self._writer.join()
        self._env.close()

    def _enqueue(self, work: Any, *arguments: Any) -> "Future[Any]":
        if not self._writer.is_alive():
            raise StoreError(f"{self.path} is closed")
        future: Future[Any] = Future()
        self._waiting.put((work, arguments, future))
        return future

    def _write(self) -> None:
        """The writer's thread: whatever waits becomes one transaction, and is acknowledged once that is on disk."""
        open_ = True
        while open_:
            jobs = [self._waiting.get()]
            while len(jobs) < _MOST and jobs[-1] is not None and not self._waiting.empty():
                jobs.append(self._waiting.get())
            if jobs[-1] is None:
                open_ = False
                jobs.pop()
            self._commit([job for job in jobs if job is not None])

    def _commit(self, jobs: list[tuple[Any, tuple[Any, ...], "Future[Any]"]]) -> None:
        done: list[tuple[Future[Any], Any]] = []
        try:
            with self._sentences(), self._env.begin(write=True) as txn:
                for work, arguments, future in jobs:
                    try:
                        with self._env.begin(write=True, parent=txn) as inner:
                            done.append((future, work(inner, *arguments)))
                    except lmdb.Error:
                        raise  # of the store: nothing in this transaction counts
                    except Exception as error:  # of this job alone
                        future.set_exception(error)
        except BaseException as error:
            for _, _, future in jobs:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in done:
            future.set_result(result)

    def _append(self, txn: Any, user: str, events: tuple[Event, ...], model: Model) -> Appended:
        entry = self._entry(txn, user)
        if entry is None:
            number, length, newest, made_by, state = self._next(txn, b"user"), 0, -(1 << 63), model.id, model.replay([])
        else:
            number, length, newest, made_by, state = entry
        fresh = self._unknown(txn, number, events)
        in_order = all(a.time <= b.time for a, b in zip([Event("", newest), *fresh], fresh, strict=False))
        rows = np.zeros(len(fresh), _ROW)
        for row, event in zip(rows, fresh, strict=True):
            row["time"], row["item"], row["key"] = event.time, self._item(txn, event.item), _hash(event.key)
        length += len(fresh)
        crowded = 0 < self.bound < length - PIECE + 1
        if in_order and made_by == model.id and not crowded:
            self._extend(txn, number, length - len(fresh), rows)
            state = model.replay([e.item for e in fresh], state) if fresh else state
        else:  # a late event, another artifact, or too many: the history is written again, and replayed
            whole = np.concatenate([self._rows(txn, number), rows])
            whole = whole[np.argsort(whole["time"], kind="stable")]
            if crowded:
                for row in whole[: -self.bound]:
                    txn.delete(_key(number, row["key"].tobytes()), db=self._db[b"keys"])
                whole = whole[-self.bound :]
            self._replace(txn, number, whole)
            length, state = len(whole), model.replay(self._names(txn, whole["item"]))
        newest = max([newest, *(e.time for e in fresh)])
        head = _HEAD.pack(number, length, newest, model.id.encode())
        txn.put(user.encode(), head + state, db=self._db[b"users"])
        return Appended(len(fresh), length, state)

    def _forget(self, txn: Any, user: str) -> bool:
        entry = self._entry(txn, user)
        if entry is None:
            return False
        for table in (b"history", b"keys"):
            self._delete_all(txn, table, entry[0])
        txn.delete(user.encode(), db=self._db[b"users"])
        return True

    # Inside a transaction

    def _entry(self, txn: Any, user: str) -> tuple[int, int, int, str, bytes] | None:
        """(number, length, newest time, artifact id, state)"""
        raw = txn.get(user.encode(), db=self._db[b"users"])
        if raw is None:
            return None
        number, length, newest, artifact = _HEAD.unpack_from(raw)
        return number, length, newest, artifact.rstrip(b"\0").decode(), raw[_HEAD.size :]

    def _rows(self, txn: Any, number: int) -> Rows:
        pieces = [value for _, value in self._pieces(txn, number)]
        return np.frombuffer(b"".join(pieces), _ROW)

    def _pieces(self, txn: Any, number: int) -> Iterator[tuple[bytes, bytes]]:
        prefix = struct.pack(">Q", number)
        cursor = txn.cursor(self._db[b"history"])
        if cursor.set_range(prefix):
            for key, value in cursor:
                if not key.startswith(prefix):
                    return
                yield key, value

    def _extend(self, txn: Any, number: int, length: int, rows: Rows) -> None:
        """Add rows behind the `length` that are there, touching the newest piece alone."""
        table = self._db[b"history"]
        at, inside = divmod(length, PIECE)
        old = txn.get(_piece(number, at), db=table) or b""
        assert len(old) == inside * _ROW.itemsize
        raw = old + rows.tobytes()
        for k in range(0, len(raw), PIECE * _ROW.itemsize):
            txn.put(_piece(number, at + k // (PIECE * _ROW.itemsize)), raw[k : k + PIECE * _ROW.itemsize], db=table)

    def _replace(self, txn: Any, number: int, rows: Rows) -> None:
        self._delete_all(txn, b"history", number)
        self._extend(txn, number, 0, rows)

    def _delete_all(self, txn: Any, table: bytes, number: int) -> None:
        prefix = struct.pack(">Q", number)
        cursor = txn.cursor(self._db[table])
        while cursor.set_range(prefix) and cursor.key().startswith(prefix):
            cursor.delete()

    def _unknown(self, txn: Any, number: int, events: tuple[Event, ...]) -> list[Event]:
        """The events whose keys are new; their keys are known from here on."""
        fresh = []
        for event in events:
            if event.key is not None and not txn.put(
                _key(number, _hash(event.key)), b"", overwrite=False, db=self._db[b"keys"]
            ):
                continue
            fresh.append(event)
        return fresh

    def _item(self, txn: Any, item: str) -> int:
        raw = txn.get(item.encode(), db=self._db[b"items"])
        if raw is not None:
            return int.from_bytes(raw, "little")
        number = self._next(txn, b"item")
        packed = number.to_bytes(4, "little")
        txn.put(item.encode(), packed, db=self._db[b"items"])
        txn.put(packed, item.encode(), db=self._db[b"names"])
        return number

    def _names(self, txn: Any, numbers: NDArray[Any]) -> list[str]:
        table = self._db[b"names"]
        return [txn.get(n.tobytes(), db=table).decode() for n in numbers.astype("<u4")]

    def _next(self, txn: Any, what: bytes) -> int:
        raw = txn.get(what, db=self._db[b"facts"])
        number = int.from_bytes(raw, "little") if raw else 0
        txn.put(what, (number + 1).to_bytes(8, "little"), db=self._db[b"facts"])
        return number

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """The library's errors as ours."""
        try:
            yield
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError):
            raise StoreError(f"{self.path} is not a store of lrurec, or it is damaged") from None
        except lmdb.DiskError as error:
            raise StoreError(f"the disk of {self.path} refuses ({error}); free some room") from None
        except (lmdb.Error, OSError) as error:
            raise StoreError(f"{self.path} cannot be used ({error})") from None


def _piece(number: int, piece: int) -> bytes:
    return struct.pack(">QI", number, piece)


def _key(number: int, hashed: bytes) -> bytes:
    return struct.pack(">Q", number) + hashed


def _hash(key: str | None) -> bytes:
    return _NO_KEY if key is None else hashlib.blake2b(key.encode(), digest_size=16).digest()
