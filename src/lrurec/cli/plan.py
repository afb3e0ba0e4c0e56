"""`lrurec plan`: what training and serving would take, before anything runs."""

import argparse
import json
from typing import TYPE_CHECKING

from lrurec.cli.arguments import Commands, add_settings, positive
from lrurec.cli.console import bytes_text, progress_bar, table
from lrurec.cli.parts import need
from lrurec.errors import SettingsError

if TYPE_CHECKING:
    from lrurec.planning.plan import Plan
    from lrurec.training.config import RunConfig

EXAMPLES = """\
The settings are those of lrurec train. Nothing is estimated from tables of other machines: a few real steps, ranks and requests
run here, with the catalogue and the users scaled down if they are many (over 100,000 of either; a million with the sampled
loss), and what they take is extended to the whole. It takes a minute or two.

examples:
  lrurec plan data/mine
  lrurec plan data/mine --set training.loss=sampled --set training.negatives=4096 --set training.shared_negatives=true
  lrurec plan --users 69691 --items 2122932 --events 66.8e6 --set training.max_length=1000 --set training.batch=32 \\
    --set training.loss=sampled --set training.negatives=4096 --set training.shared_negatives=true
  lrurec plan --users 1e6 --items 5e4 --length 20 --model sasrec --json
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "plan",
        help="memory, disk and time that training and serving would take",
        description="Estimate memory, disk, time per epoch and time per request on this machine, before anything runs.",
        epilog=EXAMPLES,
    )
    p.add_argument("dataset", metavar="DATASET", nargs="?", help="a folder made by lrurec prepare; or give its sizes:")
    p.add_argument("--users", type=positive, metavar="N")
    p.add_argument("--items", type=positive, metavar="N")
    p.add_argument("--events", type=positive, metavar="N")
    p.add_argument("--length", type=positive, metavar="N", help="events per user on average, instead of --events")
    add_settings(p)
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.data.dataset import Dataset, LogSize
    from lrurec.planning.log import Log
    from lrurec.planning.plan import plan
    from lrurec.training.config import config_for

    sizes = {name: getattr(options, name) for name in ("users", "items", "events", "length")}
    given = [f"--{name}" for name, value in sizes.items() if value is not None]
    if options.dataset is not None:
        if given:
            raise SettingsError(f"the dataset says how large it is; leave out {', '.join(given)}")
        log = Log.of(Dataset.open(options.dataset))
    elif sizes["users"] is None or sizes["items"] is None:
        raise SettingsError("pass a dataset folder, or --users, --items and --events of one that is not there yet")
    else:
        log = Log.made_up(**sizes)
    size = LogSize(log.users, log.items, log.events)
    config = config_for(options.recipe or "fast", options.config, options.settings, options.model, size)
    with progress_bar() as progress:
        made = plan(log, config, lambda done, total: progress("trials", done, total))
    print(json.dumps(made.values(), indent=1) if options.json else _told(made))
    return 0


def _told(made: "Plan") -> str:
    from lrurec.planning.plan import free_memory

    log, measured, t = made.log, made.all, made.config.training
    free = free_memory()
    rows = [["what", "estimate"]]

    def tell(what: str, text: str) -> None:
        rows.append([what, text])

    tell("memory of training", bytes_text(made.memory) + (f" (free here: {bytes_text(free)})" if free else ""))
    tell("disk, dataset", bytes_text(made.dataset_bytes))
    tell("disk, run", f"{bytes_text(made.run_bytes)}, while a checkpoint replaces the last")
    if made.artifact_bytes is not None:
        tell("disk, artifact", bytes_text(made.artifact_bytes))
    if made.counts:
        tell("counting", "once, over all events")
    else:
        tell("a step", f"{seconds_text(measured.step)}, {number_text(measured.positions / measured.step)} items/s")
        tell("an epoch", f"{seconds_text(made.epoch)}, {made.steps_per_epoch:,} steps")
    among = f"{t.candidates:,} sampled items" if t.candidates else "all items"
    tell("a validation", f"{seconds_text(made.validation)}, every user's item among {among}")
    if not made.counts:
        most = "" if t.steps else " at most (it stops when validation does)"
        if made.config.memory.use:
            tell("the transition memory", f"{seconds_text(made.remembering)}, {bytes_text(made.remembered)} at most")
        times = f"{made.validations:,} validation{'s' * (made.validations != 1)}"
        tell("the run", f"{seconds_text(made.whole)}, {made.steps:,} steps, {times}{most}")
    if measured.observe is not None and measured.exact is not None:
        tell("serving: an event", seconds_text(measured.observe))
        tell("serving: top 20, exact", seconds_text(measured.exact))
        if measured.scanned is not None:
            tell("serving: top 20, scanned", seconds_text(measured.scanned))
        if measured.approximate is not None:
            tell("serving: top 20, approximate", seconds_text(measured.approximate))
    sizes = " and ".join(f"{probe['items']:,}" for probe in made.values()["probes"])
    lines = [
        f"{log.users:,} users, {log.items:,} items, {log.events:,} events; {_model_text(made.config)},"
        f"{'' if made.counts else f' loss {t.loss}, {t.precision},'} {made.threads} threads",
        "",
        table(rows),
        "",
        *(f"advice    {line}" for line in made.advice()),
        f"measured  on this machine just now, with {sizes} items; other work on it makes all of this slower",
    ]
    return "\n".join(lines)


def _model_text(config: "RunConfig") -> str:
    """The model, with what a recipe may have chosen."""
    mixer, t = getattr(config.model, "mixer", "lru"), config.training
    return (
        config.name
        + (f" with mixer {mixer}" if mixer != "lru" else "")
        + f", windows of {t.max_length:,}, {t.batch:,} in a step"
        + (", with a transition memory" if config.memory.use else "")
    )


def seconds_text(seconds: float) -> str:
    """3 h 20 min rather than 12000 seconds."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 4320 else f"{minutes / 1440:,.0f} days"


def number_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
