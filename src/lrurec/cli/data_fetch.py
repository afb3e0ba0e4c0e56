"""`lrurec data fetch`: bring a known dataset here."""

import argparse
from pathlib import Path

from lrurec.cli.arguments import Commands
from lrurec.cli.console import progress_bar
from lrurec.data.fetch import fetch
from lrurec.data.sources import KNOWN, known

EXAMPLES = """\
examples:
  lrurec data fetch ml-1m                               download to raw/ml-1m, continue if it was cut off
  lrurec data fetch ml-1m --from ~/Downloads/ml-1m.zip  take a file already at hand
  lrurec prepare raw/ml-1m --recipe paper --out data/ml-1m
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "fetch",
        help="bring a known dataset here",
        description="Bring a known dataset here: download with resume and checksum, or take a file at hand.",
        epilog=EXAMPLES,
    )
    p.add_argument("name", metavar="NAME", help=f"one of: {', '.join(KNOWN)}")
    p.add_argument("--to", metavar="DIR", help="the folder for its files (default: raw/NAME)")
    p.add_argument(
        "--from", dest="files", metavar="FILE", action="append", default=[], help="take this file; repeatable"
    )
    p.add_argument("--no-checksum", action="store_true", help="accept a file whose checksum differs")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    row = known(options.name)
    folder = Path(options.to) if options.to else Path("raw") / row.name
    with progress_bar() as progress:
        fetch(
            row,
            folder,
            files=[Path(f) for f in options.files],
            check=not options.no_checksum,
            progress=lambda done, total: progress("fetching", done, total or done),
        )
    print(f"{row.title} is in {folder}. Licence: {row.licence}; see {row.page}")
    print(f"next: lrurec prepare {folder} --recipe paper --out data/{row.name}")
    return 0
