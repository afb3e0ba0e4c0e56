"""Cells to rows: ours beside the paper's, what differs and by how much. Knows records, not how they were made.

Everything comes from the cell.json files of a folder, so that a table may grow over several calls and machines.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from lrurec.experiments.cells import DONE, FAILED
from lrurec.experiments.published import Published
from lrurec.experiments.rows import Row

METRICS = ("ndcg@10", "recall@10", "ndcg@20", "recall@20")
JUDGED = METRICS[:2]  # what the verdict is about
CLOSE = 0.05
APART = 0.10  # rows of the paper that lie further apart than that should have the same order here
Record = dict[str, Any]


def tables(records: Iterable[Record], published: Published, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One table per dataset, in the paper's order, others after; rows in the order given, LRURec last."""
    by_dataset: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_dataset[record["dataset"]["name"]].append(record)
    return [
        _table(name, by_dataset[name], published, rows)
        for name in sorted(by_dataset, key=lambda n: (_place(n.lower(), published.values), n))
    ]


def _table(name: str, records: Sequence[Record], published: Published, known: Sequence[Row]) -> dict[str, Any]:
    facts = records[-1]["dataset"]
    done = [record for record in records if record["state"] == DONE]
    strange = facts["not_the_papers"]
    by_row: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_row[record["row"]].append(record)
    places, titles = [row.name for row in known], {row.name: row.title for row in known}
    names = sorted(by_row, key=lambda row: (row == "lrurec", _place(row, places), row))
    rows = [_row(row, titles.get(row, row), by_row[row], published.of(name, row), strange is not None) for row in names]
    if len({r["dataset"]["content_id"] for r in records}) > 1:
        notes = ["the cells were trained on different versions of the dataset"]
    else:
        notes = [f"not the paper's data: {strange}"] if strange and name.lower() in published.values else []
    if name.lower() in published.notes:
        notes.append(published.notes[name.lower()])
    if len({tuple(r["given"]) for r in records}) > 1:
        notes.append("not all rows were given the same settings, as the commands show; compare with care")
    for row in rows:
        if row["mixed_settings"]:
            notes.append(f"{row['title']}: its seeds were trained with different settings")
    return {
        "dataset": name,
        **{key: facts[key] for key in ("kind", "users", "items", "events")},
        "rows": rows,
        "lead": _lead("" if strange else name, rows, published),
        "order": None if strange else order(rows),
        "spent": {"cells": len(done), "core_seconds": sum(r["seconds"] * r["threads"] for r in done)},
        "notes": notes,
        "commands": commands(published.target, records, names),
    }


def _row(
    name: str, title: str, records: Sequence[Record], paper: dict[str, float] | None, strange: bool
) -> dict[str, Any]:
    done = [r for r in records if r["state"] == DONE]
    failed = {r["seed"]: r["error"] for r in records if r["state"] == FAILED}
    ours = {m: _spread([r["test"][m] for r in done]) for m in METRICS} if done else None
    relative = {m: ours[m]["mean"] / paper[m] - 1 for m in METRICS} if ours and paper and not strange else None
    settings = [[s for s in r["settings"] if not s.startswith("training.seed=")] for r in done or records]
    return {
        "row": name,
        "title": title,
        "model": records[0]["model"],
        "seeds": [r["seed"] for r in done],
        "test": ours,
        "published": paper,
        "relative": relative,
        "verdict": verdict(relative, bool(done), strange),
        "failed": failed,
        "seconds": statistics.mean(r["seconds"] for r in done) if done else None,
        "peak_memory": max(r["peak_memory"] for r in done) if done else None,
        "threads": sorted({r["threads"] for r in done}),
        "recipe": records[0]["recipe"],
        "settings": settings[-1],
        "mixed_settings": any(s != settings[0] for s in settings),
    }


def verdict(relative: dict[str, float] | None, done: bool = True, strange: bool = False) -> str:
    """What the differences to the paper come to, by the worse of the two metrics.

    >>> verdict({"ndcg@10": 0.02, "recall@10": -0.05})
    'reproduced'
    >>> verdict({"ndcg@10": 0.07, "recall@10": 0.0})
    'above'
    >>> verdict({"ndcg@10": 0.07, "recall@10": -0.08})
    'below by 8.0%'
    """
    if not done:
        return "failed"
    if strange:
        return "other data"
    if relative is None:
        return "not in the paper"
    worst, best = min(relative[m] for m in JUDGED), max(relative[m] for m in JUDGED)
    if worst < -CLOSE:
        return f"below by {-worst:.1%}"
    return "above" if best > CLOSE else "reproduced"


def order(rows: Sequence[dict[str, Any]], metric: str = METRICS[0]) -> dict[str, Any] | None:
    """Whether what the paper has far apart lies the same way round here: how many pairs, and those that do not."""
    both = [r for r in rows if r["test"] and r["published"]]
    pairs = [(a, b) for a in both for b in both if a["published"][metric] > (1 + APART) * b["published"][metric]]
    turned = [(a["title"], b["title"]) for a, b in pairs if a["test"][metric]["mean"] < b["test"][metric]["mean"]]
    return {"metric": metric, "apart": APART, "pairs": len(pairs), "turned": turned} if pairs else None


def _spread(values: list[float]) -> dict[str, Any]:
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "spread": spread, "values": values}


def _lead(dataset: str, rows: Sequence[dict[str, Any]], published: Published) -> dict[str, Any] | None:
    """How far LRURec is ahead of the best other model here, metric by metric, and in the paper."""
    ours = next((r["test"] for r in rows if r["row"] == "lrurec"), None)
    others = [r for r in rows if r["row"] != "lrurec" and r["test"]]
    if ours is None or not others:
        return None
    lead = {}
    for metric in METRICS:
        best = max(others, key=lambda r: r["test"][metric]["mean"])
        value = best["test"][metric]["mean"]
        lead[metric] = {
            "over": best["title"],
            "ours": ours[metric]["mean"] / value - 1 if value else None,
            "published": published.improvement(dataset, metric),
        }
    return lead


def commands(target: str, records: Sequence[Record], rows: Sequence[str]) -> list[str]:
    """The commands that make these cells: one, if every row has the same seeds and settings."""
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for row in rows:
        mine = [r for r in records if r["row"] == row]
        for given in dict.fromkeys(tuple(r["given"]) for r in mine):
            seeds = tuple(sorted(r["seed"] for r in mine if tuple(r["given"]) == given))
            groups[given, seeds].append(row)
    dataset = records[-1]["dataset"]["given"]
    return [
        f"lrurec reproduce {target} --datasets {dataset} --models {','.join(names)} --seeds {','.join(map(str, seeds))}"
        + "".join(f" --set {setting}" for setting in given)
        for (given, seeds), names in groups.items()
    ]


def _place(name: str, known: Iterable[str]) -> int:
    order = list(known)
    return order.index(name) if name in order else len(order)
