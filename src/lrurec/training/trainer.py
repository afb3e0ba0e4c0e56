"""One loop for every model. Knows steps, batches and validations, not how anything is shown.

A step is a function of the seed, its number and what a checkpoint holds (lrurec.training.learner). A run that is killed and
continued from its last checkpoint therefore ends with the same weights, bit for bit.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lrurec.data.dataset import Dataset
from lrurec.data.split import Split, Targets
from lrurec.errors import FolderError
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.metrics import summary
from lrurec.evaluation.ranking import alone, rank, vectors_of
from lrurec.folder import write_text
from lrurec.models.base import Model, TrainedModel, wants_gaps
from lrurec.training.checkpoint import load_checkpoint, restore_model, save_checkpoint
from lrurec.training.config import RunConfig
from lrurec.training.learner import build
from lrurec.training.loggers import Loggers
from lrurec.training.memory import give_back
from lrurec.training.remembering import hold_back, load_memory, remember, save_memory
from lrurec.training.schedule import learning_rate
from lrurec.training.together import learner_for

BEST, LAST, METRICS = "best.safetensors", "last.safetensors", "metrics.jsonl"
MEMORY, RESULT = "memory.safetensors", "result.json"
LOG_EVERY = 50  # steps between two points of the training curves
GIVE_BACK_EVERY = 200  # steps until free memory goes back to the system


def validations(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics; one that was cut off when its writer died is left out."""
    path, rows = folder / METRICS, []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise FolderError(f"line {number} of {path} is damaged; take it out, or train again") from None
    return rows


def lost(folder: Path) -> str:
    """What to say of a run whose memory is gone behind its finish: what it was learned from has been trained on since."""
    return (
        f"{folder / MEMORY} is missing, and cannot be learned again: the weights have finished with the events that it is"
        " learned from; put it back from a copy, or train again with another --out"
    )


@dataclass
class Progress:
    """What a watcher sees after every step."""

    step: int
    steps: int
    loss: float
    items_per_second: float
    seconds: float
    best: dict[str, float] | None


class Trainer:
    """Trains into a run folder; `resume` continues from its last checkpoint."""

    def __init__(self, dataset: Dataset, split: Split, config: RunConfig, folder: Path) -> None:
        dataset.check()
        if wants_gaps(config.model):
            split = split.with_gaps(dataset)
        train = split.train
        if config.memory.use:  # learns from the rest how much to believe the memory
            train, _ = hold_back(train, config.memory.held_back, config.training.seed)
        self.learner = learner_for(dataset.n_items, dataset.n_users, train, config, split.train)
        self.split, self.config, self.folder = split, self.learner.config, folder
        self.model, self.steps = self.learner.model, self.learner.steps
        self.step = 0
        self.seconds = 0.0
        self.best: dict[str, float] | None = None
        self.best_step = 0
        self.to_beat: float | None = None  # validation Recall@10 with the memory, of the weights before the finish
        self.waited = 0  # validations without a better recall
        self.stopped = False
        self.interrupted = False  # set from outside: save and leave after the step at hand
        self.remembering = False  # while the memory is learned, which is not left halfway
        self.content_id = dataset.content_id
        self.loggers = Loggers()  # set from outside: who else hears of the metrics
        self.said: Callable[[str], None] = lambda line: None  # set from outside: who hears of what follows the steps
        self.remembered: Callable[[float], None] = lambda share: None  # set from outside: how much of it is done
        self.validated: Callable[[int, dict[str, float]], None] = lambda step, found: None  # set from outside; may stop

    def resume(self) -> None:
        tensors, state = load_checkpoint(self.folder / LAST)
        restore_model(self.model, tensors)
        self.learner.restore(tensors, state["step"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]
        self.stopped = state["stopped"]
        self.to_beat = state.get("to_beat")

    def _forget_after(self, step: int) -> None:
        """Drop metrics that were written after the checkpoint: they will be written again."""
        path = self.folder / METRICS
        if path.exists():
            kept = [row for row in validations(self.folder) if row["step"] <= step]
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept))

    def save(self) -> None:
        self.loggers.flush()  # first: what comes after the last checkpoint is logged again
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "best": self.best,
            "best_step": self.best_step,
            "waited": self.waited,
            "stopped": self.stopped,
            "to_beat": self.to_beat,
        }
        save_checkpoint(self.folder / LAST, self.model, self.learner.tensors(), state)

    def train(self, watch: Callable[[Progress], None] = lambda progress: None) -> None:
        """Train until the steps are done or validation stops getting better."""
        t = self.config.training
        if self.config.memory.use and t.finish and self.step > t.steps and not (self.folder / MEMORY).exists():
            raise FolderError(lost(self.folder))
        self._forget_after(self.step)
        items, spent = 0, 0.0
        while self.step < self.steps and not self.stopped:
            if t.finish and self.step == t.steps and self.config.memory.use:
                self._remember()  # before what was held back is learned
                self._choose_before_finish()
            started = time.perf_counter()
            loss, count = self.learner.step(self.step)
            self.step += 1
            took = time.perf_counter() - started
            self.seconds += took
            watch(Progress(self.step, self.steps, loss, count / took, self.seconds, self.best))
            items, spent = items + count, spent + took
            validates = self.step % t.validate_every == 0 or self.step in (t.steps, self.steps)
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
        if self.config.memory.use:
            if not (self.folder / MEMORY).exists():  # no finish has begun: beside the best weights
                restore_model(self.model, load_checkpoint(self.folder / BEST)[0])
            self._remember()

    def _remember(self) -> None:
        """Count what came near what, and learn how much to believe it beside the weights as they are; once in a run."""
        if (self.folder / MEMORY).exists():
            return
        t, started = self.config.training, time.perf_counter()
        self.remembering = True
        assert isinstance(self.model, TrainedModel)
        train, said, progress = self.split.train, self.said, self.remembered
        memory = remember(self.model, train, self.config.memory, t.seen, t.seed, t.device, said, progress)
        save_memory(self.folder / MEMORY, memory, self.config, self.content_id)
        self.remembering = False
        self.seconds += time.perf_counter() - started

    def _choose_before_finish(self) -> None:
        """Once g is learned: which weights are best beside the memory, those of now or those that validated best alone?

        The finish has to beat them, as a whole: what it is worth shows when its rate has come down.
        """
        if self.to_beat is not None or self.config.training.refit:
            return
        started = time.perf_counter()
        self.learner.settle()
        now = self._with_memory(self.model)
        if self.best_step != self.step:
            tensors, _ = load_checkpoint(self.folder / BEST)
            before = build(self.model.sizes.items, self.model.sizes.users, self.config)
            restore_model(before, tensors)
            if (found := self._with_memory(before)) > now:
                now = found
            else:
                self._keep(self.evaluate("valid"))
        self.to_beat = now
        self.seconds += time.perf_counter() - started

    def _with_memory(self, model: Model) -> float:
        """Validation Recall@10 of a model beside the memory of the run."""
        assert isinstance(model, TrainedModel)
        with alone(model):
            model.memory = load_memory(self.folder / MEMORY, model.sizes.items, self.config, self.content_id)
            return self._metrics(model, self.split.valid)["recall@10"]

    def _keep(self, found: dict[str, float]) -> None:
        """These weights are the best so far; `found` is how they validate alone."""
        self.best, self.best_step = found, self.step
        save_checkpoint(self.folder / BEST, self.model, {}, {"step": self.step, "valid": found})

    def _validate(self, loss: float) -> None:
        if self.config.training.refit:  # there is nothing to validate on: what comes last is the best there is
            self.learner.settle()
            if self.step == self.steps:
                save_checkpoint(self.folder / BEST, self.model, {}, {"step": self.step})
            self.best_step = self.step
            self.save()
            return
        started = time.perf_counter()
        found = self.evaluate("valid")
        if self.to_beat is not None:  # the finish: at its end it is kept, or not
            if self.step == self.steps and not self._with_memory(self.model) < self.to_beat:
                self._keep(found)
        else:
            own, others = found["recall@10"], -1.0 if self.best is None else self.best["recall@10"]
            self.waited = 0 if own > others else self.waited + 1
            self.stopped = self.waited >= self.config.training.patience
            if not own <= others:  # better, or there is nobody to validate on: then the last weights are taken
                self._keep(found)
        self.seconds += time.perf_counter() - started
        # Before the checkpoint: a row of a step that it does not reach is dropped on resume, and written again.
        row: dict[str, Any] = {"step": self.step, "seconds": round(self.seconds, 3), "loss": loss, **found}
        with (self.folder / METRICS).open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.loggers.log(self.step, {f"valid/{name}": value for name, value in found.items()})
        self.validated(self.step, found)
        self.save()

    def evaluate(self, part: str) -> dict[str, float]:
        """Metrics of the model as it is now, on `valid` or `test`."""
        self.learner.settle()
        return self._metrics(self.model, self.split.valid if part == "valid" else self.split.test)

    def _metrics(self, model: Model, targets: Targets, vectors: Tensor | None = None) -> dict[str, float]:
        t = self.config.training
        drawn = Candidates(t.candidates, 0) if t.candidates else None  # the same for every model and seed
        return summary(rank(model, targets, t.seen, candidates=drawn, device=t.device, vectors=vectors).ranks)

    def result(self, best: Model) -> dict[str, Any]:
        """What the run came to, with the weights that validated best."""
        if self.config.training.refit:
            return {"steps": self.step, "best_step": self.best_step, "seconds": round(self.seconds, 1), **best.facts()}
        t, vectors = self.config.training, None
        memory = best.memory if isinstance(best, TrainedModel) else None
        if isinstance(best, TrainedModel) and memory is not None:  # ranked twice, encoded once
            vectors = vectors_of(best, self.split.test, t.seen, t.device)
        found = {
            "steps": self.step,
            "best_step": self.best_step,
            "seconds": round(self.seconds, 1),
            "valid": self.best,
            "test": self._metrics(best, self.split.test, vectors),
            **best.facts(),
        }
        if t.candidates:
            found["candidates"] = t.candidates
        if isinstance(best, TrainedModel) and memory is not None:
            with alone(best):
                found["without_memory"] = {"valid": self.best, "test": self._metrics(best, self.split.test, vectors)}
            found["valid"] = self._metrics(best, self.split.valid)
        return found
