"""A pandas or polars frame as a polars frame of the columns wanted. Knows frames, not files.

pandas is never imported here: a frame is recognised by what it can do.
"""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lrurec.data.layout import Layout, Wanted, choose
from lrurec.errors import InputError


def is_frame(source: object) -> bool:
    """True for a polars frame (eager or lazy) or something with pandas' manners."""
    return isinstance(source, pl.DataFrame | pl.LazyFrame) or _is_pandas(source)


def _is_pandas(source: object) -> bool:
    return hasattr(source, "columns") and hasattr(source, "iloc") and hasattr(source, "dtypes")


def frame_of(source: Any, wanted: Wanted, with_rating: bool) -> tuple[pl.DataFrame, Layout]:
    """The columns user, item, time, rating of a frame, and which columns they were."""
    frame = source.collect() if isinstance(source, pl.LazyFrame) else source
    names = [str(c) for c in frame.columns]
    place = dict(zip(names, frame.columns, strict=True))
    empty = Layout("frame", tuple(names), "", "", digits_are_numbers=False)
    layout = choose(Path("the frame"), empty, wanted, [n for n in names if _is_moment(frame, place[n])])
    roles = ("user", "item", "time", "rating") if with_rating else ("user", "item", "time")
    picked = {r: place[c] for r in roles if (c := getattr(layout, r)) is not None}
    if isinstance(frame, pl.DataFrame):
        return frame.select(pl.col(c).alias(r) for r, c in picked.items()), layout
    return pl.DataFrame({r: _from_pandas(str(c), frame[c]) for r, c in picked.items()}), layout


def _is_moment(frame: Any, column: Any) -> bool:
    """Whether a column says itself that it holds dates or times."""
    if isinstance(frame, pl.DataFrame):
        return frame.schema[column].is_temporal()
    return getattr(frame[column].dtype, "kind", "") == "M"


def _from_pandas(name: str, column: Any) -> pl.Series:
    values = column.to_numpy()
    if values.dtype.kind in "iufM":
        return pl.Series(values) if values.dtype.kind != "M" else pl.Series(values.astype("datetime64[ns]"))
    if values.dtype.kind == "b":
        raise InputError(f"the frame's column '{name}' holds truth values, not ids or times")
    missing = np.asarray(column.isna())
    objects = [None if m else v for v, m in zip(values.tolist(), missing, strict=True)]
    kinds = {type(v) for v in objects if v is not None}
    if kinds <= {str}:
        return pl.Series(objects, dtype=pl.String)
    if all(issubclass(k, int) and k is not bool for k in kinds) and _fits(objects):
        return pl.Series(objects, dtype=pl.Int64)
    if all(hasattr(v, "isoformat") for v in objects if v is not None):
        return pl.Series([None if v is None else v.isoformat() for v in objects], dtype=pl.String)
    if all(issubclass(k, int | str | np.integer) and k is not bool for k in kinds):
        return pl.Series([None if v is None else str(v) for v in objects], dtype=pl.String)
    raise InputError(
        f"the frame's column '{name}' holds {', '.join(sorted(k.__name__ for k in kinds))};"
        " ids are integers or text, times are numbers, dates or text"
    )


def _fits(values: list[Any]) -> bool:
    return all(v is None or -(1 << 63) <= v < 1 << 63 for v in values)
