"""One-dimensional arrays: `.npy` files written piece by piece, runs of positions. Knows numbers, not meaning."""

import io
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class ArrayFile:
    """A `.npy` file that grows: its header, written at the end, says how long it became."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._file = path.open("wb", buffering=0)
        self._write(self._header())

    def _header(self) -> bytes:
        descr = np.lib.format.dtype_to_descr(self.dtype)
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": (self.length,)})
        return buffer.getvalue()

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while len(view):  # a raw file may take less than it is given, then say why (a full disk)
            view = view[self._file.write(view) :]

    def append(self, values: NDArray[Any]) -> None:
        values = np.ascontiguousarray(values, self.dtype)
        if len(values):
            self._write(values.data)
        self.length += len(values)

    def __enter__(self) -> "ArrayFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._file.seek(0)
                self._write(self._header())  # numpy pads headers, so that a longer shape still fits
        finally:
            self._file.close()


GAPS = 32  # kinds of gaps between events: 0 for unknown, then by powers of two of seconds


def spans(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of runs, one after the other: starts[0], starts[0] + 1, ... (lengths[0] of them), starts[1], ...

    >>> spans(np.array([10, 20]), np.array([3, 2])).tolist()
    [10, 11, 12, 20, 21]
    """
    ends = np.cumsum(lengths)
    shift: NDArray[np.int64] = np.repeat(starts - (ends - lengths), lengths)
    return np.arange(len(shift), dtype=np.int64) + shift


def mapped(path: Path) -> NDArray[Any]:
    """The array of a `.npy` file, read when it is touched. A plain array: numpy's memmap takes longer to index."""
    return np.asarray(np.load(path, mmap_mode="r"))


def save_array(path: Path, values: NDArray[Any]) -> None:
    """Write a whole array as `.npy`."""
    with ArrayFile(path, values.dtype) as file:
        file.append(values)
