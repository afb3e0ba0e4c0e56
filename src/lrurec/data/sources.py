"""The known datasets as one table: where the publisher keeps them, their licence, how they are read.

A dataset is a row here, never a class and never an `if` elsewhere. `data.fetch` brings a row's files
into a folder with a `source.json`; `prepare` reads such a folder without being told anything.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lrurec.config import unknown
from lrurec.errors import InputError
from lrurec.folder import MANIFEST

SOURCE = "source.json"


@dataclass(frozen=True)
class Paper:
    """What the paper reports of a dataset and how it trains on it."""

    users: int
    items: int
    interactions: int
    mean_length: float
    max_length: int
    batch: int
    validate_every: int


@dataclass(frozen=True)
class Known:
    """One row: a dataset that people know by name."""

    name: str
    title: str
    page: str  # where a person reads about it
    licence: str
    url: str | None  # None: the publisher wants a person to log in
    checksum: str | None  # "md5:..." or "sha256:..."
    events: tuple[str, ...]  # the files with events, inside the archive if it is one
    item_names: str | None
    format: str
    paper: Paper | None

    @property
    def file(self) -> str:
        """The name of the file the publisher gives."""
        return self.url.rsplit("/", 1)[-1] if self.url else self.events[0]


_GROUPLENS = "research only, no redistribution (GroupLens)"
_AMAZON = "published for research (McAuley et al.)"
_SNAP = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/"
_AMAZON_PAGE = "https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html"


def _amazon(name: str, title: str, file: str, digest: str, paper: Paper) -> Known:
    return Known(
        name,
        title,
        _AMAZON_PAGE,
        _AMAZON,
        _SNAP + file,
        f"sha256:{digest}",
        (file,),
        None,
        "amazon-csv",
        paper,
    )


KNOWN: dict[str, Known] = {
    row.name: row
    for row in (
        Known(
            "ml-1m",
            "MovieLens 1M",
            "https://grouplens.org/datasets/movielens/1m/",
            _GROUPLENS,
            "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
            "md5:c4d9eecfca2ab87c1945afe126590906",
            ("ratings.dat",),
            "movies.dat",
            "movielens",
            Paper(6_040, 3_416, 1_000_000, 165.5, 200, 128, 500),
        ),
        Known(
            "ml-100k",
            "MovieLens 100K",
            "https://grouplens.org/datasets/movielens/100k/",
            _GROUPLENS,
            "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
            "md5:0e33842e24a9c977be4e0107933c0723",
            ("u.data",),
            "u.item",
            "tsv",
            None,
        ),
        _amazon(
            "beauty",
            "Amazon Beauty",
            "ratings_Beauty.csv",
            "17d5232b90444beecfe758ce1446e5300230491f3a88ac802992ca95fc4c150f",
            Paper(52_204, 57_289, 398_000, 7.6, 50, 128, 1000),
        ),
        _amazon(
            "video",
            "Amazon Video Games",
            "ratings_Video_Games.csv",
            "f0ca171050c2e0f208d47f5267992476b21ab68a01439c21c8be1a4432982cfa",
            Paper(31_013, 23_715, 287_000, 9.3, 50, 128, 1000),
        ),
        _amazon(
            "sports",
            "Amazon Sports and Outdoors",
            "ratings_Sports_and_Outdoors.csv",
            "a31a27e2f0cd85b50acd002378cf1a23a0b3f2659484defb3225a836118252d4",
            Paper(83_970, 83_728, 596_000, 7.1, 50, 128, 1000),
        ),
        Known(
            "steam",
            "Steam reviews",
            "https://cseweb.ucsd.edu/~jmcauley/datasets.html#steam_data",
            "published for research (Kang and McAuley)",
            "https://cseweb.ucsd.edu/~wckang/steam_reviews.json.gz",
            None,
            ("steam_reviews.json.gz",),
            None,
            "steam",
            Paper(334_730, 13_047, 3_700_000, 11.0, 50, 128, 2000),
        ),
        Known(
            "xlong",
            "XLong (Alibaba)",
            "https://tianchi.aliyun.com/dataset/dataDetail?dataId=22482",
            "research, after logging in at Tianchi (Alibaba)",
            None,
            None,
            ("train_corpus_total_dual.txt", "test_corpus_total_dual.txt"),
            None,
            "xlong",
            Paper(69_691, 2_122_932, 66_800_000, 958.8, 1000, 32, 2000),
        ),
    )
}


def known(name: str) -> Known:
    """The row of a name; an unknown name is an error that suggests the right one."""
    if name not in KNOWN:
        raise unknown("dataset", name, KNOWN)
    return KNOWN[name]


def events_in(inputs: Sequence[Path]) -> tuple[list[Path], Path | None]:
    """The files with events among inputs (folders are opened), and a table of item names if one came along."""
    files: list[Path] = []
    names: Path | None = None
    if not inputs:
        raise InputError("no input; name a file or a folder of files")
    for path in inputs:
        if not path.exists():
            hint = "; --k-core takes no number, use --min-user and --min-item" if path.name.isdigit() else ""
            raise InputError(f"{path} does not exist; check the path{hint}")
        if not path.is_dir():
            files.append(path)
        elif (path / SOURCE).exists():
            events, table = _fetched(path)
            files += events
            names = names or table
        else:
            files += _inside(path)
    known_files: set[Path] = set()
    for file in files:
        if file.resolve() in known_files:
            raise InputError(f"{file} is given twice; its events would count double")
        known_files.add(file.resolve())
    return files, names


def _inside(folder: Path) -> list[Path]:
    """The files of a folder by name, without hidden ones, markers (_SUCCESS), empty ones and datasets of ours."""
    if (folder / MANIFEST).exists():
        raise InputError(f"{folder} is a prepared dataset already; prepare takes the log it was made from")
    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_unreadable):
        here = Path(place)
        folders[:] = sorted(f for f in folders if f[0] not in "._" and not (here / f / MANIFEST).exists())
        found += [here / n for n in names if n[0] not in "._" and (here / n).stat().st_size]
    if not found:
        raise InputError(f"{folder} has no files to read; there is nothing to prepare")
    return sorted(found)


def _unreadable(error: OSError) -> None:
    raise InputError(f"{error.filename} cannot be read ({error.strerror})")


def _fetched(folder: Path) -> tuple[list[Path], Path | None]:
    try:
        source = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        events = [folder / name for name in source["events"]]
        names = folder / source["item_names"] if source["item_names"] else None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / SOURCE} cannot be read ({error}); fetch the dataset again") from None
    return events, names
