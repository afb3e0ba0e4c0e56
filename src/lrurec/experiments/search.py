"""A search for settings: trials of one model on one dataset, the bad ones ended early. Knows Optuna and runs.

FOLDER/
    journal.log   every trial and its validations, as Optuna writes them (JSON lines); several processes may share it
    trials/0007/  the run of a trial: weights, curves, settings
    best.toml     the settings of the best trial so far, for `lrurec train --config`
    search.html   what mattered, on one page
    search.json   the same as numbers

A trial counts by its best validation Recall@10; the test set is not looked at. One that was interrupted goes on from its last
checkpoint: it is entered again with the same settings and the same run folder.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from lrurec.config import unknown
from lrurec.data.dataset import Dataset
from lrurec.data.split import Split
from lrurec.errors import FolderError, SettingsError
from lrurec.experiments.cells import locked, try_lock
from lrurec.experiments.search_page import page
from lrurec.folder import MANIFEST, write_text
from lrurec.models.registry import model_class
from lrurec.training.config import RunConfig, TrainingConfig, config_for, to_toml
from lrurec.training.learner import TrainingFailed
from lrurec.training.run import Run, write_json
from lrurec.training.trainer import LAST, Progress, Trainer, validations

SPACES = ("paper", "quick", "wide")
JOURNAL, BEST, STUDY = "journal.log", "best.toml", "lrurec"
GOAL = "recall@10"


@cache
def _spaces() -> dict[str, Any]:
    return tomllib.loads(resources.files("lrurec.experiments").joinpath("spaces.toml").read_text(encoding="utf-8"))


def space_for(name: str, model: str, kind: str) -> dict[str, BaseDistribution]:
    """What is tried, by the name of the setting; what the model does not have is left out."""
    if name not in SPACES:
        raise unknown("space", name, SPACES)
    known = {f"model.{f.name}" for f in dataclasses.fields(model_class(model).Config)}
    known |= {f"training.{f.name}" for f in dataclasses.fields(TrainingConfig)}
    chosen = _spaces()[f"{name}-long" if name == "paper" and kind == "long" else name]
    found = {setting: _distribution(rule) for setting, rule in chosen.items() if setting in known}
    if not any(setting.startswith("model.") for setting in found):
        raise SettingsError(f"{model} has nothing to search for: it is not trained")
    return found


def _other(key: str, was: Any, now: Any) -> str:
    """What a search differs in from one of before."""
    if key == "dataset":
        return "another dataset"
    if key != "settings":
        return f"another {key} ({was}, not {now})"
    then = ", ".join(setting for setting in was if setting not in now) or "none of these"
    here = ", ".join(setting for setting in now if setting not in was) or "none of these"
    return f"other settings (then {then}; now {here}): give the same --set"


def _distribution(rule: dict[str, Any]) -> BaseDistribution:
    if "values" in rule:
        return CategoricalDistribution(rule["values"])
    return FloatDistribution(rule["low"], rule["high"], log=rule.get("log", False), step=rule.get("step"))


def size(space: dict[str, BaseDistribution]) -> int | None:
    """How many trials a grid has; None where it is not one."""
    choices = [len(d.choices) for d in space.values() if isinstance(d, CategoricalDistribution)]
    return math.prod(choices) if len(choices) == len(space) else None


def _grid(space: dict[str, BaseDistribution]) -> list[dict[str, Any]]:
    """All points of a grid, in an order that mixes them: the first ones say something of every setting."""
    choices = [d.choices for d in space.values() if isinstance(d, CategoricalDistribution)]
    points = [dict(zip(space, values, strict=True)) for values in itertools.product(*choices)]
    return random.Random(0).sample(points, len(points))


@dataclass(frozen=True)
class Search:
    """What is searched for, and where."""

    dataset: Dataset
    split: Split
    model: str
    space_name: str
    space: dict[str, BaseDistribution]
    recipe: str
    base: tuple[str, ...]  # settings that stay
    folder: Path
    journal: Path

    def open(self) -> "optuna.Study":
        """The study; one of something else in the same file is refused."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        backend = JournalFileBackend(str(self.journal), lock_obj=JournalFileOpenLock(str(self.journal)))
        try:
            study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend), sampler=optuna.samplers.TPESampler(n_startup_trials=8),
                pruner=_pruner(),
                study_name=STUDY, direction="maximize", load_if_exists=True,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(
                f"{self.journal} is not a journal of trials ({error}); choose another --storage"
            ) from None
        for key, value in self._about().items():
            was = study.user_attrs.get(key, value)
            if was != value:
                raise SettingsError(
                    f"{self.journal} holds a search with {_other(key, was, value)}; choose another --out"
                )
            if key not in study.user_attrs:
                study.set_user_attr(key, value)
        return study

    def _about(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset.content_id, "model": self.model, "space": self.space_name,
            "recipe": self.recipe, "settings": list(self.base),
        }  # fmt: skip

    def config(self, parameters: dict[str, Any]) -> RunConfig:
        """The settings of a trial."""
        chosen = [f"{name}={value}" for name, value in parameters.items()]
        return config_for(self.recipe, None, [*self.base, *chosen], self.model)

    def run(self, trials: int, watch: "Watch") -> "optuna.Study":
        """Until the study has so many trials, here and in other processes; what was interrupted first."""
        study = self.open()
        self._enter_again(study)
        while (taken := self._take(study, trials)) is not None:
            trial, run, lock = taken
            try:
                self._try(study, trial, run, watch)
            finally:
                os.close(lock)
            self._write(study)
        self._write(study)
        return study

    def _enter_again(self, study: "optuna.Study") -> None:
        """Trials that nobody works on any more are given up, and entered again with the run that they have."""
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            lock = try_lock(self.folder / "trials" / trial.user_attrs["run"]) if "run" in trial.user_attrs else -1
            if lock is None:
                continue  # another process is at it
            if lock >= 0:
                os.close(lock)
            study.tell(trial.number, state=TrialState.FAIL)
            if "run" in trial.user_attrs:
                study.enqueue_trial(trial.params, user_attrs={"goes_on": trial.user_attrs["run"]})

    def _take(self, study: "optuna.Study", trials: int) -> tuple[Trial, str, int] | None:
        """The next trial with its locked run folder; None where there are enough."""
        with _locked(self.folder):
            known = study.get_trials(deepcopy=False)
            ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
            taken = [t for t in known if t.state in ended or "failed" in t.user_attrs]  # it would fail again
            if len(taken) >= trials:
                return None
            if size(self.space) is not None and not any(t.state == TrialState.WAITING for t in known):
                left = [point for point in _grid(self.space) if all(point != t.params for t in taken)]
                if not left:
                    return None
                study.enqueue_trial(left[0])
            trial = study.ask(self.space)
            run = trial.user_attrs.get("goes_on", f"{trial.number:04d}")
            lock = try_lock(self.folder / "trials" / run)
            assert lock is not None
            trial.set_user_attr("run", run)
            return trial, run, lock

    def _try(self, study: "optuna.Study", trial: Trial, name: str, watch: "Watch") -> None:
        folder = self.folder / "trials" / name / "run"
        config = self.config(trial.params)
        known = (folder / MANIFEST).exists()
        if known:
            trainer = Trainer(self.dataset, self.split, Run.open(folder).config, folder)
        else:
            _, trainer = Run.start(folder, self.dataset, self.split, config)
        if known and (folder / LAST).exists():
            trainer.resume()
            for row in validations(folder):
                if row["step"] <= trainer.step:
                    trial.report(row[GOAL], row["step"])  # its first part was another trial to Optuna
            if trainer.stopped and trainer.waited < trainer.config.training.patience:  # ended early, then killed
                trial.set_user_attr("pruned", True)

        def validated(step: int, metrics: dict[str, float]) -> None:
            trial.report(metrics[GOAL], step)
            if step < trainer.steps and trial.should_prune():
                trainer.stopped = True
                trial.set_user_attr("pruned", True)

        trainer.validated = validated
        watch.started(trial.number, trial.params, known, trainer)
        try:
            trainer.train(watch.progress)
        except TrainingFailed as error:
            trial.set_user_attr("failed", str(error))
            study.tell(trial, state=TrialState.FAIL)
            watch.ended(trial.number, f"failed: {error}")
            return
        if trainer.interrupted:
            raise KeyboardInterrupt
        assert trainer.best is not None
        value = trainer.best[GOAL]
        if trial.user_attrs.get("pruned"):
            study.tell(trial, state=TrialState.PRUNED)
            watch.ended(trial.number, f"ended early at step {trainer.step:,}, {GOAL} {value:.5f}")
        else:
            study.tell(trial, value)
            watch.ended(trial.number, f"{GOAL} {value:.5f}")

    def _write(self, study: "optuna.Study") -> None:
        """best.toml, search.json and search.html, from all trials so far."""
        with _locked(self.folder):
            done = [t for t in study.get_trials(deepcopy=False) if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
            if not any(t.state == TrialState.COMPLETE for t in done):
                return
            best = study.best_trial
            text = f"# trial {best.number} of {len(done)}: valid {GOAL} {best.value:.5f}\n" + to_toml(
                self.config(best.params)
            )
            write_text(self.folder / BEST, text)
            write_json(self.folder / "search.json", self._summary(study, done, best))
            write_text(self.folder / "search.html", page(study, self._about()))

    def _summary(self, study: "optuna.Study", done: list[FrozenTrial], best: FrozenTrial) -> dict[str, Any]:
        return {
            **self._about(),
            "best": {"trial": best.number, GOAL: best.value, **best.params},
            "trials": [
                {
                    "trial": t.number, "state": t.state.name.lower(), GOAL: _reached(t), "run": t.user_attrs["run"],
                    "step": max(t.intermediate_values, default=0), **t.params,
                }
                for t in done
            ],
        }  # fmt: skip


def _reached(trial: FrozenTrial) -> float | None:
    """The best validation of a trial, also of one that was ended early."""
    return max(trial.intermediate_values.values(), default=None)


def _pruner() -> "optuna.pruners.BasePruner":
    """Below the median of the others at the same step; not before four have come to their end."""
    return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=0)


class Watch(Protocol):
    """Who hears of it, and may interrupt the trainer."""

    def started(self, number: int, parameters: dict[str, Any], goes_on: bool, trainer: Trainer) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def ended(self, number: int, words: str) -> None: ...


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        yield
