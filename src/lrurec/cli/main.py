"""`lrurec`: finds the command, runs it, and turns our errors into one line and exit code 2.

Importing this module is cheap: the commands are imported inside `main`, where Ctrl-C is already handled.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import lrurec
from lrurec.errors import LrurecError

EXAMPLES = """\
examples:
  lrurec prepare events.csv --out data/mine     any event log to a dataset folder
  lrurec data describe data/mine                what is in it
  lrurec data list                              datasets that are known by name
  lrurec train data/mine --out runs/mine        a dataset to a trained model
  lrurec models                                 which models there are
  lrurec plan data/mine                         memory, disk and time it would take
  lrurec evaluate runs/mine                     how good it is, and for whom
  lrurec compare runs/mine runs/other           which is better, and whether that may be luck
  lrurec recommend runs/mine --user ann         what ann should see next
  lrurec report runs/mine                       all of it on one HTML page
  lrurec search data/mine --trials 20           the settings that suit it
  lrurec reproduce main --datasets ml-1m        the paper's main table, with the published numbers beside
  lrurec import-checkpoint --help               a checkpoint of the authors' code to a run
  lrurec export runs/mine --out artifacts/mine  all that is needed to recommend, and no torch
  lrurec serve artifacts/mine --store store/    recommendations over HTTP, and a page
  lrurec store info store/                      what is known of whom; import, export, rebuild, verify
  lrurec doctor                                 what this machine has
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from lrurec.cli import (
        compare,
        data_describe,
        data_fetch,
        data_list,
        data_synth,
        doctor,
        evaluate,
        export,
        import_checkpoint,
        models,
        plan,
        prepare,
        recommend,
        report,
        reproduce,
        search,
        serve,
        store,
        train,
    )
    from lrurec.cli.arguments import Parser

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
    plan.add(commands)
    train.add(commands)
    models.add(commands)
    evaluate.add(commands)
    compare.add(commands)
    recommend.add(commands)
    report.add(commands)
    search.add(commands)
    reproduce.add(commands)
    import_checkpoint.add(commands)
    export.add(commands)
    serve.add(commands)
    store.add(commands)
    doctor.add(commands)
    return root


class _Stopped(BaseException):
    """A signal asked us to end; whoever writes cleans up on the way out."""

    def __init__(self, number: int) -> None:
        self.number = number


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # the cleaning up is not to be stopped by a second one
    raise _Stopped(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    # torch's threads spin for a while after their work, on the cores that ours (lrurec.nn.threads) want by then: a
    # training step took 1.15 times as long. It must be said before torch is imported; who has said otherwise is right.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's products are small; threads are shared out by hand
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _stop) for number in watched}
    options: argparse.Namespace | None = None
    try:
        options = parser().parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except LrurecError as error:
        return _say(f"{error}", 2)
    except _Stopped as stopped:
        return _say(getattr(options, "stopped", "stopped; nothing was left behind"), 128 + stopped.number)
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        _forget_stdout()
        return 0
    except OSError as error:
        _forget_stdout()
        where = f" ({error.filename})" if error.filename else ""
        return _say(f"{error.strerror or error}{where}", 2)
    except MemoryError:
        return _say("out of memory; close other programs, or use a machine with more", 2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(message: str, code: int) -> int:
    print(f"lrurec: {message}", file=sys.stderr)
    return code


def _forget_stdout() -> None:
    """What could not be written is not written again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
