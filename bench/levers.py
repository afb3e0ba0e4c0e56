"""What each part of the recipe `best` brings: alone beside the plain model, and taken away from the whole; and what was tried beside it.

    LRUREC_DATA=DIR python bench/levers.py --runs DIR [--only beauty] [--seeds 3] [--rows plain,no-memory]

Every run is a plain `lrurec train --recipe best` with fewer steps and some parts switched off or put in by --set, kept in the folder after --runs
as ROW-NAME-SEED (see bench/rows.py). The table is written to results/levers.md and results/levers.json after each run. What a part costs per step and per
event is measured at the end, each row in turns with the plain one.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy import CASES, arguments, spread
from best import latency, prepared, steps
from lrurec.training.run import Run
from measure import machine
from rows import Row, results, table_before

ROOT = Path(__file__).parents[1]
METRICS = ("ndcg@10", "recall@10")
COSTS = ("step", "event")  # what is measured of a row, in times of the plain one


@dataclass(frozen=True)
class Lever:
    """A part of the recipe, and the settings without it; or one that was tried beside it, and the settings with it."""

    title: str
    settings: tuple[str, ...]


LEVERS = {
    "ml-1m": {
        "rwkv": Lever("RWKV in the block", ("model.mixer=lru",)),
        "memory": Lever("the memory", ("training.steps=1500", "training.finish=0", "memory.use=false")),
        "finish": Lever("the finish", ("training.steps=1500", "training.finish=0")),
    },
    "beauty": {
        "copies": Lever("a second model", ("model.copies=1",)),
        "cosine": Lever(
            "cosines over a temperature", ("model.temperature=0.0", "model.dropout=0.6", "training.learning_rate=0.003")
        ),
        "pffn": Lever("dropping the feed-forward network", ("model.pffn=true",)),
        "ahead": Lever("looking ahead", ("training.look_ahead=0.0",)),
        "memory": Lever("the memory", ("training.steps=4000", "training.finish=0", "memory.use=false")),
        "finish": Lever("the finish", ("training.steps=4000", "training.finish=0")),
    },
}
TRIED = {
    "ml-1m": {
        "cosine": Lever("cosines over a temperature", ("model.temperature=0.1",)),
        "ahead": Lever("looking ahead", ("training.look_ahead=0.2",)),
        "depth": Lever("a third block", ("model.blocks=3",)),
        "copies": Lever("a second model", ("model.copies=2",)),
    },
    "beauty": {
        "rwkv": Lever("RWKV in the block", ("model.mixer=rwkv",)),
        "depth": Lever("a third block", ("model.blocks=3",)),
        "width": Lever("width 128", ("model.width=128",)),
        "decay": Lever("weight decay 0.1", ("training.weight_decay=0.1",)),
    },
}
SHORT = {  # a third of the steps of `best`, and half of them
    "ml-1m": ("training.steps=1167", "training.finish=333"),
    "beauty": ("training.steps=3000", "training.finish=1000"),
}
PLAIN, WHOLE = "plain", "all"


def rows(name: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of each row the title and the settings beside `--recipe best`. The finish goes with the memory: alone there is none."""
    levers = LEVERS[name]

    def without(*which: str) -> tuple[str, ...]:
        # Without the memory there is nothing to finish with; the settings of both are the same. A later setting goes over an earlier one.
        own = [*SHORT[name], *(setting for lever in which for setting in levers[lever].settings)]
        last = {setting.partition("=")[0]: setting for setting in own}
        return tuple(last.values())

    found = {PLAIN: ("none of them", without(*levers))}
    for own in levers:
        if own != "finish":
            found[f"only-{own}"] = (f"{levers[own].title} alone", without(*(k for k in levers if k != own)))
    found[WHOLE] = ("all of them: `best`", without())
    for own, lever in levers.items():
        if without(own) not in [off for _, off in found.values()]:  # with two parts, all but one is the other alone
            found[f"no-{own}"] = (f"all but {lever.title}", without(own))
    for own, lever in TRIED[name].items():
        found[f"and-{own}"] = (f"`best` and {lever.title}", without() + lever.settings)
    return found


def runs_of(name: str, data: Path) -> dict[str, Row]:
    return {row: Row(f"{row}-{name}", data, "best", settings) for row, (_, settings) in rows(name).items()}


def table(name: str, found: dict[str, Any]) -> list[str]:
    lines = [
        "",
        f"## {name}",
        "",
        "| parts | seeds | NDCG@10 | Recall@10 | valid NDCG@10 | valid Recall@10 | training step, times plain | observe + recommend, times plain |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row, (title, _) in rows(name).items():
        if row in found:
            done = results(found[row])
            cells = [spread([r[part][m] for r in done]) for part in ("test", "valid") for m in METRICS]
            cells += [f"{found[row]['cost'][what]:.2f}" if "cost" in found[row] else "-" for what in COSTS]
            lines.append(f"| {title} | {len(done)} | {' | '.join(cells)} |")
    settings = [f"- {title}: {', '.join(f'`{s}`' for s in off)}" for title, off in rows(name).values() if off]
    return [*lines, "", "Beside `--recipe best`:", "", *settings]


def write(runs: Path, tables: dict[str, dict[str, Row]], seeds: int, measures: bool = False) -> None:
    """The table; what it says of a dataset that is not asked for stays."""
    before = table_before(ROOT / "results" / "levers.json")
    found: dict[str, Any] = {name: before.get(name, {}) for name in CASES}
    for name, of_name in tables.items():
        old = found[name]
        gathered = {key: row.gathered(runs, seeds, old.get(key)) for key, row in of_name.items()}
        found[name] = {key: facts for key, facts in gathered.items() if facts}
        ratios = cost(runs, of_name) if measures else {}
        for key, facts in found[name].items():
            known = old.get(key, {})
            if key in ratios:
                facts["cost"] = ratios[key]
            elif "cost" in known and known["config"] == facts["config"]:
                facts["cost"] = known["cost"]
    lines = [
        "# What each part of `best` brings",
        "",
        f"`LRUREC_DATA=DIR python bench/levers.py --runs DIR` on {machine()}.",
        "Test and validation, all items ranked, seen ones masked; mean and standard deviation over the seeds. Every row of a dataset has the same number of steps, the finish included: a third of those of `best` on ml-1m, half of them on beauty.",
    ]
    for name in CASES:
        if found[name]:
            lines += table(name, found[name])
    (ROOT / "results" / "levers.json").write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    (ROOT / "results" / "levers.md").write_text("\n".join(lines) + "\n")


def cost(runs: Path, of_name: dict[str, Row]) -> dict[str, dict[str, float]]:
    """A training step, and observe + recommend, of each row over those of the plain one, each pair in turns."""
    found, plain = {}, of_name[PLAIN].done(runs, 0)
    for key, row in of_name.items():
        if key != PLAIN and plain and (folder := row.done(runs, 0)):
            both = {PLAIN: plain, key: folder}
            took = steps(plain, {name: Run.open(one).config for name, one in both.items()}), latency(both)
            found[key] = {what: t[key] / t[PLAIN] for what, t in zip(COSTS, took, strict=True)}
    return found


def main() -> None:
    options = arguments(__doc__, lambda parser: parser.add_argument("--rows", type=lambda text: text.split(",")))
    tables = {name: runs_of(name, prepared(name, options.runs)) for name in options.only or CASES}
    for of_name in () if options.table else tables.values():
        for seed in range(options.seeds):
            for key, row in of_name.items():
                if not options.rows or key in options.rows:
                    row.train(options.runs, seed)
                    write(options.runs, tables, options.seeds)
    write(options.runs, tables, options.seeds, measures=True)


if __name__ == "__main__":
    main()
