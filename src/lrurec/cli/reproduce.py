"""`lrurec reproduce`: the paper's tables again, cell by cell."""

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from lrurec.cli.arguments import Commands, positive
from lrurec.cli.attached import command
from lrurec.cli.console import table
from lrurec.cli.parts import need
from lrurec.cli.queue_view import view
from lrurec.errors import InputError, SettingsError

if TYPE_CHECKING:
    from lrurec.experiments.cells import Cell
    from lrurec.experiments.datasets import Found
    from lrurec.experiments.queue import Queue

EXAMPLES = """\
targets:
  main    Table 3: every model on every dataset, NDCG@10 and Recall@10 beside the published ones

A dataset is the name of a folder under --data, or the path of any folder made by lrurec prepare. Where LRUREC_DATA names a folder
with NAME/NAME.txt.gz, it is prepared from there. Settings follow the kind of the dataset (short histories: sparse, else dense).

Each model, dataset and seed is a cell with a folder of its own, OUT/main/ml-1m/sasrec/seed-0. What is done is not done again; what
was begun goes on; what failed is tried again. Ctrl-C saves (twice: does not); the same command goes on. Several of them may work
on one OUT. The table, OUT/main.md, is written after each cell. Exit code 0: all cells are done; 1: some failed or are left.

examples:
  lrurec reproduce main --datasets ml-1m,beauty
  lrurec reproduce main --datasets ml-1m --models sasrec,lrurec --seeds 0,1,2 --jobs 2
  lrurec reproduce main --datasets data/sports --budget 120            start nothing new after two hours
  lrurec reproduce main --datasets ml-1m --list                        what there is to do, and with which settings
  lrurec reproduce main --datasets data/mine --out try --set training.steps=200 --set training.validate_every=100
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "reproduce",
        help="the paper's tables, from one queue that can be stopped",
        description="Make a table of the paper again, with the published numbers beside ours.",
        epilog=EXAMPLES,
    )
    p.add_argument("target", metavar="TARGET", help="what to reproduce; see below")
    p.add_argument("--datasets", type=_names, metavar="A,B", help="names or paths (default: the table's that are here)")
    p.add_argument("--models", type=_names, metavar="A,B", help="of lrurec models (default: all)")
    p.add_argument("--seeds", type=_seeds, default=[0], metavar="0,1", help="one cell for each (default: 0)")
    p.add_argument("--out", default="reproduce", metavar="DIR", help="where cells and tables go (default: reproduce)")
    p.add_argument("--data", default="data", metavar="DIR", help="where the dataset folders are (default: data)")
    p.add_argument("--jobs", type=positive, default=1, metavar="N", help="cells at once; the cores are shared out")
    p.add_argument("--budget", type=_minutes, metavar="MINUTES", help="start no new cell after that")
    p.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting for all models that have it, over those of its kind of dataset",
    )
    p.add_argument(
        "--again",
        action="store_true",
        help="also do again what is there with other settings, and what failed, from its beginning",
    )
    p.add_argument("--results", metavar="DIR", help="copy the tables there, too, as baselines.md and baselines.json")
    p.add_argument("--list", action="store_true", help="do nothing; show the cells, their state and their settings")
    p.add_argument("--json", action="store_true", help="print the table (or the list) as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.experiments.cells import OTHER
    from lrurec.experiments.datasets import at_hand, find_all
    from lrurec.experiments.published import published
    from lrurec.experiments.queue import Queue
    from lrurec.experiments.settings import refuse_useless
    from lrurec.experiments.targets import Asked, target
    from lrurec.models.registry import MODELS, model_class

    chosen = target(options.target)
    models = options.models or list(MODELS)
    for name in models:
        model_class(name)
    refuse_useless(options.settings, models)
    out, data = Path(options.out), Path(options.data)
    if options.datasets:
        datasets = find_all(options.datasets, data, out)
    else:
        datasets = at_hand(list(published(chosen.name).values), data, out)
    given = tuple(options.settings)
    cells = chosen.plan(Asked(datasets, models, options.seeds, given, out))
    if options.list:
        print(_listed(cells, datasets, options.json))
        return 0
    if any(found.raw for found in datasets):
        cells = chosen.plan(Asked([_prepared(d) for d in datasets], models, options.seeds, given, out))
    other = [(cell, reason) for cell in cells for state, reason in [cell.state()] if state == OTHER]
    if other and not options.again:
        cell, reason = other[0]
        more = f", and {len(other) - 1} more cells are like it" if len(other) > 1 else ""
        raise SettingsError(
            f"{cell.folder} was made with other settings ({reason}){more};"
            " pass --again to do it again, or choose another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    results = Path(options.results) if options.results else None
    with view(len(cells), lambda: chosen.write(out, cells, results)) as watch:
        queue = Queue(cells, command, watch, options.jobs, options.budget, options.again)
        with _stop_gently(queue):
            queue.run()
    whole = chosen.write(out, cells, results)
    if queue.stops:
        print(f"lrurec: stopped; {len(queue.done)} of {len(cells)} cells are done; go on with:", file=sys.stderr)
        print(f"  {_same(options)}", file=sys.stderr)
        return 130
    print(json.dumps(whole, indent=1) if options.json else _told(whole, out / f"{chosen.name}.md"))
    if queue.waiting:
        print(
            f"lrurec: {len(queue.waiting)} of {len(cells)} cells are left; go on with:\n  {_same(options)}",
            file=sys.stderr,
        )
    if queue.failed:
        what = f"{len(queue.failed)} of {len(cells)} cells failed; their log.txt says more, such as"
        print(f"lrurec: {what} {queue.failed[0].folder / 'log.txt'}", file=sys.stderr)
    return 1 if queue.waiting or queue.failed else 0


def _prepared(found: "Found") -> "Found":
    """The dataset folder, made from the raw file if need be: in a process of its own, whose memory is not ours."""
    from lrurec.experiments.datasets import opened

    if found.raw is None:
        return found
    arguments = ["prepare", str(found.raw), "--out", str(found.path), "--recipe", "paper"]
    done = subprocess.run(command(arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError((done.stderr.strip() or f"{found.raw} could not be prepared").removeprefix("lrurec: "))
    return opened(found.path, found.given)


@contextmanager
def _stop_gently(queue: "Queue") -> Iterator[None]:
    """The first signal lets the cells save, the second does not."""

    def stop(number: int, frame: FrameType | None) -> None:
        queue.stops = min(queue.stops + 1, 2)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listed(cells: "list[Cell]", datasets: "list[Found]", as_json: bool) -> str:
    from lrurec.experiments.settings import table as rules

    states = [cell.state() for cell in cells]
    if as_json:
        told = [
            {"cell": c.name, "folder": str(c.folder), "state": s, "reason": r, **c.describe()}
            for c, (s, r) in zip(cells, states, strict=True)
        ]
        return json.dumps(told, indent=1)
    rows = [["dataset", "users", "items", "mean length", "kind", "from"]]
    for d in datasets:
        where = f"{d.raw} (to be prepared)" if d.raw else str(d.path)
        rows.append([d.name, f"{d.users:,}", f"{d.items:,}", f"{d.mean_length:.1f}", d.kind, where])
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for cell in cells:
        shown = tuple(a for a in cell.chosen.assignments if not a.startswith("training.seed="))
        names = groups.setdefault((cell.dataset.kind, cell.chosen.recipe, shown), [])
        names += [cell.model] if cell.model not in names else []
    below = rules()["sparse_below"]
    parts = [table(rows), f"sparse: fewer than {below} events per user on average; dense: as many or more"]
    for (kind, recipe, assignments), names in groups.items():
        options = " ".join(["--recipe", recipe, *(f"--set {a}" for a in assignments)])
        parts.append(f"{kind}, {', '.join(names)}:\n  {options}")
    listed = [[c.name, s + (f" ({r})" if r else "")] for c, (s, r) in zip(cells, states, strict=True)]
    parts.append(table([["cell", "state"], *listed]))
    return "\n\n".join(parts)


def _told(whole: dict[str, Any], path: Path) -> str:
    from lrurec.experiments.markdown import remarks, text_rows

    parts = [f"{t['dataset']}\n" + "\n".join([table(text_rows(t)), *remarks(t)]) for t in whole["datasets"]]
    return "\n\n".join([*parts, f"table     {path}"])


def _same(options: argparse.Namespace) -> str:
    """The command that goes on with this one."""
    words = ["lrurec", "reproduce", options.target]
    for name in ("datasets", "models", "seeds"):
        if getattr(options, name) and getattr(options, name) != options.parser.get_default(name):
            words += [f"--{name}", ",".join(map(str, getattr(options, name)))]
    for name in ("out", "data", "jobs", "budget", "results"):
        if getattr(options, name) != options.parser.get_default(name):
            words += [f"--{name}", f"{getattr(options, name):g}" if name == "budget" else str(getattr(options, name))]
    words += [word for setting in options.settings for word in ("--set", setting)]
    words += [f"--{name}" for name in ("again", "json") if getattr(options, name)]
    return shlex.join(words)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"'{text}' wants names with commas between them")
    return list(dict.fromkeys(names))


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        seeds = [-1]
    if min(seeds) < 0:
        raise argparse.ArgumentTypeError(f"'{text}' wants whole numbers from 0 on with commas between them")
    return sorted(set(seeds))


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not minutes > 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of minutes")
    return minutes
