"""`lrurec reproduce`: the paper's tables again, cell by cell."""

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from lrurec.cli.arguments import Commands, positive
from lrurec.cli.attached import command
from lrurec.cli.console import as_text, table
from lrurec.cli.parts import need
from lrurec.cli.queue_view import view
from lrurec.errors import InputError, SettingsError

if TYPE_CHECKING:
    from lrurec.experiments.cells import Cell
    from lrurec.experiments.datasets import Found
    from lrurec.experiments.queue import Queue
    from lrurec.experiments.targets import Asked, Target

    Work = tuple[Target, Asked]

EXAMPLES = """\
targets:
  datasets     Table 2: how large each dataset is
  main         Table 3: every model on every dataset, NDCG@10 and Recall@10 beside the published ones
  significance LRURec against each of the others, user by user: better, or luck?
  tuning       every model with more and less dropout, half and twice the rate, by validation: is each tuned as LRURec is?
  xlong        Table 4: long histories, ranked among 10,000 sampled items
  lambda       Table 5: the average |lambda| of each block, with and without weight decay on it
  ablation     Table 6: LRURec without its parts, with one block, and with RWKV and S4
  curves       Figure 1, left: Recall@10 in training, by step and by second
  latency      Figure 1, right: the time of 2,048 predictions while histories grow
  sensitivity  Figure 4: Recall@10 by weight decay and by dropout
  all          all of them, as far as their datasets are here

A dataset is the name of a folder under --data, or the path of any folder made by lrurec prepare. Where LRUREC_DATA names a folder
with NAME/NAME.txt.gz, NAME one of the paper's, it is prepared from there. Settings follow the kind of the dataset (short histories: sparse, very long ones: long, else dense).

Each row, dataset and seed is a cell with a folder of its own, OUT/main/ml-1m/sasrec/seed-0; what two tables need is trained once. What is done is not done again; what
was begun goes on; what failed is tried again. Ctrl-C saves (twice: does not); the same command goes on. Several of them may work
on one OUT. The table, OUT/main.md (and .json, and pictures as .png and .svg), is written after each cell. Exit code 0: all cells are done; 1: some failed or are left.

examples:
  lrurec reproduce main --datasets ml-1m,beauty
  lrurec reproduce main --datasets ml-1m --models sasrec,lrurec --seeds 0,1,2 --jobs 2
  lrurec reproduce main --datasets data/sports --budget 120            start nothing new after two hours
  lrurec reproduce ablation --datasets beauty --models no-residual,s4  some rows of a table
  lrurec reproduce all --jobs 2 --budget 600                           the most telling cells first
  lrurec reproduce main --datasets ml-1m --list                        what there is to do, and with which settings
  lrurec reproduce main --datasets data/mine --out try --set training.steps=200 --set training.validate_every=100
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "reproduce",
        help="the paper's tables and figures, from one queue that can be stopped",
        description="Make a table or a figure of the paper again, with the published numbers beside ours.",
        epilog=EXAMPLES,
    )
    p.add_argument("target", metavar="TARGET", help="what to reproduce; see below")
    p.add_argument("--datasets", type=_names, metavar="A,B", help="names or paths (default: the table's that are here)")
    p.add_argument(
        "--models", type=_names, metavar="A,B", help="rows of the table: of lrurec models, or its own (default: all)"
    )
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
    p.add_argument("--results", metavar="DIR", help="copy tables and pictures there, too (main as baselines.md)")
    p.add_argument("--page", metavar="FILE", help="put all pages of --results on one, such as docs/results.md")
    p.add_argument("--list", action="store_true", help="do nothing; show the cells, their state and their settings")
    p.add_argument("--json", action="store_true", help="print the table (or the list) as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.experiments.queue import Queue
    from lrurec.experiments.results_page import write_page
    from lrurec.experiments.targets import TARGETS

    if options.page and not options.results:
        raise SettingsError("--page puts the pages of --results on one; pass --results DIR, too")
    works = _works(options)
    cells = _cells(works)
    if options.list:
        print(_listed(cells, _datasets(works), options.json))
        return 0
    if any(found.raw for found in _datasets(works)):
        made: dict[str, Found] = {}
        works = [(chosen, _prepared(asked, made)) for chosen, asked in works]
        cells = _cells(works)
    _refuse_other(cells, options.again)
    out = Path(options.out)
    _refuse_odd(out)
    out.mkdir(parents=True, exist_ok=True)
    results = Path(options.results) if options.results else None

    def write() -> list[dict[str, Any]]:
        written = [chosen.write(asked, chosen.plan(asked), results) for chosen, asked in works]
        if results is not None and options.page:
            write_page(results, Path(options.page), TARGETS.values())
        return written

    for chosen, _ in works:
        if chosen.measure is not None:
            chosen.measure(out, options.again, _say)
    with view(len(cells), write) as watch:
        queue = Queue(cells, command, watch, options.jobs, options.budget, options.again)
        with _stop_gently(queue):
            queue.run()
    tables = write()
    if queue.stops:
        print(f"lrurec: stopped; {len(queue.done)} of {len(cells)} cells are done; go on with:", file=sys.stderr)
        print(f"  {_same(options)}", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(tables[0] if options.target != "all" else tables, indent=1))
    else:
        print("\n\n".join(_told(one, out / f"{one['target']}.md") for one in tables))
    if queue.waiting:
        print(
            f"lrurec: {len(queue.waiting)} of {len(cells)} cells are left; go on with:\n  {_same(options)}",
            file=sys.stderr,
        )
    if queue.failed:
        what = f"{len(queue.failed)} of {len(cells)} cells failed; their log.txt says more, such as"
        print(f"lrurec: {what} {queue.failed[0].folder / 'log.txt'}", file=sys.stderr)
    return 1 if queue.waiting or queue.failed else 0


def _works(options: argparse.Namespace) -> "list[Work]":
    """Which targets, and what is asked of each. `all` passes over those whose datasets are not here."""
    from lrurec.experiments.datasets import at_hand, find_all
    from lrurec.experiments.settings import refuse_useless
    from lrurec.experiments.targets import TARGETS, Asked, target

    if options.target == "all" and options.models:
        raise SettingsError("--models chooses rows of one table; leave it out for all")
    out, data = Path(options.out), Path(options.data)
    works = []
    for chosen in TARGETS.values() if options.target == "all" else [target(options.target)]:
        need(chosen.part)
        chosen.check(options.models)
        if chosen.measure is not None and options.target != "all" and (options.datasets or options.budget):
            raise SettingsError(f"{chosen.name} is timed on models of fixed sizes; leave out --datasets and --budget")
        names = chosen.datasets
        if chosen.measure is not None:
            datasets = []
        elif options.datasets:
            datasets = find_all(options.datasets, data, out)
        else:
            try:
                datasets = at_hand(names, data, out)
            except InputError:
                if options.target != "all":
                    raise
                print(f"passed over {chosen.name}: none of {', '.join(names)} is here", file=sys.stderr)
                continue
        if options.target == "all" and options.datasets and names == ["xlong"]:
            datasets = [found for found in datasets if found.kind == "long"]  # its protocol is for those alone
        models = {row.model for row in chosen.select(options.models)}
        if models:
            refuse_useless(options.settings, sorted(models))
        results = Path(options.results) if options.results else None
        given = tuple(options.settings)
        works.append((chosen, Asked(datasets, options.models, options.seeds, given, out, _say, results)))
    return works


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _cells(works: "list[Work]") -> "list[Cell]":
    """Each once: what two tables need is trained once."""
    return list({cell.folder: cell for chosen, asked in works for cell in chosen.plan(asked)}.values())


def _datasets(works: "list[Work]") -> "list[Found]":
    return list({found.name: found for _, asked in works for found in asked.datasets}.values())


def _refuse_other(cells: "list[Cell]", again: bool) -> None:
    """Nothing starts where a cell was made with other settings, unless it is to be done again."""
    from lrurec.experiments.cells import OTHER

    other = [(cell, reason) for cell in cells for state, reason in [cell.state()] if state == OTHER]
    if other and not again:
        cell, reason = other[0]
        more = (
            f", and so {'was 1 other' if len(other) == 2 else f'were {len(other) - 1} others'}"
            if len(other) > 1
            else ""
        )
        raise SettingsError(
            f"{cell.folder} was made with other settings ({reason}){more};"
            " give the same --set as then, pass --again to do it again, or choose another --out"
        )


def _refuse_odd(out: Path) -> None:
    """What cannot be read would stop the table, after the work."""
    from lrurec.experiments.cells import records
    from lrurec.experiments.targets import TARGETS

    for name in TARGETS:
        for _ in records(out, name):
            pass


def _prepared(asked: "Asked", made: "dict[str, Found]") -> "Asked":
    """With dataset folders, made from the raw files if need be: in a process of its own, whose memory is not ours."""
    from lrurec.experiments.datasets import opened

    for found in asked.datasets:
        if found.raw is not None and found.name not in made:
            arguments = ["prepare", str(found.raw), "--out", str(found.path), "--recipe", "paper"]
            done = subprocess.run(command(arguments), capture_output=True, text=True, check=False)
            if done.returncode:
                raise InputError((done.stderr.strip() or f"{found.raw} could not be prepared").removeprefix("lrurec: "))
            made[found.name] = opened(found.path, found.given)
    return replace(asked, datasets=[made.get(found.name, found) for found in asked.datasets])


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
        names += [cell.row] if cell.row not in names else []
    below, above = rules()["sparse_below"], rules()["long_from"]
    kinds = f"sparse: fewer than {below} events per user on average; dense: as many or more; long: {above} or more"
    parts = [table(rows), kinds]
    for (kind, recipe, assignments), names in groups.items():
        options = " ".join(["--recipe", recipe, *(f"--set {a}" for a in assignments)])
        parts.append(f"{kind}, {', '.join(names)}:\n  {options}")
    listed = [[c.name, s + (f" ({r})" if r else "")] for c, (s, r) in zip(cells, states, strict=True)]
    parts.append(table([["cell", "state"], *listed]))
    return "\n\n".join(parts)


def _told(whole: dict[str, Any], path: Path) -> str:
    """A table of metrics as it is; of the others, the page."""
    from lrurec.experiments.markdown import remarks, text_rows

    if any("rows" in one for one in whole.get("datasets", ())):
        parts = [f"{t['dataset']}\n" + "\n".join([table(text_rows(t)), *remarks(t)]) for t in whole["datasets"]]
        return "\n\n".join([*parts, f"table     {path}"])
    return f"{as_text(path.read_text(encoding='utf-8'))}\n\npage      {path}"


def _same(options: argparse.Namespace) -> str:
    """The command that goes on with this one."""
    words = ["lrurec", "reproduce", options.target]
    for name in ("datasets", "models", "seeds"):
        if getattr(options, name) and getattr(options, name) != options.parser.get_default(name):
            words += [f"--{name}", ",".join(map(str, getattr(options, name)))]
    for name in ("out", "data", "jobs", "budget", "results", "page"):
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
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of minutes above 0")
    return minutes
