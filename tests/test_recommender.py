"""The friendly face, on a log with an obvious answer: after item k comes item k + 1."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lrurec
from conftest import Run
from lrurec import Recommender
from lrurec.errors import FolderError, InputError, SettingsError

FRUIT = ["apple", "banana", "cherry", "damson", "elder", "fig", "grape", "hazel", "iris", "jujube", "kiwi", "lime"]
SETTINGS: dict[str, Any] = {
    "steps": 400,
    "validate_every": 100,
    "batch": 16,
    "learning_rate": 0.02,
    "model_width": 16,
    "model_dropout": 0.1,
}


def log() -> pl.DataFrame:
    rows = [(f"u{u}", FRUIT[(u + k) % 12], u * 100 + k) for u in range(48) for k in range(8)]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


@pytest.fixture(scope="module")
def rec() -> Recommender:
    return Recommender(**SETTINGS).fit(log())


def test_it_knows_what_comes_next(rec: Recommender) -> None:
    found = rec.recommend([f"u{u}" for u in range(12)], k=3)
    assert found.columns == ["user", "item", "name", "score", "rank"]
    first = found.filter(pl.col("rank") == 1)
    assert first["item"].to_list() == [FRUIT[(u + 8) % 12] for u in range(12)]
    assert found["rank"].to_list() == [1, 2, 3] * 12
    assert all(np.diff(part["score"].to_numpy()).max() <= 0 for part in found.partition_by("user"))


def test_people_never_seen_before(rec: Recommender) -> None:
    found = rec.recommend(histories=[["apple", "banana"], ["kiwi"], []], k=1)
    assert found["history"].to_list() == [0, 1, 2]
    assert found["item"].to_list()[:2] == ["cherry", "lime"]


def test_a_known_user_is_their_history(rec: Recommender) -> None:
    by_user = rec.recommend(["u3"], k=4)
    by_history = rec.recommend(histories=[rec.dataset.history("u3")], k=4)
    assert by_user.drop("user").equals(by_history.drop("history"))


def test_seen_allow_and_deny(rec: Recommender) -> None:
    history = ["apple", "banana", "cherry"]
    everything = rec.recommend(histories=[history], k=99)["item"].to_list()
    assert sorted(everything) == sorted(set(FRUIT) - set(history))
    assert len(rec.recommend(histories=[history], k=99, filter_seen=False)) == 12
    assert rec.recommend(histories=[history], k=9, allow=["kiwi", "apple"])["item"].to_list() == ["kiwi"]
    assert "damson" not in rec.recommend(histories=[history], k=9, deny=["damson"])["item"].to_list()


def test_unknown(rec: Recommender) -> None:
    with pytest.raises(InputError, match="user 'nobody' is not in the dataset"):
        rec.recommend(["nobody"])
    with pytest.raises(InputError, match="item 'stone' is not in the dataset"):
        rec.recommend(histories=[["stone"]])
    try:
        rec.on_unknown = "skip"
        assert rec.recommend(["nobody", "u1"], k=1)["user"].to_list() == ["u1"]
        assert rec.recommend(["nobody"], k=1).is_empty()
        assert rec.recommend(histories=[["stone", "apple"]], k=1)["item"].to_list() == ["banana"]
        rec.on_unknown = "popular"
        assert rec.recommend(["nobody", "u1"], k=2)["user"].to_list() == ["nobody", "nobody", "u1", "u1"]
    finally:
        rec.on_unknown = "error"


def test_similar_items(rec: Recommender) -> None:
    found = rec.similar_items(["apple", "fig"], k=3)
    assert found.columns == ["item", "similar", "name", "score", "rank"]
    assert found["item"].to_list() == ["apple"] * 3 + ["fig"] * 3
    assert "apple" not in found.filter(pl.col("item") == "apple")["similar"].to_list()
    assert found["score"].is_between(-1.001, 1.001).all()


def test_save_and_load(rec: Recommender, tmp_path: Path) -> None:
    rec.save(tmp_path / "kept")
    again = Recommender.load(tmp_path / "kept")
    assert again.recommend(["u1", "u2"]).equals(rec.recommend(["u1", "u2"]))
    with pytest.raises(FolderError, match="already exists"):
        rec.save(tmp_path / "kept")


def test_wrong_words() -> None:
    with pytest.raises(SettingsError, match="call fit first"):
        Recommender().recommend(["a"])
    with pytest.raises(SettingsError, match="fit first"):
        Recommender().save("x")
    with pytest.raises(SettingsError, match="did you mean 'steps'"):
        Recommender(step=5)
    with pytest.raises(SettingsError, match="did you mean 'popular'"):
        Recommender(on_unknown="populr")


def test_one_of_the_two(rec: Recommender) -> None:
    for arguments in ({}, {"users": ["u1"], "histories": [["apple"]]}):
        with pytest.raises(SettingsError, match="one of the two"):
            rec.recommend(**arguments)  # type: ignore[arg-type]


def test_same_seed_same_scores_from_pandas(rec: Recommender) -> None:
    frame = pd.DataFrame({c: log()[c].to_list() for c in ("user", "item", "time")})
    again = Recommender(**SETTINGS).fit(frame)
    assert again.recommend(["u1"]).equals(rec.recommend(["u1"]))


def test_command(tmp_path: Path, run: Run) -> None:
    (tmp_path / "names.csv").write_text("item,title\n" + "".join(f"{f},Fresh {f}\n" for f in FRUIT))
    lrurec.load_events(log(), out=tmp_path / "data", item_names=tmp_path / "names.csv")
    settings = [
        p
        for k, v in SETTINGS.items()
        for p in ("--set", f"{'model.' + k[6:] if k[:5] == 'model' else 'training.' + k}={v}")
    ]
    assert run("train", tmp_path / "data", "--out", tmp_path / "run", *settings).code == 0
    told = run("recommend", tmp_path / "run", "--history", "apple,banana", "-k", "2")
    assert told.out.startswith("after Fresh apple, Fresh banana:") and "Fresh cherry" in told.out
    rows = json.loads(run("recommend", tmp_path / "run", "--user", "u0", "-k", "3", "--json").out)
    assert [r["rank"] for r in rows] == [1, 2, 3] and rows[0]["item"] == FRUIT[8]
    missing = run("recommend", tmp_path / "run", "--user", "nobody")
    assert missing.code == 2 and "is not in the dataset" in missing.err
    assert run("recommend", tmp_path / "run").code == 2


@pytest.mark.parametrize("k", [0, -1, 2.5, "3", True])
def test_k_is_a_count(rec: Recommender, k: Any) -> None:
    with pytest.raises(SettingsError, match="k must be a whole number of 1 or more"):
        rec.recommend(["u1"], k=k)
    with pytest.raises(SettingsError, match="k must be a whole number of 1 or more"):
        rec.similar_items(["apple"], k=k)


def test_texts_for_lists(rec: Recommender) -> None:
    with pytest.raises(SettingsError, match=r"write \['apple'\]"):
        rec.similar_items("apple")
    with pytest.raises(SettingsError, match="a history is a list of items"):
        rec.recommend(histories=["apple", "fig"])


def test_folders_that_are_none_of_ours(rec: Recommender, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot be written"):
        rec.save(tmp_path / "file" / "kept")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FolderError, match="is not what save wrote"):
        Recommender.load(tmp_path)


def test_histories_of_the_command_line(tmp_path: Path, run: Run) -> None:
    names = ["-7", "salt, coarse", "pepper"]
    rows = [(u, names[(u + k) % 3]) for u in range(9) for k in range(4)]
    lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"), out=tmp_path / "data")
    assert run("train", tmp_path / "data", "--out", tmp_path / "run", "--model", "markov").code == 0

    def told(history: str) -> str:
        done = run("recommend", tmp_path / "run", f"--history={history}", "-k", "1")
        return done.out if done.code == 0 else done.err

    assert told("-7").startswith("after -7:")
    assert told('["salt, coarse", "pepper"]').startswith("after salt, coarse, pepper:")
    assert told(" pepper , -7 ").startswith("after pepper, -7:")
    assert "leave it out of --history" in told("stone")
    assert "is no JSON" in told('["salt')


def test_a_memory_is_asked_for_by_its_settings() -> None:
    with pytest.raises(SettingsError, match="memory_use=True"):
        Recommender(memory=True)
    assert Recommender(memory_use=True).config.memory.use
