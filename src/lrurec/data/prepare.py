"""From rows to histories: check, number, order, filter. Knows events, not file formats.

The steps, each over data that is never all in memory:

    read      rows become numbers (user code, item code, time) and are set aside on disk
    order     part by part: by user, then time, then the rule for ties; immediate repeats may go
    filter    rare items, then short users, once or until nothing changes
    write     the dataset folder, which appears in one move
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lrurec
from lrurec.arrays import save_array
from lrurec.config import from_mapping, unknown
from lrurec.data.arrange import filter_rare, order
from lrurec.data.dataset import KIND, VERSION, Dataset
from lrurec.data.gather import Source, gather
from lrurec.data.ids import IdEncoder
from lrurec.data.layout import Layout, Wanted, recognise
from lrurec.data.names import Names, join_names, read_names
from lrurec.data.progress import Progress, counted, no_progress
from lrurec.data.readers import Rows, read
from lrurec.data.settings import Log, Settings
from lrurec.data.sources import events_in
from lrurec.data.spill import Spill
from lrurec.errors import FolderError, SettingsError
from lrurec.folder import MANIFEST, new_folder, read_manifest, sha256, sha256_json, write_manifest

ALGORITHM = 1  # raised when the same input would give other arrays


RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"min_user": 5, "min_item": 5, "drop_repeats": True, "ties": "item"},
}


def settings_for(recipe: str | None, layouts: Sequence[Layout], given: dict[str, Any]) -> Settings:
    """Defaults, then the recipe, then what was given. Only what was given may be wrong."""
    values: dict[str, Any] = {}
    if recipe is not None:
        if recipe not in RECIPES:
            raise unknown("recipe", recipe, RECIPES)
        values = dict(RECIPES[recipe])
        if all(layout.format == "pairs" for layout in layouts):
            # Files of `user item` pairs arrive filtered and in order; the paper's code takes them as they are.
            values |= {"min_user": 1, "min_item": 1}
    return from_mapping(Settings, values | {k: v for k, v in given.items() if v is not None})


@dataclass(frozen=True)
class Prepared:
    """The outcome: the dataset, and whether anything had to be done."""

    dataset: Dataset
    unchanged: bool


def prepare(
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    format: str | None = None,
    wanted: Wanted = Wanted(),  # noqa: B008  (frozen)
    recipe: str | None = None,
    item_names: str | Path | None = None,
    progress: Progress = no_progress,
    force: bool = False,
    **settings: Any,
) -> Prepared:
    """Prepare files (or folders of files) into a dataset folder; see `Settings` for the settings.

    What is there already and up to date is left alone, unless `force` is set.
    """
    if "" in (*map(str, inputs), str(out)):
        raise SettingsError("an empty path; name a file or a folder")
    files, names_path = events_in([Path(i) for i in inputs])
    if item_names is not None:
        names_path = Path(item_names)
    names = read_names(names_path) if names_path is not None else None
    sources = [_file_source(path, recognise(path, format, wanted)) for path in files]
    chosen = settings_for(recipe, [s.layout for s in sources], settings)
    hashed = [*files, *([names_path] if names_path else [])]
    with ThreadPoolExecutor(1) as pool:
        # Shown only while nothing else is: later the hashes are made behind the reading.
        shown = progress if (Path(out) / MANIFEST).exists() else no_progress
        report = counted(shown, "checking", sum(path.stat().st_size for path in hashed))
        hashes = [pool.submit(sha256, path, report) for path in hashed]
        facts = _Facts(sources, hashes, names_path, chosen)
        if not force and (ready := _already(Path(out), facts)) is not None:
            return Prepared(ready, unchanged=True)
        with new_folder(Path(out), KIND) as work:
            _build(sources, chosen, names, names_path, work, facts, progress)
    return Prepared(Dataset.open(out), unchanged=False)


class _Facts:
    """Where a dataset comes from: inputs with their hashes, and settings; the hashes arrive in their own time."""

    def __init__(
        self, sources: Sequence[Source], hashes: list[Future[str]], names: Path | None, settings: Settings
    ) -> None:
        self._sources, self._hashes, self._names, self._settings = sources, hashes, names, settings

    def sizes(self) -> list[int]:
        return [s.size for s in self._sources]

    def resolve(self) -> dict[str, Any]:
        inputs = []
        hashes: list[str | None] = [h.result() for h in self._hashes] or [None for _ in self._sources]
        for source, digest in zip(self._sources, hashes, strict=False):
            layout = {
                r: getattr(source.layout, r)
                for r in ("format", "header", "separator", "user", "item", "time", "rating")
            }
            inputs.append(
                {
                    "name": "/".join(Path(source.label).parts[-2:]).lstrip("/"),
                    "bytes": source.size,
                    "sha256": digest,
                    **layout,
                }
            )
        names = {"name": self._names.name, "sha256": hashes[-1]} if self._names else None
        settings = dataclasses.asdict(self._settings)
        content = [{k: v for k, v in i.items() if k != "name"} for i in inputs]
        key = [ALGORITHM, VERSION, content, names and names["sha256"], settings]
        return {"inputs": inputs, "item_names": names, "settings": settings, "fingerprint": sha256_json(key)}


def _already(out: Path, facts: _Facts) -> Dataset | None:
    """The dataset at `out` if it was made from the same inputs with the same settings."""
    if not (out / MANIFEST).exists():
        return None
    try:
        source = read_manifest(out, KIND, VERSION)["source"]
        if [i["bytes"] for i in source["inputs"]] != facts.sizes():
            return None
        if source["fingerprint"] != facts.resolve()["fingerprint"]:
            return None
        return Dataset.open(out)
    except (FolderError, KeyError):
        return None


def _file_source(path: Path, layout: Layout) -> Source:
    def rows(skip_bad: bool, report: Callable[[int], None]) -> Iterator[Rows]:
        return read(path, layout, skip_bad=skip_bad, report=report)

    return Source(str(path), layout, rows, path.stat().st_size)


def build(sources: Sequence[Source], settings: Settings, names_path: Path | None, out: Path) -> None:
    """Prepare sources that are not files (frames) into a folder."""
    names = read_names(names_path) if names_path is not None else None
    with new_folder(out, KIND) as work:
        facts = _Facts(sources, [], None, settings)
        _build(sources, settings, names, names_path, work, facts, no_progress)


def _build(
    sources: Sequence[Source],
    settings: Settings,
    names: Names | None,
    names_path: Path | None,
    work: Path,
    facts: _Facts,
    progress: Progress,
) -> None:
    log = Log()
    spill = Spill(work)
    try:
        users, items = IdEncoder(), IdEncoder()
        user_counts = gather(sources, settings, spill, users, items, log, progress)
        user_ids, user_final = users.finish()
        item_ids, item_final = items.finish()
        del users, items
        # A user may have two provisional codes, one as a number and one as text: their counts add up.
        final = user_final(np.arange(-user_counts.below, user_counts.above, dtype=np.int32))
        counts = np.zeros(len(user_ids), np.int64)
        np.add.at(counts, final, user_counts.values())
        assert int(counts.sum()) == len(spill)
        numbers, sorting = spill.unit(settings.time_unit)
        chunks = spill.chunks(user_final, item_final, numbers, sorting)
        parts = spill.parts(chunks, counts)
        lengths = order(parts, counts, settings, spill.has_times is True, sorting, work, log, progress)
    finally:
        spill.close()
    user_ids, item_ids, offsets = filter_rare(work, lengths, user_ids, item_ids, settings, log, progress)
    save_array(work / "offsets.npy", offsets)
    user_ids.save(work, "user_ids")
    item_ids.save(work, "item_ids")
    if names is not None and names_path is not None:
        titles, log.items_named = join_names(names_path, names, item_ids)
        titles.save(work, "item_names")
    has_times = (work / "times.npy").exists()
    write_manifest(
        work,
        {
            "format": f"lrurec-{KIND}",
            "version": VERSION,
            "made_by": f"lrurec {lrurec.__version__}",
            "counts": {"users": len(user_ids), "items": len(item_ids), "interactions": int(offsets[-1])},
            "ids": {"user": user_ids.kind, "item": item_ids.kind},
            "times": {"unit": "us"} if has_times else None,
            "names": names is not None,
            "log": dataclasses.asdict(log),
            "source": facts.resolve(),
        },
    )
