"""Titles joined from a table."""

from pathlib import Path

import polars as pl
import pytest

import lrurec
from lrurec.errors import InputError

LOG = pl.DataFrame({"user": [1, 1, 1], "item": [1, 2, 30]})
TABLES = {
    "movies.dat": "1::Café (1995)::Drama\n2::Heat::Action\n".encode("latin-1"),
    "names.csv": 'item_id,title\n1,"Café (1995)"\n2,Heat\n99,Unused\n'.encode(),
    "names.item": "item_id:token\tmovie_title:token_seq\tyear:token\n1\tCafé (1995)\t1995\n2\tHeat\t1995\n".encode(),
    "u.item": "1|Café (1995)|01-Jan-1995||x\n2|Heat|01-Jan-1995||x\n".encode("latin-1"),
    "names.jsonl": b'{"asin": 1, "title": "Caf\xc3\xa9 (1995)"}\n{"asin": 2, "title": "Heat", "price": 3}\n',
    "odd.tsv": "id\tname\n1\tCafé (1995)\n2\tHeat\n1\ta second name\n".encode(),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(TABLES[name])
    dataset = lrurec.load_events(LOG, item_names=tmp_path / name)
    assert [dataset.name(k) for k in range(3)] == ["Café (1995)", "Heat", "30"]
    assert dataset.manifest["log"]["items_named"] == 2


def test_parquet_table(tmp_path: Path) -> None:
    pl.DataFrame({"title": ["One", "Two"], "item": [1, 2]}).write_parquet(tmp_path / "t.parquet")
    assert lrurec.load_events(LOG, item_names=tmp_path / "t.parquet").name(1) == "Two"


def test_text_ids(tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("sku,name\nx-1,Kettle\n")
    log = pl.DataFrame({"user": [1, 1], "item": ["x-1", "x-2"]})
    dataset = lrurec.load_events(log, item_names=tmp_path / "names.csv")
    assert [dataset.name(0), dataset.name(1)] == ["Kettle", "x-2"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"item\n1\n", "one column"), (b'{"item": 1, "title": "x"}\n{', "not JSON lines")],
)
def test_bad_tables(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "names").write_bytes(content)
    with pytest.raises(InputError, match=words):
        lrurec.load_events(LOG, item_names=tmp_path / "names")
