"""Opening a dataset: whole, damaged, and while somebody replaces it."""

import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import lrurec
from lrurec import Dataset
from lrurec.errors import FolderError, InputError


def log(events: int) -> pl.DataFrame:
    return pl.DataFrame({"user": np.arange(events) % 3, "item": np.arange(events)})


def test_it_is_mapped_not_loaded(tmp_path: Path) -> None:
    lrurec.load_events(log(9), out=tmp_path / "d")
    dataset = Dataset.open(str(tmp_path / "d"))
    assert isinstance(dataset.items, np.memmap) and not dataset.items.flags.writeable
    assert repr(dataset) == "Dataset(3 users, 9 items, 9 interactions)"
    with pytest.raises(InputError, match="user '7' is not in the dataset"):
        dataset.history(7)


@pytest.mark.parametrize("name", ["items.npy", "offsets.npy", "user_ids.npy", "item_ids.npy"])
def test_missing_and_short_files(tmp_path: Path, name: str) -> None:
    lrurec.load_events(log(9), out=tmp_path / "d")
    path = tmp_path / "d" / name
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(FolderError, match=f"{name} has"):
        Dataset.open(tmp_path / "d")
    path.unlink()
    with pytest.raises(FolderError, match=f"{name} is missing"):
        Dataset.open(tmp_path / "d")


def test_opening_while_it_is_replaced(tmp_path: Path) -> None:
    """Whoever opens gets one of the two datasets, never a mixture."""
    out = tmp_path / "d"
    lrurec.load_events(log(9), out=out)
    done = threading.Event()

    def replace() -> None:
        try:
            for k in range(60):
                lrurec.load_events(log(9 + 30 * (k % 2)), out=out)
        finally:
            done.set()  # also where it fails: the test must end, and tell

    writer = threading.Thread(target=replace)
    writer.start()
    seen = set()
    while not done.is_set():
        dataset = Dataset.open(out)
        assert dataset.offsets[-1] == len(dataset.items) == len(dataset.item_ids)
        seen.add(dataset.n_events)
    writer.join()
    assert seen == {9, 39}
