"""Whether every model is tuned as hard as every other: the same trials around the settings of each, by validation alone.

A trial changes dropout or learning rate by one step. The main table has a model's best trial, or one that is at most
`LEVEL` behind it: less than that is the luck of a seed. Trials may be shorter than the run of the main table
(`--set training.steps=N`); then its settings are among them with as many steps, and trials are compared with their like.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lrurec.errors import FolderError
from lrurec.experiments.cells import DONE, records
from lrurec.experiments.made import Made, grid
from lrurec.experiments.published import published
from lrurec.experiments.rows import telling_first
from lrurec.experiments.rows import tuning as rows
from lrurec.experiments.settings import settings_for
from lrurec.training.config import config_for

GOAL, BESIDE = "recall@10", "ndcg@10"
LEVEL = 0.01
Record = dict[str, Any]
Trial = dict[str, Any]


def made(out: Path, given: Sequence[str] = (), results: Path | None = None) -> Made:
    """From all cells that are there, and the trials that the table among the results has already: it grows over machines."""
    paper = published("main")
    titles = {row.group: row.title for row in telling_first(rows("dense")) if row.name.endswith("-as-it-is")}
    own = [r for r in records(out, "tuning") if r["state"] == DONE]
    found = [*own, *(r for r in records(out, "main") if r["state"] == DONE and r["model"] in titles)]
    trials: dict[str, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    kinds: dict[str, str] = {}
    for record in found:
        trials[record["dataset"]["name"]][record["model"]].append(_trial(record))
        kinds[record["dataset"]["name"]] = record["dataset"]["kind"]
    before = _before(results)
    for table in before.get("datasets", ()):
        kinds.setdefault(table["dataset"], table["kind"])
        for model in table["models"]:
            trials[table["dataset"]][model["model"]] += model["trials"]
    tables = []
    for name in sorted(
        {r["dataset"]["name"] for r in own} | {table["dataset"] for table in before.get("datasets", ())}
    ):
        models = [_model(m, titles[m], trials[name][m], kinds[name], given) for m in titles]
        tables.append({"dataset": name, "kind": kinds[name], "models": [m for m in models if m["trials"]]})
    whole = {
        "target": "tuning", "paper": paper.paper, "goal": GOAL, "datasets": tables,
        "machines": sorted({r["machine"] for r in found} | set(before.get("machines", ()))),
    }  # fmt: skip
    lines = [
        "# Every model with other dropouts and rates",
        "",
        "Validation, all items ranked, seen ones masked; the best of a run. Each trial differs from the settings of the main table in what its row",
        "says. In bold: the best Recall@10 of a model among trials of the same length. The test set takes no part.",
    ]
    for table in tables:
        compared = [model for model in table["models"] if len(model["trials"]) > 1]  # one trial says nothing
        names = ",".join(model["model"] for model in compared)
        lines += ["", f"## {table['dataset']}", ""]
        head = ["model", "dropout", "rate", "steps", "seed", "NDCG@10", "Recall@10", "in the main table"]
        lines += grid(head, [row for model in compared for row in _cells(model)])
        lines += ["", *(remark(model) for model in compared), ""]
        lines += [f"    lrurec reproduce tuning --datasets {table['dataset']} --models {names}"]
        if any(t["steps"] != model["steps"] for model in compared for t in model["trials"]):
            lines += ["", "Trials of other lengths: the same with `--set training.steps=N`."]
    return Made(whole, "\n".join(lines) + "\n")


def _before(results: Path | None) -> dict[str, Any]:
    """The table that is among the results."""
    path = results / "tuning.json" if results is not None else None
    if path is None or not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FolderError(f"{path} cannot be read ({error}); delete it to begin anew") from None
    return found


def _trial(record: Record) -> Trial:
    config = record["config"]
    return {
        "dropout": config["model"]["dropout"],
        "rate": config["training"]["learning_rate"],
        "steps": config["training"]["steps"],
        "seed": record["seed"],
        "valid": {m: record["valid"][m] for m in (BESIDE, GOAL)},
        "recipe": record["recipe"],
        "settings": record["settings"],
    }


def _model(model: str, title: str, some: list[Trial], kind: str, given: Sequence[str]) -> dict[str, Any]:
    """A model's trials, each once; `main` are those with the settings that the main table has now, whatever their length."""
    unique: dict[Any, Trial] = {}
    steps = settings_for(kind, model, 0, given).config.training.steps
    for trial in some:
        config = config_for(trial["recipe"], None, trial["settings"], model)
        as_long = replace(config, training=replace(config.training, steps=steps))
        main = as_long == settings_for(kind, model, trial["seed"], given).config
        unique.setdefault(config, {**trial, "main": main})
    trials = sorted(unique.values(), key=lambda t: (t["steps"], t["dropout"], t["rate"], t["seed"]))
    return {"model": model, "title": title, "steps": steps, "trials": trials, "behind": behind(trials, steps)}


def behind(trials: list[Trial], own: int) -> float | None:
    """By how much the main table's trial is behind the best of the same length and seeds.

    Of its own length if that can be compared, else of the longest that can.
    """
    for steps in sorted({t["steps"] for t in trials}, key=lambda steps: (steps != own, -steps)):
        alike = [t for t in trials if t["steps"] == steps]
        seeds = {t["seed"] for t in alike if not t["main"]}
        both = [t["valid"][GOAL] for t in alike if t["main"] and t["seed"] in seeds]
        if both:
            best = max(t["valid"][GOAL] for t in alike if t["seed"] in seeds)
            return 1 - max(both) / best if best else 0.0
    return None


def _cells(model: dict[str, Any]) -> list[list[str]]:
    rows = []
    for t in model["trials"]:
        best = max(other["valid"][GOAL] for other in model["trials"] if other["steps"] == t["steps"])
        recall, beside = (
            f"{t['valid'][GOAL]:.5f}",
            t["valid"].get(BESIDE),
        )  # of trials before this table only recall was kept
        ndcg = "-" if beside is None else f"{beside:.5f}"
        cells = [f"{t['dropout']:g}", f"{t['rate']:g}", f"{t['steps']:,}", str(t["seed"]), ndcg]
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
