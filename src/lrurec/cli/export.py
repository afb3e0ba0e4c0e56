"""`lrurec export`: a run to an artifact."""

import argparse
from pathlib import Path

from lrurec.cli.arguments import CHECKPOINT, Commands
from lrurec.cli.parts import need

EXAMPLES = """\
examples:
  lrurec export runs/mine --out artifacts/mine
  lrurec export runs/mine --out artifacts/mine --index exact     score every item, however many there are
  lrurec export runs/mine --out artifacts/mine --half            the table in 16 bits per number
  lrurec export runs/mine --out artifacts/mine --index scanned   the same results, several times faster with millions of items
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "export",
        help="a run to an artifact, which is served without torch",
        description="Write what serving needs of a run: weights, item ids and names, the scoring table, the popular items."
        " The folder is hashed and verified when it is opened.",
        epilog=EXAMPLES,
    )
    p.add_argument("path", metavar="RUN", help="a run folder made by lrurec train")
    p.add_argument("--out", required=True, metavar="ARTIFACT", help="the artifact folder to make")
    p.add_argument("--checkpoint", choices=("best", "last"), default="best", help=CHECKPOINT)
    p.add_argument(
        "--index",
        choices=("auto", "exact", "scanned", "approximate"),
        default="auto",
        help="how the best items are found; auto: exact below 50,000 items, approximate from there on; scanned: exact, too,"
        " by way of 8-bit codes, for large catalogues",
    )
    p.add_argument(
        "--half", action="store_true", help="keep the item table in 16 bits per number: half the disk and memory"
    )
    p.add_argument("--dataset", metavar="DIR", help="where the dataset is, if it has moved")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.cli.evaluate import say_if_unfinished
    from lrurec.export import export
    from lrurec.folder import MANIFEST
    from lrurec.serving.artifact import Artifact
    from lrurec.training.run import Run

    opened, out = Run.open(Path(options.path)), Path(options.out)
    replaced = (out / MANIFEST).exists()
    export(opened, opened.dataset(options.dataset), out, options.checkpoint, options.index, options.half, print)
    say_if_unfinished(opened)
    made = Artifact.open(out)
    size = sum(facts["bytes"] for facts in made.manifest["files"].values())
    state = 4 * made.engine.shape.state_floats
    print(
        f"made      {out}: {made.n_items:,} items, {size / 1e6:.1f} MB, id {made.id}; the state of a user has {state:,} bytes"
        + ("; it took the place of the one before" if replaced else "")
    )
    if options.half:
        print("table     in 16 bits per number")
    if made.memory is not None:
        print(f"memory    {made.memory.pairs:,} pairs of items; lrurec serve --learn counts on")
    facts = made.manifest["index"]
    chosen = f" (auto, for {made.n_items:,} items)" if options.index == "auto" else ""
    if facts["kind"] != "approximate":
        how = " results, by way of 8-bit codes" if facts["kind"] == "scanned" else ""
        print(f"index     exact{how}{chosen}")
    else:
        print(
            f"index     approximate{chosen}: finds {facts['recall@20']:.1%} of the exact top 20, measured on {facts['queries']} users"
        )
    return 0
