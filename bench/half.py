"""What an item table in 16 bits per number (`lrurec export --half`) costs in accuracy.

    python bench/half.py RUN... [--users N]

Test items are ranked with the table as it was trained and as it is rounded; everything else stays as it is. The table goes to
results/half.md and results/half.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrurec.data.split import Targets, leave_last_out
from lrurec.evaluation.metrics import ndcg, recall
from lrurec.evaluation.ranking import rank
from lrurec.models.lrurec import LRURec
from lrurec.training.run import Run
from measure import machine

ROOT = Path(__file__).parents[1]


def measured(folder: Path, users: int) -> dict[str, Any]:
    opened = Run.open(folder)
    t = leave_last_out(opened.dataset()).test
    drawn = np.sort(np.random.default_rng(0).permutation(len(t))[:users])
    targets = Targets(t.items, t.users[drawn], t.starts[drawn], t.positions[drawn])
    model = opened.model()
    assert isinstance(model, LRURec)
    found: dict[str, Any] = {"run": folder.name, "users": len(targets), "items": model.sizes.items}
    best = {}
    for bits in (32, 16):
        ranking = rank(model, targets, opened.config.training.seen, top=20)
        found[f"ndcg@10, {bits}"] = float(ndcg(ranking.ranks, 10).mean())
        found[f"recall@10, {bits}"] = float(recall(ranking.ranks, 10).mean())
        best[bits] = ranking.recommended
        with torch.no_grad():
            model.embedding[1:] = model.embedding[1:].half().float()
    found["same"] = float(np.mean([len(set(a) & set(b)) / 20 for a, b in zip(best[32], best[16], strict=True)]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--users", type=int, default=20_000)
    options = parser.parse_args()
    rows = [measured(folder, options.users) for folder in options.runs]
    lines = [
        "# An item table in 16 bits",
        "",
        f"`python bench/half.py RUN... --users {options.users}` on {machine()}. Test split, all items ranked; float16 for the vectors of the items,",
        "everything else as trained. Of the best 20 items, so many are the same.",
        "",
        "| run | items | users | NDCG@10, 32 bits | 16 bits | Recall@10, 32 bits | 16 bits | same top 20 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        cells = [f"{r[f'{m}@10, {bits}']:.5f}" for m in ("ndcg", "recall") for bits in (32, 16)]
        lines.append(f"| {r['run']} | {r['items']:,} | {r['users']:,} | {' | '.join(cells)} | {r['same']:.2%} |")
    (ROOT / "results" / "half.md").write_text("\n".join(lines) + "\n")
    (ROOT / "results" / "half.json").write_text(json.dumps({"machine": machine(), "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
