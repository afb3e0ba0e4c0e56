"""`lrurec store`: what is done to all of a store."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import lrurec
from conftest import Run
from lrurec.serving.artifact import Artifact
from lrurec.serving.service import Live, States
from lrurec.serving.store import upkeep
from lrurec.serving.store.base import Event, StoreError
from lrurec.serving.store.embedded import EmbeddedStore
from test_store import SECOND


@pytest.fixture
def filled(trained: Path, tmp_path: Path, run: Run) -> Path:
    done = run("store", "import", tmp_path / "s", "--artifact", trained / "artifact", trained / "data")
    assert done.code == 0 and "imported" in done.out, done
    return tmp_path / "s"


def test_the_histories_of_a_dataset(filled: Path, trained: Path, run: Run) -> None:
    dataset = lrurec.Dataset.open(trained / "data")
    with Live(trained / "artifact", filled) as live:
        assert len(live.store) == dataset.n_users
        for user in ("u0", "u17", "u39"):
            record = live.store.read(user, live.served.states)
            assert record is not None
            history = dataset.history(user)
            assert [e.item for e in record.events] == history
            both = live.recommend(user, 5), live.recommend_for(history, 5)
            assert [r.item for r in both[0]] == [r.item for r in both[1]]
    told = json.loads(run("store", "info", filled, "--json").out)
    assert told["users"] == dataset.n_users and told["events"] == dataset.n_events
    assert told["states"] == {Artifact.open(trained / "artifact").id: dataset.n_users}
    assert "40" in run("store", "info", filled).out


def test_times_come_along(tmp_path: Path, trained: Path, run: Run) -> None:
    rows = [("ann", "i03", 1_000_000_000), ("ann", "i01", 1_000_000_007)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    lrurec.load_events(frame, out=tmp_path / "d")
    assert run("store", "import", tmp_path / "s", "--artifact", trained / "artifact", tmp_path / "d").code == 0
    with Live(trained / "artifact", tmp_path / "s") as live:
        live.observe("ann", "i05")
        record = live.store.read("ann", live.served.states)
        assert record is not None
        assert [e.item for e in record.events] == ["i03", "i01", "i05"]
        assert [e.time for e in record.events[:2]] == [1_000_000_000_000_000, 1_000_000_007_000_000]


def test_from_one_store_to_another(filled: Path, trained: Path, tmp_path: Path, run: Run) -> None:
    strange = [Event("i03", 1_700_000_000_123_457, "order\n1"), Event("gone", -5, None)]
    with Live(trained / "artifact", filled) as live:
        live.store.append('odd "name"\n', strange, live.served.states)
    assert run("store", "export", filled, "--out", tmp_path / "all.jsonl").code == 0
    args = ("store", "import", tmp_path / "other", "--artifact", trained / "artifact", tmp_path / "all.jsonl")
    assert run(*args).code == 0
    again = run(*args)
    assert again.code == 0 and "imported  0 events" in again.out and "were there already" in again.out
    with Live(trained / "artifact", tmp_path / "other") as live, Live(trained / "artifact", filled) as first:
        record = live.store.read('odd "name"\n', live.served.states)
        assert record is not None
        assert [(e.item, e.time) for e in record.events] == [("gone", -5), ("i03", 1_700_000_000_123_457)]
        assert live.store.append('odd "name"\n', strange[:1], live.served.states).stored == 0
        assert sorted(live.store.users()) == sorted(first.store.users())


def test_export_to_stdout(filled: Path, run: Run) -> None:
    done = run("store", "export", filled)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 0 and len(rows) == json.loads(run("store", "info", filled, "--json").out)["events"]
    assert set(rows[0]) == {"user", "item", "time"}


def test_verify_finds_what_differs_and_rebuild_mends_it(filled: Path, trained: Path, run: Run) -> None:
    verify = ("store", "verify", filled, "--artifact", trained / "artifact")
    done = run(*verify)
    assert done.code == 0 and "none differs" in done.out
    states = States(Artifact.open(trained / "artifact"))
    store = EmbeddedStore(filled)
    (portion,) = store.portions(states)
    wrong = list(states.replay_many(portion.items, portion.offsets))
    k = portion.users.index("u17")
    wrong[k] = (np.frombuffer(wrong[k], np.float32) + np.float32(0.01)).tobytes()
    store.put_states(portion, wrong, states)
    store.close()
    done = run(*verify)
    assert done.code == 1 and "1 differ" in done.out and "'u17'" in done.err
    assert json.loads(run(*verify, "--json").out)["wrong"] == ["u17"]
    assert "rebuilt   0 states" in run("store", "rebuild", *verify[2:]).out  # they are all this artifact's
    assert "rebuilt   40 states" in run("store", "rebuild", *verify[2:], "--all").out
    assert run(*verify).code == 0


def test_rebuild_after_another_artifact(filled: Path, trained: Path, run: Run) -> None:
    store = EmbeddedStore(filled)
    assert upkeep.rebuild(store, SECOND).written == 40
    store.close()
    done = run("store", "verify", filled, "--artifact", trained / "artifact")
    assert done.code == 0 and "40 users have states of other artifacts" in done.out
    assert "rebuilt   40 states" in run("store", "rebuild", filled, "--artifact", trained / "artifact").out
    assert "none differs" in run("store", "verify", filled, "--artifact", trained / "artifact").out


def test_an_import_that_is_repeated_adds_nothing(filled: Path, trained: Path, run: Run, tmp_path: Path) -> None:
    before = json.loads(run("store", "info", filled, "--json").out)["events"]
    again = run("store", "import", filled, "--artifact", trained / "artifact", trained / "data")
    assert again.code == 0 and "imported  0 events" in again.out
    assert json.loads(run("store", "info", filled, "--json").out)["events"] == before
    lines = [
        {"user": "new", "item": "i03", "time": "2020-01-01T00:00:00Z", "id": "a"},
        {"user": "u0", "item": "soap", "time": 5},
        {"user": "new", "item": "i03", "time": 1577836800, "id": "b"},
    ]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("store", "import", filled, "--artifact", trained / "artifact", tmp_path / "more.jsonl")
    assert "imported  3 events of 2 users" in done.out and "1 are of items that the artifact does not have" in done.out
    with Live(trained / "artifact", filled) as live:
        assert live.observe("new", "i03", id="a").stored == 0


def test_ctrl_c_in_the_middle(trained: Path, tmp_path: Path) -> None:
    with (tmp_path / "many.jsonl").open("w") as file:
        for k in range(300_000):
            file.write(json.dumps({"user": f"user{k // 30}", "item": "i03", "time": k}) + "\n")
    lrurec_ = [sys.executable, "-m", "lrurec.cli.main", "store"]
    places = (tmp_path / "s", "--artifact", trained / "artifact", tmp_path / "many.jsonl")
    command = [*lrurec_, "import", *map(str, places)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:  # until something is in it
        try:
            store = EmbeddedStore(tmp_path / "s", create=False)
        except StoreError:
            continue
        there = len(store)
        store.close()
        if there:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130 and "what was imported so far is kept" in said
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    store = EmbeddedStore(tmp_path / "s")
    assert (store.info()["users"], store.info()["events"]) == (10_000, 300_000)
    store.close()


def test_mistakes(trained: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "bad.jsonl").write_text('{"user": "a", "item": "b", "time": 1}\n{"user": "a"}\n')
    artifact = ("--artifact", trained / "artifact")
    for arguments, words in (
        (("info", tmp_path / "none"), "does not exist"),
        (("verify", tmp_path / "none", *artifact), "does not exist"),
        (("import", tmp_path / "s", *artifact, tmp_path / "bad.jsonl"), "line 2"),
        (("import", tmp_path / "s", *artifact, tmp_path / "none"), "cannot be read"),
        (("import", tmp_path / "s", "--artifact", tmp_path, tmp_path), str(tmp_path)),
        (("export", tmp_path / "none"), "does not exist"),
        (("info", "redis://127.0.0.1:1/0"), "cannot be reached"),
        (("nothing",), "unknown 'nothing'"),
    ):
        done = run("store", *arguments)
        assert done.code == 2 and words in done.err and done.err.count("\n") == 1, done


def test_an_import_that_cannot_be_read_leaves_no_store(trained: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("user,item\n1,2\n")
    for source in (tmp_path / "bad.jsonl", tmp_path / "absent.jsonl"):
        done = run("store", "import", tmp_path / "store", "--artifact", trained / "artifact", source)
        assert done.code == 2 and done.err.count("\n") == 1 and not (tmp_path / "store").exists()


def test_an_import_of_another_log_is_warned_of(trained: Path, run: Run, tmp_path: Path) -> None:
    def warned(items: list[str]) -> bool:
        rows = [{"user": "ann", "item": item, "time": k} for k, item in enumerate(items, 1)]
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        store = tmp_path / f"store-{len(items)}"
        done = run("store", "import", store, "--artifact", trained / "artifact", tmp_path / "log.jsonl")
        assert done.code == 0
        return "is it the artifact of this log?" in done.err

    assert warned(["soap", "salt", "i03"])
    assert not warned(["soap", "i01", "i02", "i03"])
