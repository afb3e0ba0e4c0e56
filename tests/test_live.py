"""Observing and recommending in process, against the run it came from."""

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lrurec.errors import InputError
from lrurec.recommender import Recommender
from lrurec.serving.retrieval import Exact
from lrurec.serving.service import Live
from lrurec.serving.store.base import Event


@given(
    scores=st.lists(st.integers(-3, 3), min_size=1, max_size=20),
    k=st.integers(0, 25),
    out=st.lists(st.integers(0, 19)),
    allow=st.none() | st.lists(st.integers(0, 19)),
)
def test_exact_is_sorting(scores: list[int], k: int, out: list[int], allow: list[int] | None) -> None:
    n = len(scores)
    out, allow = [i for i in out if i < n], None if allow is None else [i for i in allow if i < n]
    table = np.array(scores, np.float32)[:, None]
    found = Exact(table, np.zeros(n, np.float32)).search(
        np.ones((2, 1), np.float32),
        k,
        [np.array(out, np.int64), np.zeros(0, np.int64)],
        None if allow is None else np.array(allow, np.int64),
    )
    for (items, values), excluded in zip(found, [set(out), set()], strict=True):
        left = [i for i in range(n) if i not in excluded and (allow is None or i in allow)]
        expected = sorted(left, key=lambda i: (-scores[i], i))[:k]
        assert items.tolist() == expected
        assert values.tolist() == [scores[i] for i in expected]


@pytest.fixture
def live(trained: Path, tmp_path: Path) -> Live:
    return Live(trained / "artifact", tmp_path / "store")


def test_it_recommends_what_the_run_does(live: Live, trained: Path) -> None:
    rec = Recommender.of_run(trained / "run")
    history = [f"i{k:02}" for k in (3, 9, 1, 3, 7)]
    for filter_seen in (True, False):
        expected = rec.recommend(histories=[history], k=6, filter_seen=filter_seen)
        with torch.no_grad():
            mine = live.recommend_for(history, 6, filter_seen=filter_seen)
        assert [r.item for r in mine] == expected["item"].to_list()
        assert np.allclose([r.score for r in mine], expected["score"].to_list(), atol=1e-5)
    for item in history:
        live.observe("ann", item)
    assert live.recommend("ann", 6) == live.recommend_for(history, 6)
    narrow = live.recommend("ann", 5, allow=["i00", "i05", "i11"], deny=["i05"])
    assert [r.item for r in narrow] == [r.item for r in live.recommend_for(history, 12) if r.item in ("i00", "i11")]


def test_many_events_step_as_they_encode(live: Live) -> None:
    history = [f"i{k % 12:02}" for k in np.random.default_rng(0).integers(0, 12, 100)]
    for item in history:
        state = live.observe("ann", item).state
    states = live.served.states
    encoded = states.replay(np.array([states.index(item) for item in history]))
    assert np.allclose(np.frombuffer(state, np.float32), np.frombuffer(encoded, np.float32), atol=1e-5)


def test_strangers_get_what_is_popular(live: Live) -> None:
    popular = [live.artifact.item_ids[int(i)] for i in live.artifact.popular]
    assert [r.item for r in live.recommend("nobody", 4)] == popular[:4]
    assert [r.item for r in live.recommend("nobody", 3, deny=popular[:2])] == popular[2:5]
    assert [r.item for r in live.recommend("nobody", 3, allow=popular[5:])] == popular[5:8]


def test_unknown_items_are_named_and_not_stored(live: Live) -> None:
    with pytest.raises(InputError, match="item 'soap' is not in the artifact"):
        live.observe("ann", "soap")
    assert live.store.read("ann", live.served.states) is None
    live.observe("ann", "i03")
    live.store.append("ann", [Event("soap", 1)], live.served.states)  # as if an older artifact had known it
    assert live.recommend("ann", 3) == live.recommend_for(["i03"], 3)


def test_forget(live: Live) -> None:
    live.observe("ann", "i03")
    assert live.forget("ann") and not live.forget("ann")
    assert live.recommend("ann", 3) == live.recommend("nobody", 3)


def test_no_torch(trained: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from lrurec.serving.service import Live; live = Live(sys.argv[1], sys.argv[2]);"
        " live.observe('ann', 'i03'); assert len(live.recommend('ann', 3)) == 3; live.close();"
        " heavy = {'torch', 'polars', 'pandas'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, trained / "artifact", tmp_path / "s"], check=True)


def test_times_ids_and_history(live: Live) -> None:
    live.observe("ann", "i03", time=1_700_000_000.5, id="e1")
    live.observe("ann", "i05", time="2020-01-01")
    live.observe("ann", "i07", time=datetime(2021, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    assert live.observe("ann", "i03", id="e1").stored == 0
    expected = [("i05", 1577836800.0), ("i07", 1609459200.0), ("i03", 1_700_000_000.5)]
    assert live.history("ann") == expected and live.history("nobody") == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda live: live.observe(None, "i03"), "a user id is text or a whole number, not None"),
        (lambda live: live.observe("ann", "i03", time="soon"), "neither seconds since 1970 nor ISO 8601"),
        (lambda live: live.observe("ann", "i03", time=1.7e15), "not in seconds since 1970"),
        (lambda live: live.observe("ann", "i03", id=5), "the id of an event is text"),
        (lambda live: live.recommend("ann", "3"), "k must be a whole number"),
        (lambda live: live.recommend("ann", 0), "k must be a whole number"),
        (lambda live: live.recommend("ann", allow="i03"), r"write \['i03'\]"),
        (lambda live: live.recommend_for("i03"), r"write \['i03'\]"),
        (lambda live: live.recommend_for(["i03", "x", "y"]), "items 'x', 'y' are not in the artifact"),
    ],
)
def test_mistakes(live: Live, wrong: Callable[[Live], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        wrong(live)
    assert live.history("ann") == live.history("None") == []
