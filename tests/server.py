"""A real `lrurec serve` in a process of its own, and a client for it."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit


class Reply(NamedTuple):
    status: int
    json: Any
    headers: dict[str, str]


class Client:
    """One connection; a request after the other."""

    def __init__(self, port: int, key: str | None = None, timeout: float = 30.0) -> None:
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        sent = self.headers | (headers or {})
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if raw is not None:
            sent = {"content-type": "application/json"} | sent
        self._connection.request(method, path, raw, sent)
        got = self._connection.getresponse()
        text = got.read()
        kind = got.getheader("content-type", "")
        found = json.loads(text) if kind.startswith("application/json") else text.decode()
        return Reply(got.status, found, {k.lower(): v for k, v in got.getheaders()})

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, body, headers)

    def observe(self, user: str, item: object, **more: Any) -> Reply:
        return self.post("/v1/events", {"user": user, "item": item, **more})

    def recommend(self, user: str, query: str = "") -> Reply:
        return self.get(f"/v1/users/{quote(user, safe='')}/recommendations{query}")

    def close(self) -> None:
        self._connection.close()


class Server:
    """Runs until the end of the `with`; `log` has the lines of its log."""

    def __init__(self, artifact: Path, store: Path | str, *options: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "lrurec.cli.main", "serve", str(artifact), "--store", str(store)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "LRUREC_KEYS"} | (env or {}),
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.log: list[str] = []
        self._clients: list[Client] = []
        self.ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        first = self.process.stdout.readline()
        assert " on http" in first, first + "".join(self.log)
        self.url = first.split()[-1]
        self.port = int(urlsplit(self.url).port or 0)
        assert self.ready.wait(60), self.log

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if '"event": "ready"' in line:
                self.ready.set()
        self.ready.set()

    def client(self, key: str | None = None) -> Client:
        made = Client(self.port, key)
        self._clients.append(made)
        return made

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(40)
        self._reader.join(10)
        for client in self._clients:
            client.close()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return code

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.stop()
