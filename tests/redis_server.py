"""A real redis-server for the tests."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

MISSING = shutil.which("redis-server") is None
PASSWORD = "se:cr@t"


class Server:
    """A Redis in a folder of its own, which may be killed and started again."""

    def __init__(self, folder: Path, port: int = 0, *options: str) -> None:
        self.folder, self.port = folder, port
        self.socket = folder / "socket"
        keep = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        where = ("--port", str(port), "--unixsocket", str(self.socket), "--dir", str(folder))
        self.command = ["redis-server", *where, *keep, "--loglevel", "warning", *options]
        self.url = f"unix://{self.socket}"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        with self.client() as client:
            assert wait_for(lambda: self.process.poll() is not None or answers(client))
        assert self.process.poll() is None

    def client(self) -> Any:
        return redis.Redis(unix_socket_path=str(self.socket), password=PASSWORD if self.port else None)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def wait_for(happens: Callable[[], bool]) -> bool:
    """Whether something happens within ten seconds."""
    for _ in range(1000):
        if happens():
            return True
        time.sleep(0.01)
    return False


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
