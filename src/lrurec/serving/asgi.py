"""A request and an answer, on bare ASGI. Knows paths, headers and bodies; nothing of recommendations.

A framework's layers would take longer than a recommendation does (half of a request's time, when it was measured), and
would decode paths before they are taken apart: an id may have a %2F in it.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import parse_qs, unquote

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


_DRAINED = 64 << 20  # bytes too many that are read and thrown away: a client still sending would not hear why


class Problem(Exception):
    """An answer that is not the one that was asked for."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class Gone(Exception):
    """The client has left before its request was complete."""


class Asked:
    """A request: what stands in its path, its headers, its parameters, its body."""

    __slots__ = ("_query", "_receive", "id", "path", "scope", "started")

    def __init__(self, scope: Scope, receive: Receive, path: str) -> None:
        self.scope, self._receive, self.path = scope, receive, path
        self.id = ""  # the one in the path
        self.started = 0.0
        self._query: dict[str, list[str]] | None = None

    def header(self, name: bytes, default: str = "") -> str:
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return default

    def parameters(self, name: str) -> list[str]:
        """All values of a parameter."""
        if self._query is None:
            raw = self.scope["query_string"]
            try:
                self._query = (
                    parse_qs(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=20_000) if raw else {}
                )
            except ValueError:
                raise Problem(400, "there are too many parameters") from None
        return self._query.get(name, [])

    def refuse_others(self, known: tuple[str, ...]) -> None:
        """Refuse parameters that mean nothing here: a typo would otherwise go unnoticed."""
        if not self.scope["query_string"]:
            return
        self.parameters("")
        for name in self._query or ():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}" if known else ""
                raise Problem(400, f"there is no parameter '{name}'{hint}")

    def parameter(self, name: str) -> str | None:
        values = self.parameters(name)
        return values[-1] if values else None

    async def body(self, most: int, seconds: float) -> bytes:
        """The whole body, if it is not too large and does not take too long."""
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= most:
                        parts.append(part)
                    elif size > most + _DRAINED:
                        break
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Problem(408, f"the body did not arrive in {seconds:.0f} s", {"connection": "close"}) from None
        if size > most:
            raise Problem(413, f"the body has more than {most >> 20} MB", {"connection": "close"})
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Answered:
    """A status, a body, its type, other headers."""

    __slots__ = ("body", "headers", "kind", "status")

    def __init__(self, body: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.body, self.kind, self.status, self.headers = body, kind, status, headers

    async def send(self, send: Send) -> None:
        headers = [(b"content-length", str(len(self.body)).encode()), (b"content-type", self.kind.encode())]
        if self.headers:
            headers += [(name.encode(), value.encode()) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


Endpoint = Callable[[Asked], Awaitable[Answered]]


class Routes:
    """Paths with at most one {id} to endpoints by method."""

    def __init__(self) -> None:
        self._whole: dict[str, dict[str, Endpoint]] = {}
        self._parts: list[tuple[str, str, dict[str, Endpoint]]] = []  # before and behind the id

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        before, found, behind = path.partition("{id}")
        if not found:
            self._whole.setdefault(path, {})[method] = endpoint
            return
        for known in self._parts:
            if known[:2] == (before, behind):
                known[2][method] = endpoint
                return
        self._parts.append((before, behind, {method: endpoint}))

    def find(self, asked: Asked) -> Endpoint:
        """The endpoint of a request, with the id taken from its path; or a Problem."""
        path = asked.path
        methods = self._whole.get(path)
        if methods is None:
            for before, behind, some in self._parts:
                id = path[len(before) : len(path) - len(behind)]
                if id and path.startswith(before) and path.endswith(behind) and "/" not in id:
                    asked.id, methods = unquote(id), some
                    break
        if methods is None:
            raise Problem(404, f"there is no {path} here; see /openapi.json")
        method = asked.scope["method"]
        endpoint = methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = ", ".join(sorted(methods))
            raise Problem(405, f"this route has other methods: {allowed}", {"allow": allowed})
        return endpoint

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """(method, path) of all."""
        for path, methods in self._whole.items():
            yield from ((method, path) for method in methods)
        for before, behind, methods in self._parts:
            yield from ((method, f"{before}{{id}}{behind}") for method in methods)


async def live_through(span: AbstractAsyncContextManager[None], receive: Receive, send: Send) -> None:
    """ASGI's lifespan: enter at the start, leave at the end."""
    await receive()
    try:
        await span.__aenter__()
    except BaseException as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await span.__aexit__(None, None, None)
    await send({"type": "lifespan.shutdown.complete"})
