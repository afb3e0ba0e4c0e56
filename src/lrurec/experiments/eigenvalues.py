"""The paper's Table 5: the average |lambda| of each block, with and without weight decay on the recurrence.

Decay pulls nu^log to 0, whose |lambda| is 0.37: without the second column, the first says little about the data.
"""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from lrurec.experiments.borrowed import borrowed
from lrurec.experiments.cells import DONE, records
from lrurec.experiments.made import Made, grid
from lrurec.experiments.published import Published, published
from lrurec.experiments.rows import eigenvalues as variants
from lrurec.experiments.tables import commands

WAYS = {"lrurec": "with decay", "no-decay": "without decay"}


def made(out: Path) -> Made:
    paper = published("lambda")
    own = [r for r in records(out, "lambda") if r["row"] == "no-decay"]
    with_own = {r["dataset"]["name"] for r in own}
    plain = [r for r in records(out, "main") if r["row"] == "lrurec" and r["dataset"]["name"] not in with_own]
    found = [*own, *borrowed(out, own, variants("dense")), *plain]
    by_dataset: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for record in found:
        if record["state"] == DONE:
            by_dataset[record["dataset"]["name"]][record["row"]].append(record)
    tables = [_table(name, ways, paper) for name, ways in sorted(by_dataset.items())]
    whole = {
        "target": "lambda", "paper": paper.paper, "table": paper.table, "datasets": tables,
        "machines": sorted({r["machine"] for r in found}),
    }  # fmt: skip
    head = ["dataset", "block", *(f"{way} (seeds)" for way in WAYS.values()), "paper", "NDCG@10 with", "without"]
    rows = [row for table in tables for row in _cells(table)]
    lines = [
        f"# {paper.table}: the average |lambda| of each block",
        "",
        f"Published numbers: {paper.table} of {paper.paper}.",
        "",
    ]
    lines += grid(head, rows, left=2)
    lines += [
        "",
        "|lambda| is what an event leaves of the state before it. Training starts at 0.8 to 0.99. Weight decay acts on nu^log, too, in the",
        "authors' code, and pulls |lambda| towards 0.37: how much of a low value is the data's wish, the column without decay shows.",
        "",
        *(f"    {command}" for table in tables for command in table["commands"]),
        "",
    ]
    return Made(whole, "\n".join(lines))


def _table(name: str, ways: dict[str, list[dict[str, Any]]], paper: Published) -> dict[str, Any]:
    cells = [record for some in ways.values() for record in some]
    blocks = {
        way: [_mean([r["mean_abs_lambda"][k] for r in cells]) for k in range(len(cells[0]["mean_abs_lambda"]))]
        for way, cells in ways.items()
    }
    ndcg = {way: _mean([r["test"]["ndcg@10"] for r in cells]) for way, cells in ways.items()}
    seeds = {way: sorted(r["seed"] for r in cells) for way, cells in ways.items()}
    return {
        "dataset": name, "lambda": blocks, "ndcg@10": ndcg, "seeds": seeds,
        "published": None if cells[0]["dataset"]["not_the_papers"] else paper.of(name, "lrurec"),
        "commands": commands("lambda", cells, list(ways)),
    }  # fmt: skip


def _cells(table: dict[str, Any]) -> list[list[str]]:
    count = max(len(blocks) for blocks in table["lambda"].values())
    rows = []
    for k in range(count):
        cells = [table["dataset"], str(k + 1)]
        for way in WAYS:
            blocks = table["lambda"].get(way)
            cells.append(f"{_text(blocks[k], 4)} ({len(table['seeds'][way])})" if blocks else "-")
        printed = (table["published"] or {}).get(f"block {k + 1}")
        cells.append(f"{printed:.4f}" if printed else "-")
        cells += [_text(table["ndcg@10"][way], 5) if way in table["ndcg@10"] else "-" for way in WAYS]
        rows.append(cells)
    return rows


def _mean(values: list[float]) -> dict[str, Any]:
    return {"mean": statistics.mean(values), "spread": statistics.stdev(values) if len(values) > 1 else None}


def _text(value: dict[str, Any], digits: int) -> str:
    return f"{value['mean']:.{digits}f}" + (f" ± {value['spread']:.{digits}f}" if value["spread"] is not None else "")
