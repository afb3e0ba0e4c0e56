"""Ids to codes to tables and back."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import lrurec
from conftest import histories, slow_prepare
from lrurec.data.gather import Source
from lrurec.data.ids import IdEncoder, factorise
from lrurec.data.layout import Layout
from lrurec.data.prepare import build
from lrurec.data.readers import Rows
from lrurec.data.settings import Settings
from lrurec.ids import IdTable, IntIds, TextIds

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)


def encode(chunks: list[list[int] | list[str]], *, natural: bool = False) -> tuple[IdTable, list[object]]:
    """Encode chunk by chunk; gives the table and every row's id looked up through it."""
    encoder = IdEncoder()
    codes = [encoder.encode(pl.Series(c), digits_are_numbers=natural) for c in chunks if c]
    table, final = encoder.finish()
    return table, [table[int(i)] for part in codes for i in final(part)]


@given(st.lists(st.lists(numbers, max_size=20), max_size=4))
def test_integers_come_back(chunks: list[list[int]]) -> None:
    table, back = encode(list(chunks))
    given = [x for c in chunks for x in c]
    assert back == given
    assert [table[k] for k in range(len(table))] == sorted(set(given))


@given(st.lists(st.lists(texts, max_size=20), max_size=4))
def test_texts_come_back(chunks: list[list[str]]) -> None:
    table, back = encode(list(chunks))
    given = [x for c in chunks for x in c]
    assert back == given
    assert [table[k] for k in range(len(table))] == sorted(set(given))
    for name in given:
        found = table.index(name)
        assert found is not None and table[found] == name


@given(st.lists(numbers, min_size=1, max_size=9), st.lists(texts, min_size=1, max_size=9))
def test_numbers_and_texts_in_one_column_become_text(some: list[int], more: list[str]) -> None:
    _, back = encode([some, more])
    assert back == [*map(str, some), *more]


def test_a_user_who_is_a_number_here_and_text_there_is_one_user(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,ts\n1,10,1\n1,11,2\n2,12,3\n2,13,4\n")
    (tmp_path / "b.csv").write_text("user,item,ts\n1,14,5\n1,15,6\n2,16,7\n2,17,8\nx,1,1\n")
    dataset = lrurec.load_events(tmp_path)
    assert histories(dataset) == {"1": [10, 11, 14, 15], "2": [12, 13, 16, 17], "x": [1]}
    pl.DataFrame({"user": [1, 1], "item": ["a", "b"], "ts": [1, 2]}).write_parquet(tmp_path / "c.parquet")
    pl.DataFrame({"user": ["1", "y"], "item": ["a", "7"], "ts": [3, 4]}).write_parquet(tmp_path / "d.parquet")
    both = lrurec.load_events([tmp_path / "c.parquet", tmp_path / "d.parquet"])
    assert histories(both) == {"1": ["a", "b", "a"], "y": ["7"]}


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["0", "1", "2", "x"]), st.sampled_from(["5", "6", "q"])), min_size=1),
        max_size=6,
    )
)
def test_any_mixture_over_any_chunks(chunks: list[list[tuple[str, str]]]) -> None:
    """Chunks of numbers and chunks of text, in any order: every event comes back."""
    rows = [row for chunk in chunks for row in chunk] + [("0", "5"), ("0", "5")]
    encoder_chunks = iter([*chunks, [("0", "5"), ("0", "5")]])

    def source(skip: bool, report: object) -> Iterator[Rows]:
        for chunk in encoder_chunks:
            yield Rows(pl.DataFrame(chunk, schema=["user", "item"], orient="row"))

    with tempfile.TemporaryDirectory() as folder:
        layout = Layout("csv", ("user", "item"), "user", "item")
        build([Source("test", layout, source, 0)], Settings(), None, Path(folder) / "d")
        found = as_text(histories(lrurec.Dataset.open(Path(folder) / "d")))
    assert found == slow_prepare([(u, i, None) for u, i in rows])


def as_text(by_user: dict[object, list[object]]) -> dict[str, list[str]]:
    return {str(u): [str(i) for i in h] for u, h in by_user.items()}


@pytest.mark.parametrize("odd", ["007", "+7", "-0", " 7", "7 ", "1_0", "9223372036854775808", "1.0", "٧"])
def test_only_plain_digits_are_numbers(odd: str) -> None:
    table, back = encode([["7", odd]], natural=True)
    assert table.kind == "text" and back == ["7", odd]


def test_digits_are_numbers_only_where_text_is_all_there_is() -> None:
    assert encode([["12", "-3"]], natural=True)[1] == [12, -3]
    assert encode([["12", "-3"]], natural=False)[1] == ["12", "-3"]


def test_lookup_forgives_the_type() -> None:
    ints, words = IntIds(np.array([-4, 7])), TextIds.of(pl.Series(["007", "7"]))
    assert (ints.index("7"), ints.index(7), ints.index("07"), ints.index("x"), ints.index(1 << 70)) == (
        1,
        1,
        None,
        None,
        None,
    )
    assert (words.index(7), words.index("007"), words.index("8")) == (1, 0, None)
    assert ints.indices(["7", 5, -4]).tolist() == [1, -1, 0]


class Colliding(IdEncoder):
    """A hash of two bits under the first seeds, a real one later."""

    def _hash(self, column: pl.Series) -> NDArray[np.int64]:
        keys = super()._hash(column)
        return keys & 3 if self._seed < 3 else keys


@given(st.lists(st.lists(texts, min_size=1, max_size=12), min_size=1, max_size=4))
def test_texts_that_share_a_hash_are_told_apart(chunks: list[list[str]]) -> None:
    encoder = Colliding()
    codes = [encoder.encode(pl.Series(c), digits_are_numbers=False) for c in chunks]
    table, final = encoder.finish()
    assert [table[int(i)] for part in codes for i in final(part)] == [x for c in chunks for x in c]


@given(st.lists(st.integers(-50, 50), min_size=1) | st.lists(numbers, min_size=1))
def test_factorise(values: list[int]) -> None:
    keys = np.array(values, np.int64)
    distinct, inverse, where = factorise(keys)
    assert distinct.tolist() == sorted(set(values))
    assert distinct[inverse].tolist() == values
    assert keys[where].tolist() == distinct.tolist()


@given(st.lists(texts, min_size=1, unique=True))
def test_tables_survive_the_disk(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder: Path = tmp_path_factory.mktemp("ids")
    TextIds.of(pl.Series(sorted(names))).save(folder, "t")
    table = IdTable.open(folder, "t", "text")
    assert table.series().to_list() == sorted(names)
    assert table.take(np.array([len(names) - 1]))[0] == max(names)
