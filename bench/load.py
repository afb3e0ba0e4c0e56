"""Load for an HTTP server, from a process of its own, at a fixed rate. Knows requests as bytes.

Requests are due at fixed times whether or not earlier ones have been answered, and a request's latency counts from when
it was due: a server that stalls is not spared the requests that it kept from being sent.
"""

import asyncio
import json
import random
import sys
import time
from collections import deque
from typing import Any

import numpy as np
import uvloop


class Connection(asyncio.Protocol):
    """One request at a time; hears the status and the length of the body."""

    def __init__(self, load: "Load") -> None:
        self.load, self.transport = load, asyncio.Transport()
        self.due, self.rest, self.seen = 0.0, -1, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, request: bytes, due: float) -> None:
        self.due, self.rest, self.seen = due, -1, b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.rest < 0:
            self.seen += data
            head, found, body = self.seen.partition(b"\r\n\r\n")
            if not found:
                return
            at = head.lower().find(b"content-length:")
            self.rest = int(head[at + 15 :].split(b"\r\n", 1)[0]) - len(body)
        else:
            self.rest -= len(data)
        if self.rest <= 0:
            self.load.answered(self, int(self.seen[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        self.load.lost(self)


class Load:
    """`rate` requests a second for some seconds, half of them events, half recommendations."""

    def __init__(self, port: int, rate: float, seconds: float, users: int, items: list[str], seed: int) -> None:
        self.port, self.rate, self.seconds = port, rate, seconds
        self.users, self.items, self.random = users, items, random.Random(seed)
        self.idle: deque[Connection] = (
            deque()
        )  # the one that was idle longest first: servers close those that are not used
        self.waiting: deque[tuple[bytes, float]] = deque()
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}
        self.broken = 0
        self.count = 0

    def request(self) -> bytes:
        self.count += 1
        user = f"user-{self.random.randrange(self.users)}"
        if self.count % 2:
            body = json.dumps({"user": user, "item": self.random.choice(self.items), "id": f"e{self.count}"}).encode()
            return (
                b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
        return b"GET /v1/users/%s/recommendations?k=20 HTTP/1.1\r\nhost: localhost\r\n\r\n" % user.encode()

    def answered(self, connection: Connection, status: int) -> None:
        self.latencies.append(time.perf_counter() - connection.due)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if self.waiting:
            connection.ask(*self.waiting.popleft())
        else:
            self.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        if connection in self.idle:
            self.idle.remove(connection)
        self.broken += 1

    async def run(self, connections: int) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, made = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
            self.idle.append(made)
        started, sent = time.perf_counter(), 0
        total = int(self.rate * self.seconds)
        while sent < total:
            now = time.perf_counter()
            while sent < total and (due := started + sent / self.rate) <= now:
                request = self.request()
                if self.idle:
                    self.idle.popleft().ask(request, due)
                else:
                    self.waiting.append((request, due))
                sent += 1
            await asyncio.sleep(max(0.0, started + sent / self.rate - time.perf_counter()))
        deadline = time.perf_counter() + 10
        while len(self.latencies) < total and time.perf_counter() < deadline:
            await asyncio.sleep(0.01)
        took = time.perf_counter() - started
        ms = np.array(self.latencies) * 1e3
        return {
            "asked": self.rate,
            "rate": len(ms) / took,
            "requests": total,
            "unanswered": total - len(ms),
            "lost": self.broken,
            "statuses": self.statuses,
            **{f"p{p}": float(np.percentile(ms, p)) for p in (50, 90, 99)},
            "max": float(ms.max()),
        }


def main() -> None:
    """Settings as JSON on the command line, what was found as JSON on stdout."""
    told = json.loads(sys.argv[1])
    connections = told.pop("connections", 64)
    print(json.dumps(uvloop.run(Load(**told).run(connections))))


if __name__ == "__main__":
    main()
