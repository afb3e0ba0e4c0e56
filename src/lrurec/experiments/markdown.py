"""The tables of `tables.py` as text: Markdown for a file, rows for a terminal. Knows numbers and words."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lrurec.experiments.tables import CLOSE, JUDGED

NAMES = {"ndcg@10": "NDCG@10", "recall@10": "Recall@10", "ndcg@20": "NDCG@20", "recall@20": "Recall@20"}
_HEAD = ["model", "seeds", "NDCG@10", "paper", "diff.", "Recall@10", "paper", "diff.", "verdict", "seconds", "memory"]


def text_rows(table: dict[str, Any], marked: bool = False) -> list[list[str]]:
    """Head and rows; `marked`: with the best value in bold and the second in italics, as the paper marks them."""
    marks = {m: _marks(table["rows"], m) if marked else {} for m in JUDGED}
    rows = [list(_HEAD)]
    for r in table["rows"]:
        cells = [r["title"], str(len(r["seeds"])) + (f" of {_tried(r)}" if r["failed"] else "")]
        for m in JUDGED:
            mark = marks[m].get(r["row"], "")
            cells.append(f"{mark}{_mean(r['test'][m])}{mark}" if r["test"] else "-")
            cells.append(f"{r['published'][m]:.5f}" if r["published"] else "-")
            cells.append(f"{r['relative'][m]:+.1%}" if r["relative"] else "-")
        cells.append(r["verdict"])
        cells += [f"{r['seconds']:,.0f}", f"{r['peak_memory'] / 1e6:,.0f} MB"] if r["test"] else ["-", "-"]
        rows.append(cells)
    return rows


def remarks(table: dict[str, Any]) -> list[str]:
    """What is worth saying under a table."""
    said = []
    if table["lead"] is not None:
        parts = []
        for m in JUDGED:
            one = table["lead"][m]
            ours = f"{one['ours']:+.1%}" if one["ours"] is not None else "-"
            paper = f" (the paper: {one['published']:+.1%})" if one["published"] is not None else ""
            parts.append(f"{NAMES[m]} {ours} beside {one['over']}{paper}")
        said.append(f"LRURec against the best of the others: {'; '.join(parts)}.")
    if table["order"] is not None:
        said.append(_order(table["order"]))
    said += [f"Note: {note}." for note in table["notes"]]
    for r in table["rows"]:
        said += [f"{r['title']}, seed {seed}, failed: {lines[-1]}" for seed, lines in r["failed"].items()]
    return said


def _order(found: dict[str, Any]) -> str:
    """What the paper says of two rows, and these cells do not."""
    pairs, turned = found["pairs"], found["turned"]
    what = f"The paper has {pairs} pair{'s' * (pairs != 1)} of rows more than {found['apart']:.0%} apart ({NAMES[found['metric']]})"
    if not turned:
        return f"{what}; here {'all lie' if pairs != 1 else 'it lies'} the same way round."
    said = ", ".join(f"{better} above {worse}" for better, worse in turned)
    return f"{what}; {pairs - len(turned)} lie the same way round here. **Contradicted: that {said}.**"


def page(whole: dict[str, Any]) -> str:
    """A file of its own."""
    lines = [
        f"# {whole['table']}: {whole['caption'][0].lower()}{whole['caption'][1:]}",
        "",
        f"Published numbers: {whole['table']} of {whole['paper']}.",
        f"{whole['split'][0].upper()}{whole['split'][1:]}, seen ones masked; the weights with the best validation Recall@10. Mean and standard deviation over",
        "the seeds; best in bold, second in italics. Seconds are those of training and validation (mean), memory is the most a process held.",
        "",
        f"Reproduced: both metrics within {CLOSE:.0%} of the paper's. Above: neither further below, at least one further above. Below: by how much,",
        "for the worse of the two. Other data: it has a name of the paper's, but not its numbers of users and items.",
    ]
    for table in whole["datasets"]:
        first, *rest = text_rows(table, marked=True)
        lines += [
            "",
            f"## {table['dataset']}",
            "",
            f"{table['users']:,} users, {table['items']:,} items, {table['events']:,} events; {table['kind']}.",
            "",
            _line(first),
            "|---|" + "---:|" * 7 + "---|---:|---:|",
            *map(_line, rest),
            "",
        ]
        for remark in remarks(table):
            lines += [remark, ""]
        lines += [f"    {command}" for command in table["commands"]]
        spent = table["spent"]
        cells = f"{spent['cells']} cell{'s' * (spent['cells'] != 1)}"
        lines += ["", f"Training and validation of {cells}: {_long(spent['core_seconds'])} of one core."]
    if whole["datasets"]:
        lines += ["", "## Settings", "", *_settings(whole["datasets"])]
        lines += ["", f"Made on {'; '.join(whole['machines'])}, with {_threads(whole['datasets'])} per process."]
    return "\n".join(lines) + "\n"


def _long(seconds: float) -> str:
    """Hours where there are some, else minutes or seconds."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _settings(tables: Sequence[dict[str, Any]]) -> list[str]:
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for table in tables:
        for r in table["rows"]:
            groups[table["dataset"], r["recipe"], tuple(r["settings"])].append(r["title"])
    return [
        f"- {dataset}, {', '.join(models)}: `--recipe {recipe}`" + "".join(f", `{s}`" for s in settings)
        for (dataset, recipe, settings), models in groups.items()
    ]


def _threads(tables: Sequence[dict[str, Any]]) -> str:
    counts = sorted({n for table in tables for r in table["rows"] for n in r["threads"]})
    return f"{' or '.join(map(str, counts)) or 'no'} thread{'' if counts == [1] else 's'}"


def _mean(value: dict[str, Any]) -> str:
    return f"{value['mean']:.5f}" + (f" ± {value['spread']:.5f}" if value["spread"] is not None else "")


def _marks(rows: Sequence[dict[str, Any]], metric: str) -> dict[str, str]:
    ranked = sorted((r for r in rows if r["test"]), key=lambda r: -r["test"][metric]["mean"])
    return {r["row"]: mark for r, mark in zip(ranked, ("**", "*"), strict=False)} if len(ranked) > 1 else {}


def _tried(row: dict[str, Any]) -> int:
    return len(row["seeds"]) + len(row["failed"])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
