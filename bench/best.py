"""How much the recipe `best` gains over `fast`, with and without its memory, on ML-1M and on Beauty.

    LRUREC_DATA=DIR python bench/best.py --runs DIR [--only ml-1m] [--seeds 3]

Every run is a plain `lrurec train`, kept in the folder after --runs as best-NAME-SEED or fast-NAME-SEED; one that is already
there is not trained again (an unfinished one is resumed). The table is written to results/ after each run. `fast` is
trained with seed 0 alone, for the comparison user by user; results/accuracy.md has its three seeds.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lrurec
from accuracy import CASES, arguments, spread
from lrurec.export import export
from lrurec.serving.service import Live
from lrurec.training.learner import Learner
from lrurec.training.run import Run
from measure import machine

ROOT = Path(__file__).parents[1]
GOALS = {"ml-1m": (0.205, 0.340), "beauty": (0.040, 0.064)}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "lrurec.cli.main", *(str(a) for a in arguments)]


def train(folder: Path, data: Path, *options: str) -> None:
    if not (folder / "result.json").exists():
        go_on = (folder / "manifest.json").exists()
        subprocess.run(command("train", data, "--out", folder, *(["--resume"] if go_on else options)), check=True)


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def compared(runs: Path, name: str) -> dict[str, Any] | None:
    """`best` and `fast` of seed 0, user by user."""
    both = [runs / f"{recipe}-{name}-0" for recipe in ("best", "fast")]
    if not all((folder / "result.json").exists() for folder in both):
        return None
    done = subprocess.run(command("compare", *both, "-k", 10, "--json"), check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {k: v for k, v in found.items() if k not in ("first", "second")}


def latency(runs: Path, name: str, rounds: int = 300) -> dict[str, float] | None:
    """Microseconds of observe + recommend (top 10), `best` and `fast` in turns, and recommend alone: medians."""
    both = {recipe: runs / f"{recipe}-{name}-0" for recipe in ("best", "fast")}
    if not all((folder / "result.json").exists() for folder in both.values()):
        return None
    took: dict[str, list[float]] = {recipe: [] for recipe in both}
    asked: dict[str, list[float]] = {recipe: [] for recipe in both}
    with tempfile.TemporaryDirectory() as scratch:
        lives = {}
        for recipe, folder in both.items():
            opened = Run.open(folder)
            export(opened, opened.dataset(), Path(scratch) / recipe, index="exact")
            lives[recipe] = Live(Path(scratch) / recipe, Path(scratch) / f"{recipe}-store")
        dataset = Run.open(both["best"]).dataset()
        rng = np.random.default_rng(0)
        for turn in range(rounds):
            user = int(rng.integers(dataset.n_users))
            items = dataset.items[dataset.offsets[user] : dataset.offsets[user + 1]]
            events = [dataset.item_ids[int(i)] for i in items[-20:]]
            for recipe in ("best", "fast") if turn % 2 else ("fast", "best"):
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


def steps(runs: Path, name: str, rounds: int = 12) -> dict[str, float] | None:
    """Seconds of a training step, `best` and `fast` in turns: medians, as many threads as torch takes."""
    both = {recipe: runs / f"{recipe}-{name}-0" for recipe in ("best", "fast")}
    if not all((folder / "result.json").exists() for folder in both.values()):
        return None
    learners: dict[str, Learner] = {}
    took: dict[str, list[float]] = {recipe: [] for recipe in both}
    for recipe, folder in both.items():
        opened = Run.open(folder)
        dataset = opened.dataset()
        learners[recipe] = Learner(dataset.n_items, dataset.n_users, opened.split(dataset).train, opened.config)
    for turn in range(rounds + 2):
        for recipe, learner in learners.items():
            started = time.perf_counter()
            learner.step(turn)
            took[recipe].append(time.perf_counter() - started)
    found = {recipe: statistics.median(times[2:]) for recipe, times in took.items()}
    return {**found, "threads": float(torch.get_num_threads())}


def pair(results: list[dict[str, float]]) -> str:
    return " | ".join(spread([r[m] for r in results]) for m in ("ndcg@10", "recall@10"))


def write(runs: Path, names: list[str], seeds: int, measured: dict[str, Any] | None = None) -> None:
    found: dict[str, Any] = {}
    for name in names:
        folders = [runs / f"best-{name}-{s}" for s in range(seeds)]
        done = [read(f) for f in folders if (f / "result.json").exists()]
        if done:
            found[name] = {"best": done, "comparison": compared(runs, name)}
            if measured and name in measured:
                found[name] |= measured[name]
    lines = [
        "# The recipe `best`",
        "",
        f"`LRUREC_DATA=DIR python bench/best.py --runs DIR` on {machine()}.",
        "Test split, all items ranked, seen ones masked; nothing of validation or test is trained or counted. Mean and standard deviation over the seeds.",
        "",
        "| dataset | seeds | | NDCG@10 | Recall@10 |",
        "|---|---:|---|---:|---:|",
    ]
    for name, facts in found.items():
        case, done = CASES[name], facts["best"]
        lines += [
            f"| {name} | | the paper | {case.ndcg:.4f} | {case.recall:.4f} |",
            f"| | {len(done)} | `best` | {pair([r['test'] for r in done])} |",
            f"| | {len(done)} | `best`, its model alone | {pair([r['without_memory']['test'] for r in done])} |",
            f"| | | what we aim at | {GOALS[name][0]:.3f} | {GOALS[name][1]:.3f} |",
        ]
    if any(facts.get("latency") for facts in found.values()):
        lines += [
            "",
            "## What it costs",
            "",
            "Medians, in turns in one process; observe + recommend (top 10, 20 events per user, embedded store, threads as the libraries choose).",
            "",
        ]
        lines += ["| dataset | | `best` | `fast` | ratio |", "|---|---|---:|---:|---:|"]
        for name, facts in found.items():
            if (c := facts.get("latency")) and (t := facts.get("step")):
                rows = (
                    ("observe + recommend, us", c["best"], c["fast"], 0),
                    ("recommend alone, us", c["best_recommend"], c["fast_recommend"], 0),
                    (f"training step, s ({t['threads']:.0f} threads)", t["best"], t["fast"], 3),
                )
                for what, own, plain, digits in rows:
                    lines.append(f"| {name} | {what} | {own:.{digits}f} | {plain:.{digits}f} | {own / plain:.2f} |")
    for name, facts in found.items():
        if (c := facts["comparison"]) is None:
            continue
        lines += ["", f"## {name}: `best` against `fast`, seed 0, user by user", ""]
        lines += ["| metric | best | fast | difference | 95% interval | p |", "|---|---:|---:|---:|---:|---:|"]
        for metric, d in c["metrics"].items():
            gain = f"{d['mean'] / d['second']:+.1%}"
            lines.append(
                f"| {metric} | {d['first']:.5f} | {d['second']:.5f} | {gain} | {d['low']:+.5f} to {d['high']:+.5f} | {d['p']:.4f} |"
            )
        for key, title in (("by_history_length", "history"), ("by_target_popularity", "training count of the target")):
            lines += ["", f"| {title} | users | best | fast | NDCG@10 |", "|---|---:|---:|---:|---:|"]
            for s in c[key]:
                gain = f"{s['first'] / s['second'] - 1:+.1%}" if s["second"] else "-"
                lines.append(
                    f"| {s['from']}-{s['to']} | {s['users']:,} | {s['first']:.4f} | {s['second']:.4f} | {gain} |"
                )
    results = ROOT / "results"
    (results / "best.json").write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    (results / "best.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    options = arguments(__doc__)
    names = options.only or list(CASES)
    if not options.table:
        if "LRUREC_DATA" not in os.environ:
            raise SystemExit("set LRUREC_DATA to the folder with ml-1m/ and beauty/")
        for name in names:
            data = options.runs / "data" / name
            lrurec.load_events(Path(os.environ["LRUREC_DATA"]) / CASES[name].file, out=data, recipe="paper")
            settings = [s for s in CASES[name].settings if not s.startswith("training.precision")]
            train(options.runs / f"fast-{name}-0", data, *(o for s in settings for o in ("--set", s)))
            for seed in range(options.seeds):
                folder = options.runs / f"best-{name}-{seed}"
                train(folder, data, "--recipe", "best", "--set", f"training.seed={seed}")
                write(options.runs, names, options.seeds)
    measured = {name: {"latency": latency(options.runs, name), "step": steps(options.runs, name)} for name in names}
    write(options.runs, names, options.seeds, measured)


if __name__ == "__main__":
    main()
