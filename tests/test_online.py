"""A memory that goes on counting while it serves, against the same log counted at once."""

import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrurec
from conftest import Run
from lrurec.errors import FolderError
from lrurec.memory.memory import Memory
from lrurec.memory.online import Since
from lrurec.memory.transitions import MemoryConfig, Transitions
from lrurec.serving.service import Live
from server import Server
from test_memory import packed

logs = st.lists(st.lists(st.integers(0, 7), max_size=9), min_size=1, max_size=5)


def counted(log: list[list[int]], window: int) -> Transitions:
    return Transitions.count(*packed(log), 8, MemoryConfig(window=window, decay=0.7))


@given(before=logs, after=logs, history=st.lists(st.integers(-1, 7), max_size=6), window=st.integers(1, 4))
def test_counting_on_is_counting_at_once(
    before: list[list[int]], after: list[list[int]], history: list[int], window: int
) -> None:
    """Users come back: `after` goes on where `before` ended."""
    since = Since(counted(before, window))
    whole = [list(s) for s in before] + [[] for _ in range(max(0, len(after) - len(before)))]
    for user, items in enumerate(after):
        for item in items:
            since.observe(np.array(whole[user], np.int64), item)
            whole[user].append(item)
    at_once = counted(whole, window)
    assert since.counts.tolist() == at_once.counts.tolist()
    assert np.allclose(since.popular, at_once.popular, atol=1e-6)
    brought, found = since.recall(np.array(history, np.int64))
    expected_items, expected = at_once.recall(np.array(history, np.int64))
    order, wanted = np.argsort(brought), np.argsort(expected_items)
    assert brought[order].tolist() == expected_items[wanted].tolist()
    assert np.allclose(found[order], expected[wanted], rtol=1e-4, atol=1e-6)


def test_what_is_kept_is_bounded() -> None:
    since = Since(counted([[0, 1]], 2), pairs=6)
    for k in range(50):
        since.observe(np.array([k % 7, (k + 1) % 7]), (k + 2) % 7)
        assert since.held == sum(len(row) for row in since.rows.values()) <= 6
    wide = Since(Transitions.count(*packed([[0]]), 400, MemoryConfig(window=1)))
    for b in range(1, 400):
        wide.observe(np.array([0]), b)
    wide.observe(np.array([0]), 5)
    assert len(wide.rows[0]) == 256 and 5 in wide.rows[0] and wide.held == sum(map(len, wide.rows.values()))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("online")
    rng = np.random.default_rng(0)
    rows = [(u, int(i)) for u in range(60) for i in (rng.integers(40) + np.arange(8)) % 40]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=folder / "data")
    from lrurec.export import export
    from lrurec.training.config import config_for
    from lrurec.training.run import Run as RunFolder

    dataset = lrurec.Dataset.open(folder / "data")
    small = [
        "training.steps=30",
        "training.validate_every=30",
        "memory.use=true",
        "model.width=16",
        "model.channels=16",
    ]
    _, trainer = RunFolder.start(
        folder / "run", dataset, lrurec.leave_last_out(dataset), config_for("fast", None, small)
    )
    trainer.train()
    export(RunFolder.open(folder / "run"), dataset, folder / "artifact")
    return folder / "artifact"


def ranked(live: Live, history: list[int]) -> list[int]:
    return [int(line.item) for line in live.recommend_for(history, k=40)]


def test_a_pair_that_comes_up_is_soon_recommended(artifact: Path, tmp_path: Path) -> None:
    with Live(artifact, tmp_path / "still") as still, Live(artifact, tmp_path / "learning", learn=True) as live:
        assert ranked(live, [3]) == ranked(still, [3])
        before = ranked(live, [3]).index(25)
        for user in range(40):
            for person in (still, live):
                person.observe(f"u{user}", 3, time=1.0)
                person.observe(f"u{user}", 25, time=2.0)
        assert ranked(live, [3]).index(25) < before
        assert ranked(still, [3]).index(25) == before
        memory, untouched = live.served.memory, live.artifact.memory
        assert isinstance(memory, Memory) and isinstance(memory.transitions, Since) and untouched is not None
        assert isinstance(untouched.transitions, Transitions)
        assert (
            memory.transitions.counts[live.served.index(25)] == untouched.transitions.counts[live.served.index(25)] + 40
        )


def test_an_event_counts_once_and_only_where_it_is_the_newest(artifact: Path, tmp_path: Path) -> None:
    with Live(artifact, tmp_path / "store", learn=True) as live:
        memory = live.served.memory
        assert memory is not None and isinstance(memory.transitions, Since)

        def total() -> int:
            assert isinstance(memory.transitions, Since)
            return int(memory.transitions.counts.sum())

        first = total()
        for _ in range(3):
            live.observe("ann", 3, time=5.0, id="a")
        assert total() == first + 1
        live.observe("ann", 4, time=1.0)  # came late
        assert total() == first + 1
        events = [live.event(live.served, item, 9.0 + item, None) for item in (5, 6)]
        live.submit("ann", events, live.served).result()
        live._learner.submit(lambda: None).result()  # behind what was handed to it
        assert total() == first + 3
        live.use(artifact)  # begins anew
        assert live.served.memory is not memory


def test_without_a_memory_there_is_nothing_to_learn(artifact: Path, tmp_path: Path, run: Run) -> None:
    folder = artifact.parent
    few = [w for s in ("training.steps=2", "model.width=16", "model.channels=16") for w in ("--set", s)]
    assert run("train", folder / "data", "--out", tmp_path / "run", *few).code == 0
    assert run("export", tmp_path / "run", "--out", tmp_path / "plain").code == 0
    with pytest.raises(FolderError, match="no memory"):
        Live(tmp_path / "plain", tmp_path / "store", learn=True)
    for more in ([], ["--workers", "2"]):
        done = run("serve", tmp_path / "plain", "--store", tmp_path / "store", "--learn", "--port", "0", *more)
        assert done.code == 2 and "no memory" in done.err and "Traceback" not in done.err
        assert not (tmp_path / "store").exists()
    with Server(artifact, tmp_path / "store", "--learn") as server:
        answer = server.client().post("/v1/artifact", {"path": str(tmp_path / "plain")})
        assert answer.status == 400 and "no memory" in str(answer.json)


def test_it_learns_over_http(artifact: Path, tmp_path: Path) -> None:
    with Server(artifact, tmp_path / "store", "--learn") as server:
        client = server.client()

        def place() -> int:
            lines = client.post("/v1/recommendations", {"history": [3], "k": 40}).json["recommendations"]
            return int([int(line["item"]) for line in lines].index(25))

        before = place()
        for user in range(40):
            assert (
                client.post("/v1/events", {"events": [{"user": f"u{user}", "item": i} for i in (3, 25)]}).status == 200
            )
        deadline = time.monotonic() + 30
        while place() >= before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert place() < before
        deadline = time.monotonic() + 30
        while client.get("/v1/model").json["learned"] < 80 and time.monotonic() < deadline:
            time.sleep(0.05)
        found = client.get("/v1/model").json
        assert (found["memory"], found["learns"], found["learned"]) == (True, True, 80)
        assert "lrurec_memory_events_total 80.0" in client.get("/metrics").json
