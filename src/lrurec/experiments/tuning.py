"""Whether every model is tuned as hard as every other: the same trials around the settings of each, by validation alone.

A trial changes dropout or learning rate by one step. The main table has a model's best trial, or one that is at most
`LEVEL` behind it: less than that is the luck of a seed.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

from lrurec.experiments.cells import DONE, records
from lrurec.experiments.made import Made, grid
from lrurec.experiments.published import published
from lrurec.experiments.rows import telling_first
from lrurec.experiments.rows import tuning as rows

GOAL, BESIDE = "recall@10", "ndcg@10"
LEVEL = 0.01
Record = dict[str, Any]


def made(out: Path) -> Made:
    paper = published("main")
    titles = {row.group: row.title for row in telling_first(rows("dense")) if row.name.endswith("-as-it-is")}
    own = list(records(out, "tuning"))
    found = [r for r in (*own, *records(out, "main")) if r["state"] == DONE and r["model"] in titles]
    by_dataset: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in found:
        by_dataset[record["dataset"]["name"]][record["model"]].append(record)
    tables = []
    for name in sorted({r["dataset"]["name"] for r in own}):
        models = {m: by_dataset[name][m] for m in titles if any(r["target"] == "tuning" for r in by_dataset[name][m])}
        tables.append({"dataset": name, "models": [_model(m, titles[m], some) for m, some in models.items()]})
    whole = {
        "target": "tuning", "paper": paper.paper, "goal": GOAL, "datasets": tables,
        "machines": sorted({r["machine"] for r in found}),
    }  # fmt: skip
    lines = [
        "# Every model with other dropouts and rates",
        "",
        "Validation, all items ranked, seen ones masked; the best of a run. Each trial differs from the settings of the main table in what its row",
        "says. In bold: the best Recall@10 of a model. The test set takes no part.",
    ]
    for table in tables:
        lines += ["", f"## {table['dataset']}", ""]
        head = ["model", "dropout", "rate", "steps", "seed", "NDCG@10", "Recall@10", "in the main table"]
        lines += grid(head, [row for model in table["models"] for row in _cells(model)])
        lines += ["", *(remark(model) for model in table["models"]), ""]
        some = [f"--models {','.join(model['model'] for model in table['models'])}"]
        lines += [f"    lrurec reproduce tuning --datasets {table['dataset']} {' '.join(some)}"]
    return Made(whole, "\n".join(lines) + "\n")


def _model(model: str, title: str, some: list[Record]) -> dict[str, Any]:
    trials = [
        {
            "dropout": r["config"]["model"]["dropout"],
            "rate": r["config"]["training"]["learning_rate"],
            "steps": r["config"]["training"]["steps"],
            "seed": r["seed"],
            "valid": {m: r["valid"][m] for m in (BESIDE, GOAL)},
            "main": r["target"] == "main",
            "recipe": r["recipe"],
            "settings": r["settings"],
        }
        for r in some
    ]
    trials.sort(key=lambda t: (t["dropout"], t["rate"], t["steps"], t["seed"]))
    return {"model": model, "title": title, "trials": trials, "behind": behind(trials)}


def behind(trials: list[dict[str, Any]]) -> float | None:
    """By how much the main table's trial is behind the best of the same seeds; None where the main table has none."""
    mains = [t for t in trials if t["main"]]
    seeds = {t["seed"] for t in trials if not t["main"]}
    both = [t["valid"][GOAL] for t in mains if t["seed"] in seeds]
    if not both:
        return None
    best = max(t["valid"][GOAL] for t in trials if t["seed"] in seeds)
    return 1 - max(both) / best if best else 0.0


def _cells(model: dict[str, Any]) -> list[list[str]]:
    best = max(t["valid"][GOAL] for t in model["trials"])
    rows = []
    for t in model["trials"]:
        recall = f"{t['valid'][GOAL]:.5f}"
        cells = [f"{t['dropout']:g}", f"{t['rate']:g}", f"{t['steps']:,}", str(t["seed"]), f"{t['valid'][BESIDE]:.5f}"]
        bold = f"**{recall}**" if t["valid"][GOAL] == best else recall
        rows.append([model["title"], *cells, bold, "yes" if t["main"] else ""])
    return rows


def remark(model: dict[str, Any]) -> str:
    count, share = len(model["trials"]), model["behind"]
    if share is None:
        return f"- {model['title']}: {count} trials, none of them the main table's."
    if share == 0:
        return f"- {model['title']}: the main table has the best of {count} trials."
    told = f"- {model['title']}: the main table's is {share:.1%} behind the best of {count} trials"
    return told + (", less than the luck of a seed." if share <= LEVEL else ": **its settings should move.**")
