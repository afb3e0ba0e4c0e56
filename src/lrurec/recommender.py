"""The friendly face: fit, recommend, similar_items, save, load. Knows people's ids; everything else is done elsewhere."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from lrurec.config import unknown
from lrurec.data.batches import pack_histories
from lrurec.data.dataset import Dataset, LogSize
from lrurec.data.events import load_events
from lrurec.data.split import Gaps, everything, gaps_between, leave_last_out, times_of
from lrurec.errors import FolderError, InputError, SettingsError
from lrurec.ids import Id
from lrurec.models.base import Batch, Model, TrainedModel, wants_gaps
from lrurec.training.config import RunConfig, config_for
from lrurec.training.run import Run
from lrurec.training.trainer import Progress

ON_UNKNOWN = ("error", "skip", "popular")
_ROWS = 256  # histories scored together


class Recommender:
    """A recommender with the manners of other libraries.

        rec = Recommender(steps=500).fit("events.csv")
        rec.recommend(["ann", "bob"], k=5)
        rec.recommend(histories=[["tea", "jam"]], k=5)

    `model` is a name of `lrurec models`; `settings` are those of `lrurec train --set`: training settings by their
    name, those of the model and the memory as `model_dropout` and `memory_use`.
    """

    def __init__(
        self, recipe: str = "fast", on_unknown: str = "error", *, model: str = "lrurec", **settings: Any
    ) -> None:
        if on_unknown not in ON_UNKNOWN:
            raise unknown("on_unknown", on_unknown, ON_UNKNOWN)
        self.on_unknown = on_unknown
        assignments = [f"{_key(k)}={_text(v)}" for k, v in settings.items()]
        self._chosen = (recipe, assignments, model)
        self.config = self._config(LogSize())  # a wrong setting is told at once
        self._folder: Path | None = None
        self._run: Path | None = None  # somebody's, that it was opened from
        self._dataset: Dataset | None = None
        self._model: Model | None = None

    def _config(self, size: LogSize) -> RunConfig:
        recipe, assignments, model = self._chosen
        return config_for(recipe, None, assignments, model, size)

    def fit(
        self, events: Any, *, watch: Callable[[Progress], None] = lambda progress: None, **reading: Any
    ) -> "Recommender":
        """Train on a path, a frame or a Dataset; `reading` are the settings of `load_events`."""
        folder = Path(tempfile.mkdtemp(prefix="lrurec-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        if isinstance(events, Dataset):
            if events.path is None:
                raise SettingsError("fit takes a dataset that lies in a folder; pass the events themselves")
            shutil.copytree(events.path, folder / "dataset")
        else:
            load_events(events, out=folder / "dataset", **reading)
        dataset = Dataset.open(folder / "dataset")
        self.config = self._config(dataset.size)
        split = everything(dataset) if self.config.training.refit else leave_last_out(dataset)
        _, trainer = Run.start(folder / "run", dataset, split, self.config)
        trainer.train(watch)
        return self._ready(folder)

    def _ready(self, folder: Path) -> "Recommender":
        run = Run.open(folder / "run")
        self._folder, self.config = folder, run.config
        self._dataset, self._model = run.dataset(str(folder / "dataset")), run.model("best")
        return self

    @classmethod
    def of_run(cls, run: str | Path, dataset: str | None = None, on_unknown: str = "error") -> "Recommender":
        """A recommender from a run folder made by `lrurec train`."""
        opened = Run.open(Path(run))
        made = cls(on_unknown=on_unknown)
        made.config, made._run = opened.config, opened.folder
        made._dataset, made._model = opened.dataset(dataset), opened.model("best")
        return made

    def save(self, path: str | Path) -> None:
        """Keep the dataset and the run in a folder that `load` opens."""
        if self._folder is None:
            done = f"the run is saved already, in {self._run}" if self._run else "there is nothing to save; fit first"
            raise SettingsError(done)
        where = Path(path)
        if where.exists():
            raise FolderError(f"{path} already exists; choose another path")
        aside = where.with_name(f".{where.name}.{os.getpid()}")
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(self._folder, aside)
            aside.rename(where)
        except OSError as error:
            why = error.strerror or str(error).splitlines()[0]
            raise FolderError(f"{path} cannot be written ({why}); choose another path") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    @classmethod
    def load(cls, path: str | Path, on_unknown: str = "error") -> "Recommender":
        """A recommender that was saved."""
        if not (Path(path) / "run").is_dir():
            raise FolderError(f"{path} is not what save wrote; a run folder of lrurec train opens with of_run")
        return cls(on_unknown=on_unknown)._ready(Path(path))

    @property
    def dataset(self) -> Dataset:
        if self._dataset is None:
            raise SettingsError("the recommender has not been trained; call fit first")
        return self._dataset

    @property
    def model(self) -> Model:
        if self._model is None:
            raise SettingsError("the recommender has not been trained; call fit first")
        return self._model

    def recommend(
        self,
        users: Iterable[Id] | None = None,
        k: int = 10,
        *,
        histories: Sequence[Sequence[Id]] | None = None,
        filter_seen: bool = True,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> pl.DataFrame:
        """The k best items for users, or for histories of people never seen before: user, item, name, score, rank."""
        if (users is None) == (histories is None):
            raise SettingsError("recommend takes users or histories, one of the two")
        k = _count(k)
        for given in (users, histories, allow, deny):
            _refuse_text(given)
        for history in histories or ():
            if isinstance(history, str | int):
                raise SettingsError(
                    f"a history is a list of items, not {history!r}; write histories=[[{history!r}, ...]]"
                )
        if users is not None:
            labels, items, who = self._histories_of(users)
            gaps = self._gaps_of(who)
        else:
            assert histories is not None
            labels = pl.Series("history", range(len(histories)))
            items = [self._known_items(h) for h in histories]
            who, gaps = np.full(len(items), -1), None
        barred = self._barred(allow, deny)
        frames = [
            self._best(items[rows], who[rows], labels[rows], k, filter_seen, barred, gaps and gaps[rows])
            for rows in (slice(a, a + _ROWS) for a in range(0, len(items), _ROWS))
        ]
        return pl.concat(frames) if frames else self._frame([], labels)

    def similar_items(self, items: Iterable[Id], k: int = 10) -> pl.DataFrame:
        """The k items whose vectors point most nearly the same way: item, similar, name, score, rank."""
        if not isinstance(self.model, TrainedModel):
            raise SettingsError(f"{self.config.name} has no item vectors, so it knows no similar items")
        k = _count(k)
        _refuse_text(items)
        with torch.no_grad():
            table = torch.nn.functional.normalize(self.model.item_table()[0], dim=1)
        rows = []
        for item in items:
            index = self._item(item)
            if index is None:
                continue
            scores = table @ table[index]
            scores[index] = -torch.inf
            best = scores.topk(min(k, len(scores) - 1))
            for rank, (score, other) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True), 1):
                rows.append((item, self.dataset.item_ids[other], self.dataset.name(other), score, rank))
        return pl.DataFrame(rows, schema=["item", "similar", "name", "score", "rank"], orient="row")

    def _histories_of(self, users: Iterable[Id]) -> tuple[pl.Series, list[NDArray[np.int32]], NDArray[np.int64]]:
        """What the users are called, their histories, and their numbers (-1: unknown)."""
        labels: list[Id] = []
        who: list[int] = []
        found: list[NDArray[np.int32]] = []
        for user in users:
            index = self.dataset.user_ids.index(user)
            if index is None:
                if self.on_unknown == "error":
                    raise InputError(
                        f"user '{user}' is not in the dataset; pass histories=[...] for people never seen before,"
                        " or on_unknown='skip' or 'popular'"
                    )
                if self.on_unknown == "skip":
                    continue
                found.append(np.zeros(0, np.int32))
            else:
                found.append(self.dataset.items[self.dataset.offsets[index] : self.dataset.offsets[index + 1]])
            labels.append(user)
            who.append(-1 if index is None else index)
        return pl.Series("user", labels, strict=False), found, np.array(who, np.int64)

    def _gaps_of(self, who: NDArray[np.int64]) -> list[Gaps] | None:
        """How much time lies between the events of users, where the model wants that."""
        if not wants_gaps(self.config.model):
            return None
        times, offsets = times_of(self.dataset), self.dataset.offsets
        none = np.zeros(0, np.int64)
        return [gaps_between(none if u < 0 else times[offsets[u] : offsets[u + 1]]) for u in who.tolist()]

    def _item(self, item: Id) -> int | None:
        index = self.dataset.item_ids.index(item)
        if index is None and self.on_unknown == "error":
            raise InputError(f"item '{item}' is not in the dataset; leave it out, or pass on_unknown='skip'")
        return index

    def _known_items(self, history: Sequence[Id]) -> NDArray[np.int32]:
        return np.array([i for item in history if (i := self._item(item)) is not None], np.int32)

    def _barred(self, allow: Iterable[Id] | None, deny: Iterable[Id] | None) -> NDArray[np.bool_]:
        barred = np.zeros(self.dataset.n_items, np.bool_)
        if allow is not None:
            barred[:] = True
            barred[self._known_items(list(allow))] = False
        if deny is not None:
            barred[self._known_items(list(deny))] = True
        return barred

    @torch.no_grad()
    def _best(
        self,
        items: list[NDArray[np.int32]],
        who: NDArray[np.int64],
        labels: pl.Series,
        k: int,
        filter_seen: bool,
        barred: NDArray[np.bool_],
        gaps: list[Gaps] | None,
    ) -> pl.DataFrame:
        ends = np.cumsum([len(i) for i in items])
        starts = np.concatenate([[0], ends[:-1]])
        t = self.config.training
        beside = None if gaps is None else np.concatenate([*gaps, np.zeros(1, np.uint8)])
        packed = pack_histories(np.concatenate([*items, np.zeros(1, np.int32)]), starts, ends, t.seen, who, beside)
        inputs, users = (torch.from_numpy(a).to(t.device) for a in (packed.inputs, packed.users))
        apart = None if packed.gaps is None else torch.from_numpy(packed.gaps).to(t.device)
        scores = self.model.scores(Batch(inputs, torch.from_numpy(packed.offsets), users, gaps=apart)).cpu()
        scores[:, torch.from_numpy(barred)] = -torch.inf
        if filter_seen:
            for row, seen in enumerate(items):
                scores[row, torch.from_numpy(np.asarray(seen).astype(np.int64))] = -torch.inf
        best = scores.topk(min(k, scores.shape[1]), 1)
        rows = []
        for r, label in enumerate(labels):
            pairs = zip(best.values[r].tolist(), best.indices[r].tolist(), strict=True)
            for rank, (score, item) in enumerate(pairs, 1):
                if score > -np.inf:
                    rows.append((label, self.dataset.item_ids[item], self.dataset.name(item), score, rank))
        return self._frame(rows, labels)

    def _frame(self, rows: list[tuple[Any, ...]], labels: pl.Series) -> pl.DataFrame:
        item = pl.Int64() if self.dataset.item_ids.kind == "int" else pl.String()
        schema = {
            labels.name: labels.dtype,
            "item": item,
            "name": pl.String(),
            "score": pl.Float64(),
            "rank": pl.Int64(),
        }
        return pl.DataFrame(rows, schema=schema, orient="row")


def _count(k: Any) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise SettingsError(f"k must be a whole number of 1 or more, not {k!r}")
    return int(k)


def _refuse_text(given: Any) -> None:
    if isinstance(given, str):
        raise SettingsError(f"a list is wanted, not the text '{given}'; write ['{given}']")


def _key(name: str) -> str:
    """model_dropout is model.dropout, memory_use is memory.use; all else is a setting of training."""
    part, _, rest = name.partition("_")
    if name == "memory":
        raise SettingsError("memory has several settings; to have one: memory_use=True")
    return f"{part}.{rest}" if part in ("model", "memory") else f"training.{name}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
