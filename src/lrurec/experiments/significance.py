"""Is LRURec better than the others, or only luckier with these users? Every model of the main table against it, user by user.

The ranks of a cell's test items are kept beside it (ranks.npy): they are computed once.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lrurec.data.split import Targets
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.metrics import METRICS
from lrurec.evaluation.ranking import rank
from lrurec.evaluation.significance import Values, compare
from lrurec.experiments.cells import DONE, RANKS, RUN, records
from lrurec.experiments.made import Made, grid
from lrurec.experiments.rows import main as rows
from lrurec.experiments.tables import commands
from lrurec.training.run import Run

SHOWN = {"ndcg@10": "NDCG@10", "recall@10": "Recall@10"}
Record = dict[str, Any]


def made(out: Path, say: Callable[[str], None] = lambda text: None) -> Made:
    titles = {row.name: row.title for row in rows("dense")}
    by_dataset: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records(out, "main"):
        if record["state"] == DONE:
            by_dataset[record["dataset"]["name"]][record["row"]].append(record)
    tables = [
        _table(name, cells, titles, say) for name, cells in by_dataset.items() if len(cells) > 1 and "lrurec" in cells
    ]
    whole = {"target": "significance", "datasets": tables}
    return Made(whole, _page(tables))


def _table(name: str, cells: dict[str, list[Record]], titles: dict[str, str], say: Callable[[str], None]) -> Record:
    ours = _values(cells["lrurec"], say)
    found = [
        {
            "row": row,
            "title": titles.get(row, row),
            "seeds": len(cells[row]),
            **{m: asdict(compare(ours[m], theirs[m])) for m in SHOWN},
        }
        for row in sorted((r for r in cells if r != "lrurec"), key=list(titles).index)
        for theirs in [_values(cells[row], say)]
    ]
    return {
        "dataset": name,
        "users": len(ours["ndcg@10"]),
        "seeds": len(cells["lrurec"]),
        "against": found,
        "commands": commands("significance", [record for some in cells.values() for record in some], list(cells)),
    }


def _values(cells: list[Record], say: Callable[[str], None]) -> dict[str, Values]:
    """Per user, the mean over the seeds."""
    ranks = [_ranks(cell, say) for cell in cells]
    split = {m: m.split("@") for m in SHOWN}
    return {m: np.mean([METRICS[name](r, int(k)) for r in ranks], 0) for m, (name, k) in split.items()}


def _ranks(cell: Record, say: Callable[[str], None]) -> Any:
    """Of a cell's test items."""
    folder: Path = cell["folder"]
    path = folder / RANKS
    if path.exists():
        return np.load(path, allow_pickle=False)
    say(f"ranking {folder}")
    run = Run.open(folder / RUN)
    t = run.config.training
    drawn = Candidates(t.candidates, 0) if t.candidates else None
    targets: Targets = run.split(run.dataset(None)).test
    ranks = rank(run.model(), targets, t.seen, candidates=drawn, device=t.device).ranks
    aside = path.with_name(f".{os.getpid()}.{RANKS}")
    np.save(aside, ranks, allow_pickle=False)
    aside.replace(path)
    return ranks


def _page(tables: list[Record]) -> str:
    text = [
        "# Is it better, or luck?",
        "",
        "LRURec against every model of the main table on the test split: the difference in its favour with the 95% bootstrap interval over users, and p,",
        "how often swapping the two models at random, user by user, gives a difference as large. A user's value is the mean over the seeds.",
    ]
    for one in tables:
        head = [
            "LRURec against",
            "seeds",
            *(f"{name}, {what}" for name in SHOWN.values() for what in ("difference", "p")),
        ]
        cells = []
        for row in one["against"]:
            cells.append([row["title"], str(row["seeds"])])
            for m in SHOWN:
                d = row[m]
                cells[-1] += [f"{d['mean']:+.4f} ({d['low']:+.4f} to {d['high']:+.4f})", f"{d['p']:.4f}"]
        text += [
            "",
            f"## {one['dataset']}",
            "",
            f"{one['users']:,} users; LRURec with {one['seeds']} seed{'s' * (one['seeds'] != 1)}.",
            "",
        ]
        text += [*grid(head, cells), "", *(f"    {command}" for command in one["commands"])]
    return "\n".join(text) + "\n"
