"""`lrurec compare`: which of two runs, or of two groups of runs, is better, and whether that may be luck."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrurec.cli.arguments import Commands, positive
from lrurec.cli.console import progress_bar, table
from lrurec.cli.parts import need
from lrurec.errors import NothingLeftError, SettingsError

if TYPE_CHECKING:
    from lrurec.data.split import Split, Targets
    from lrurec.evaluation.candidates import Candidates
    from lrurec.evaluation.metrics import Ranks
    from lrurec.training.run import Run

FEWEST = 10  # users of a slice that the last line may name: an interval of fewer says little
SLICES = {"halves": "", "by_history_length": "history ", "by_target_popularity": "training count "}
EXAMPLES = """\
For each metric: the mean of both runs over the same users, the difference with its 95% bootstrap interval, and p: how often
swapping the two runs at random, user by user, gives a difference as large. A p of 0.05 or more may well be luck. It is about
these users; another seed of the same model is another matter: train several, and name them all (--against): what a user gets
is then the mean over the runs of a side. Below that, for whom: short and long histories, rare and popular targets (by how
often a target occurs in training), as halves of the users and in ranges that double, each with its interval: a range of few
users swings by luck alone. The last line says which is better, and names the slices of ten users or more where the other one
surely is.

examples:
  lrurec compare runs/lrurec runs/sasrec
  lrurec compare runs/lrurec-0 runs/lrurec-1 --against runs/sasrec-0 runs/sasrec-1       two seeds of each
  lrurec compare runs/a runs/b --split valid -k 10 --json
  lrurec compare runs/a runs/b --candidates 10000        among sampled items, as the paper evaluates XLong
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "compare",
        help="which of two runs is better, and whether that may be luck",
        description="Compare two runs on the same dataset, or several seeds of two models, user by user.",
        epilog=EXAMPLES,
    )
    p.add_argument("runs", metavar="RUN", nargs="+", help="two run folders, A and B; or those of A alone")
    p.add_argument("--against", metavar="RUN", nargs="+", help="those of B, trained on the same dataset")
    p.add_argument("--split", choices=("test", "valid"), default="test")
    p.add_argument("-k", dest="ks", type=positive, action="append", metavar="K", help="cut-offs (default: 10 and 20)")
    p.add_argument("--dataset", metavar="DIR", help="where the dataset is, if it has moved")
    p.add_argument(
        "--candidates", type=positive, metavar="N", help="rank among N sampled items instead of all, as evaluate does"
    )
    p.add_argument("--seed", type=int, default=0, metavar="S", help="of the random draws (default 0)")
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.cli.evaluate import NOBODY, ranked, say_if_unfinished
    from lrurec.evaluation.candidates import Candidates
    from lrurec.evaluation.comparison import against
    from lrurec.training.config import WHOLE
    from lrurec.training.run import Run

    if options.seed < 0:
        raise SettingsError("--seed is a number from 0 on")
    sides = [[Run.open(Path(path)) for path in paths] for paths in _sides(options)]
    first = sides[0][0]
    for opened in (*sides[0], *sides[1]):
        if opened.manifest["dataset"]["content_id"] != first.manifest["dataset"]["content_id"]:
            raise SettingsError(
                f"{first.folder} and {opened.folder} were trained on different datasets; compare runs of one"
            )
    dataset = first.dataset(options.dataset)
    asked = [
        [_asked(opened.split(dataset), options.split) for opened in side] for side in sides
    ]  # seen answers are refused
    if not len(asked[0][0]):
        raise NothingLeftError(NOBODY)
    drawn = Candidates(options.candidates, options.seed) if options.candidates else None
    a, b = (
        [_ranks(opened, targets, drawn) for opened, targets in zip(*side, strict=True)]
        for side in zip(sides, asked, strict=True)
    )
    for opened in (*sides[0], *sides[1]):
        say_if_unfinished(opened)
    split, targets = first.split(dataset), asked[0][0]
    counts = split.train.counts(first.manifest["dataset"]["counts"]["items"])
    report = {
        **{name: [str(r.folder) for r in side] for name, side in zip(("first", "second"), sides, strict=True)},
        "split": options.split,
        **ranked(drawn, dataset.n_items),
        "users": len(targets),
        "seed": options.seed,
        **against(a, b, targets, counts, options.ks or [10, 20], options.seed),
    }
    shown = [side[0].config.training.seen for side in sides]
    if shown[0] != shown[1]:
        a_sees, b_sees = ("all" if n == WHOLE else f"the newest {n}" for n in shown)
        print(f"lrurec: A sees {a_sees} items of a history, B {b_sees}", file=sys.stderr)
    print(json.dumps(report, indent=1) if options.json else _told(report))
    return 0


def _sides(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The folders of A and of B."""
    if options.against:
        return options.runs, options.against
    if len(options.runs) != 2:
        many = f"{len(options.runs)} runs are" if len(options.runs) > 1 else "one run is"
        raise SettingsError(f"{many} no pair; name two, or those of A, then --against and those of B")
    return options.runs[:1], options.runs[1:]


def _asked(split: "Split", part: str) -> "Targets":
    return split.test if part == "test" else split.valid


def _ranks(opened: "Run", targets: "Targets", drawn: "Candidates | None") -> "Ranks":
    from lrurec.data.progress import counted
    from lrurec.evaluation.ranking import rank

    t = opened.config.training
    with progress_bar() as progress:
        shown = counted(progress, f"ranking {opened.folder}", len(targets))
        return rank(opened.model(), targets, t.seen, candidates=drawn, device=t.device, progress=shown).ranks


def _told(report: dict[str, Any]) -> str:
    rows = [["metric", "A", "B", "A - B", "95% interval", "relative", "p", "A better", "B better"]]
    for name, d in report["metrics"].items():
        relative = f"{d['mean'] / d['second']:+.1%}" if d["second"] else "-"
        rows.append(
            [
                name,
                f"{d['first']:.5f}",
                f"{d['second']:.5f}",
                f"{d['mean']:+.5f}",
                f"{d['low']:+.5f} to {d['high']:+.5f}",
                relative,
                f"{d['p']:.4f}",
                f"{d['better']:,}",
                f"{d['worse']:,}",
            ]
        )
    a, b = (", ".join(report[side]) for side in ("first", "second"))
    head = f"A: {a}\nB: {b}\n{report['users']:,} users, {report['split']} split, {report['ranked']}"
    if "warning" in report:
        head += f"\nwarning: {report['warning']}"
    by = [
        f"{report['sliced']} by {title}\n{_sliced(report[key])}"
        for key, title in (
            ("by_history_length", "length of history"),
            ("by_target_popularity", "training count of the target"),
        )
    ]
    if report["halves"]:
        by.insert(0, f"{report['sliced']} by halves of the users\n{_sliced(report['halves'])}")
    return "\n\n".join([head, table(rows), *by, _verdict(report)])


def _sliced(slices: list[dict[str, Any]]) -> str:
    rows = [["range", "users", "A", "B", "95% interval of A - B", "relative"]]
    for s in slices:
        relative = f"{s['mean'] / s['second']:+.1%}" if s["second"] else "-"
        cells = [f"{s['first']:.5f}", f"{s['second']:.5f}", f"{s['low']:+.5f} to {s['high']:+.5f}", relative]
        rows.append([_range(s), f"{s['users']:,}", *cells])
    return table(rows)


def _verdict(report: dict[str, Any]) -> str:
    """One sentence on the first NDCG, and for whom it is not so: slices whose interval lies on the other side of zero."""
    name, d = next((n, d) for n, d in report["metrics"].items() if n.startswith("ndcg"))
    if d["p"] >= 0.05:
        return f"{name}: no difference that these users can show (p = {d['p']:.2f})"
    better, worse, sign = ("A", "B", 1) if d["mean"] > 0 else ("B", "A", -1)
    but_for = [
        f"{kind}{_range(s)} ({sign * s['mean'] / s['first' if sign < 0 else 'second']:+.1%})"
        for key, kind in SLICES.items()
        for s in report[key]
        if max(sign * s["low"], sign * s["high"]) < 0 and s["users"] >= FEWEST
    ]
    but = f"; but {worse} for {', '.join(but_for)}" if but_for else ", and in no slice surely worse"
    return f"{name}: {better} is better (p = {d['p']:.4f}){but}"


def _range(s: dict[str, Any]) -> str:
    return f"{s.get('half', '')} {s['from']}-{s['to']}".strip()
