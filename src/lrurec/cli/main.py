"""`lrurec`: finds the command, runs it, and turns our errors into one line and exit code 2."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import lrurec
from lrurec.cli import data_describe, data_fetch, data_list, data_synth, doctor, evaluate, prepare, train
from lrurec.cli.arguments import Parser
from lrurec.errors import LrurecError

EXAMPLES = """\
examples:
  lrurec prepare events.csv --out data/mine     any event log to a dataset folder
  lrurec data describe data/mine                what is in it
  lrurec data list                              datasets that are known by name
  lrurec train data/mine --out runs/mine        a dataset to a trained model
  lrurec evaluate runs/mine                     how good it is, and for whom
  lrurec doctor                                 what this machine has
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root: argparse.ArgumentParser = Parser(
        prog="lrurec",
        description="Next-item recommendations from an event log.",
        epilog=EXAMPLES,
    )
    root.add_argument("--version", action="version", version=f"lrurec {lrurec.__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    prepare.add(commands)
    data = commands.add_parser("data", help="known datasets, made-up logs, a look at a dataset")
    inner = data.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (data_list, data_fetch, data_synth, data_describe):
        command.add(inner)
    train.add(commands)
    evaluate.add(commands)
    doctor.add(commands)
    return root


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # so that half-written folders are removed on the way out


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except LrurecError as error:
        print(f"lrurec: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lrurec: stopped; nothing was left behind", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        print("lrurec: out of memory; close other programs, or use a machine with more", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
