"""Folders that explain themselves: written aside, moved into place in one step, described by a manifest.

Knows files, not what is in them. A dataset, a run and an artifact are all such folders.

While a folder is being written it lives beside its destination under a hidden name and holds a
lock; a writer that was killed leaves the hidden folder without a lock, and the next writer to the
same destination removes it.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lrurec.errors import FolderError

_AGAIN = {"dataset": "make the dataset again (prepare --force)", "artifact": "make it again with lrurec export"}
_MADE_BY = {"dataset": "prepare", "run": "train", "artifact": "export"}
_TAKEN_BY = {"dataset": "train", "run": "evaluate, recommend or export", "artifact": "serve"}
MANIFEST = "manifest.json"
_LOCK = ".writing"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def sha256(path: Path, report: Callable[[int], None] = lambda count: None) -> str:
    """The SHA-256 of a file's bytes, as hex; `report` hears of every piece that is done."""
    digest, piece = hashlib.sha256(), bytearray(1 << 22)
    view = memoryview(piece)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(view[:count])
            report(count)
    return digest.hexdigest()


def sha256_json(value: object) -> str:
    """The SHA-256 of a value's canonical JSON, as hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, kind: str, version: int) -> dict[str, Any]:
    """The manifest of a folder of ours; an error says why it is not one."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "does not exist" if not folder.exists() else f"is not {_a(kind)} folder (it has no {MANIFEST})"
        raise FolderError(f"{folder} {what}; {_a(kind)} is made by lrurec {_MADE_BY.get(kind, kind)}") from None
    except NotADirectoryError:
        raise FolderError(f"{folder} is a file; {_a(kind)} is a folder") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read ({error}); make the {kind} again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != f"lrurec-{kind}":
        found = str(manifest.get("format", "")).removeprefix("lrurec-") if isinstance(manifest, dict) else ""
        what = f"it is {_a(found)}, which lrurec {_TAKEN_BY[found]} takes; " if found in _TAKEN_BY else ""
        raise FolderError(
            f"{folder} is not a lrurec {kind} folder; {what}{_a(kind)} is made by lrurec {_MADE_BY.get(kind, kind)}"
        )
    if manifest.get("version") != version:
        raise FolderError(
            f"{folder} has {kind} format version {manifest.get('version')}, this lrurec reads version {version};"
            f" make the {kind} again"
        )
    return manifest


def write_manifest(folder: Path, manifest: dict[str, Any], *, sealed: bool = False) -> None:
    """Write the manifest, with the size and hash of every other file added under `files`; `sealed`, with its own hash."""
    names = sorted(p.name for p in folder.iterdir() if p.name not in (MANIFEST, _LOCK))
    files = {n: {"bytes": (folder / n).stat().st_size, "sha256": sha256(folder / n)} for n in names}
    whole = {**manifest, "files": files}
    whole |= {"seal": seal_of(whole)} if sealed else {}
    text = json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def seal_of(manifest: dict[str, Any]) -> str:
    """A hash of everything in a manifest but its seal."""
    return sha256_json({name: value for name, value in manifest.items() if name != "seal"})


def check_sizes(folder: Path, manifest: dict[str, Any], kind: str) -> None:
    """Refuse a folder one of whose files is missing or has another size than the manifest says."""
    for name, facts in manifest["files"].items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            raise FolderError(f"{folder}: {name} is missing; {_AGAIN.get(kind, f'make the {kind} again')}") from None
        if size != facts["bytes"]:
            raise FolderError(
                f"{folder}: {name} has {size} bytes, {facts['bytes']} expected; {_AGAIN.get(kind, f'make the {kind} again')}"
            )


def check_hashes(
    folder: Path, manifest: dict[str, Any], kind: str, report: Callable[[int], None] = lambda count: None
) -> None:
    """Refuse a folder one of whose files has other bytes than the manifest says."""
    check_sizes(folder, manifest, kind)
    for name, facts in manifest["files"].items():
        if sha256(folder / name, report) != facts["sha256"]:
            raise FolderError(
                f"{folder}: {name} is damaged (its hash differs); {_AGAIN.get(kind, f'make the {kind} again')}"
            )


@contextlib.contextmanager
def new_folder(destination: Path, kind: str) -> Iterator[Path]:
    """Give a hidden folder to write into; on a clean exit it becomes `destination` in one move.

    `destination` may be absent, empty, or an older folder of the same kind (which is replaced).
    Anything else is refused before any work is done. On an error nothing is left behind.
    """
    destination = destination.resolve()
    if Path.cwd().is_relative_to(destination):
        raise FolderError(f"{destination} is where you stand; name a new folder with --out")
    _refuse_foreign(destination, kind)
    prefix = f".{destination.name}.lrurec-"
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(destination.parent, prefix)
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=destination.parent))
    except OSError as error:
        raise _refused(destination, error) from error
    lock: int | None = None
    try:
        with _as_folder_error(destination):
            lock = os.open(work / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield work
            _flush(work)
            umask = os.umask(0)
            os.umask(umask)
            work.chmod(0o777 & ~umask)  # mkdtemp made it private
            _refuse_foreign(destination, kind)
            (work / _LOCK).unlink()
            _swap_in(work, destination)
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def held(folder: Path, doing: str) -> Iterator[None]:
    """Be the only process that does something in a folder; a second one is refused. Killed, nothing is left behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(f"{folder} is being {doing} by another process; wait for it, or stop it first") from None
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _as_folder_error(destination: Path) -> Iterator[None]:
    """Turn the operating system's refusals into a sentence."""
    try:
        yield
    except OSError as error:
        raise _refused(destination, error) from error


def _refused(destination: Path, error: OSError) -> FolderError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return FolderError(f"no room left on the disk of {destination.parent}; free some, or choose another --out")
    return FolderError(f"{destination.parent} cannot be written ({error.strerror or error}); choose another --out")


def _refuse_foreign(destination: Path, kind: str) -> None:
    if destination.exists() and not destination.is_dir():
        raise FolderError(f"{destination} exists and is not a folder; choose another --out")
    if destination.is_dir() and any(destination.iterdir()):
        try:
            manifest = json.loads((destination / MANIFEST).read_text(encoding="utf-8"))
            ours = {*manifest["files"], MANIFEST} if manifest["format"] == f"lrurec-{kind}" else set()
        except (OSError, ValueError, TypeError, KeyError):
            ours = set()
        if not ours:
            raise FolderError(
                f"{destination} already holds something that is not {_a(kind)}; nothing was touched, choose another --out"
            )
        foreign = sorted(p.name for p in destination.iterdir() if p.name not in ours)
        if foreign:
            raise FolderError(
                f"{destination} holds a {kind} and also {foreign[0]}, which would be lost;"
                " nothing was touched, move it away or choose another --out"
            )


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove hidden folders whose writer is gone (its lock is free)."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            handle = os.open(path / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def _flush(folder: Path) -> None:
    """Ask the disk to keep the files before they get their final name."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _swap_in(work: Path, destination: Path) -> None:
    try:
        work.rename(destination)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    libc = ctypes.CDLL(None, use_errno=True)
    done = -1
    if hasattr(libc, "renameat2"):
        done = libc.renameat2(_AT_FDCWD, os.fsencode(work), _AT_FDCWD, os.fsencode(destination), _RENAME_EXCHANGE)
    if done != 0:  # an old file system: two moves, with the old folder restored if the second fails
        old = work.with_name(work.name + ".old")
        destination.rename(old)
        try:
            work.rename(destination)
        except OSError:
            old.rename(destination)
            raise
        shutil.rmtree(old, ignore_errors=True)
