"""`lrurec recommend`: what a person should see next."""

import argparse
import json
import sys
from pathlib import Path

from lrurec.cli.arguments import Commands, positive
from lrurec.cli.console import table
from lrurec.cli.parts import need
from lrurec.errors import InputError, SettingsError
from lrurec.ids import Id

EXAMPLES = """\
examples:
  lrurec recommend runs/mine --user ann
  lrurec recommend runs/mine --history tea,jam,cake -k 5
  lrurec recommend runs/mine --history '["salt, coarse", "pepper"]'
  lrurec recommend runs/mine --history=-7,12            an id that begins with a minus
  lrurec recommend runs/mine --user 17 --json
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "recommend",
        help="what a person should see next",
        description="The best next items for a user of the dataset, or for a history given here.",
        epilog=EXAMPLES,
    )
    p.add_argument("path", metavar="RUN", help="a run folder made by lrurec train")
    who = p.add_mutually_exclusive_group(required=True)
    who.add_argument("--user", metavar="ID", help="a user of the dataset")
    who.add_argument(
        "--history", metavar="A,B,C", help='item ids, oldest first; if they have commas, as JSON: ["a,b", "c"]'
    )
    p.add_argument("-k", type=positive, default=10, metavar="N", help="how many (default: 10)")
    p.add_argument("--seen", action="store_true", help="also items that are in the history")
    p.add_argument("--dataset", metavar="DIR", help="where the dataset is, if it has moved")
    p.add_argument("--json", action="store_true", help="print it as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.cli.evaluate import say_if_unfinished
    from lrurec.recommender import Recommender
    from lrurec.training.run import Run

    rec = Recommender.of_run(options.path, options.dataset)
    say_if_unfinished(Run.open(Path(options.path)))
    if options.user is not None:
        if rec.dataset.user_ids.index(options.user) is None:
            raise InputError(f"user '{options.user}' is not in the dataset; say what they took with --history A,B,C")
        found = rec.recommend([options.user], options.k, filter_seen=not options.seen)
        history = list(rec.dataset.history(options.user))
    else:
        history = list[Id](_items(options.history))
        for item in history:
            if rec.dataset.item_ids.index(item) is None:
                raise InputError(f"item '{item}' is not in the dataset; leave it out of --history")
        found = rec.recommend(histories=[history], k=options.k, filter_seen=not options.seen)
        if not rec.model.reads_histories:
            title = rec.model.card.title
            print(f"lrurec: {title} does not look at histories; this is what most people took", file=sys.stderr)
    rows = found.select("rank", "item", "name", "score").rows(named=True)
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    names = [rec.dataset.name(i) for h in history[-5:] if (i := rec.dataset.item_ids.index(h)) is not None]
    if not rows:
        print("lrurec: nothing is left that was not seen; --seen shows what was, too", file=sys.stderr)
    print(f"after {', '.join(names) or 'nothing'}:")
    print(
        table(
            [
                ["rank", "item", "name", "score"],
                *[[str(r["rank"]), str(r["item"]), r["name"], f"{r['score']:.3f}"] for r in rows],
            ]
        )
    )
    return 0


def _items(text: str) -> list[str]:
    """The ids of --history."""
    if not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingsError(f'--history begins with [ and is no JSON ({error}); write A,B,C or ["A", "B"]') from None
    if not all(isinstance(item, str | int) for item in found):
        raise SettingsError('--history wants ids, such as A,B,C or ["A", "B"]')
    return [str(item) for item in found]
