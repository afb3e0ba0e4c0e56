"""Bring a known dataset's files into a folder: download with resume, or take a file already at hand.

Knows files and checksums, not events. The folder gets a `source.json` that tells `prepare` what is what.
"""

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lrurec.data.layout import Wanted, recognise
from lrurec.data.sources import SOURCE, Known
from lrurec.errors import FetchError, InputError, LrurecError
from lrurec.folder import sha256

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known
_PIECE = 1 << 20
_PATIENCE = 30  # seconds without an answer


def fetch(
    row: Known,
    folder: Path,
    *,
    files: Sequence[Path] = (),
    check: bool = True,
    progress: Progress = lambda done, total: None,
) -> Path:
    """Download (or take `files`), verify, unpack, and write `source.json`. Doing it again does nothing new."""
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if files:
            taken = [_take(row, Path(f), folder, check, progress) for f in files]
        elif row.url is None:
            raise FetchError(_by_hand(row, folder, "its publisher asks for a log-in"))
        else:
            taken = [_download(row, row.url, folder, check, progress)]
        events, names = _unpack(row, taken, folder)
        for name in events:
            _looks_right(row, folder / name)
        facts = {n: {"bytes": (folder / n).stat().st_size, "sha256": sha256(folder / n)} for n in events}
        source = {"dataset": row.name, "licence": row.licence, "page": row.page, "events": events}
        text = json.dumps({**source, "item_names": names, "files": facts}, indent=1)
        aside = folder / f"{SOURCE}.{os.getpid()}"
        aside.write_text(text + "\n", encoding="utf-8")
        aside.replace(folder / SOURCE)
    except (LrurecError, OSError) as error:
        if not was_there:
            with contextlib.suppress(OSError):
                folder.rmdir()  # if nothing came into it
        if isinstance(error, LrurecError):
            raise
        raise FetchError(f"{folder} cannot be written ({error.strerror or error}); choose another --to") from error
    return folder


def _by_hand(row: Known, folder: Path, why: str) -> str:
    if row.url:
        return (
            f"{row.title} could not be downloaded ({why}); get {row.url} on another machine, put it at"
            f" {folder / row.file} and run this again, or pass --from FILE"
        )
    wanted = " ".join(f"--from {name}" for name in row.events)
    return f"{row.title} cannot be downloaded ({why}); get {' and '.join(row.events)} from {row.page} and pass {wanted}"


def _take(row: Known, file: Path, folder: Path, check: bool, progress: Progress) -> Path:
    """Copy a file at hand. The publisher's own file must have the right checksum; any other is taken as it is."""
    if not file.is_file():
        raise InputError(f"{file} does not exist; check the path after --from")
    if file.name == row.file and check:
        _verify(row, file)
    target = folder / file.name
    if not (target.exists() and target.samefile(file)):
        aside = folder / f".{file.name}.{os.getpid()}"
        try:
            with file.open("rb") as source, aside.open("wb") as copy:
                while piece := source.read(_PIECE):
                    copy.write(piece)
                    progress(copy.tell(), file.stat().st_size)
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    return target


def _looks_right(row: Known, file: Path) -> None:
    """Refuse a file that cannot be this dataset: it has another format than the publisher's or the usual ones."""
    found = recognise(file, None, Wanted()).format
    usual = (row.format, "pairs", "recbole")
    if found not in usual:
        raise InputError(f"{file.name} looks like {found}; {row.title} comes as {' or '.join(dict.fromkeys(usual))}")


def _verify(row: Known, file: Path) -> None:
    if row.checksum is None:
        return
    kind, wanted = row.checksum.split(":")
    with file.open("rb") as handle:
        found = hashlib.file_digest(handle, kind).hexdigest()
    if found != wanted:
        raise FetchError(
            f"{file} is not the file that {row.title} is known by ({kind} {found[:12]}..., {wanted[:12]}... expected);"
            " delete it and fetch again, or pass --no-checksum if the publisher has changed it"
        )


def _download(row: Known, url: str, folder: Path, check: bool, progress: Progress) -> Path:
    target = folder / row.file
    if not target.exists():
        part = folder / f"{row.file}.part"
        try:
            _resume(url, part, progress)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            kept = part.stat().st_size if part.exists() else 0
            more = f", {kept:,} bytes are kept and will be continued" if kept else ""
            raise FetchError(_by_hand(row, folder, f"{reason}{more}")) from None
        if check and row.checksum is not None:
            try:
                _verify(row, part)
            except FetchError:
                part.unlink()  # continuing a wrong file would never make it right
                raise
        part.replace(target)
    elif check:
        _verify(row, target)
    return target


def _resume(url: str, part: Path, progress: Progress) -> None:
    """Download into `part`, continuing where an earlier try stopped if the server can."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing left to get: the checksum will tell whether it is whole
            return
        raise
    with answer:
        if answer.status != 206:
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file:
            while piece := answer.read(_PIECE):
                file.write(piece)
                have += len(piece)
                progress(have, total)
    if total is not None and have < total:
        raise http.client.IncompleteRead(b"", total - have)


def _unpack(row: Known, taken: Sequence[Path], folder: Path) -> tuple[list[str], str | None]:
    """The names of the files with events and of the table of names, unpacked if they came in a zip."""
    events: list[str] = []
    names: str | None = None
    for path in taken:
        if not zipfile.is_zipfile(path):
            if path.name == row.item_names:
                names = path.name
            else:
                events.append(path.name)
            continue
        with zipfile.ZipFile(path) as archive:
            members = {Path(m).name: m for m in archive.namelist()}
            for wanted in (*row.events, *([row.item_names] if row.item_names else [])):
                if wanted not in members:
                    raise FetchError(f"{path} has no {wanted} inside; it is not the archive of {row.title}")
                with archive.open(members[wanted]) as source, (folder / wanted).open("wb") as target:
                    shutil.copyfileobj(source, target)
            events += row.events
            names = row.item_names
    if not events:
        raise InputError(f"no file with events for {row.title}; it wants {', '.join(row.events)}")
    return events, names
