"""Frames streamed to one file: Parquet, CSV, TSV or JSON lines, plain, gzip or zstd. Knows files, not events."""

import gzip
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, cast

import polars as pl
import zstandard
from polars.io.plugins import register_io_source

from lrurec.errors import FolderError, SettingsError

_TEXT = {".csv": ",", ".tsv": "\t", ".jsonl": ""}


def check_target(path: Path) -> str:
    """The kind of file (.parquet, .csv, .tsv, .jsonl) that a name asks for; any other is an error."""
    suffixes = [s for s in path.suffixes if s in (".parquet", *_TEXT)]
    if not suffixes or path.name.endswith((".parquet.gz", ".parquet.zst")):
        raise SettingsError(f"{path}: name the file .parquet, .csv, .tsv or .jsonl (text may add .gz or .zst)")
    return suffixes[-1]


def write_frames(
    frames: Iterator[pl.DataFrame],
    schema: Mapping[str, pl.DataType],
    path: Path,
    written: Callable[[int], None] = lambda rows: None,
) -> None:
    """Write all frames; the file appears whole or not at all. `written` hears the rows of each frame."""
    kind = check_target(path)

    def counted() -> Iterator[pl.DataFrame]:
        for frame in frames:
            yield frame
            written(len(frame))

    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == ".parquet":
            _parquet(counted(), schema, aside)
        else:
            _text(counted(), schema, aside, path.suffix, _TEXT[kind])
        aside.replace(path)
    except OSError as error:
        raise FolderError(f"{path} cannot be written ({error.strerror or error}); choose another --out") from error
    finally:
        with suppress(OSError):  # where nothing could be written there is nothing to remove
            aside.unlink(missing_ok=True)


def _parquet(frames: Iterator[pl.DataFrame], schema: Mapping[str, pl.DataType], path: Path) -> None:
    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        return frames

    register_io_source(source, schema=schema).sink_parquet(path, row_group_size=1 << 20)


def _text(
    frames: Iterator[pl.DataFrame], schema: Mapping[str, pl.DataType], path: Path, suffix: str, separator: str
) -> None:
    with ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(path.open("wb"))
        if suffix == ".gz":  # no time stamp inside: the same frames give the same bytes
            packed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0)
            file = cast(IO[bytes], stack.enter_context(packed))
        elif suffix == ".zst":
            file = stack.enter_context(zstandard.ZstdCompressor(write_checksum=True).stream_writer(file))
        first = True
        for frame in frames:
            buffer = io.BytesIO()
            if separator:
                frame.write_csv(buffer, include_header=first, separator=separator)
            else:
                frame.write_ndjson(buffer)
            file.write(buffer.getvalue())
            first = False
