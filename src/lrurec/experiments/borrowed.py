"""Cells of the main table that another table may show, too: those that differ from its own in nothing else. Knows records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lrurec.experiments.cells import config_of, records
from lrurec.experiments.rows import Row

Record = dict[str, Any]


def borrowed(out: Path, own: Sequence[Record], rows: Sequence[Row]) -> list[Record]:
    """LRURec of the main table, where its settings are those of a target's own cells but for what the rows change."""
    changed = {setting.partition("=")[0] for row in rows for setting in row.settings} | {"training.seed"}
    known = [(record["dataset"]["content_id"], _rest(record, changed)) for record in own]
    return [
        record
        for record in records(out, "main")
        if record["row"] == "lrurec" and (record["dataset"]["content_id"], _rest(record, changed)) in known
    ]


def _rest(record: Record, changed: set[str]) -> dict[str, Any]:
    found = config_of(record)
    config = found.values() if found is not None else record["config"]
    return {f"{p}.{k}": v for p in config for k, v in config[p].items() if f"{p}.{k}" not in changed}
