"""The routes. Knows requests and answers; what lies behind them is lrurec.serving.service's.

Every request passes the same gate: its key, its body (bounded in size and time), a place among those being answered
(bounded in number). What goes wrong ends in a sentence: {"error": "..."}.
"""

import asyncio
import functools
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lrurec.errors import FolderError, InputError, LrurecError
from lrurec.serving import bodies, metrics
from lrurec.serving.batching import Batcher
from lrurec.serving.bodies import MOST_ITEMS, MOST_RESULTS, number, truth
from lrurec.serving.control import Control
from lrurec.serving.keys import Keys
from lrurec.serving.openapi import description
from lrurec.serving.search import NameSearch
from lrurec.serving.service import Live, Query, Recommendation, Served, UnknownItem
from lrurec.serving.store.base import Event, StoreError

LOG = logging.getLogger("lrurec.server")
BODY_SECONDS = 10.0
_LOCAL = ("localhost", "127.", "[::1]")
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_encode = msgspec.json.Encoder().encode


class Problem(Exception):
    """An answer that is not the one that was asked for."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


Handler = Callable[[Request, bytes], Awaitable[Any]]


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
        self._openapi = json.dumps(description()).encode()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="lrurec-aside")
        routes = [
            self._route("POST", "/v1/events", "write", self.add_events, body=True),
            self._route("GET", "/v1/users/{id}/recommendations", "read", self.recommend),
            self._route("POST", "/v1/recommendations", "read", self.recommend_for, body=True),
            self._route("GET", "/v1/users/{id}", "read", self.user),
            self._route("DELETE", "/v1/users/{id}", "write", self.forget),
            self._route("GET", "/v1/items", "read", self.items),
            self._route("GET", "/v1/items/{id}/similar", "read", self.similar),
            self._route("GET", "/v1/model", "read", self.model),
            self._route("POST", "/v1/artifact", "admin", self.change_artifact, body=True),
            self._route("GET", "/metrics", "read", self.metrics),
            self._route("GET", "/openapi.json", None, self.openapi),
            self._route("GET", "/healthz", None, self.alive, always=True),
            self._route("GET", "/readyz", None, self.ready, always=True),
            self._route("GET", "/", None, self.page),
        ]
        self._app = Starlette(
            routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: _not_found, Exception: _broken}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":  # routes see the path as it was sent: an id may have a %2F in it
            scope["path"] = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.batcher = Batcher(self.live, self.wait, lambda size: metrics.BATCH.observe(size))
        warm_up(self.live.served)
        following = asyncio.create_task(self.control.follow(self._use))
        LOG.info("ready", extra={"artifact": self.live.artifact.id, "store": self.live.store.where})
        try:
            yield
        finally:
            following.cancel()
            self.batcher.close()
            self._threads.shutdown()
            await asyncio.to_thread(self.live.close)
            LOG.info("closed")

    # The gate

    def _route(
        self, method: str, path: str, role: str | None, handler: Handler, *, body: bool = False, always: bool = False
    ) -> Route:
        timers: dict[int, Any] = {}

        async def endpoint(request: Request) -> Response:
            started = time.perf_counter()
            response = await self._guarded(request, role, handler, body, always)
            started = getattr(request.state, "started", started)
            status = response.status_code
            timer = timers.get(status)
            if timer is None:
                timer = timers[status] = metrics.LATENCY.labels(f"{method} {path}", str(status))
            timer.observe(time.perf_counter() - started)
            if self.log_requests or status >= 500:
                took = round((time.perf_counter() - started) * 1e6)
                LOG.info("request", extra={"method": method, "route": path, "status": status, "micros": took})
            return response

        return Route(path, endpoint, methods=[method])

    async def _guarded(
        self, request: Request, role: str | None, handler: Handler, body: bool, always: bool
    ) -> Response:
        try:
            self._check_host(request)
            if role is not None:
                self._check_key(request, role)
            raw = await self._body(request) if body else b""
            if self._active >= self.limit and not always:
                metrics.REFUSED.inc()
                raise Problem(503, "too many requests are waiting; try again", {"retry-after": "1"})
            request.state.started = time.perf_counter()
            self._active += 1
            metrics.WAITING.inc()
            try:
                found = await handler(request, raw)
            finally:
                self._active -= 1
                metrics.WAITING.dec()
            return found if isinstance(found, Response) else Response(_encode(found), media_type="application/json")
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
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            LOG.exception("broken", extra={"path": request.url.path})
            return _error(500, "something is wrong in the server; its log has the details")

    def _check_host(self, request: Request) -> None:
        """Without keys only this machine may ask, and no page of another site that has our address as its name."""
        if self.local and not request.headers.get("host", "localhost").startswith(_LOCAL):
            raise Problem(403, "without keys the server answers only as localhost")

    def _check_key(self, request: Request, role: str) -> None:
        if not len(self.keys):
            return
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
        allowed = self.keys.allows(key, role)
        if allowed is None:
            raise Problem(401, "a key is needed: Authorization: Bearer KEY", {"www-authenticate": "Bearer"})
        if not allowed:
            raise Problem(403, f"this key may not do that; it takes one with the role '{role}'")

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "the body must be application/json")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > bodies.BODY_BYTES:
            raise Problem(413, f"the body has more than {bodies.BODY_BYTES >> 20} MB", {"connection": "close"})
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size > bodies.BODY_BYTES:
                        raise Problem(
                            413, f"the body has more than {bodies.BODY_BYTES >> 20} MB", {"connection": "close"}
                        )
                    parts.append(part)
        except TimeoutError:
            raise Problem(408, f"the body did not arrive in {BODY_SECONDS:.0f} s", {"connection": "close"}) from None
        return b"".join(parts)

    # Events and recommendations

    async def add_events(self, request: Request, body: bytes) -> dict[str, Any]:
        given = bodies.events(body)
        wanted = request.query_params.get("recommend")
        k = None if wanted is None else number(wanted, 10, MOST_RESULTS, "recommend")
        served = self.live.served
        by_user: dict[str, list[Event]] = {}
        for event in given:
            made = self.live.event(served, event.item, bodies.microseconds(event.time), event.id)
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
            found = await self._ask(self.live.query(str(given[-1].user), None, k, True, None, None))
            answer["recommendations"] = _lines(found.lines)
        return answer | {"micros": _micros(request)}

    async def recommend(self, request: Request, body: bytes) -> dict[str, Any]:
        user, asked = _id(request), request.query_params
        query = self.live.query(
            user,
            None,
            number(asked.get("k"), 10, MOST_RESULTS, "k"),
            truth(asked.get("filter_seen"), True, "filter_seen"),
            self._names_in(asked.getlist("allow")) if "allow" in asked else None,
            self._names_in(asked.getlist("deny")) if "deny" in asked else None,
        )
        found = await self._ask(query)
        lines = _lines(found.lines)
        return {"user": user, "known": found.known, "recommendations": lines, "micros": _micros(request)}

    async def recommend_for(self, request: Request, body: bytes) -> dict[str, Any]:
        wish = bodies.wish(body)
        found = await self._ask(self.live.query(None, wish.history, wish.k, wish.filter_seen, wish.allow, wish.deny))
        return {"known": found.known, "recommendations": _lines(found.lines), "micros": _micros(request)}

    async def _ask(self, query: Query) -> Any:
        return await self.batcher.ask(query)

    def _names_in(self, values: list[str]) -> list[str]:
        """Ids from parameters: each a whole id, or several with commas between them."""
        served = self.live.served
        names = [name for v in values for name in ([v] if served.states.index(v) >= 0 else v.split(",")) if name]
        if len(names) > MOST_ITEMS:
            raise InputError(f"more than {MOST_ITEMS:,} items in a list")
        return names

    # Users

    async def user(self, request: Request, body: bytes) -> dict[str, Any]:
        user, asked, served = _id(request), request.query_params, self.live.served
        last = number(asked.get("last"), 50, MOST_ITEMS, "last", least=0)
        with_state = truth(asked.get("state"), False, "state")
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
        return {"item": item, "name": served.artifact.name(known) if known >= 0 else None, "time": at / 1e6}

    async def forget(self, request: Request, body: bytes) -> dict[str, Any]:
        user = _id(request)
        return {"user": user, "forgotten": await self._aside(self.live.forget, user)}

    # Items and the model

    async def items(self, request: Request, body: bytes) -> dict[str, Any]:
        served, asked = self.live.served, request.query_params
        limit = number(asked.get("limit"), 20, MOST_RESULTS, "limit")
        words = asked.get("search", "")
        if len(words) > 200:
            raise InputError("search takes at most 200 characters")
        id = served.artifact.id
        if id not in self._names:
            self._names = {id: asyncio.ensure_future(self._aside(NameSearch, served.artifact))}
        search = await asyncio.shield(self._names[id])
        found = await self._aside(search.find, words, limit)
        return {"items": [{"item": served.artifact.item_ids[i], "name": served.artifact.name(i)} for i in found]}

    async def similar(self, request: Request, body: bytes) -> dict[str, Any]:
        item, served = _id(request), self.live.served
        k = number(request.query_params.get("k"), 10, MOST_RESULTS, "k")
        return {"item": item, "similar": _lines(await self._aside(served.similar, item, k))}

    async def model(self, request: Request, body: bytes) -> dict[str, Any]:
        artifact = self.live.artifact
        lam = artifact.engine.w["lam"]
        return {
            "artifact": artifact.id,
            "items": artifact.n_items,
            "names": artifact.item_names is not None,
            "index": artifact.manifest["index"]["kind"],
            "decay": _rounded(np.hypot(lam[:, 0], lam[:, 1])),
        }

    async def change_artifact(self, request: Request, body: bytes) -> dict[str, Any]:
        path = bodies.artifact(body)
        try:
            workers = await self.control.change(path, self._use)
        except FolderError as error:
            raise Problem(400, str(error)) from None
        return {"artifact": self.live.artifact.id, "items": self.live.artifact.n_items, "workers": workers}

    async def _use(self, path: str) -> None:
        await self._aside(self.live.use, path)
        warm_up(self.live.served)
        LOG.info("artifact", extra={"artifact": self.live.artifact.id, "path": path})

    # The rest

    async def metrics(self, request: Request, body: bytes) -> Response:
        return Response(await self._aside(metrics.page), media_type=metrics.CONTENT_TYPE)

    async def openapi(self, request: Request, body: bytes) -> Response:
        return Response(self._openapi, media_type="application/json")

    async def alive(self, request: Request, body: bytes) -> Response:
        return Response("alive\n", media_type="text/plain")

    async def ready(self, request: Request, body: bytes) -> Response:
        await self._aside(self.live.store.look, ["-"], self.live.served.states)
        return Response("ready\n", media_type="text/plain")

    async def page(self, request: Request, body: bytes) -> Response:
        return Response(self._page, media_type="text/html", headers=_PAGE_HEADERS)

    async def _aside(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """In another thread: it may take a while."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(work, *arguments))


def warm_up(served: Served) -> None:
    """Once through what is compiled, so that nobody's first request waits for it."""
    state = served.states.replay(np.zeros(1, np.int64))
    served.states.replay(np.zeros(40, np.int64))
    served.retriever.search(served.states.hidden(state)[None], 10, [np.zeros(1, np.int64)])


def _id(request: Request) -> str:
    return unquote(request.path_params["id"])


def _micros(request: Request) -> int:
    started: float = request.state.started
    return round((time.perf_counter() - started) * 1e6)


def _lines(lines: list[Recommendation]) -> list[dict[str, Any]]:
    return [{"item": line.item, "name": line.name, "score": line.score} for line in lines]


def _rounded(values: Any) -> list[list[float]]:
    found: list[list[float]] = np.round(values.astype(np.float64), 5).tolist()
    return found


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return Response(_encode({"error": message}), status, headers, "application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    say = {404: f"there is no {request.url.path} here; see /openapi.json", 405: "this route has other methods"}
    return _error(error.status_code, say.get(error.status_code, error.detail), dict(error.headers or {}))


async def _broken(request: Request, error: Exception) -> Response:
    return _error(500, "something is wrong in the server; its log has the details")
