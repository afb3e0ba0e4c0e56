"""The routes. Knows requests and answers; what lies behind them is lrurec.serving.service's.

Every request passes the same gate: its key, its body (bounded in size and time), a place among those being answered
(bounded in number). What goes wrong ends in a sentence: {"error": "..."}.
"""

import asyncio
import functools
import gc
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import msgspec
import numpy as np

from lrurec.errors import FolderError, InputError, LrurecError
from lrurec.serving import bodies, metrics
from lrurec.serving.asgi import Answered, Asked, Gone, Problem, Receive, Routes, Scope, Send, live_through
from lrurec.serving.batching import Batcher
from lrurec.serving.bodies import MOST_IN_ADDRESS, MOST_ITEMS, MOST_RESULTS, number, truth
from lrurec.serving.control import Control
from lrurec.serving.keys import Keys
from lrurec.serving.openapi import description
from lrurec.serving.search import NameSearch
from lrurec.serving.service import Live, Recommendation, Served, UnknownItem
from lrurec.serving.store.base import Event, StoreError

LOG = logging.getLogger("lrurec.server")
BODY_SECONDS = 10.0
_LOCAL = ("localhost", "127.", "[::1]")
_ALWAYS = ("/healthz", "/readyz")  # answered however many are waiting
_PARAMETERS = {
    "/v1/events": ("recommend",),
    "/v1/users/{id}/recommendations": ("k", "filter_seen", "allow", "deny"),
    "/v1/users/{id}": ("last", "state"),
    "/v1/items": ("search", "limit"),
    "/v1/items/{id}/similar": ("k",),
}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_JSON = "application/json"
_encode = msgspec.json.Encoder().encode


Handler = Callable[[Asked, bytes], Awaitable[Any]]


class Api:
    """One worker's routes over one Live. `limit`: how many requests it answers at a time."""

    def __init__(
        self,
        live: Live,
        *,
        keys: Keys,
        control: Control,
        limit: int = 512,
        wait: float = 0.0,
        local: bool = True,
        log_requests: bool = False,
    ) -> None:
        self.live, self.keys, self.control, self.limit, self.wait = live, keys, control, limit, wait
        self.local, self.log_requests = local, log_requests
        self.batcher: Batcher
        self._active = 0
        self._names: dict[str, asyncio.Future[NameSearch]] = {}
        self._page = resources.files("lrurec.serving").joinpath("page/index.html").read_bytes()
        self._openapi = json.dumps(description(str(live.artifact.item_ids[0]))).encode()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="lrurec-aside")
        self.routes = Routes()
        for method, path, role, handler in (
            ("POST", "/v1/events", "write", self.add_events),
            ("GET", "/v1/users/{id}/recommendations", "read", self.recommend),
            ("POST", "/v1/recommendations", "read", self.recommend_for),
            ("GET", "/v1/users/{id}", "read", self.user),
            ("DELETE", "/v1/users/{id}", "write", self.forget),
            ("GET", "/v1/items", "read", self.items),
            ("GET", "/v1/items/{id}/similar", "read", self.similar),
            ("GET", "/v1/model", "read", self.model),
            ("POST", "/v1/artifact", "admin", self.change_artifact),
            ("GET", "/metrics", "read", self.metrics),
            ("GET", "/openapi.json", None, self.openapi),
            ("GET", "/healthz", None, self.alive),
            ("GET", "/readyz", None, self.ready),
            ("GET", "/", None, self.page),
        ):
            self.routes.add(method, path, self._gate(method, path, role, handler))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live_through(self._lifespan(), receive, send)
            return
        raw = scope.get("raw_path") or scope["path"].encode()
        asked = Asked(scope, receive, raw.partition(b"?")[0].decode("latin-1"))
        try:
            answer = await self.routes.find(asked)(asked)
        except Problem as problem:
            answer = _error(problem.status, str(problem), problem.headers)
        await answer.send(send)

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        self.batcher = Batcher(self.live, self.wait, lambda size: metrics.BATCH.observe(size))
        self.live.looked, self.live.learned = _count_looks, metrics.LEARNED.inc
        following = asyncio.create_task(self.control.follow(self._use))
        telling = asyncio.create_task(self._tell())
        settle()
        LOG.info("ready", extra={"artifact": self.live.artifact.id, "store": self.live.store.where})
        try:
            yield
        finally:
            following.cancel()
            telling.cancel()
            self.batcher.close()
            self._threads.shutdown()
            await asyncio.to_thread(self.live.close)
            LOG.info("closed")

    async def _tell(self) -> None:
        while True:
            metrics.WAITING.set(self._active)
            await asyncio.sleep(0.25)

    # The gate

    def _gate(
        self, method: str, path: str, role: str | None, handler: Handler
    ) -> Callable[[Asked], Awaitable[Answered]]:
        timers: dict[int, Any] = {}

        async def endpoint(asked: Asked) -> Answered:
            asked.started = time.perf_counter()
            answer = await self._guarded(asked, path, role, handler, method == "POST")
            took, status = time.perf_counter() - asked.started, answer.status
            timer = timers.get(status)
            if timer is None:
                timer = timers[status] = metrics.LATENCY.labels(f"{method} {path}", str(status))
            timer.observe(took)
            if self.log_requests or status >= 500:
                said = {"method": method, "route": path, "status": status, "micros": round(took * 1e6)}
                LOG.info("request", extra=said)
            return answer

        return endpoint

    async def _guarded(self, asked: Asked, path: str, role: str | None, handler: Handler, has_body: bool) -> Answered:
        try:
            asked.refuse_others(_PARAMETERS.get(path, ()))
            self._check_host(asked)
            if role is not None:
                self._check_key(asked, role)
            body = await self._body(asked) if has_body else b""
            if self._active >= self.limit and asked.path not in _ALWAYS:
                metrics.REFUSED.inc()
                raise Problem(503, "too many requests are waiting; try again", {"retry-after": "1"})
            asked.started = time.perf_counter()
            self._active += 1
            try:
                found = await handler(asked, body)
            finally:
                self._active -= 1
            return found if isinstance(found, Answered) else Answered(_encode(found), _JSON)
        except Problem as problem:
            return _error(problem.status, str(problem), problem.headers)
        except UnknownItem as error:
            return _error(404, str(error))
        except StoreError as error:
            metrics.STORE_ERRORS.inc()
            LOG.error("store", extra={"error": str(error)})
            return _error(503, str(error), {"retry-after": "1"})
        except LrurecError as error:
            return _error(400, str(error))
        except Gone:
            return _error(499, "the client has gone")
        except Exception:
            LOG.exception("broken", extra={"path": asked.path})
            return _error(500, "something is wrong in the server; its log has the details")

    def _check_host(self, asked: Asked) -> None:
        """Without keys only this machine may ask, and no page of another site that has our address as its name."""
        if self.local and asked.path not in _ALWAYS and not asked.header(b"host", "localhost").startswith(_LOCAL):
            raise Problem(403, "without keys the server answers only as localhost")

    def _check_key(self, asked: Asked, role: str) -> None:
        if not len(self.keys):
            return
        kind, _, key = asked.header(b"authorization").partition(" ")
        key = key.strip() if kind.lower() == "bearer" else asked.header(b"x-api-key")
        allowed = self.keys.allows(key, role)
        if allowed is None:
            why = "this key is not known" if key else "a key is needed: Authorization: Bearer KEY"
            raise Problem(401, why, {"www-authenticate": "Bearer"})
        if not allowed:
            raise Problem(403, f"this key may not do that; it takes one with the role '{role}'")

    async def _body(self, asked: Asked) -> bytes:
        if asked.header(b"content-type").partition(";")[0].strip().lower() != _JSON:
            raise Problem(415, "the body must be application/json")
        return await asked.body(bodies.BODY_BYTES, BODY_SECONDS)

    # Events and recommendations

    async def add_events(self, asked: Asked, body: bytes) -> dict[str, Any]:
        given = bodies.events(body)
        wanted = asked.parameter("recommend")
        k = None if wanted is None else number(wanted, 10, MOST_RESULTS, "recommend")
        served = self.live.served
        by_user: dict[str, list[Event]] = {}
        for event in given:
            key = None if event.id is None else str(event.id)
            made = self.live.event(served, event.item, event.time, key)
            by_user.setdefault(str(event.user), []).append(made)
        started = time.perf_counter()
        waiting = {user: self.live.submit(user, events, served) for user, events in by_user.items()}
        users = {}
        for user, future in waiting.items():
            done = await asyncio.wrap_future(future)
            users[user] = {"stored": done.stored, "length": done.length}
        metrics.APPEND.observe(time.perf_counter() - started)
        stored = sum(u["stored"] for u in users.values())
        metrics.EVENTS.inc(stored)
        if stored < len(given):
            metrics.REPEATED.inc(len(given) - stored)
        answer: dict[str, Any] = {"stored": stored, "users": users}
        if k is not None:
            found = await self.batcher.ask(self.live.query(str(given[-1].user), None, k, True, None, None))
            answer["recommendations"] = _lines(found.lines)
        return answer | {"micros": _micros(asked)}

    async def recommend(self, asked: Asked, body: bytes) -> dict[str, Any]:
        user = asked.id
        query = self.live.query(
            user,
            None,
            number(asked.parameter("k"), 10, MOST_RESULTS, "k"),
            truth(asked.parameter("filter_seen"), True, "filter_seen"),
            self._names_in(asked.parameters("allow")),
            self._names_in(asked.parameters("deny")),
        )
        found = await self.batcher.ask(query)
        lines = _lines(found.lines)
        return {"user": user, "known": found.known, "recommendations": lines, "micros": _micros(asked)}

    async def recommend_for(self, asked: Asked, body: bytes) -> dict[str, Any]:
        wish = bodies.wish(body)
        found = await self.batcher.ask(
            self.live.query(None, wish.history, wish.k, wish.filter_seen, wish.allow, wish.deny)
        )
        return {"known": found.known, "recommendations": _lines(found.lines), "micros": _micros(asked)}

    def _names_in(self, values: list[str]) -> list[str] | None:
        """Ids from parameters: each a whole id, or several with commas between them."""
        if not values:
            return None
        served = self.live.served
        names = [name for v in values for name in ([v] if served.states.index(v) >= 0 else v.split(",")) if name]
        if len(names) > MOST_IN_ADDRESS:
            raise InputError(
                f"more than {MOST_IN_ADDRESS} items among the parameters; POST /v1/recommendations takes more"
            )
        return names

    # Users

    async def user(self, asked: Asked, body: bytes) -> dict[str, Any]:
        user, served = asked.id, self.live.served
        last = number(asked.parameter("last"), 50, MOST_ITEMS, "last", least=0)
        with_state = truth(asked.parameter("state"), False, "state")
        record = await self._aside(self.live.store.read, user, served.states)
        if record is None:
            raise Problem(404, f"nobody by the name '{user}' has been here")
        events = [
            self._event(served, e.item, e.time)
            for e in record.events[len(record.events) - min(last, len(record.events)) :]
        ]
        found = {"user": user, "length": len(record.events), "events": events}
        if with_state:
            found["state"] = _rounded(served.states.magnitudes(record.state))
        return found

    def _event(self, served: Served, item: str, at: int) -> dict[str, Any]:
        known = served.states.index(item)
        if known < 0:  # of an earlier artifact
            return {"item": item, "name": None, "time": at / 1e6}
        label = served.line(known, 0.0)
        return {"item": label.item, "name": label.name, "time": at / 1e6}

    async def forget(self, asked: Asked, body: bytes) -> dict[str, Any]:
        user = asked.id
        return {"user": user, "forgotten": await self._aside(self.live.forget, user)}

    # Items and the model

    async def items(self, asked: Asked, body: bytes) -> dict[str, Any]:
        served = self.live.served
        limit = number(asked.parameter("limit"), 20, MOST_RESULTS, "limit")
        words = asked.parameter("search") or ""
        if len(words) > 200:
            raise InputError("search takes at most 200 characters")
        id = served.artifact.id
        if id not in self._names:
            self._names = {id: asyncio.ensure_future(self._aside(NameSearch, served.artifact))}
        search = await asyncio.shield(self._names[id])
        found = await self._aside(search.find, words, limit)
        return {"items": [{"item": served.artifact.item_ids[i], "name": served.artifact.name(i)} for i in found]}

    async def similar(self, asked: Asked, body: bytes) -> dict[str, Any]:
        served = self.live.served
        item = served.line(served.index(asked.id), 0.0).item
        k = number(asked.parameter("k"), 10, MOST_RESULTS, "k")
        return {"item": item, "similar": _lines(await self._aside(served.similar, item, k))}

    async def model(self, asked: Asked, body: bytes) -> dict[str, Any]:
        served = self.live.served
        artifact, memory = served.artifact, served.memory
        learned = memory.observed if memory else None
        return {
            "artifact": artifact.id,
            "items": artifact.n_items,
            "names": artifact.item_names is not None,
            "index": artifact.manifest["index"]["kind"],
            "memory": memory is not None,
            "learns": learned is not None,
            "learned": learned or 0,
            "decay": _rounded(artifact.engine.kept),
        }

    async def change_artifact(self, asked: Asked, body: bytes) -> dict[str, Any]:
        path = bodies.artifact(body)
        try:
            workers = await self.control.change(path, self._use)
        except FolderError as error:
            raise Problem(400, str(error)) from None
        return {"artifact": self.live.artifact.id, "items": self.live.artifact.n_items, "workers": workers}

    async def _use(self, path: str) -> None:
        await self._aside(self.live.use, path)
        LOG.info("artifact", extra={"artifact": self.live.artifact.id, "path": path})

    # The rest

    async def metrics(self, asked: Asked, body: bytes) -> Answered:
        return Answered(await self._aside(metrics.page), metrics.CONTENT_TYPE)

    async def openapi(self, asked: Asked, body: bytes) -> Answered:
        return Answered(self._openapi, _JSON)

    async def alive(self, asked: Asked, body: bytes) -> Answered:
        return Answered(b"alive\n", "text/plain")

    async def ready(self, asked: Asked, body: bytes) -> Answered:
        try:
            await self._aside(self.live.store.check)
        except StoreError as error:  # whoever asks needs no key, so the address of the store is for the log alone
            LOG.error("store", extra={"error": str(error)})
            raise Problem(503, "the store cannot be used; the log says why", {"retry-after": "1"}) from None
        return Answered(b"ready\n", "text/plain")

    async def page(self, asked: Asked, body: bytes) -> Answered:
        return Answered(self._page, "text/html; charset=utf-8", headers=_PAGE_HEADERS)

    async def _aside(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """In another thread: it may take a while."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(work, *arguments))


def _count_looks(ready: int, rebuilt: int) -> None:
    if ready:
        metrics.STATES.labels("hit").inc(ready)
    if rebuilt:
        metrics.STATES.labels("miss").inc(rebuilt)


def settle() -> None:
    """What is there now stays: the garbage collector need not look through it again, a quarter of the time it did."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _micros(asked: Asked) -> int:
    return round((time.perf_counter() - asked.started) * 1e6)


def _lines(lines: list[Recommendation]) -> list[dict[str, Any]]:
    return [{"item": line.item, "name": line.name, "score": line.score} for line in lines]


def _rounded(values: Any) -> list[list[float]]:
    found: list[list[float]] = np.round(values.astype(np.float64), 5).tolist()
    return found


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Answered:
    return Answered(_encode({"error": message}), _JSON, status, headers)
