"""Which dataset is meant by a name or a path, and what is known of it. Knows folders, not how they are prepared."""

import os
from dataclasses import dataclass
from pathlib import Path

from lrurec.config import unknown
from lrurec.data.dataset import Dataset
from lrurec.data.sources import KNOWN
from lrurec.errors import InputError, SettingsError
from lrurec.experiments.settings import kind_of
from lrurec.folder import MANIFEST

RAW = (
    "LRUREC_DATA"  # names a folder with NAME/NAME.txt.gz: `user item` lines, filtered and ordered as the paper has them
)


@dataclass(frozen=True)
class Found:
    """A dataset folder, or the file that one can be prepared from (then its numbers are the paper's)."""

    name: str
    given: str  # as the user said it
    path: Path
    raw: Path | None
    content_id: str | None
    users: int
    items: int
    events: int
    mean_length: float

    @property
    def kind(self) -> str:
        return kind_of(self.mean_length)

    def strange(self) -> str | None:
        """In what it differs from the paper's dataset of that name; None if it does not, or if there is none."""
        row = KNOWN.get(self.name.lower())
        if row is None or row.paper is None or (self.users, self.items) == (row.paper.users, row.paper.items):
            return None
        return (
            f"it has {self.users:,} users and {self.items:,} items,"
            f" the paper's {row.title} {row.paper.users:,} and {row.paper.items:,}"
        )


def find(given: str, data: Path, out: Path) -> Found:
    """A path to a dataset folder, or a name: DATA/name, OUT/datasets/name, then the raw file under LRUREC_DATA."""
    if "/" in given:
        return opened(Path(given), given)
    for folder in (data / given, out / "datasets" / given, Path(given)):
        if (folder / MANIFEST).exists():
            return opened(folder, given)
    row = KNOWN.get(given)
    if Path(given).is_dir() and row is None:
        raise InputError(f"{given} is a folder, but none that lrurec prepare made; prepare the log first")
    if row is None or row.paper is None:
        here = [p.parent.name for p in data.glob(f"*/{MANIFEST}")]
        raise unknown("dataset", given, [*dict.fromkeys([*(n for n, r in KNOWN.items() if r.paper), *here])])
    raw = Path(os.environ[RAW]) / given / f"{given}.txt.gz" if os.environ.get(RAW) else None
    if raw is None or not raw.exists():
        raise InputError(
            f"{given} is not at {data / given}; bring it with: lrurec data fetch {given}, then"
            f" lrurec prepare raw/{given} --recipe paper --out {data / given} (or say with --data where it is)"
        )
    p = row.paper
    return Found(given, given, out / "datasets" / given, raw, None, p.users, p.items, p.interactions, p.mean_length)


def opened(path: Path, given: str) -> Found:
    """What a dataset folder says of itself."""
    dataset = Dataset.open(path)
    users, events = dataset.n_users, dataset.n_events
    return Found(
        path.resolve().name,
        given,
        path,
        None,
        dataset.content_id,
        users,
        dataset.n_items,
        events,
        events / max(users, 1),
    )


def find_all(given: list[str], data: Path, out: Path) -> list[Found]:
    """Each of them once; two of the same name are refused."""
    found: dict[str, Found] = {}
    for one in dict.fromkeys(given):
        dataset = find(one, data, out)
        if dataset.name in found:
            raise SettingsError(
                f"'{found[dataset.name].given}' and '{one}' are both called {dataset.name}; name one of them otherwise"
            )
        found[dataset.name] = dataset
    return list(found.values())


def at_hand(names: list[str], data: Path, out: Path) -> list[Found]:
    """Those of some names that are here."""
    found = []
    for name in names:
        try:
            found.append(find(name, data, out))
        except InputError:
            continue
    if not found:
        raise InputError(f"none of {', '.join(names)} is under {data}; prepare one, or say with --data where they are")
    return found
