"""How the workers of one server agree on an artifact. Knows a small folder that they share.

`artifact` there says what is to be served and counts the changes; each worker writes under its name the count that it
has reached. A worker that starts later serves what stands there, too.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from lrurec.errors import SettingsError

Use = Callable[[str], Awaitable[None]]
_POLL, _PATIENCE = 0.2, 60.0  # seconds


class Control:
    """One worker's view of the folder."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers, self.count = folder, workers, 0
        self._changing = asyncio.Lock()

    @staticmethod
    def begin(folder: Path, artifact: str) -> None:
        _write(folder / "artifact", {"path": str(Path(artifact).resolve()), "count": 0})

    def wanted(self) -> tuple[str, int]:
        """The artifact's path, and how many changes there have been."""
        found = json.loads((self.folder / "artifact").read_text())
        return found["path"], found["count"]

    def reached(self, count: int) -> None:
        self.count = count
        _write(self.folder / f"worker-{os.getpid()}", count)

    async def follow(self, use: Use) -> None:
        """Go over to whatever another worker was told."""
        while True:
            await asyncio.sleep(_POLL)
            path, count = self.wanted()
            if count != self.count and not self._changing.locked():
                async with self._changing:
                    await use(path)
                    self.reached(count)

    async def change(self, path: str, use: Use) -> int:
        """Go over to an artifact, here first: one that cannot be opened changes nothing. Gives the number of workers."""
        async with self._changing:
            await use(path)
            count = self.wanted()[1] + 1
            _write(self.folder / "artifact", {"path": str(Path(path).resolve()), "count": count})
            self.reached(count)
        waited = 0.0
        while (there := self._arrived(count)) < self.workers:
            await asyncio.sleep(_POLL / 4)
            waited += _POLL / 4
            if waited > _PATIENCE:
                raise SettingsError(f"only {there} of {self.workers} workers serve {path} so far; see their log")
        return there

    def _arrived(self, count: int) -> int:
        there = 0
        for file in self.folder.glob("worker-*"):
            pid = int(file.name.removeprefix("worker-"))
            alive = Path(f"/proc/{pid}").exists()
            there += alive and json.loads(file.read_text()) >= count
        return there


def _write(path: Path, value: object) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value))
    aside.replace(path)
