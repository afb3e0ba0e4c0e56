"""How much the recipe `best` gains over the recipe `paper`, with and without its memory, on ML-1M and on Beauty.

    LRUREC_DATA=DIR python bench/best.py --runs DIR [--only ml-1m] [--seeds 3] [--other FOLDER ...]

Every run is a plain `lrurec train`, kept in the folder after --runs as best-NAME-SEED or paper-NAME-SEED (see bench/rows.py). The
table is written to results/ after each run. FOLDER is any other dataset folder, on which nothing was tuned: both recipes are
trained on it, too, `paper` with the settings of Beauty.
"""

import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lrurec
from accuracy import CASES, arguments, spread
from lrurec.data.dataset import Dataset
from lrurec.data.split import leave_last_out
from lrurec.evaluation.comparison import against
from lrurec.experiments.published import published
from lrurec.export import export
from lrurec.models.lrurec import LRURecConfig
from lrurec.serving.service import Live
from lrurec.training.config import RunConfig
from lrurec.training.memory import keep_memory
from lrurec.training.run import Run
from lrurec.training.together import learner_for
from measure import machine
from rows import Row, results, table_before

ROOT = Path(__file__).parents[1]
GOALS = {"ml-1m": (0.205, 0.340), "beauty": (0.040, 0.064)}
# The paper's protocol leaves these open, or chooses them by dataset; bfloat16 is ours, to save time.
PAPER = {
    "ml-1m": ("training.max_length=200", "training.validate_every=500", "training.precision=auto"),
    "beauty": ("model.dropout=0.6", "training.precision=auto"),
}


def rows(name: str, data: Path) -> dict[str, Row]:
    paper = PAPER.get(name, PAPER["beauty"])
    return {
        "best": Row(f"best-{name}", data, "best", keeps_ranks=True),
        "paper": Row(f"paper-{name}", data, "paper", paper, keeps_ranks=True),
    }


def compared(pair: dict[str, Row], gathered: dict[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """`best` and `paper`, user by user, over the seeds of which there are both: what `lrurec compare BEST ... --against PAPER ...` says."""
    best, paper = (row.ranks(gathered[recipe]) for recipe, row in pair.items())
    there = sorted(best.keys() & paper.keys())
    if not there:
        return None
    dataset = Dataset.open(pair["best"].data)
    split = leave_last_out(dataset)
    a, b = ([ranks[s] for s in there] for ranks in (best, paper))
    found = against(a, b, split.test, split.train.counts(dataset.n_items), (10,))
    return {"seeds": there, "users": len(split.test), **found}


def latency(folders: dict[str, Path], rounds: int = 300) -> dict[str, float]:
    """Microseconds of observe + recommend (top 10), the runs of one dataset in turns, and recommend alone: medians."""
    names = list(folders)
    took: dict[str, list[float]] = {recipe: [] for recipe in folders}
    asked: dict[str, list[float]] = {recipe: [] for recipe in folders}
    with tempfile.TemporaryDirectory() as scratch:
        lives = {}
        for recipe, folder in folders.items():
            opened = Run.open(folder)
            export(opened, opened.dataset(), Path(scratch) / recipe, index="exact")
            lives[recipe] = Live(Path(scratch) / recipe, Path(scratch) / f"{recipe}-store")
        dataset = Run.open(folders[names[0]]).dataset()
        rng = np.random.default_rng(0)
        for turn in range(rounds):
            user = int(rng.integers(dataset.n_users))
            items = dataset.items[dataset.offsets[user] : dataset.offsets[user + 1]]
            events = [dataset.item_ids[int(i)] for i in items[-20:]]
            for recipe in names if turn % 2 else names[::-1]:
                live, person = lives[recipe], f"u{turn}"
                before = [live.event(live.served, item, None, None) for item in events[:-1]]
                live.store.append(person, before, live.served.states)
                started = time.perf_counter()
                live.observe(person, events[-1])
                stored = time.perf_counter()
                live.recommend(person, 10)
                ended = time.perf_counter()
                took[recipe].append(ended - started)
                asked[recipe].append(ended - stored)
        for live in lives.values():
            live.close()
    whole, alone = (
        {recipe: 1e6 * statistics.median(times[rounds // 10 :]) for recipe, times in part.items()}
        for part in (took, asked)
    )
    return {**whole, **{f"{recipe}_recommend": us for recipe, us in alone.items()}}


def steps(folder: Path, turns: dict[str, RunConfig], rounds: int = 48) -> dict[str, float]:
    """Seconds of a training step of each config on the training data of a run, in turns: medians, as many threads as torch takes.

    In a process of its own, with memory and waiting threads as `lrurec train` has them.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        return alone.submit(_steps, folder, turns, rounds).result()


def _steps(folder: Path, turns: dict[str, RunConfig], rounds: int) -> dict[str, float]:
    keep_memory()
    opened = Run.open(folder)
    dataset = opened.dataset()
    train = opened.split(dataset).train
    learners = {name: learner_for(dataset.n_items, dataset.n_users, train, config) for name, config in turns.items()}
    took: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(rounds + 2):
        for name, learner in learners.items():
            started = time.perf_counter()
            learner.step(turn)
            took[name].append(time.perf_counter() - started)
    found = {name: statistics.median(times[2:]) for name, times in took.items()}
    return {**found, "threads": float(torch.get_num_threads())}


def beside_plain(folder: Path) -> dict[str, float]:
    """Seconds of a step of a run, and of the plain model with the same loss."""
    own = Run.open(folder).config
    return steps(folder, {"best": own, "paper": replace(own, model=LRURecConfig(dropout=own.model.dropout))})


def pair(results: list[dict[str, float]]) -> str:
    return " | ".join(spread([r[m] for r in results]) for m in ("ndcg@10", "recall@10"))


def accuracy(name: str, facts: dict[str, Any]) -> list[str]:
    """The rows of a dataset in the first table."""
    best, plain = results(facts["best"]), results(facts["paper"])
    printed, goal = published("main").of(name, "lrurec"), GOALS.get(name)
    lines = [f"| {name} | | the paper | {pair([printed])} |"] if printed else [f"| {name} | | | | |"]
    if known := [r["test"] for r in table_before(ROOT / "results" / "accuracy.json")["runs"] if r["dataset"] == name]:
        lines.append(f"| | {len(known)} | `fast` ([results/accuracy.md](accuracy.md)) | {pair(known)} |")
    if plain:
        lines.append(f"| | {len(plain)} | `paper` | {pair([r['test'] for r in plain])} |")
    if best:
        alone = [r["without_memory"]["test"] for r in best]
        lines.append(f"| | {len(best)} | `best` | {pair([r['test'] for r in best])} |")
        lines.append(f"| | {len(best)} | `best`, its model alone | {pair(alone)} |")
    return [*lines, f"| | | what we aim at | {goal[0]:.3f} | {goal[1]:.3f} |"] if goal else lines


def costs(found: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "## What it costs",
        "",
        "Medians, in turns in one process, beside the plain model (LRURec as published, no memory); observe + recommend: top 10, 20 events per user,",
        "embedded store, threads as the libraries choose; the training step with the same loss.",
        "",
        "| dataset | | `best` | plain | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for name, facts in found.items():
        measured: list[tuple[str, float, float, int]] = []
        if c := facts.get("latency"):
            measured += [
                ("observe + recommend, us", c["best"], c["paper"], 0),
                ("recommend alone, us", c["best_recommend"], c["paper_recommend"], 0),
            ]
        if t := facts.get("step"):
            measured.append((f"training step, s ({t['threads']:.0f} threads)", t["best"], t["paper"], 3))
        for what, own, plain, digits in measured:
            lines.append(f"| {name} | {what} | {own:.{digits}f} | {plain:.{digits}f} | {own / plain:.2f} |")
    return lines


def comparison(name: str, c: dict[str, Any]) -> list[str]:
    seeds = f"the mean of seeds {', '.join(map(str, c['seeds']))}" if len(c["seeds"]) > 1 else f"seed {c['seeds'][0]}"
    lines = ["", f"## {name}: `best` against `paper`, user by user, {seeds}", ""]
    lines += ["| metric | best | paper | difference | 95% interval | p |", "|---|---:|---:|---:|---:|---:|"]
    for metric, d in c["metrics"].items():
        cells = f"{d['mean'] / d['second']:+.1%} | {d['low']:+.5f} to {d['high']:+.5f} | {d['p']:.4f}"
        lines.append(f"| {metric} | {d['first']:.5f} | {d['second']:.5f} | {cells} |")
    groups = {"half of the users": "halves", "history": "by_history_length"}
    groups["training count of the target"] = "by_target_popularity"
    for title, key in groups.items():
        lines += ["", f"| {title} | users | best | paper | NDCG@10 | 95% interval |", "|---|---:|---:|---:|---:|---:|"]
        for s in c[key]:
            gain = f"{s['mean'] / s['second']:+.1%}" if s["second"] else "-"
            cells = f"{s['first']:.4f} | {s['second']:.4f} | {gain} | {s['low']:+.5f} to {s['high']:+.5f}"
            whose = f"{s.get('half', '')} {s['from']}-{s['to']}".strip()
            lines.append(f"| {whose} | {s['users']:,} | {cells} |")
    return lines


def write(runs: Path, tables: dict[str, dict[str, Row]], seeds: int, measures: bool = False) -> None:
    """The table; what it says of a dataset that is not asked for stays."""
    before = table_before(ROOT / "results" / "best.json")
    found: dict[str, Any] = {name: facts for name, facts in before.items() if name not in ("machine", *tables)}
    for name, pair in tables.items():
        old = before.get(name, {})
        gathered = {recipe: row.gathered(runs, seeds, old.get(recipe)) for recipe, row in pair.items()}
        if any(gathered.values()):
            same = all(
                old.get(recipe) and old[recipe]["config"] == (row or {}).get("config")
                for recipe, row in gathered.items()
            )
            kept = {k: v for k, v in old.items() if same and k not in pair}
            new = compared(pair, gathered)
            found[name] = {**gathered, **kept, **({"comparison": new} if new else {})}
            folders = {recipe: row.done(runs, 0) for recipe, row in pair.items()}
            if measures and folders["best"]:
                there = {recipe: folder for recipe, folder in folders.items() if folder}
                found[name]["step"] = beside_plain(folders["best"])
                if len(there) == len(folders):
                    found[name]["latency"] = latency(there)
    lines = [
        "# The recipe `best`",
        "",
        f"`LRUREC_DATA=DIR python bench/best.py --runs DIR` on {machine()}.",
        "Test split, all items ranked, seen ones masked; nothing of validation or test is trained or counted. Mean and standard deviation over the seeds.",
        "`paper` is the paper's protocol (a constant rate, until validation stops getting better), with "
        + "; ".join(f"{', '.join(f'`{s}`' for s in PAPER[name])} on {name}" for name in PAPER)
        + ".",
        "",
        "| dataset | seeds | | NDCG@10 | Recall@10 |",
        "|---|---:|---|---:|---:|",
    ]
    for name, facts in found.items():
        lines += accuracy(name, facts)
    lines += costs(found)
    for name, facts in found.items():
        if facts.get("comparison"):
            lines += comparison(name, facts["comparison"])
    folder = ROOT / "results"
    (folder / "best.json").write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    (folder / "best.md").write_text("\n".join(lines) + "\n")


def prepared(name: str, runs: Path) -> Path:
    """The dataset folder of a name."""
    if "LRUREC_DATA" not in os.environ:
        raise SystemExit("set LRUREC_DATA to the folder with ml-1m/ and beauty/")
    data = runs / "data" / name
    lrurec.load_events(Path(os.environ["LRUREC_DATA"]) / CASES[name].file, out=data, recipe="paper")
    return data


def main() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of the processes that are started from here
    options = arguments(__doc__, lambda parser: parser.add_argument("--other", type=Path, nargs="+", default=[]))
    folders = {name: prepared(name, options.runs) for name in options.only or CASES}
    folders |= {other.name: other for other in options.other}
    tables = {name: rows(name, folder) for name, folder in folders.items()}
    for pair in () if options.table else tables.values():
        for seed in range(options.seeds):
            for row in pair.values():
                row.train(options.runs, seed)
            write(options.runs, tables, options.seeds)
    write(options.runs, tables, options.seeds, measures=True)


if __name__ == "__main__":
    main()
