"""`lrurec store`: a look into a store, and what is done to all of it."""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lrurec.cli.arguments import Commands, positive
from lrurec.cli.console import bytes_text, progress_bar
from lrurec.cli.parts import need
from lrurec.errors import BadRowError, FolderError, InputError

EXAMPLES = """\
examples:
  lrurec store info store/
  lrurec store import store/ --artifact artifacts/mine data/mine          the histories of a dataset
  lrurec store export store/ --out events.jsonl                           everybody's events, one per line
  lrurec store import other/ --artifact artifacts/mine events.jsonl       and into another store
  lrurec store rebuild store/ --artifact artifacts/new                    all states, once a new artifact is served
  lrurec store verify store/ --artifact artifacts/mine                    every state against its history
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "store",
        help="a look into a store; export, import, rebuild, verify",
        description="A look into a store, and what is done to all of it. Servers may use it meanwhile.",
        epilog=EXAMPLES,
    )
    inner = p.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _one(inner, "info", "how many users and events, how large, whose states", info)
    made = _one(inner, "export", "every event as a line of JSON", export)
    made.add_argument("--out", metavar="FILE", help="where to (default: stdout)")
    made = _one(inner, "import", "the histories of a dataset, or what export wrote", import_, artifact=True)
    made.add_argument("source", metavar="DATASET|FILE", help="a dataset folder, or a file of export ('-': stdin)")
    made.add_argument("--bound", type=positive, default=0, metavar="N", help="keep the newest N events of a user")
    made.set_defaults(stopped="stopped; what was imported so far is kept, and the same command goes on")
    made = _one(inner, "rebuild", "the states of an artifact for everybody", rebuild, artifact=True)
    made.add_argument("--all", action="store_true", help="also those that are there already")
    made.set_defaults(stopped="stopped; the states made so far are kept, and the same command goes on")
    _one(inner, "verify", "compute every state and report those that differ", verify, artifact=True)


def _one(inner: Commands, name: str, text: str, work: Any, artifact: bool = False) -> argparse.ArgumentParser:
    p = inner.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=EXAMPLES)
    p.add_argument("store", metavar="STORE", help="a store folder, or redis://HOST:PORT/DB")
    if artifact:
        p.add_argument("--artifact", required=True, metavar="DIR", help="the artifact whose states are meant")
    if name != "export":
        p.add_argument("--json", action="store_true", help="print it as JSON")
    p.set_defaults(run=work, parser=p)
    return p


def _open(options: argparse.Namespace, create: bool = False) -> Any:
    need("serve")
    from lrurec.serving.store.opening import open_store

    return open_store(options.store, create=create, bound=getattr(options, "bound", 0))


def _states(options: argparse.Namespace) -> Any:
    need("serve")
    from lrurec.serving.artifact import Artifact
    from lrurec.serving.service import States

    return States(Artifact.open(options.artifact))


def info(options: argparse.Namespace) -> int:
    store = _open(options)
    found = store.info()
    store.close()
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, value in found.items():
        if name == "states":
            value = ", ".join(f"{count:,} of artifact {id}" for id, count in value.items()) or "none"
        elif name in ("bytes", "memory"):
            name, value = "size", bytes_text(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            value = f"{value:,}"
        print(f"{name:9} {value}")
    return 0


def export(options: argparse.Namespace) -> int:
    need("serve")
    from lrurec.serving.store.upkeep import histories

    store = _open(options)
    total, lines = len(store), 0
    if options.out and Path(options.out).is_dir():
        raise FolderError(f"{options.out} is a folder; name a file after --out")
    aside = Path(f"{options.out}.part") if options.out else None
    try:
        file: IO[str] = aside.open("w", encoding="utf-8") if aside else sys.stdout
    except OSError as error:
        raise FolderError(f"{options.out} cannot be written ({error.strerror}); choose another --out") from None
    try:
        with progress_bar() as report:
            for done, (user, events) in enumerate(histories(store), 1):
                for event in events:
                    row: dict[str, Any] = {"user": user, "item": event.item, "time": event.time / 1e6}
                    row |= {"micros": event.time} if round(event.time / 1e6 * 1e6) != event.time else {}
                    row |= {"key": event.key.hex()} if any(event.key) else {}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                lines += len(events)
                report("exporting", done, total)
        file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FolderError(f"{options.out or 'stdout'} cannot be written ({error.strerror}); free some room") from None
    else:
        if aside:
            file.close()
            aside.replace(options.out)
    finally:
        store.close()
        if aside:
            file.close()
            aside.unlink(missing_ok=True)
    if aside:
        print(f"exported  {lines:,} events of {total:,} users to {options.out}")
    return 0


def import_(options: argparse.Namespace) -> int:
    from lrurec.serving.store.upkeep import load

    model = _states(options)
    total, everybody = _source(options.source)
    first = list(itertools.islice(everybody, 1))  # what cannot be read leaves no store
    store = _open(options, create=True)
    started = time.perf_counter()
    try:
        with progress_bar() as report:
            found = load(
                store,
                model,
                itertools.chain(first, everybody),
                watch=lambda users: report("importing", users, total or users),
            )
    finally:
        store.close()
    if found.unknown > found.events // 2:
        print(
            f"lrurec: {found.unknown:,} of {found.events:,} events are of items that the artifact does not have;"
            " is it the artifact of this log?",
            file=sys.stderr,
        )
    return _told(
        options,
        {
            "users": found.users,
            "events": found.events,
            "stored": found.written,
            "known": found.known,
            "unknown_items": found.unknown,
        },
        f"imported  {found.written:,} events of {found.users:,} users" + _besides(found),
        started,
    )


def _besides(found: Any) -> str:
    """What else there is to say of an import."""
    cut = found.events - found.known - found.written
    said = (
        (found.known, "were there already"),
        (cut, "are repeated, or too old for the bound"),
        (found.unknown, "are of items that the artifact does not have: they are kept, and not used"),
    )
    return "".join(f"; {count:,} {what}" for count, what in said if count)


def rebuild(options: argparse.Namespace) -> int:
    from lrurec.serving.store import upkeep

    model, store = _states(options), _open(options)
    started, total = time.perf_counter(), len(store)
    try:
        with progress_bar() as report:
            found = upkeep.rebuild(
                store, model, everything=options.all, watch=lambda users: report("rebuilding", users, total)
            )
    finally:
        store.close()
    return _told(
        options,
        {"users": found.users, "events": found.events, "written": found.written},
        f"rebuilt   {found.written:,} states of {found.users:,} users from {found.events:,} events",
        started,
    )


def verify(options: argparse.Namespace) -> int:
    from lrurec.serving.store import upkeep

    model, store = _states(options), _open(options)
    started, total = time.perf_counter(), len(store)
    try:
        with progress_bar() as report:
            found = upkeep.verify(store, model, watch=lambda users: report("verifying", users, total))
    finally:
        store.close()
    text = f"verified  {found.users - found.foreign:,} states of {found.users:,} users, {found.events:,} events"
    if found.foreign:
        text += f"; {found.foreign:,} users have states of other artifacts (rebuild makes theirs)"
    text += f"; {len(found.wrong):,} differ" if found.wrong else "; none differs"
    facts = {"users": found.users, "events": found.events, "foreign": found.foreign, "wrong": found.wrong[:1000]}
    _told(options, facts, text, started)
    if found.wrong:
        shown = ", ".join(f"'{user}'" for user in found.wrong[:5])
        print(f"lrurec: the states of {shown} differ; mend them with: lrurec store rebuild --all", file=sys.stderr)
        return 1
    return 0


def _told(options: argparse.Namespace, facts: dict[str, Any], text: str, started: float) -> int:
    seconds = time.perf_counter() - started
    print(json.dumps(facts | {"seconds": round(seconds, 3)}) if options.json else f"{text}, in {seconds:.1f} s")
    return 0


def _source(path: str) -> tuple[int, Iterator[tuple[str, list[Any]]]]:
    """(how many users, or 0 if nobody knows; users and their events)"""
    if path != "-" and Path(path).is_dir():
        import lrurec

        dataset = lrurec.Dataset.open(path)
        return dataset.n_users, _of_dataset(dataset)
    return 0, _of_lines(path)


def _of_dataset(dataset: Any) -> Iterator[tuple[str, list[Any]]]:
    """Histories without times get the times 1, 2, 3, ...: before anything that is to come."""
    from lrurec.serving.store.base import Kept

    names = [str(dataset.item_ids[k]) for k in range(dataset.n_items)]
    for u in range(dataset.n_users):
        span = slice(int(dataset.offsets[u]), int(dataset.offsets[u + 1]))
        items = dataset.items[span].tolist()
        times = range(1, len(items) + 1) if dataset.times is None else dataset.times[span].tolist()
        yield str(dataset.user_ids[u]), [Kept(names[i], at) for i, at in zip(items, times, strict=True)]


def _lines(file: IO[str], path: str) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8; if it is compressed, unpack it first") from None


def _of_lines(path: str) -> Iterator[tuple[str, list[Any]]]:
    """Lines of one user that follow each other go together."""
    from lrurec.serving.store.base import Kept, hash_key, microseconds

    try:
        file: IO[str] = sys.stdin if path == "-" else Path(path).open(encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check the path") from None
    last, events = None, list[Any]()
    with file:
        for number, line in enumerate(_lines(file, path), 1):
            try:
                row = json.loads(line)
                user, item = str(row["user"]), str(row["item"])
                at = int(row["micros"]) if "micros" in row else microseconds(row["time"])
                key = bytes.fromhex(row["key"]) if "key" in row else hash_key(row.get("id"))
                kept = Kept(item, at, key)
            except (ValueError, KeyError, TypeError, AttributeError, InputError) as error:
                raise BadRowError(
                    f"line {number} of {path} is not an event such as"
                    f' {{"user": "ann", "item": "tea", "time": 1700000000}} ({error})'
                ) from None
            if user != last and last is not None:
                yield last, events
                events = []
            last = user
            events.append(kept)
    if last is not None:
        yield last, events
