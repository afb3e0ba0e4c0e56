"""Requests that arrive together are scored together. Knows queries and the loop they wait in."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lrurec.errors import LrurecError
from lrurec.serving.service import Answer, Live, Query

MOST = 64  # queries in one batch
_SMALL = 20_000  # items up to which a pass over the table is quicker than waking another thread


class Batcher:
    """Takes whatever waits, up to MOST, while nothing else is being scored.

    Nobody waits longer than `wait` seconds for company, and then for one batch. Large catalogues and distant stores are
    given to a thread, so that the loop goes on.
    """

    def __init__(self, live: Live, wait: float = 0.0, watch: Callable[[int], None] = lambda size: None) -> None:
        self.live, self.wait, self._watch = live, wait, watch
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Query, asyncio.Future[Answer]]] = []
        self._scheduled = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lrurec-scoring")

    async def ask(self, query: Query) -> Answer:
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append((query, future))
        if not self._scheduled:
            self._scheduled = True
            if self.wait:
                self._loop.call_later(self.wait, self._start)
            else:
                self._loop.call_soon(self._start)
        return await future

    def close(self) -> None:
        self._thread.shutdown()

    def _start(self) -> None:
        batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        self._watch(len(batch))
        queries = [query for query, _ in batch]
        if self.live.store.quick and all(q.served.artifact.n_items <= _SMALL for q in queries):
            try:
                self._done(batch, self.live.answer(queries))
            except Exception as error:
                self._failed(batch, error)
            return
        running = self._loop.run_in_executor(self._thread, self.live.answer, queries)
        running.add_done_callback(lambda done: self._arrived(batch, done))

    def _arrived(self, batch: list[Any], done: "asyncio.Future[Any]") -> None:
        error = done.exception()
        if error is not None:
            self._failed(batch, error)
        else:
            self._done(batch, done.result())

    def _done(self, batch: list[Any], answers: list[Answer | LrurecError]) -> None:
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():  # its client has gone
                continue
            if isinstance(answer, LrurecError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._next()

    def _failed(self, batch: list[Any], error: BaseException) -> None:
        for _, future in batch:
            if not future.done():
                future.set_exception(error)
        self._next()

    def _next(self) -> None:
        self._scheduled = bool(self._waiting)
        if self._waiting:
            self._loop.call_soon(self._start)
