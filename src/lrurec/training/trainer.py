"""One loop for every model. Knows steps, batches and validations, not how anything is shown.

Nothing in the loop keeps a hidden random state: the batch of step t, its dropout masks and its negatives are functions
of (seed, t). A run that is killed and continued from its last checkpoint therefore ends with the same weights, bit for bit.
"""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrurec.data.batches import Lanes, Sampler, Windows, pack_histories
from lrurec.data.dataset import Dataset
from lrurec.data.negatives import Negatives
from lrurec.data.split import Split, Targets
from lrurec.errors import LrurecError, SettingsError
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.metrics import summary
from lrurec.evaluation.ranking import rank
from lrurec.evaluation.report import training_counts
from lrurec.models.base import Batch, CountingModel, Model, RecurrentModel, Sizes, TrainedModel, TrainingBatch
from lrurec.models.registry import model_class
from lrurec.nn.dropout import Keys
from lrurec.nn.loss import multiplies_half
from lrurec.training.checkpoint import load_checkpoint, restore_model, save_checkpoint
from lrurec.training.config import RunConfig
from lrurec.training.loggers import Loggers
from lrurec.training.memory import give_back
from lrurec.training.schedule import learning_rate
from lrurec.training.steps import RowSteps, WholeSteps, steps_for

BEST, LAST, METRICS = "best.safetensors", "last.safetensors", "metrics.jsonl"
LOG_EVERY = 50  # steps between two points of the training curves
GIVE_BACK_EVERY = 200  # steps until free memory goes back to the system


class TrainingFailed(LrurecError):
    """The loss is no number, or memory ran out; the message says what to do."""


@dataclass
class Progress:
    """What a watcher sees after every step."""

    step: int
    steps: int
    loss: float
    items_per_second: float
    seconds: float
    best: dict[str, float] | None


def settled(config: RunConfig) -> RunConfig:
    """The config with `auto` decided for this machine, as a run records it: a resumed run goes on as it began."""
    t, model = config.training, model_class(config.name)
    precision, updates = t.precision, t.updates
    if precision == "auto":
        precision = "bfloat16" if multiplies_half(torch.device(t.device)) else "float32"
    tables = model.tables if issubclass(model, TrainedModel) else {}
    if updates == "auto":
        updates = "rows" if t.loss == "sampled" and tables else "dense"
    if updates == "rows" and not tables:
        raise SettingsError(f"{config.name} has no tables whose rows could be updated; leave out training.updates=rows")
    if t.carry_state and not (issubclass(model, RecurrentModel) and model.carries(config.model)):
        raise SettingsError(
            "training.carry_state needs a model that goes on from a state (lrurec with model.mixer=lru);"
            f" leave it out for {config.name}"
        )
    return replace(config, training=replace(t, precision=precision, updates=updates))


def build(items: int, users: int, config: RunConfig) -> Model:
    """The model of a config, initialised by its seed."""
    t = config.training
    generator = torch.Generator().manual_seed(t.seed)
    return model_class(config.name)(Sizes(items, users, t.max_length), config.model, generator).to(t.device)


class Trainer:
    """Trains into a run folder; `resume` continues from its last checkpoint."""

    def __init__(self, dataset: Dataset, split: Split, config: RunConfig, folder: Path) -> None:
        t, items = config.training, dataset.n_items
        self.split, self.config, self.folder = split, settled(config), folder
        self.windows = Windows.of(split.train, t.max_length, drop_rest=t.drop_rest)
        self.sampler: Lanes | Sampler = Sampler(len(self.windows), t.batch, t.seed)
        if t.carry_state:
            self.sampler = Lanes(self.windows, t.batch, t.seed)
        self.steps = t.steps or t.epochs * self.sampler.steps_per_epoch
        self.model = build(items, dataset.n_users, config)
        self.carried: Tensor | None = None  # the states behind the windows of the last step, where they are carried
        if t.carry_state:
            assert isinstance(self.model, RecurrentModel)
            self.carried = self.model.initial_state(t.batch)
        self.negatives: Negatives | None = None
        log_q: Tensor | None = None
        if t.loss == "sampled":
            popular = t.negatives_from == "popularity"
            counts = training_counts(split, items) if popular else None
            self.negatives = Negatives(items, t.negatives, t.seed, counts)
            if popular or t.shared_negatives:  # the paper's negatives, uniform ones of each position, are not corrected
                log_q = torch.from_numpy(self.negatives.log_q).float().to(t.device)
        self.updates: WholeSteps | RowSteps | None = None
        if isinstance(self.model, TrainedModel):
            self.updates = steps_for(self.model, self.config.training, log_q)
        else:
            self.steps = 1  # counting
        self.half = self.config.training.precision == "bfloat16"
        self.step = 0
        self.seconds = 0.0
        self.best: dict[str, float] | None = None
        self.best_step = 0
        self.waited = 0  # validations without a better recall
        self.stopped = False
        self.interrupted = False  # set from outside: save and leave after the step at hand
        self.loggers = Loggers()  # set from outside: who else hears of the metrics
        self.validated: Callable[[int, dict[str, float]], None] = lambda step, found: None  # set from outside; may stop

    def resume(self) -> None:
        tensors, state = load_checkpoint(self.folder / LAST)
        restore_model(self.model, tensors)
        if self.updates is not None:
            self.updates.restore(tensors, state["step"])
        if self.carried is not None:
            self.carried.copy_(tensors["carried"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]
        self.stopped = state["stopped"]

    def _forget_after(self, step: int) -> None:
        """Drop metrics that were written after the checkpoint: they will be written again."""
        path = self.folder / METRICS
        if path.exists():
            kept = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= step]
            aside = path.with_name(f".{path.name}.{os.getpid()}")
            aside.write_text("".join(line + "\n" for line in kept))
            aside.replace(path)

    def save(self) -> None:
        self.loggers.flush()  # first: what comes after the last checkpoint is logged again
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "best": self.best,
            "best_step": self.best_step,
            "waited": self.waited,
            "stopped": self.stopped,
        }
        more = self.updates.tensors() if self.updates else {}
        if self.carried is not None:
            more["carried"] = self.carried
        save_checkpoint(self.folder / LAST, self.model, more, state)

    def train(self, watch: Callable[[Progress], None] = lambda progress: None) -> None:
        """Train until the steps are done or validation stops getting better."""
        t = self.config.training
        self._forget_after(self.step)
        items, spent = 0, 0.0
        while self.step < self.steps and not self.stopped:
            started = time.perf_counter()
            loss, count = self._one_step()
            self.step += 1
            took = time.perf_counter() - started
            self.seconds += took
            watch(Progress(self.step, self.steps, loss, count / took, self.seconds, self.best))
            items, spent = items + count, spent + took
            validates = self.step % t.validate_every == 0 or self.step == self.steps
            if validates or self.step % LOG_EVERY == 0:
                values = {
                    "loss": loss,
                    "learning_rate": learning_rate(self.step - 1, t),
                    "items_per_second": items / spent,
                }
                self.loggers.log(self.step, {f"train/{name}": value for name, value in values.items()})
                items, spent = 0, 0.0
            if validates:
                self._validate(loss)
            if validates or self.step % GIVE_BACK_EVERY == 0:
                give_back()
            if self.interrupted:
                self.save()
                return

    def _one_step(self) -> tuple[float, int]:
        t = self.config.training
        if isinstance(self.model, CountingModel):
            self.model.count(whole_sequences(self.split, t.device))
            return 0.0, self.split.train.n_events
        assert self.updates is not None
        packed = self.windows.pack(self.sampler.chosen(self.step))
        batch = TrainingBatch(
            torch.from_numpy(packed.inputs).to(t.device),
            torch.from_numpy(packed.offsets),
            torch.from_numpy(packed.users).to(t.device),
            targets=torch.from_numpy(packed.targets).to(t.device),
            windows=torch.from_numpy(packed.windows),
            half=self.half,
            carried=self._carried(),
        )
        drawn = None
        if self.negatives is not None:
            drawn = self.negatives.drawn(self.step, None if t.shared_negatives else len(batch))
        try:
            loss, ends = self.updates.loss(batch, Keys((t.seed << 32) + self.step), drawn)
        except (MemoryError, torch.OutOfMemoryError):
            raise TrainingFailed(
                f"out of memory at step {self.step}; lower training.batch or training.max_length"
            ) from None
        value = float(loss)
        if not math.isfinite(value):
            raise TrainingFailed(
                f"the loss at step {self.step} is {value}; lower training.learning_rate, then go on with --resume"
            )
        self.updates.update(self.step)
        if self.carried is not None and ends is not None:
            self.carried[: len(ends)] = ends
        return value, len(batch)

    def _carried(self) -> Tensor | None:
        """The states that the windows of this step go on from."""
        if self.carried is None or not isinstance(self.sampler, Lanes):
            return None
        go_on = torch.from_numpy(self.sampler.go_on(self.step)).to(self.carried.device)
        states = self.carried[: len(go_on)]
        return states.masked_fill(~go_on.view(-1, *[1] * (states.ndim - 1)), 0.0)

    def _validate(self, loss: float) -> None:
        started = time.perf_counter()
        found = self.evaluate("valid")
        self.seconds += time.perf_counter() - started
        if self.best is None or found["recall@10"] > self.best["recall@10"]:
            self.best, self.best_step, self.waited = found, self.step, 0
            save_checkpoint(self.folder / BEST, self.model, {}, {"step": self.step, "valid": found})
        else:
            self.waited += 1
            self.stopped = self.waited >= self.config.training.patience
        # Before the checkpoint: a row of a step that it does not reach is dropped on resume, and written again.
        row: dict[str, Any] = {"step": self.step, "seconds": round(self.seconds, 3), "loss": loss, **found}
        with (self.folder / METRICS).open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.loggers.log(self.step, {f"valid/{name}": value for name, value in found.items()})
        self.validated(self.step, found)
        self.save()

    def evaluate(self, part: str) -> dict[str, float]:
        """Metrics of the model as it is now, on `valid` or `test`."""
        if self.updates is not None:
            self.updates.settle()
        return self._metrics(self.model, self.split.valid if part == "valid" else self.split.test)

    def _metrics(self, model: Model, targets: Targets) -> dict[str, float]:
        t = self.config.training
        drawn = Candidates(t.candidates, 0) if t.candidates else None  # the same for every model and seed
        return summary(rank(model, targets, t.seen, candidates=drawn, device=t.device).ranks)

    def result(self, best: Model) -> dict[str, Any]:
        """What the run came to, with the weights that validated best."""
        return {
            "steps": self.step,
            "best_step": self.best_step,
            "seconds": round(self.seconds, 1),
            "valid": self.best,
            "test": self._metrics(best, self.split.test),
            **best.facts(),
        }


def whole_sequences(split: Split, device: str) -> Batch:
    """The training sequences as they are, not cut into windows."""
    train = split.train
    kept = train.stops > train.starts
    longest = int((train.stops - train.starts).max())
    packed = pack_histories(train.items, train.starts[kept], train.stops[kept], longest, train.users[kept])
    inputs, users = (torch.from_numpy(a).to(device) for a in (packed.inputs, packed.users))
    return Batch(inputs, torch.from_numpy(packed.offsets), users)
