"""`lrurec data synth`: a made-up log of any size."""

import argparse
from pathlib import Path

from lrurec.cli.arguments import Commands, positive
from lrurec.cli.console import bytes_text, progress_bar
from lrurec.data.progress import counted
from lrurec.data.synthetic import PRESETS, SCHEMA, item_names, log, preset, resized
from lrurec.data.writers import check_target, write_frames
from lrurec.errors import SettingsError

EXAMPLES = """\
presets: {presets}

examples:
  lrurec data synth --out sample.csv --names names.csv          the built-in sample
  lrurec data synth --users 1e5 --items 2e4 --events 5e6 --seed 3 --out log.parquet
  lrurec data synth --preset xlong --out xlong.parquet          the shape of XLong: 66.8 million events
"""


def add(commands: Commands) -> None:
    shapes = ", ".join(f"{n} ({w.users:,} users, {w.items:,} items, {w.events:,} events)" for n, w in PRESETS.items())
    p = commands.add_parser(
        "synth",
        help="make up a log of any size",
        description="Make up a log with real structure: long-tailed popularity, series that people follow in turns,"
        " taste that drifts. It streams: memory does not grow with the log.",
        epilog=EXAMPLES.format(presets=shapes),
    )
    p.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help=".parquet, .csv, .tsv or .jsonl; text may add .gz or .zst",
    )
    p.add_argument("--preset", default="sample", metavar="NAME", help="the shape to start from (default: sample)")
    p.add_argument("--users", type=positive, metavar="N")
    p.add_argument("--items", type=positive, metavar="N", help="at most: with few events, some never occur")
    p.add_argument("--events", type=positive, metavar="N", help="exactly this many")
    p.add_argument("--spread", type=float, metavar="X", help="how unequal history lengths are (0: all the same)")
    p.add_argument("--seed", type=int, metavar="N", help="same seed, same log")
    p.add_argument("--names", metavar="FILE", help="also write invented item names, for prepare --item-names")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    world = resized(
        preset(options.preset),
        users=options.users,
        items=options.items,
        events=options.events,
        spread=options.spread,
        seed=options.seed,
    )
    out = Path(options.out)
    if options.names and Path(options.names).resolve() == out.resolve():
        raise SettingsError("--out and --names are the same file")
    for target in (options.out, options.names):
        if target is not None:
            check_target(Path(target))
    with progress_bar() as progress:
        write_frames(log(world), SCHEMA, out, counted(progress, "writing", world.events))
        if options.names:
            names = item_names(world)
            write_frames(iter([names]), dict(names.schema), Path(options.names))
    size = bytes_text(out.stat().st_size)
    print(f"{out}: {world.users:,} users, {world.items:,} items, {world.events:,} events, {size} (seed {world.seed})")
    return 0
