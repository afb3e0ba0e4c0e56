"""One epoch at the size of XLong: how good the model is behind it, beside popularity and a Markov chain.

    lrurec data synth --preset xlong --out xlong.parquet
    lrurec prepare xlong.parquet --out data/xlong
    python bench/epoch.py --dataset data/xlong --run runs/xlong [--users 2000] [--pairs 32000000,64000000]

The run is a plain `lrurec train` with SETTINGS; one that is there is not trained again. Some users' test items are ranked among 10,000 sampled ones, as the paper does, and among all.
With --pairs, the validation items of these users are ranked with memories of other sizes, too (memory.pairs), each learned anew. Tables go to results/epoch.md
and results/epoch.json, after each line.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrurec.data.split import Sequences, Targets, leave_last_out
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.metrics import summary
from lrurec.evaluation.ranking import rank
from lrurec.models.base import Model, TrainedModel
from lrurec.models.markov import Markov
from lrurec.models.popularity import Popularity
from lrurec.training.checkpoint import load_checkpoint, save_tensors
from lrurec.training.config import config_for
from lrurec.training.learner import build
from lrurec.training.remembering import remember
from lrurec.training.run import Run
from lrurec.training.trainer import BEST, LAST, validations
from measure import machine

ROOT = Path(__file__).parents[1]
SETTINGS = (
    "training.max_length=1000", "training.batch=32", "training.loss=sampled", "training.negatives=4096",
    "training.shared_negatives=true", "training.candidates=10000", "training.steps=2205", "training.validate_every=1103",
    "memory.use=true",
)  # fmt: skip
TRAINED = "training.json"  # in the run: what its training took


def train(dataset: Path, run: Path) -> None:
    """The run, if it is not there yet, and how much memory its process had at most."""
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "-m", "lrurec.cli.main", "train", str(dataset), "--out", str(run), *options]
    subprocess.run(command, check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    (run / TRAINED).write_text(json.dumps({"peak": peak, "threads": torch.get_num_threads()}) + "\n")


def saving(run: Path) -> float:
    """Seconds that both checkpoints of a validation take, written once more."""
    again, total = run / "again.safetensors", 0.0
    for name in (LAST, BEST):
        tensors, state = load_checkpoint(run / name)
        started = time.perf_counter()
        save_tensors(again, tensors, state)
        total += time.perf_counter() - started
        again.unlink()
    return total


def popularity(train: Sequences, items: int) -> Model:
    model = build(items, 0, config_for("paper", None, [], "popularity"))
    assert isinstance(model, Popularity)
    model.keep("counts", torch.from_numpy(train.counts(items)).float())
    return model


def markov(train: Sequences, targets: Targets, items: int) -> Model:
    """The Markov chain with the rows that these targets look up; the others, which nobody asks for, stay empty."""
    model = build(items, 0, config_for("paper", None, [], "markov"))
    assert isinstance(model, Markov)
    c, counts = model.config, train.counts(items)
    wanted = np.zeros(items, np.bool_)
    for k in range(len(targets)):
        wanted[targets.history(k)[-c.window :]] = True
    whose = np.full(len(train.items), -1, np.int32)
    for k in range(len(train)):
        whose[train.starts[k] : train.stops[k]] = k
    keys, weights = [], []
    for gap in range(1, c.window + 1):
        near = np.flatnonzero(wanted[train.items[:-gap]] & (whose[:-gap] == whose[gap:]) & (whose[:-gap] >= 0))
        keys.append(train.items[near].astype(np.int64) * items + train.items[near + gap])
        weights.append(np.full(len(near), c.decay ** (gap - 1)))
    pairs, which = np.unique(np.concatenate(keys), return_inverse=True)
    before, after = pairs // items, pairs % items
    total = np.bincount(which, np.concatenate(weights)) / counts[before] ** c.from_power / counts[after] ** c.to_power
    model.keep("counts", torch.from_numpy(counts).float())
    model.keep("starts", torch.from_numpy(np.searchsorted(before, np.arange(items + 1))))
    model.keep("followers", torch.from_numpy(after))
    model.keep("weights", torch.from_numpy(total).float())
    return model


def measured(model: Model, targets: Targets, max_length: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, candidates in (("sampled", Candidates(10_000, 0)), ("all", None)):
        started = time.perf_counter()
        found[name] = summary(rank(model, targets, max_length, candidates=candidates).ranks)
        found[f"{name}_seconds"] = time.perf_counter() - started
    return found


def page(found: dict[str, Any]) -> str:
    lines = [
        "# One epoch at the size of XLong",
        "",
        f"`python bench/epoch.py --dataset data/xlong --run RUN --users {found['users']}` on {found['machine']}; its docstring has the commands that make the dataset.",
        f"A made-up log: {found['log']['users']:,} users, {found['log']['items']:,} items, {found['log']['interactions']:,} events. Width 64, length 1,000, batches of 32,",
        f"{found['steps']:,} steps: every event once. {found['training']} Test items of {found['users']:,} users drawn at random.",
        "",
        "| | Recall@10, 10,000 sampled | NDCG@10 | Recall@10, all items | NDCG@10 |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, f in found["models"].items():
        cells = [f"{f[p][m]:.4f}" for p in ("sampled", "all") for m in ("recall@10", "ndcg@10")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if found["sizes"]:
        lines += [
            "",
            f"Validation items of the same {found['users']:,} users, by the size of the memory (`memory.pairs`):",
            "",
        ]
        lines += [
            "| pairs | Recall@10, 10,000 sampled | NDCG@10 | Recall@10, all items | NDCG@10 |",
            "|---:|---:|---:|---:|---:|",
        ]
        for pairs, f in found["sizes"].items():
            cells = [f"{f[p][m]:.4f}" for p in ("sampled", "all") for m in ("recall@10", "ndcg@10")]
            lines.append(f"| {int(pairs):,} | {' | '.join(cells)} |")
    lines += ["", "The model alone, as it learned (validation, 10,000 sampled items, all users):", ""]
    lines += ["| step | Recall@10 | NDCG@10 |", "|---:|---:|---:|"]
    lines += [f"| {r['step']:,} | {r['recall@10']:.4f} | {r['ndcg@10']:.4f} |" for r in found["curve"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, type=Path)
    parser.add_argument("--dataset", type=Path, help="trains the run on it, if it is not there")
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--pairs", metavar="N,M", help="other sizes of the memory, for validation")
    options = parser.parse_args()
    if options.dataset and not (options.run / "result.json").exists():
        train(options.dataset, options.run)
    opened = Run.open(options.run)
    dataset = opened.dataset()
    split, items = leave_last_out(dataset), dataset.n_items
    drawn = np.sort(np.random.default_rng(0).permutation(len(split.test))[: options.users])
    targets, valid = (
        Targets(t.items, t.users[drawn], t.starts[drawn], t.positions[drawn]) for t in (split.test, split.valid)
    )
    model = opened.model()
    assert isinstance(model, TrainedModel)
    curve = validations(options.run)
    took = json.loads((options.run / TRAINED).read_text())
    rate, share = split.train.n_events / curve[-1]["seconds"], len(curve) * saving(options.run) / curve[-1]["seconds"]
    found: dict[str, Any] = {
        "machine": machine(), "users": len(targets), "log": opened.manifest["dataset"]["counts"], "steps": curve[-1]["step"],
        "curve": curve, "models": {}, "sizes": {}, "items_per_second": rate, "peak": took["peak"], "saving": share,
        "training": (
            f"Training with {took['threads']} threads, validation included: {rate:,.0f} items/s, {took['peak'] / 1e9:.1f} GB at most (the learning of"
            f" the memory included), {share:.1%} of the time for its {len(curve)} checkpoints."
        ),
    }  # fmt: skip
    memory = model.memory

    def note(name: str, some: Model, part: str = "models", whose: Targets = targets) -> None:
        found[part][name] = measured(some, whose, opened.config.training.seen)
        print(name, found[part][name], file=sys.stderr)
        (ROOT / "results" / "epoch.json").write_text(json.dumps(found, indent=1) + "\n")
        (ROOT / "results" / "epoch.md").write_text(page(found))

    note("popularity", popularity(split.train, items))
    note("a Markov chain", markov(split.train, targets, items))
    model.memory = None
    note("the model alone", model)
    if memory is not None:
        model.memory = memory
        note("the model with its memory", model)
        own, t = opened.config.memory, opened.config.training
        if options.pairs:
            note(str(items * own.of_each(items)), model, "sizes", valid)
        for pairs in map(int, options.pairs.split(",") if options.pairs else ()):
            model.memory = None
            model.memory = remember(model, split.train, replace(own, pairs=pairs), t.seen, t.seed)
            note(str(pairs), model, "sizes", valid)


if __name__ == "__main__":
    main()
