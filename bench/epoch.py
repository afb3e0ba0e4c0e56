"""One epoch at the size of XLong: how good the model is behind it, beside popularity and a Markov chain.

    lrurec data synth --preset xlong --out xlong.parquet
    lrurec prepare xlong.parquet --out data/xlong
    lrurec train data/xlong --out runs/xlong --set training.max_length=1000 --set training.batch=32 --set training.loss=sampled \
      --set training.negatives=4096 --set training.shared_negatives=true --set training.candidates=10000 --set training.steps=2205 \
      --set training.validate_every=1103 --set memory.use=true
    python bench/epoch.py --run runs/xlong [--users 2000]

Some users' test items are ranked among 10,000 sampled ones, as the paper does, and among all. Tables go to results/epoch.md
and results/epoch.json, after each line.
"""

import argparse
import json
import sys
import time
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
from lrurec.training.config import config_for
from lrurec.training.learner import build
from lrurec.training.run import Run
from measure import machine

ROOT = Path(__file__).parents[1]


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
        f"`python bench/epoch.py --run RUN --users {found['users']}` on {found['machine']}; its docstring has the commands that make the run.",
        f"A made-up log: {found['log']['users']:,} users, {found['log']['items']:,} items, {found['log']['interactions']:,} events. Width 64, length 1,000, batches of 32,",
        f"{found['steps']:,} steps: every event once. Test items of {found['users']:,} users drawn at random.",
        "",
        "| | Recall@10, 10,000 sampled | NDCG@10 | Recall@10, all items | NDCG@10 |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, f in found["models"].items():
        cells = [f"{f[p][m]:.4f}" for p in ("sampled", "all") for m in ("recall@10", "ndcg@10")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "The model alone, as it learned (validation, 10,000 sampled items, all users):", ""]
    lines += ["| step | Recall@10 | NDCG@10 |", "|---:|---:|---:|"]
    lines += [f"| {r['step']:,} | {r['recall@10']:.4f} | {r['ndcg@10']:.4f} |" for r in found["curve"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, type=Path)
    parser.add_argument("--users", type=int, default=2000)
    options = parser.parse_args()
    opened = Run.open(options.run)
    dataset = opened.dataset()
    split, items = leave_last_out(dataset), dataset.n_items
    drawn = np.sort(np.random.default_rng(0).permutation(len(split.test))[: options.users])
    t = split.test
    targets = Targets(t.items, t.users[drawn], t.starts[drawn], t.positions[drawn])
    model = opened.model()
    assert isinstance(model, TrainedModel)
    curve = [json.loads(line) for line in (options.run / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {
        "machine": machine(), "users": len(targets), "log": opened.manifest["dataset"]["counts"], "steps": curve[-1]["step"],
        "curve": curve, "models": {},
    }  # fmt: skip
    memory = model.memory

    def note(name: str, some: Model) -> None:
        found["models"][name] = measured(some, targets, opened.config.training.seen)
        print(name, found["models"][name], file=sys.stderr)
        (ROOT / "results" / "epoch.json").write_text(json.dumps(found, indent=1) + "\n")
        (ROOT / "results" / "epoch.md").write_text(page(found))

    note("popularity", popularity(split.train, items))
    note("a Markov chain", markov(split.train, targets, items))
    model.memory = None
    note("the model alone", model)
    if memory is not None:
        model.memory = memory
        note("the model with its memory", model)


if __name__ == "__main__":
    main()
