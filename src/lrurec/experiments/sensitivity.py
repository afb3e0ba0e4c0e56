"""The paper's Figure 4: how much weight decay and dropout matter to LRURec."""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrurec.experiments.borrowed import borrowed
from lrurec.experiments.cells import DONE, records
from lrurec.experiments.figures import COLOURS, Line, lines
from lrurec.experiments.made import Made, grid
from lrurec.experiments.published import published
from lrurec.experiments.rows import sensitivity as rows
from lrurec.experiments.tables import commands

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS = {"weight_decay": ("training", "weight decay"), "dropout": ("model", "dropout")}


def made(out: Path) -> Made:
    paper = published("sensitivity")
    own = [r for r in records(out, "sensitivity") if r["state"] == DONE]
    found = own + [r for r in borrowed(out, own, rows("dense")) if r["state"] == DONE]
    by_dataset: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in found:
        by_dataset[record["dataset"]["name"]].append(record)
    tables: list[dict[str, Any]] = [
        {
            "dataset": name,
            "commands": commands("sensitivity", *_own(cells)),
            **{s: _points(s, cells) for s in SETTINGS},
        }
        for name, cells in sorted(by_dataset.items())
        if any(record["target"] == "sensitivity" for record in cells)
    ]
    whole = {
        "target": "sensitivity", "paper": paper.paper, "table": paper.table, "datasets": tables,
        "machines": sorted({r["machine"] for r in found}),
    }  # fmt: skip
    text = [
        f"# {paper.table}: weight decay and dropout",
        "",
        f"The figure that it stands beside: {paper.table} of {paper.paper}.",
        "",
    ]
    for one in tables:
        text += [f"## {one['dataset']}", "", f"![sensitivity](sensitivity-{one['dataset']}.png)", ""]
        head = ["setting", "value", "seeds", "NDCG@10", "Recall@10"]
        cells = [
            [title, f"{p['value']:g}", str(len(p["seeds"])), f"{p['ndcg@10']:.5f}", f"{p['recall@10']:.5f}"]
            for setting, (_, title) in SETTINGS.items()
            for p in one[setting]
        ]
        text += [*grid(head, cells), "", *(f"    {command}" for command in one["commands"]), ""]
    text += ["Test split, all items ranked; one setting changed at a time, all others as in the main table."]
    return Made(whole, "\n".join(text) + "\n", {f"sensitivity-{t['dataset']}": _draw(t) for t in tables})


def _own(cells: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The cells of the figure, and their rows; the one that it borrows is a point, and a row, of both curves."""
    known = [row.name for row in rows("dense")]
    found = [record for record in cells if record["target"] == "sensitivity"]
    for record in cells:
        if record["target"] != "sensitivity":
            names = [f"{s.replace('_', '-')}-{record['config'][part][s]}" for s, (part, _) in SETTINGS.items()]
            found += [{**record, "row": name} for name in names if name in known]
    rows_ = {record["row"] for record in found}
    return found, [name for name in known if name in rows_]


def _points(setting: str, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    part = SETTINGS[setting][0]
    prefix = setting.replace("_", "-")
    by_value: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for record in cells:
        if record["target"] == "main" or record["row"].startswith(prefix):
            by_value[record["config"][part][setting]].append(record)
    return [
        {
            "value": value,
            "seeds": sorted(r["seed"] for r in some),
            **{m: statistics.mean(r["test"][m] for r in some) for m in ("ndcg@10", "recall@10")},
        }
        for value, some in sorted(by_value.items())
    ]


def _draw(table: dict[str, Any]) -> Any:
    def draw(figure: "Figure") -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, (setting, (_, title)) in zip((left, right), SETTINGS.items(), strict=True):
            points = table[setting]
            places = list(range(len(points)))
            line = Line("LRURec", places, [p["recall@10"] for p in points], COLOURS["lrurec"])
            lines(axes, [line], title, "test Recall@10" if axes is left else "", table["dataset"])
            axes.set_xticks(places, [f"{p['value']:g}" for p in points])

    return draw
