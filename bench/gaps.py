"""Time between events as an input of the model (model.gaps), on ML-100K: with and without, as logged and with shuffled ties; and `best`.

    LRUREC_DATA=DIR python bench/gaps.py --runs DIR [--seeds 3]

Many of that log's events share their second with another of the same person: their order is chance. So each score is also
measured on the log with such ties shuffled (`lrurec prepare --ties shuffle`). Every run is a plain `lrurec train`, kept after --runs (see
bench/rows.py). The table is written to results/gaps.md and results/gaps.json after each run.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import lrurec
from accuracy import spread
from measure import machine
from rows import Row, results, table_before

ROOT = Path(__file__).parents[1]
SETTINGS = ("training.max_length=200", "training.steps=800", "training.validate_every=100")
TIES = {"file": "as logged", "shuffle": "ties shuffled"}
MODELS = {
    "plain": ("`fast`", "fast", SETTINGS),
    "gaps": ("`fast`, `model.gaps=true`", "fast", (*SETTINGS, "model.gaps=true")),
    "best": ("`best`", "best", ()),
    "best-gaps": ("`best`, `model.gaps=true`", "best", ("model.gaps=true",)),
}


def tied(path: Path) -> float:
    """The share of events that have the same time as the one before or behind them."""
    dataset = lrurec.Dataset.open(path)
    assert dataset.times is not None
    same = np.diff(dataset.times) == 0
    same[dataset.offsets[1:-1] - 1] = False
    return float((np.append(same, False) | np.append(False, same)).mean())


def row(runs: Path, name: str, ties: str) -> Row:
    _, recipe, settings = MODELS[name]
    return Row(f"{name}-{ties}", runs / "data" / ties, recipe, settings)


def write(runs: Path, seeds: int) -> None:
    before = table_before(ROOT / "results" / "gaps.json").get("rows", {})
    found: dict[str, Any] = {"machine": machine(), "tied": tied(runs / "data" / "file"), "rows": {}}
    lines = [
        "# Time between events as an input",
        "",
        f"`LRUREC_DATA=DIR python bench/gaps.py --runs DIR` on {found['machine']}.",
        f"ML-100K, `--recipe fast` with {', '.join(f'`{s}`' for s in SETTINGS)}, and `--recipe best` as it is; {found['tied']:.0%} of its events share their time with another of the same person.",
        "Test, all items ranked, seen ones masked; the weights with the best validation Recall@10. Mean and standard deviation over the seeds. The time of the answer is no input.",
        "",
        "| log | model | seeds | NDCG@10 | Recall@10 | valid NDCG@10 | valid Recall@10 |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for ties, said in TIES.items():
        for name, (title, _, _) in MODELS.items():
            own = row(runs, name, ties)
            found["rows"][own.name] = own.gathered(runs, seeds, before.get(own.name))
            done = results(found["rows"][own.name])
            if not done:
                continue
            cells = [spread([r[part][m] for r in done]) for part in ("test", "valid") for m in ("ndcg@10", "recall@10")]
            lines.append(f"| {said} | {title} | {len(done)} | {' | '.join(cells)} |")
    (ROOT / "results" / "gaps.json").write_text(json.dumps(found, indent=1) + "\n")
    (ROOT / "results" / "gaps.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", required=True, type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if "LRUREC_DATA" not in os.environ:
        raise SystemExit("set LRUREC_DATA to the folder with ml-100k/")
    runs, log = options.runs, Path(os.environ["LRUREC_DATA"]) / "ml-100k" / "ml-100k.inter"
    for ties in TIES:
        if not (runs / "data" / ties).exists():
            lrurec.load_events(log, out=runs / "data" / ties, min_user=5, min_item=5, ties=ties, seed=0)
    for seed in range(options.seeds):
        for ties in TIES:
            for name in MODELS:
                row(runs, name, ties).train(runs, seed)
                write(runs, options.seeds)


if __name__ == "__main__":
    main()
