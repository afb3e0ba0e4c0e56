"""The paper's Figure 1, left: validation Recall@10 while three models are trained, by step and by second."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrurec.experiments.cells import DONE, RUN, records
from lrurec.experiments.figures import COLOURS, Line, lines
from lrurec.experiments.made import Made, grid
from lrurec.experiments.published import published
from lrurec.experiments.rows import curves as rows
from lrurec.experiments.tables import commands
from lrurec.training.trainer import validations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEAR = 0.95  # of the best validation: there, most is done


def made(out: Path) -> Made:
    paper = published("curves")
    order = {row.name: row.title for row in rows("dense")}
    by_dataset: dict[str, list[dict[str, Any]]] = defaultdict(list)
    machines = set()
    for record in records(out, "curves"):
        if record["state"] == DONE and record["row"] in order:
            by_dataset[record["dataset"]["name"]].append(_curve(record, order[record["row"]], paper))
            machines.add(record["machine"])
    tables = []
    for name, found in sorted(by_dataset.items()):
        found.sort(key=lambda curve: (list(order).index(curve["row"]), curve["seed"]))
        rival = [c["best"] for c in found if c["row"] == "sasrec"]
        for curve in found:
            curve["passes_sasrec"] = _reach(curve["points"], max(rival)) if rival and curve["row"] != "sasrec" else None
        cells = [curve.pop("record") for curve in found]
        shown = list(dict.fromkeys(curve["row"] for curve in found))
        tables.append({"dataset": name, "commands": commands("curves", cells, shown), "curves": found})
    whole = {
        "target": "curves",
        "paper": paper.paper,
        "table": paper.table,
        "datasets": tables,
        "machines": sorted(machines),
    }
    return Made(whole, _page(whole, paper.table, paper.paper), {f"curves-{t['dataset']}": _draw(t) for t in tables})


def _curve(record: dict[str, Any], title: str, paper: Any) -> dict[str, Any]:
    strange = record["dataset"]["not_the_papers"]
    keys = ("step", "seconds", "recall@10", "ndcg@10")
    points = [{key: row[key] for key in keys} for row in validations(record["folder"] / RUN)]
    best = max(p["recall@10"] for p in points)
    return {
        "row": record["row"],
        "title": title,
        "seed": record["seed"],
        "record": record,
        "threads": record["threads"],
        "points": points,
        "best": best,
        "near": _reach(points, NEAR * best),
        "test": record["test"],
        "published": None if strange else paper.of(record["dataset"]["name"], record["row"]),
    }


def _reach(points: list[dict[str, float]], level: float) -> dict[str, float] | None:
    """Where a curve first comes to a level."""
    return next(({"step": p["step"], "seconds": p["seconds"]} for p in points if p["recall@10"] >= level), None)


def _page(whole: dict[str, Any], table: str, paper: str) -> str:
    text = [f"# {table}: Recall@10 in training", "", f"The figure that it stands beside: {table} of {paper}.", ""]
    for one in whole["datasets"]:
        head = [
            "model",
            "seed",
            "best valid Recall@10",
            f"{NEAR:.0%} of it after",
            "passes SASRec's best after",
            "steps in the paper",
        ]
        cells = [
            [
                c["title"], str(c["seed"]), f"{c['best']:.4f}", _when(c["near"]), _when(c["passes_sasrec"]),
                f"{c['published']['steps']:,}" if c["published"] else "-",
            ]
            for c in one["curves"]
        ]  # fmt: skip
        text += [f"## {one['dataset']}", "", f"![curves](curves-{one['dataset']}.png)", "", *grid(head, cells), ""]
        text += [*(f"    {command}" for command in one["commands"]), ""]
    threads = sorted({c["threads"] for one in whole["datasets"] for c in one["curves"]})
    text += [
        "Here every model has the same number of steps, over which the rate goes up and down once; the paper trains at a constant rate until",
        "ten validations bring nothing better, and says after how many steps that was. Seconds are those of training and validation.",
    ]
    if threads:
        text += ["", f"Made on {'; '.join(whole['machines'])}, threads per process: {', '.join(map(str, threads))}."]
    return "\n".join(text) + "\n"


def _when(reach: dict[str, float] | None) -> str:
    return f"{reach['step']:,} steps, {reach['seconds']:,.0f} s" if reach else "-"


def _draw(table: dict[str, Any]) -> Any:
    def draw(figure: "Figure") -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, key, label in ((left, "step", "steps"), (right, "seconds", "seconds")):
            drawn = [
                Line(
                    c["title"],
                    [p[key] for p in c["points"]],
                    [p["recall@10"] for p in c["points"]],
                    COLOURS.get(c["row"]),
                )
                for c in table["curves"]
            ]
            lines(axes, drawn, label, "valid Recall@10" if axes is left else "", table["dataset"])

    return draw
