"""`lrurec data list`: the datasets that are known by name."""

import argparse
import dataclasses
import json

from lrurec.cli.arguments import Commands
from lrurec.cli.console import table
from lrurec.data.sources import KNOWN


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "list",
        help="datasets that are known by name",
        description="Datasets that are known by name, with the paper's numbers.",
        epilog="examples:\n  lrurec data list\n  lrurec data list --json\n",
    )
    p.add_argument("--json", action="store_true", help="print the whole table as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps([dataclasses.asdict(row) for row in KNOWN.values()], indent=1))
        return 0
    rows = [["name", "dataset", "users", "items", "events", "length", "format"]]
    for row in KNOWN.values():
        p = row.paper
        numbers = [f"{p.users:,}", f"{p.items:,}", f"{p.interactions:,}", str(p.max_length)] if p else ["-"] * 4
        rows.append([row.name, row.title, *numbers, row.format])
    print(table(rows))
    print()
    for row in KNOWN.values():
        print(f"{row.name:<8}{row.page}\n{'':<8}{row.licence}")
    print("\nNumbers are the paper's, after its filter; length is the longest history it feeds the model.")
    print("lrurec data fetch NAME brings one here; --json has all of the table.")
    return 0
