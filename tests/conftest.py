"""What the tests share: the data at hand, the command line, a slow twin of `prepare`."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from hypothesis import settings

from lrurec import Dataset, load_events
from lrurec.cli.main import main
from server import Server

# No time limits on a noisy machine; in CI the same examples every time, so that a red run can be repeated.
settings.register_profile("lrurec", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("lrurec")
os.environ.pop("MLFLOW_TRACKING_URI", None)  # runs made up here belong on nobody's server


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process."""

    def command(*arguments: object) -> Ran:
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return command


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real datasets, where there is one."""
    given = os.environ.get("LRUREC_DATA")
    if not given or not Path(given).is_dir():
        pytest.skip("LRUREC_DATA names no folder with the real datasets")
    return Path(given)


def histories(dataset: Dataset) -> dict[object, list[object]]:
    """Every history with the original ids."""
    ids = [dataset.user_ids[k] for k in range(dataset.n_users)]
    return {user: list(dataset.history(user)) for user in ids}


Event = tuple[object, object, int | None]


def slow_prepare(
    events: Sequence[Event],
    *,
    min_user: int = 1,
    min_item: int = 1,
    k_core: bool = False,
    drop_repeats: bool = False,
) -> dict[object, list[object]]:
    """The obvious twin: what `prepare` should give, as histories by user id (ties in file order)."""
    histories: dict[object, list[tuple[int, int, object]]] = {}
    for at, (user, item, time) in enumerate(events):
        histories.setdefault(user, []).append((time if time is not None else 0, at, item))
    kept = {user: [item for _, _, item in sorted(h, key=lambda e: e[:2])] for user, h in histories.items()}
    if drop_repeats:
        kept = {u: [i for k, i in enumerate(h) if k == 0 or h[k - 1] != i] for u, h in kept.items()}
    while True:
        before = kept
        count = Counter(item for h in kept.values() for item in h)
        kept = {u: [i for i in h if count[i] >= min_item] for u, h in kept.items()}
        kept = {u: h for u, h in kept.items() if len(h) >= min_user}
        if not k_core or kept == before:
            return kept


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small dataset, a run and an artifact."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [(f"u{u}", f"i{(u * u + k) % 12:02}") for u in range(40) for k in range(u % 7 + 3)]
    (folder / "names.csv").write_text("item,title\n" + "".join(f"i{k:02},Item {k}\n" for k in range(11)))
    events = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    load_events(events, out=folder / "data", item_names=folder / "names.csv")
    command = [sys.executable, "-m", "lrurec.cli.main"]
    settings = (
        "model.width=16",
        "model.channels=8",
        "training.steps=4",
        "training.validate_every=4",
        "training.batch=16",
    )
    options = [part for s in settings for part in ("--set", s)]
    subprocess.run([*command, "train", folder / "data", "--out", folder / "run", *options], check=True)
    subprocess.run([*command, "export", folder / "run", "--out", folder / "artifact"], check=True)
    return folder


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of the built-in sample, hardly trained."""
    folder = tmp_path_factory.mktemp("sample")
    lrurec = [sys.executable, "-m", "lrurec.cli.main"]
    for command in (
        ["data", "synth", "--preset", "sample", "--out", "events.csv", "--names", "names.csv"],
        ["prepare", "events.csv", "--item-names", "names.csv", "--out", "data"],
        ["train", "data", "--out", "run", "--set", "training.steps=20", "--set", "training.validate_every=20"],
        ["export", "run", "--out", "artifact"],
    ):
        subprocess.run([*lrurec, *command], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return folder / "artifact"


@pytest.fixture
def server(sample: Path, tmp_path: Path) -> Iterator[Server]:
    """A server on the sample, with a store of its own."""
    with Server(sample, tmp_path / "store") as running:
        yield running
