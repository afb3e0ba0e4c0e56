"""Whether averaged weights are better than the last ones: one model of `best`, without its memory, on ML-1M and on Beauty.

    LRUREC_DATA=DIR python bench/average.py --runs DIR [--only beauty] [--seeds 3]

From 60% of the steps on, every 20th state of the weights goes into a mean in which older ones fade (a fifth per state) and into one in which all
weigh the same. Both are ranked on validation, where this would be decided, beside the weights that training ends with. No test item is looked at.
The table is written to results/average.md and results/average.json after each run.
"""

import json
from pathlib import Path
from typing import Any

import torch

from accuracy import CASES, arguments, spread
from best import prepared
from lrurec.data.dataset import Dataset
from lrurec.data.split import leave_last_out
from lrurec.evaluation.metrics import summary
from lrurec.evaluation.ranking import rank
from lrurec.training.config import config_for
from lrurec.training.together import learner_for
from measure import machine
from rows import table_before

ROOT = Path(__file__).parents[1]
OFF = ("memory.use=false", "training.finish=0")
ONE = {"ml-1m": ("training.steps=2250",), "beauty": ("training.steps=4000", "model.copies=1")}
FROM, EVERY, FADE = 0.6, 20, 0.2
WAYS = {"last": "the last weights", "fading": "a mean that fades", "even": "an even mean"}


def trial(data: Path, name: str, seed: int) -> dict[str, dict[str, float]]:
    """Validation metrics of the three."""
    dataset = Dataset.open(data)
    settings = [*OFF, *ONE[name], f"training.seed={seed}"]
    config = config_for("best", None, settings, None, dataset.size)
    split = leave_last_out(dataset)
    learner = learner_for(dataset.n_items, dataset.n_users, split.train, config)
    weights = dict(learner.model.named_parameters())
    means: dict[str, dict[str, torch.Tensor]] = {}
    begin, taken = int(FROM * learner.steps), 0
    for number in range(learner.steps):
        learner.step(number)
        if number >= begin and (number + 1 - begin) % EVERY == 0:
            learner.settle()
            now, taken = {k: v.detach().clone() for k, v in weights.items()}, taken + 1
            for way, share in (("fading", FADE), ("even", 1 / taken)):
                old = means.setdefault(way, now)
                means[way] = {k: torch.lerp(old[k], v, share) for k, v in now.items()}
    learner.settle()
    means["last"] = {k: v.detach().clone() for k, v in weights.items()}
    found = {}
    for way in WAYS:
        with torch.no_grad():
            for k, v in means[way].items():
                weights[k].copy_(v)
        found[way] = summary(rank(learner.model, split.valid, config.training.seen).ranks, (10,))
    return found


def write(found: dict[str, Any]) -> None:
    lines = [
        "# Averaged weights",
        "",
        f"`LRUREC_DATA=DIR python bench/average.py --runs DIR` on {machine()}.",
        f"`--recipe best` with {', '.join(f'`{s}`' for s in OFF)}, one model, half of the steps; validation, all items ranked, seen ones masked. Mean and standard deviation over the seeds.",
        f"Means are over every {EVERY}th state of the last {1 - FROM:.0%} of the steps.",
        "",
        "| dataset | weights | seeds | valid NDCG@10 | valid Recall@10 |",
        "|---|---|---:|---:|---:|",
    ]
    for name in CASES:
        runs = list(found.get(name, {}).values())
        for way, title in WAYS.items() if runs else ():
            cells = " | ".join(spread([r[way][m] for r in runs]) for m in ("ndcg@10", "recall@10"))
            lines.append(f"| {name} | {title} | {len(runs)} | {cells} |")
    (ROOT / "results" / "average.json").write_text(json.dumps({**found, "machine": machine()}, indent=1) + "\n")
    (ROOT / "results" / "average.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    options = arguments(__doc__)
    for name in options.only or CASES:
        for seed in range(options.seeds):
            found = table_before(ROOT / "results" / "average.json")
            if str(seed) not in found.setdefault(name, {}):
                found[name][str(seed)] = trial(prepared(name, options.runs), name, seed)
                write(found)


if __name__ == "__main__":
    main()
