"""`lrurec models`: what can be trained."""

import argparse
import json

from lrurec.cli.arguments import Commands
from lrurec.cli.console import table
from lrurec.cli.parts import need

EXAMPLES = """\
n: items of a history, d: width, V: items of the catalogue. Costs are those of the model; the loss over V items comes on top.
A model that steps keeps a small state per user and updates it with each event; the others read the history again.

examples:
  lrurec models
  lrurec train data/mine --out runs/sasrec --model sasrec
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "models",
        help="the models that can be trained",
        description="Every model: its paper, what training one history costs, what one more event costs, and whether it steps.",
        epilog=EXAMPLES,
    )
    p.add_argument("--json", action="store_true", help="print it as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.models.base import RecurrentModel
    from lrurec.models.registry import MODELS

    rows = [
        {
            "name": name,
            "year": model.card.year or None,
            "paper": model.card.paper,
            "training": model.card.training,
            "update": model.card.update,
            "steps": issubclass(model, RecurrentModel),
        }
        for name, model in MODELS.items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    head = ["name", "year", "paper", "training", "one more event", "steps"]
    told = [["yes" if v is True else "no" if v is False else str(v or "-") for v in row.values()] for row in rows]
    print(table([head, *told]))
    return 0
