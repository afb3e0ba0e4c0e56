"""`load_events`: a path or a frame to a Dataset, in one call. The same door as `lrurec prepare`."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lrurec.data.dataset import Dataset
from lrurec.data.frames import frame_of, is_frame
from lrurec.data.gather import Source
from lrurec.data.layout import Wanted
from lrurec.data.prepare import build, prepare, settings_for
from lrurec.data.readers import Rows, frame_rows
from lrurec.errors import SettingsError


def load_events(
    source: Any,
    *,
    out: str | Path | None = None,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    rating: str | int | None = None,
    format: str | None = None,
    header: bool | None = None,
    recipe: str | None = None,
    item_names: str | Path | None = None,
    **settings: Any,
) -> Dataset:
    """Events of a path (or several), a pandas or a polars frame, as a Dataset.

    A path to a prepared dataset folder is simply opened. `settings` are those of `lrurec prepare`
    (min_user, min_item, k_core, drop_repeats, ties, seed, min_rating, time_unit, skip_bad_rows).
    With `out` the dataset folder is kept there; without it the arrays live in memory.

    >>> import polars as pl
    >>> log = pl.DataFrame({"user": ["ann", "ann", "bob", "bob"], "item": ["tea", "jam", "jam", "tea"]})
    >>> load_events(log).history("ann")
    ['tea', 'jam']
    """
    names = {"user": user, "item": item, "time": time, "rating": rating}
    wanted = Wanted(**{r: str(c) for r, c in names.items() if c is not None}, header=header)
    if item_names is not None and not isinstance(item_names, str | Path):
        raise SettingsError(f"item_names is the path of a table, not {type(item_names).__name__}")
    with tempfile.TemporaryDirectory(prefix="lrurec-") as temporary:
        folder = Path(out) if out is not None else Path(temporary) / "dataset"
        if is_frame(source):
            frame, layout = frame_of(source, wanted, settings.get("min_rating") is not None)

            def rows(skip_bad: bool, report: Callable[[int], None]) -> Iterator[Rows]:
                return frame_rows(frame)

            chosen = settings_for(recipe, [layout], settings)
            build(
                [Source("the frame", layout, rows, 0)],
                chosen,
                Path(item_names) if item_names is not None else None,
                folder,
            )
            dataset = Dataset.open(folder)
        else:
            paths = [source] if isinstance(source, str | Path) else source
            if not isinstance(paths, Sequence) or not all(isinstance(p, str | Path) for p in paths):
                raise SettingsError(
                    f"load_events takes a path or a pandas or polars frame, not {type(source).__name__}"
                )
            if len(paths) == 1 and (Path(paths[0]) / "manifest.json").exists():
                return Dataset.open(paths[0])
            dataset = prepare(
                paths,
                folder,
                format=format,
                wanted=wanted,
                recipe=recipe,
                item_names=item_names,
                **settings,
            ).dataset
        return dataset if out is not None else dataset.in_memory()
