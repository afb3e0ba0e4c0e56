"""`lrurec prepare`: any event log to a dataset folder."""

import argparse
import json
import time
from dataclasses import fields

from lrurec.cli.arguments import Commands, positive, yes_no
from lrurec.cli.console import progress_bar
from lrurec.data.dataset import Dataset
from lrurec.data.layout import FORMATS, Wanted
from lrurec.data.prepare import RECIPES, prepare
from lrurec.data.settings import TIES, Settings
from lrurec.data.times import UNITS
from lrurec.ids import TextIds

EXAMPLES = """\
formats: {formats}
A file may be plain, gzip or zstd. Format and columns are recognised from the content.

examples:
  lrurec prepare events.csv --out data/mine
  lrurec prepare logs/ --out data/mine --min-user 5 --min-item 5
  lrurec prepare ratings.dat --item-names movies.dat --recipe paper --out data/ml-1m
  lrurec prepare clicks.parquet --user visitor --item sku --time seen_at --out data/shop
  lrurec prepare reviews.jsonl.gz --min-rating 4 --skip-bad-rows --out data/liked
  lrurec prepare pairs.txt --out data/pairs --json
"""


_MISSING = ("null", "NULL", "None", "NaN", "nan", "NA", "N/A")


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "prepare",
        help="turn any event log into a dataset folder",
        description="Turn any event log into a dataset folder. With no options every event is kept.",
        epilog=EXAMPLES.format(formats=", ".join(FORMATS)),
    )
    p.add_argument("inputs", nargs="+", metavar="INPUT", help="a file, several, or a folder of files")
    p.add_argument("--out", required=True, metavar="DIR", help="the dataset folder to make")
    reading = p.add_argument_group("reading (only where the recognition is wrong)")
    reading.add_argument("--format", metavar="NAME", help="one of the formats below")
    for role in ("user", "item", "time", "rating"):
        reading.add_argument(f"--{role}", metavar="COLUMN", help=f"the {role} column, by name or number (from 1)")
    reading.add_argument("--header", type=yes_no, metavar="yes|no", help="whether the first line names the columns")
    reading.add_argument("--time-unit", choices=UNITS, help="of times that are plain numbers (default: by their size)")
    reading.add_argument("--skip-bad-rows", action="store_true", default=None, help="leave bad rows out and count them")
    keeping = p.add_argument_group("what is kept")
    keeping.add_argument("--min-rating", type=float, metavar="X", help="drop events rated below X")
    keeping.add_argument("--min-item", type=positive, metavar="N", help="drop items with fewer than N events ...")
    keeping.add_argument("--min-user", type=positive, metavar="N", help="... then users with fewer than N; one pass")
    keeping.add_argument("--k-core", action="store_true", default=None, help="repeat that until nothing changes")
    keeping.add_argument(
        "--drop-repeats",
        action="store_true",
        default=None,
        help="drop an item that repeats the one just before it (before anything is counted)",
    )
    order = p.add_argument_group("order")
    order.add_argument("--ties", choices=TIES, help="events of one user at the same time: in file order (default), ...")
    order.add_argument("--seed", type=int, metavar="N", help="for --ties shuffle (default 0)")
    p.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"settings as a whole ({', '.join(RECIPES)}): at least 5 events per item and user, no immediate repeats,"
        " ties by item id; `user item` pairs arrive filtered and are not filtered again",
    )
    p.add_argument("--item-names", metavar="FILE", help="a table of item ids and titles, for people to read")
    p.add_argument("--force", action="store_true", help="prepare even if DIR is up to date")
    p.add_argument("--json", action="store_true", help="print the outcome as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    with progress_bar() as progress:
        outcome = prepare(
            options.inputs,
            options.out,
            format=options.format,
            wanted=Wanted(options.user, options.item, options.time, options.rating, options.header),
            recipe=options.recipe,
            item_names=options.item_names,
            progress=progress,
            force=options.force,
            **{field.name: getattr(options, field.name) for field in fields(Settings)},
        )
    seconds = time.monotonic() - started
    dataset = outcome.dataset
    if options.json:
        manifest = dataset.manifest
        facts = {k: manifest[k] for k in ("counts", "log", "source", "ids", "times", "names")}
        print(json.dumps({"path": str(options.out), "unchanged": outcome.unchanged, **facts}, indent=1))
        return 0
    if outcome.unchanged:
        print(f"{options.out} is up to date: same input, same settings, nothing to do.")
        return 0
    print(_told(dataset, str(options.out), seconds, options.ties))
    return 0


def _told(dataset: Dataset, out: str, seconds: float, ties: str | None) -> str:
    source, log = dataset.manifest["source"], dataset.manifest["log"]
    lines = []
    for given in source["inputs"][:5]:
        columns = ", ".join(f"{r} = {given[r]}" for r in ("user", "item", "time") if given[r] is not None)
        lines.append(f"read      {given['name']} as {given['format']} ({columns})")
    if len(source["inputs"]) > 5:
        lines.append(f"          and {len(source['inputs']) - 5} more files")
    lines += [f"{label:<9} {text}" for label, text in _dropped(dataset, ties)]
    rate = log["rows"] / max(seconds, 1e-9)
    lines.append(
        f"made      {out}: {dataset.n_users:,} users, {dataset.n_items:,} items, {dataset.n_events:,} interactions,"
        f" mean length {dataset.n_events / dataset.n_users:.1f} ({seconds:.1f} s, {rate:,.0f} rows/s)"
    )
    lines.append(f"next      lrurec data describe {out}")
    return "\n".join(lines)


def _dropped(dataset: Dataset, given_ties: str | None) -> list[tuple[str, str]]:
    log, settings = dataset.manifest["log"], dataset.manifest["source"]["settings"]
    inputs = dataset.manifest["source"]["inputs"]
    notes = []
    if log["bad_rows"]:
        notes.append(("skipped", f"{log['bad_rows']:,} bad rows of {log['rows']:,}"))
    if log["below_min_rating"]:
        notes.append(("dropped", f"{log['below_min_rating']:,} events rated below {settings['min_rating']:g}"))
    if log["repeats_dropped"]:
        notes.append(("dropped", f"{log['repeats_dropped']:,} immediate repeats"))
    if log["events_filtered"]:
        notes.append(
            (
                "dropped",
                f"{log['events_filtered']:,} events: {log['items_filtered']:,} items and {log['users_filtered']:,}"
                f" users fell below {settings['min_item']} and {settings['min_user']}",
            )
        )
    if log["items_named"]:
        notes.append(("named", f"{log['items_named']:,} of {dataset.n_items:,} items"))
    single = int((dataset.offsets[1:] - dataset.offsets[:-1] == 1).sum())
    if single:
        notes.append(("note", f"{single:,} users have one event only; they are kept but teach nothing (--min-user 2)"))
    if dataset.times is None and given_ties is not None:
        notes.append(("note", f"the log has no times, so --ties {given_ties} has no effect"))
    elif dataset.times is None and any(i["format"] != "pairs" and i["format"] != "xlong" for i in inputs):
        notes.append(("note", "no time column was recognised, so the order of the file counts (name one with --time)"))
    for role, ids in (("user", dataset.user_ids), ("item", dataset.item_ids)):
        odd = [word for word in _MISSING if ids.kind == "text" and ids.index(word) is not None]
        if odd:
            notes.append(("note", f"'{odd[0]}' is taken as {role} id like any other; is it a missing value?"))
        if isinstance(ids, TextIds) and bool((ids.text == ord("\n")).any()):
            notes.append(("note", f"some {role} ids contain line breaks; is there a stray quote in the log?"))
    return notes
