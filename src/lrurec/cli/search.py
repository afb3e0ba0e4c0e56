"""`lrurec search`: the settings that suit a dataset."""

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from lrurec.cli.arguments import Commands, positive
from lrurec.cli.parts import need
from lrurec.errors import SettingsError

if TYPE_CHECKING:
    from lrurec.training.trainer import Progress, Trainer

EXAMPLES = """\
spaces:
  paper   the paper's grid: weight decay 0, 1e-6, 1e-4, 1e-2 by dropout 0.2, 0.4, 0.6, 0.8 (half as many of each for long histories)
  quick   learning rate 0.0015, 0.003, 0.006 by dropout 0.2, 0.4, 0.6: the two that move most models most
  wide    learning rate, weight decay, dropout, width and what else the model has, where the best trials so far point to

A trial is a run like those of lrurec train, with the settings of lrurec reproduce for this kind of dataset and those tried over
them; it counts by its best validation Recall@10. One that lies below the median of the others at the same step is ended.
Ctrl-C saves; the same command goes on. Several processes may work on one --out.

examples:
  lrurec search data/mine --trials 20                            try LRURec; then:
  lrurec train data/mine --config search/mine-lrurec/best.toml --out runs/best
  lrurec search data/beauty --model gru4rec --space wide --trials 30
  lrurec search data/mine --trials 20 --set training.steps=1000  shorter trials
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "search",
        help="the settings that suit a dataset",
        description="Try settings of a model on a dataset, end the bad trials early, and write the best as TOML.",
        epilog=EXAMPLES,
    )
    p.add_argument("dataset", metavar="DATASET", help="a folder made by lrurec prepare")
    p.add_argument("--model", default="lrurec", metavar="NAME", help="one of lrurec models (default: lrurec)")
    p.add_argument("--space", default="paper", metavar="NAME", help="paper, quick or wide (default: paper)")
    p.add_argument("--trials", type=positive, metavar="N", help="in all (default: the whole grid, or 30)")
    p.add_argument("--out", metavar="DIR", help="where trials and pages go (default: search/DATASET-MODEL)")
    p.add_argument("--storage", metavar="FILE", help="the journal of the trials (default: OUT/journal.log)")
    p.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="a setting of all trials"
    )
    p.add_argument("--json", action="store_true", help="print all trials as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    need("search")
    import lrurec
    from lrurec.experiments.search import BEST, JOURNAL, Search, size, space_for
    from lrurec.experiments.settings import kind_of, refuse_useless, settings_for
    from lrurec.training.memory import keep_memory

    keep_memory()
    dataset = lrurec.Dataset.open(options.dataset)
    kind = kind_of(dataset.n_events / max(dataset.n_users, 1))
    space = space_for(options.space, options.model, kind)
    refuse_useless(options.settings, [options.model])
    for setting in options.settings:
        if setting.partition("=")[0] in space:
            raise SettingsError(
                f"{setting.partition('=')[0]} is what the space {options.space} tries; leave it out of --set"
            )
    chosen = settings_for(kind, options.model, 0, options.settings)
    base = tuple(a for a in chosen.assignments if a.partition("=")[0] not in space)
    folder = Path(options.out or f"search/{Path(options.dataset).resolve().name}-{options.model}")
    journal = Path(options.storage) if options.storage else folder / JOURNAL
    search = Search(
        dataset,
        lrurec.leave_last_out(dataset),
        options.model,
        options.space,
        space,
        chosen.recipe,
        base,
        folder,
        journal,
    )
    trials = options.trials or size(space) or 30
    try:
        with _view(trials) as watch:
            search.run(trials, watch)
    except KeyboardInterrupt:
        print("lrurec: stopped and saved; the same command goes on", file=sys.stderr)
        return 130
    best = folder / BEST
    if not best.exists():
        raise SettingsError(f"no trial came to an end; see {folder / 'trials'}")
    if options.json:
        print((folder / "search.json").read_text(encoding="utf-8"), end="")
        return 0
    found = json.loads((folder / "search.json").read_text(encoding="utf-8"))
    told = ", ".join(f"{k} = {v:.4g}" for k, v in found["best"].items() if k not in ("trial", "recall@10"))
    print(
        f"best      trial {found['best']['trial']} of {len(found['trials'])}: valid Recall@10 {found['best']['recall@10']:.5f}"
    )
    print(f"with      {told}")
    print(f"page      {folder / 'search.html'}")
    print(f"next      lrurec train {options.dataset} --config {best} --out RUN")
    return 0


@contextmanager
def _view(trials: int) -> Iterator["_Watch"]:
    """A line per trial, a bar for the one at hand; signals let it save."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        watch = _Watch(console, bars)

        def stop(number: int, frame: FrameType | None) -> None:
            if watch.trainer is None:
                raise KeyboardInterrupt
            watch.trainer.interrupted = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield watch
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Watch:
    def __init__(self, console: Console, bars: Bars) -> None:
        self.console, self.bars = console, bars
        self.trainer: Trainer | None = None
        self.task = bars.add_task("", total=None)

    def started(self, number: int, parameters: dict[str, Any], goes_on: bool, trainer: "Trainer") -> None:
        self.trainer = trainer
        told = " ".join(f"{name}={value:.4g}" for name, value in parameters.items())
        self._say(f"{'goes on' if goes_on else 'started'}   trial {number}: {told}")
        self.bars.reset(self.task, total=trainer.steps, completed=trainer.step, description=f"trial {number}")

    def progress(self, progress: "Progress") -> None:
        self.bars.update(self.task, completed=progress.step)

    def ended(self, number: int, words: str) -> None:
        self.trainer = None
        self._say(f"done      trial {number}: {words}")

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
