"""`lrurec train`: a dataset to a run."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from lrurec.cli.arguments import Commands, add_settings
from lrurec.cli.parts import need
from lrurec.errors import SettingsError

if TYPE_CHECKING:
    from lrurec.data.dataset import Dataset
    from lrurec.data.split import Split
    from lrurec.training.config import RunConfig
    from lrurec.training.run import Run
    from lrurec.training.trainer import Progress, Trainer

EXAMPLES = """\
recipes:
  paper   the paper's protocol: constant rate 1e-3, early stopping on validation Recall@10
  fast    one-cycle rate with a higher peak: the same accuracy in far fewer steps
  best    the most accurate: a transition memory beside the model, and settings chosen by how long histories are
          (best-small: the same with one model where best has two side by side, on short histories)

examples:
  lrurec train data/mine --out runs/mine
  lrurec train data/ml-1m --out runs/ml-1m --set training.max_length=200
  lrurec train data/beauty --out runs/beauty --set model.dropout=0.6 --set training.steps=12000 \\
    --set training.learning_rate=0.003 --set training.loss=sampled --set training.negatives=4096 --set training.shared_negatives=true
  lrurec train data/mine --out runs/best --recipe best           more accurate, and needs no tuning
  lrurec train data/mine --out runs/live --recipe best --refit   the same on everything there is, to be served
  lrurec train data/mine --out runs/sasrec --model sasrec       another model, in the same way
  lrurec train data/xlong --out runs/xlong --set training.loss=sampled --set training.negatives=100
  lrurec train data/mine --out runs/mine --resume        go on after Ctrl-C, a crash or a power cut

watching:
  tensorboard --logdir runs                              if tensorboard is installed
  MLFLOW_TRACKING_URI=http://host:5000 lrurec train ...  if mlflow is installed
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "train",
        help="train a model on a dataset",
        description="Train a model on a dataset folder. Ctrl-C saves; --resume goes on exactly where it stopped.",
        epilog=EXAMPLES,
    )
    p.add_argument("dataset", metavar="DATASET", help="a folder made by lrurec prepare")
    p.add_argument("--out", required=True, metavar="RUN", help="the run folder to make")
    add_settings(p)
    p.add_argument(
        "--refit",
        action="store_true",
        help="train on everything, validation and test items included, for production; nothing is measured",
    )
    p.add_argument("--resume", action="store_true", help="go on with the run in RUN")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.folder import held
    from lrurec.training.memory import keep_memory
    from lrurec.training.run import Run

    keep_memory()
    folder, again = Path(options.out), f"lrurec train {options.dataset} --out {options.out} --resume"
    if options.resume:
        Run.open(folder)
        with held(folder, "trained"):
            options.stopped = f"stopped; go on with: {again}"
            return _train(options, *_resumed(options, folder), again)
    made, trainer = _begun(options, folder)
    options.stopped = f"stopped before the first step; go on with: {again}"
    with held(folder, "trained"):
        return _train(options, made, trainer, again)


def _split(dataset: "Dataset", config: "RunConfig") -> "Split":
    from lrurec.data.split import everything, leave_last_out

    return everything(dataset) if config.training.refit else leave_last_out(dataset)


def _begun(options: argparse.Namespace, folder: Path) -> "tuple[Run, Trainer]":
    from lrurec.data.dataset import Dataset
    from lrurec.models.base import CountingModel
    from lrurec.training.config import config_for
    from lrurec.training.run import Run

    dataset = Dataset.open(options.dataset)
    if options.refit and any(s.replace(" ", "") == "training.refit=false" for s in options.settings):
        raise SettingsError("--refit and --set training.refit=false exclude each other; leave out one of them")
    settings = [*options.settings, *(["training.refit=true"] if options.refit else [])]
    config = config_for(options.recipe or "fast", options.config, settings, options.model, dataset.size)
    begun = Run.start(folder, dataset, _split(dataset, config), config)
    if options.recipe in ("best", "best-small"):
        if isinstance(begun[1].model, CountingModel):
            _warn(f"{begun[0].config.name} only counts: the recipe changes nothing")
        else:
            of_best = config_for("best", options.config, settings, options.model, dataset.size)
            name = (
                "best-small, the same as best here,"
                if (options.recipe, of_best) == ("best-small", config)
                else options.recipe
            )
            _warn(f"{name} for {dataset.size.per_user:.1f} events per user: {_chosen(begun[0].config)}")
    return begun


def _chosen(config: "RunConfig") -> str:
    """What a recipe that goes by the log came to, in a line."""
    model, t = config.model, config.training
    copies, mixer = getattr(model, "copies", 1), getattr(model, "mixer", "lru")
    parts = [f"{copies} models" if copies > 1 else "one model", f"mixer {mixer}" if mixer != "lru" else ""]
    parts += ["cosines" if getattr(model, "temperature", 0) else "", f"{t.loss} loss", f"windows of {t.max_length:,}"]
    parts += [f"{t.steps:,} steps{f' and {t.finish:,} to finish' if t.finish else ''}"]
    parts += ["a memory" if config.memory.use else ""]
    return ", ".join(part for part in parts if part)


def _resumed(options: argparse.Namespace, folder: Path) -> "tuple[Run, Trainer]":
    from lrurec.training.run import Run
    from lrurec.training.trainer import LAST, RESULT, Trainer

    if options.model or options.recipe or options.config or options.settings or options.refit:
        raise SettingsError(
            "a resumed run keeps its settings; leave out --model, --recipe, --config, --set and --refit"
        )
    made = Run.open(folder)
    if "imported" in made.manifest:
        raise SettingsError(
            f"{folder} was imported and holds weights alone, so there is no training to go on with;"
            " leave out --resume and choose another --out"
        )
    dataset = made.dataset(options.dataset)
    trainer = Trainer(dataset, _split(dataset, made.config), made.config, folder)
    if (folder / LAST).exists():
        trainer.resume()
        if trainer.step < trainer.steps and not trainer.stopped:
            _warn(f"going on at step {trainer.step:,} of {trainer.steps:,}")
    else:
        every = made.config.training.validate_every
        _warn(
            f"there is no checkpoint yet (one is written every {every:,} steps: training.validate_every); it begins anew"
        )
    with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged one is written anew
        # If it was whole already, what came behind its last checkpoint took time, too.
        trainer.seconds = max(trainer.seconds, json.loads((folder / RESULT).read_text(encoding="utf-8"))["seconds"])
    return made, trainer


def _train(options: argparse.Namespace, made: "Run", trainer: "Trainer", again: str) -> int:
    from lrurec.models.base import CountingModel
    from lrurec.training.loggers import loggers_for
    from lrurec.training.run import write_json
    from lrurec.training.trainer import RESULT

    folder = made.folder
    if not len(trainer.split.valid) and not made.config.training.refit:
        _warn("nobody has three events or more: there is nothing to validate or test on, and metrics will be nan")
    trainer.loggers = loggers_for(folder, made.manifest, trainer.step, _warn)
    try:
        among = made.config.training.candidates
        among = among if among < made.manifest["dataset"]["counts"]["items"] else 0  # then all are ranked
        with _stop_gently(trainer), _view(trainer.step < trainer.steps, among) as (watch, validated, remembered):
            trainer.said, trainer.validated, trainer.remembered = _warn, validated, remembered
            options.stopped = f"stopped; go on with: {again}"
            trainer.train(watch)
        result = None if trainer.interrupted else trainer.result(made.model("best"))
    except BaseException:
        trainer.loggers.close("FAILED")
        raise
    if result is None:
        trainer.loggers.close("KILLED")
        print(f"lrurec: stopped and saved at step {trainer.step}; go on with:\n  {again}", file=sys.stderr)
        return 130
    if "test" in result and not (folder / RESULT).exists():
        trainer.loggers.log(trainer.step, {f"test/{name}": value for name, value in result["test"].items()})
    trainer.loggers.close("FINISHED")
    write_json(folder / RESULT, result)
    if options.json:
        print(json.dumps(result, indent=1))
    elif made.config.training.refit:
        print(
            f"trained   {trainer.step:,} steps in {trainer.seconds:.0f} s on everything; nothing is left to measure with"
        )
        can = not getattr(made.config.model, "gaps", False)  # be served
        then = f"export {options.out} --out ARTIFACT" if can else f"recommend {options.out} --user USER"
        print(f"next      lrurec {then}")
    else:
        valid, test = result["valid"], result["test"]
        if isinstance(trainer.model, CountingModel):
            print(f"counted   {trainer.split.train.n_events:,} events in {trainer.seconds:.0f} s")
        else:
            print(f"trained   {trainer.step:,} steps in {trainer.seconds:.0f} s; best at step {trainer.best_step:,}")
        alone = result.get("without_memory", {})
        for part, found in (("valid", valid), ("test", test)):
            print(f"{part:10}{_metrics(found, among)}")
            if part in alone and alone[part] != found:
                print(f"  alone   {_metrics(alone[part], among)}  ({part}, without the memory)")
        _remarks(trainer, result)
        print(f"next      lrurec evaluate {options.out}")
    return 0


def _remarks(trainer: "Trainer", result: dict[str, Any]) -> None:
    """What somebody should know who trusts the recipe: parts of it that did not help on this log."""
    t = trainer.config.training
    if t.finish and trainer.step == trainer.steps and trainer.best_step <= t.steps:
        _warn("the finish did not help in validation: the weights from before it are kept")
    alone = result.get("without_memory", {"valid": {}})["valid"].get("recall@10", 0.0)
    if alone > result["valid"]["recall@10"]:
        _warn("in validation the model is better without its memory; another run: --set memory.use=false")


def _metrics(found: dict[str, float], among: int) -> str:
    """Sampled ones say so: they are far higher than those against all items."""
    sampled = f"  (among {among:,} sampled items)" if among else ""
    return f"Recall@10 {found['recall@10']:.4f}  NDCG@10 {found['ndcg@10']:.4f}{sampled}"


def _warn(message: str) -> None:
    print(f"lrurec: {message}", file=sys.stderr)


@contextmanager
def _stop_gently(trainer: "Trainer") -> Iterator[None]:
    """Ctrl-C and SIGTERM end the training after the step at hand; while a memory is learned, the second one gives that up."""

    def stop(number: int, frame: FrameType | None) -> None:
        if trainer.remembering and trainer.interrupted:
            at_once = before[signal.Signals(number)]
            assert callable(at_once)
            at_once(number, frame)  # ends it here and now
        trainer.interrupted = True
        if trainer.remembering:
            _warn("stops when the memory is learned; once more gives that up now, and --resume learns it anew")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _view(
    steps: bool, among: int
) -> Iterator[tuple[Callable[["Progress"], None], Callable[[int, dict[str, float]], None], Callable[[float], None]]]:
    """Who hears of steps, of validations and of the learning of a memory: live lines on a terminal, elsewhere one line per validation.

    `steps`: whether there is one left to wait for. `among`: how many sampled items a validation ranks among; 0 is all.
    """
    from lrurec.kernels import compiled_before

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[how]}"),
        TimeRemainingColumn(),
    )
    live = console.is_terminal
    slow = threading.Timer(3.0, lambda: _warn("the first training on a machine compiles for about half a minute"))
    slow.daemon = True
    if steps and not compiled_before():
        slow.start()
    with Bars(*columns, console=console, disable=not live, refresh_per_second=4) as bars:
        task = bars.add_task("step", total=None, how="")
        memory: TaskID | None = None
        latest: Progress | None = None

        def watch(p: "Progress") -> None:
            nonlocal latest
            slow.cancel()
            latest = p
            best = _metrics(p.best, among) if p.best else ""  # of a validation that came after the step before this one
            how = f"loss {p.loss:.3f}  {p.items_per_second:,.0f} items/s  {best}"
            bars.update(task, completed=p.step, total=p.steps, how=how)

        def validated(step: int, found: dict[str, float]) -> None:
            if not live and latest is not None:
                line = f"step {step:,}/{latest.steps:,}  loss {latest.loss:.3f}  {_metrics(found, among)}"
                console.print(line, highlight=False, soft_wrap=True)

        def remembered(share: float) -> None:
            nonlocal memory
            if memory is None:
                memory = bars.add_task("memory, %", total=100, how="")
            bars.update(memory, completed=int(100 * share))

        try:
            yield watch, validated, remembered
        finally:
            slow.cancel()
