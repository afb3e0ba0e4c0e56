"""`lrurec evaluate`: how good a run is."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrurec.cli.arguments import CHECKPOINT, Commands, positive
from lrurec.cli.console import progress_bar, table
from lrurec.cli.parts import need
from lrurec.errors import NothingLeftError, SettingsError

if TYPE_CHECKING:
    from lrurec.data.dataset import Dataset
    from lrurec.data.split import Split
    from lrurec.evaluation.candidates import Candidates
    from lrurec.models.base import Model
    from lrurec.training.run import Run

EXAMPLES = """\
examples:
  lrurec evaluate runs/mine
  lrurec evaluate runs/mine --split valid -k 1 -k 10 --json
  lrurec evaluate runs/xlong --candidates 10000          as the paper evaluates XLong
"""
NOT_COMPARABLE = (
    "not comparable with metrics against all items: sampled ones are higher, and may order models differently"
)

NOBODY = "nobody in the dataset has three events or more, so that there is nothing to evaluate on"


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "evaluate",
        help="how good a run is",
        description="Rank every target against all items (what was seen is masked, ties count against the model)"
        " and report Recall, NDCG and MRR with 95% bootstrap intervals, and for whom it works.",
        epilog=EXAMPLES,
    )
    p.add_argument("path", metavar="RUN", help="a run folder made by lrurec train")
    p.add_argument("--split", choices=("test", "valid"), default="test")
    p.add_argument("-k", dest="ks", type=positive, action="append", metavar="K", help="cut-offs (default: 10 and 20)")
    p.add_argument("--checkpoint", choices=("best", "last"), default="best", help=CHECKPOINT)
    p.add_argument("--dataset", metavar="DIR", help="where the dataset is, if it has moved")
    p.add_argument("--baselines", action="store_true", help="also popularity and a Markov chain, for comparison")
    p.add_argument(
        "--candidates", type=positive, metavar="N", help="rank among N sampled items instead of all (not comparable)"
    )
    p.add_argument("--seed", type=int, metavar="S", help="which items --candidates draws (default 0)")
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.evaluation.candidates import Candidates
    from lrurec.training.run import Run

    if options.seed is not None and (options.candidates is None or options.seed < 0):
        raise SettingsError("--seed is a number from 0 on that says which items --candidates draws; pass both")
    opened = Run.open(Path(options.path))
    ks = options.ks or [10, 20]
    dataset, model = opened.dataset(options.dataset), opened.model(options.checkpoint)
    say_if_unfinished(opened)
    drawn = Candidates(options.candidates, options.seed or 0) if options.candidates else None
    split, report = examine(opened, dataset, model, options.split, ks, drawn)
    report |= {"model": opened.config.name, "checkpoint": options.checkpoint, **model.facts()}
    if options.baselines:
        report["baselines"] = baselines(opened, dataset, split, options.split, ks, drawn)
    print(json.dumps(report, indent=1) if options.json else _told(report, ks))
    return 0


def say_if_unfinished(opened: "Run") -> None:
    """A run that has no memory yet, or not made all of its steps, is worth less than it will be."""
    if lacks := opened.lacks_memory():
        print(f"lrurec: this is the model alone: {lacks}", file=sys.stderr)
    elif stopped := opened.unfinished():
        print(f"lrurec: this is an unfinished run: {stopped}", file=sys.stderr)


def examine(
    opened: "Run",
    dataset: "Dataset",
    model: "Model",
    part: str,
    ks: list[int],
    candidates: "Candidates | None" = None,
) -> "tuple[Split, dict[str, Any]]":
    """Rank a part of the split, with a progress bar; gives the split and the full report."""
    from lrurec.data.progress import counted
    from lrurec.evaluation.metrics import summary
    from lrurec.evaluation.ranking import alone, rank, vectors_of
    from lrurec.evaluation.report import full_report
    from lrurec.models.base import TrainedModel

    split = opened.split(dataset)
    targets = split.test if part == "test" else split.valid
    if not len(targets):
        raise NothingLeftError(NOBODY)
    t, vectors, without = opened.config.training, None, {}
    remembers = isinstance(model, TrainedModel) and model.memory is not None
    with progress_bar() as progress:
        if isinstance(model, TrainedModel) and remembers:  # ranked twice, encoded once
            shown = counted(progress, "encoding", len(targets))
            vectors = vectors_of(model, targets, t.seen, t.device, shown)
            shown = counted(progress, "ranking without the memory", len(targets))
            with alone(model):
                found = rank(
                    model, targets, t.seen, candidates=candidates, device=t.device, progress=shown, vectors=vectors
                )
            without = {"without_memory": summary(found.ranks, ks)}
        shown = counted(progress, "ranking", len(targets))
        ranking = rank(
            model, targets, t.seen, top=max(ks), candidates=candidates, device=t.device, progress=shown, vectors=vectors
        )
    report = full_report(ranking, targets, split.train.counts(dataset.n_items), ks) | {"split": part}
    return split, report | without | ranked(candidates, dataset.n_items)


def ranked(candidates: "Candidates | None", items: int) -> dict[str, Any]:
    """What a report says of how it ranked; a warning where it did among samples."""
    if candidates is None:
        return {"ranked": "all items ranked"}
    if candidates.covers(items):
        return {"ranked": f"all items ranked (there are no more than {candidates.count:,} others)"}
    return {
        "candidates": candidates.count,
        "seed": candidates.seed,
        "warning": NOT_COMPARABLE,
        "ranked": f"ranked among {candidates.count:,} sampled items (seed {candidates.seed})",
    }


def baselines(
    opened: "Run", dataset: "Dataset", split: "Split", part: str, ks: list[int], candidates: "Candidates | None"
) -> dict[str, dict[str, float]]:
    """What counting alone comes to on the same targets."""
    from lrurec.evaluation.metrics import summary
    from lrurec.evaluation.ranking import rank
    from lrurec.models.base import CountingModel
    from lrurec.training.config import config_for
    from lrurec.training.learner import build, whole_sequences

    targets = split.test if part == "test" else split.valid
    longest, found = opened.config.training.seen, {}
    for name in ("popularity", "markov"):
        model = build(dataset.n_items, dataset.n_users, config_for("paper", None, [], name))
        assert isinstance(model, CountingModel)
        model.count(whole_sequences(split.train, "cpu"))
        found[name] = summary(rank(model, targets, longest, candidates=candidates).ranks, ks)
    return found


def _told(report: dict[str, Any], ks: list[int]) -> str:
    without = report.get("without_memory")
    rows = [["metric", "value", "95% interval", *(["without its memory"] if without else [])]]
    for name, m in report["metrics"].items():
        other = [f"{without[name]:.5f}"] if without else []
        rows.append([name, f"{m['value']:.5f}", f"{m['low']:.5f} to {m['high']:.5f}", *other])
    parts = [f"{report['users']:,} users, {report['split']} split, {report['ranked']}", table(rows)]
    if "warning" in report:
        parts.insert(1, f"warning: {report['warning']}")
    if "baselines" in report:
        names = list(report["metrics"])
        ours = ["this model", *[f"{report['metrics'][n]['value']:.5f}" for n in names]]
        others = [[b, *[f"{values[n]:.5f}" for n in names]] for b, values in report["baselines"].items()]
        parts.append(table([["", *names], *others, ours]))
    for title, key in (
        ("by length of history", "by_history_length"),
        ("by training count of the target", "by_target_popularity"),
    ):
        head = ["range", "users", f"recall@{ks[0]}", f"ndcg@{ks[0]}"]
        lines = [
            [f"{s['from']}-{s['to']}", f"{s['users']:,}", f"{s[head[2]]:.4f}", f"{s[head[3]]:.4f}"] for s in report[key]
        ]
        parts.append(f"{title}\n{table([head, *lines])}")
    if "recommended" in report:
        r = report["recommended"]
        parts.append(
            f"recommended (top {r['top']}): {r['coverage']:.1%} of the catalogue occurs;"
            f" mean popularity percentile {r['mean_popularity_percentile']:.2f}"
        )
    if "mean_abs_lambda" in report:
        means = ", ".join(f"{v:.4f}" for v in report["mean_abs_lambda"])
        parts.append(f"mean |lambda| per block (the share of a state that lasts from one event to the next): {means}")
    return "\n\n".join(parts)
