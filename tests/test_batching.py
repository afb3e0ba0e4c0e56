"""Recommendations that wait together are scored together."""

import asyncio
from pathlib import Path

import pytest

from lrurec.serving import batching
from lrurec.serving.batching import MOST, Batcher
from lrurec.serving.service import Answer, Live, Query
from lrurec.serving.store.base import StoreError


def ask_together(live: Live, count: int, wait: float = 0.0) -> tuple[list[int], list[Answer | BaseException]]:
    sizes: list[int] = []

    async def ask() -> list[Answer | BaseException]:
        batcher = Batcher(live, wait, sizes.append)
        asked = [batcher.ask(live.query(f"u{k}", None, 3 + k % 5, True, None, None)) for k in range(count)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        batcher.close()
        return found

    return sizes, asyncio.run(ask())


@pytest.fixture
def live(trained: Path, tmp_path: Path) -> Live:
    made = Live(trained / "artifact", tmp_path / "store")
    for k in range(0, 100, 3):
        for item in range(k % 4):
            made.observe(f"u{k}", f"i{item + k % 7:02}")
    return made


@pytest.mark.parametrize("thread", [False, True])
def test_one_by_one_or_together_is_the_same(live: Live, monkeypatch: pytest.MonkeyPatch, thread: bool) -> None:
    """In the loop for a small catalogue, in a thread for a large one."""
    if thread:
        monkeypatch.setattr(batching, "_SMALL", 0)
    sizes, found = ask_together(live, 100)
    assert sizes == [MOST, 100 - MOST]
    for k, answer in enumerate(found):
        assert isinstance(answer, Answer)
        assert [r.item for r in answer.lines] == [r.item for r in live.recommend(f"u{k}", 3 + k % 5)]
    assert ask_together(live, 1, wait=0.01)[0] == [1]


def test_what_fails_fails_for_its_own_batch(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = live.answer, list[int]()

    def answer(queries: list[Query]) -> object:
        calls.append(len(queries))
        if len(calls) == 1:
            raise RuntimeError("broken")
        return real(queries)

    monkeypatch.setattr(live, "answer", answer)
    _, found = ask_together(live, MOST + 5)
    assert all(isinstance(f, RuntimeError) for f in found[:MOST])
    assert all(isinstance(f, Answer) for f in found[MOST:])


def test_a_store_that_is_away_is_told_to_everybody(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*arguments: object) -> None:
        raise StoreError("away")

    monkeypatch.setattr(live.store, "look", look)
    _, found = ask_together(live, 3)
    assert [str(f) for f in found] == ["away"] * 3 and all(isinstance(f, StoreError) for f in found)
