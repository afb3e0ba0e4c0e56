"""The run folder: what was trained, on what, how, and how well. Knows files, not the loop.

manifest.json       the dataset and its content id, versions, threads; where it was imported from, if it was
config.toml         every setting
metrics.jsonl       one line per validation
best.safetensors    the weights with the best validation Recall@10; those of the finish if it is no worse with the memory
last.safetensors    everything needed to go on
memory.safetensors  what came near what, and how much to believe it beside the weights (memory.use)
result.json         test metrics of the best weights, once training is done
tensorboard/        the same metrics and the training curves as event files, where TensorBoard is installed
mlflow.json         which run at the MLflow server it is, if there is one
"""

import json
import platform
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import lrurec
from lrurec.data.dataset import Dataset
from lrurec.data.split import Split, leave_last_out
from lrurec.errors import FolderError, SettingsError
from lrurec.folder import MANIFEST, read_manifest, write_text
from lrurec.models.base import Model, TrainedModel, wants_gaps
from lrurec.models.registry import model_class
from lrurec.training.checkpoint import load_checkpoint, read_state, restore_model
from lrurec.training.config import RunConfig, from_values, to_toml
from lrurec.training.learner import build, settled
from lrurec.training.remembering import load_memory
from lrurec.training.trainer import BEST, LAST, MEMORY, RESULT, Trainer, lost

KIND, VERSION = "run", 1
CONFIG = "config.toml"


@dataclass(frozen=True)
class Run:
    """An opened run folder."""

    folder: Path
    manifest: dict[str, Any]
    config: RunConfig

    @classmethod
    def create(cls, folder: Path, dataset: Dataset, config: RunConfig) -> "Run":
        """A new run folder; one that already holds something is refused."""
        refuse_run(folder)
        config = settled(config)  # first: a wrong one leaves no folder
        new = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return cls.begin(folder, dataset, config)
        except BaseException as error:
            with suppress(OSError):
                for name in (CONFIG, MANIFEST):
                    (folder / name).unlink(missing_ok=True)
                if new:
                    folder.rmdir()
            if isinstance(error, OSError):
                raise FolderError(f"{folder} cannot be written ({error.strerror}); choose another --out") from error
            raise

    @classmethod
    def start(cls, folder: Path, dataset: Dataset, split: Split, config: RunConfig) -> tuple["Run", Trainer]:
        """A new run and its trainer. What cannot be trained leaves no folder."""
        refuse_run(folder)
        trainer = Trainer(dataset, split, config, folder)
        return cls.create(folder, dataset, trainer.config), trainer

    @classmethod
    def begin(cls, folder: Path, dataset: Dataset, config: RunConfig, **facts: object) -> "Run":
        """Settings and manifest into an existing folder; `facts` are added to the manifest."""
        packages = ("torch", "numpy", "numba", "safetensors")
        manifest = {
            "format": f"lrurec-{KIND}",
            "version": VERSION,
            "made_by": f"lrurec {lrurec.__version__}",
            "dataset": {
                "path": str(dataset.path.resolve()) if dataset.path else None,
                "content_id": dataset.content_id,
                "counts": dataset.manifest["counts"],
            },
            "split": "leave-last-out",
            "config": config.values(),
            "environment": {
                "python": platform.python_version(),
                "threads": torch.get_num_threads(),
                **{name: metadata.version(name) for name in packages},
            },
            **facts,
        }
        write_text(folder / CONFIG, to_toml(config))
        write_json(folder / MANIFEST, manifest)
        return cls(folder, manifest, config)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        manifest = read_manifest(folder, KIND, VERSION)
        try:
            return cls(folder, manifest, from_values(manifest["config"]))
        except KeyError as error:
            raise FolderError(f"{folder} is damaged ({error} is missing from its manifest)") from None

    def dataset(self, path: str | None = None) -> Dataset:
        """The dataset it was trained on (or a copy of it elsewhere); another dataset is refused."""
        where = path or self.manifest["dataset"]["path"]
        if where is None:
            raise SettingsError(f"{self.folder} does not know where its dataset is; pass --dataset DIR")
        if path is None and not Path(where).exists():
            raise FolderError(
                f"{where}, the dataset of {self.folder}, does not exist; if it has moved, pass --dataset DIR"
            )
        dataset = Dataset.open(where)
        if dataset.content_id != self.manifest["dataset"]["content_id"]:
            raise FolderError(
                f"{where} is not the dataset that {self.folder} was trained on (it was prepared anew with other"
                " input or settings); prepare it as before, or train again"
            )
        return dataset

    def split(self, dataset: Dataset) -> Split:
        """What it trained on and what is left to measure with; a run that trained on everything is refused."""
        if self.config.training.refit:
            raise SettingsError(
                f"{self.folder} was trained on everything (--refit), so there is nothing to measure it with; evaluate the run"
                " with the same settings that was trained without --refit"
            )
        split = leave_last_out(dataset)
        return split.with_gaps(dataset) if wants_gaps(self.config.model) else split

    @property
    def _again(self) -> str:
        """How to go on with it."""
        return f"go on with: lrurec train {self.manifest['dataset']['path']} --out {self.folder} --resume"

    def lacks_memory(self) -> str | None:
        """What to say of a run that was stopped before its memory was learned, or has lost it."""
        t = self.config.training
        if not self.config.memory.use or (self.folder / MEMORY).exists():
            return None
        if t.finish and (state := read_state(self.folder / LAST)) and state["step"] > t.steps:
            return lost(self.folder)
        return f"{self.folder} was stopped before its memory was learned; {self._again}"

    def unfinished(self) -> str | None:
        """What to say of a run that was stopped before its training had come to its end."""
        t, model = self.config.training, model_class(self.config.name)
        if "imported" in self.manifest or not issubclass(model, TrainedModel) or (self.folder / RESULT).exists():
            return None
        state = read_state(self.folder / LAST)
        if state is None or state["stopped"] or 0 < t.steps + t.finish <= state["step"]:
            return None
        of = f" of {t.steps + t.finish:,}" if t.steps else ""
        return f"{self.folder} was stopped at step {state['step']:,}{of}; {self._again}"

    def model(self, checkpoint: str = "best") -> Model:
        """The model with the weights of a checkpoint, and its memory beside them, where there is one."""
        path = self.folder / {"best": BEST, "last": LAST}[checkpoint]
        if not path.exists():
            raise FolderError(f"{path} does not exist; the run has no such checkpoint yet: {self._again}")
        tensors, _ = load_checkpoint(path)
        counts = self.manifest["dataset"]["counts"]
        model = build(counts["items"], counts["users"], self.config)
        restore_model(model, tensors)
        if isinstance(model, TrainedModel) and (self.folder / MEMORY).exists():
            content_id = self.manifest["dataset"]["content_id"]
            model.memory = load_memory(self.folder / MEMORY, counts["items"], self.config, content_id)
        return model


def refuse_run(folder: Path) -> None:
    """Refuse a folder that already holds something, a run or anything else."""
    try:
        read_manifest(folder, KIND, VERSION)
    except FolderError:
        refuse_used(folder)
    else:
        refuse_used(folder, "; pass --resume to go on with it, or")


def refuse_used(folder: Path, or_else: str = ";") -> None:
    """Refuse a folder that already holds something; `or_else` is what can be done besides choosing another."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} already exists{or_else} choose another --out")


def write_json(path: Path, value: object) -> None:
    """Write JSON whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")
