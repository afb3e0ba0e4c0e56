"""Whatever goes in, ids and order come back exactly: random logs, written by the standard library, in any format."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import lrurec
from conftest import Event, histories, slow_prepare
from lrurec.errors import NothingLeftError

Log = list[Event]

anything = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
digits = st.from_regex(r"[-+]?0{0,2}[0-9]{1,20}", fullmatch=True)
text_ids = st.one_of(
    anything, digits, st.sampled_from(["null", "None", "NaN", "", " ", '"', "'", ",", "\n", "\r", "\ufeff"])
)
int_ids = st.integers(-(1 << 63), (1 << 63) - 1)
times = st.integers(-(10**10), 10**10)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    users = draw(st.lists(draw(st.sampled_from([text_ids.filter(bool), int_ids])), min_size=1, max_size=4))
    items = draw(st.lists(draw(st.sampled_from([text_ids.filter(bool), int_ids])), min_size=1, max_size=6))
    timed = draw(st.booleans())
    events = st.tuples(st.sampled_from(users), st.sampled_from(items), times if timed else st.none())
    return draw(st.lists(events, min_size=1, max_size=25))


def delimited(log: Log, separator: str, head: list[str], quote: int = csv.QUOTE_MINIMAL) -> str:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\r\n", quoting=quote)  # type: ignore[arg-type]
    width = 3 if log[0][2] is not None else 2
    writer.writerows([head[:width], *[e[:width] for e in log]])
    return out.getvalue()


def bare(log: Log, separator: str, head: str = "") -> str | None:
    """Cells with nothing but separators between them, where the ids allow it."""
    cells = [[str(c) for c in e if c is not None] for e in log]
    if not head and cells[0][0].startswith("\ufeff"):
        return None  # at the start of a file this is a byte order mark
    odd = set("\n\r") | set(separator)
    if separator == " ":
        if any(c.split() != [c] for row in cells for c in row) or log[0][2] is not None:
            return None
    elif any(odd & set(c.replace("5::", "")) for row in cells for c in row):
        return None
    return head + "".join(separator.join(row) + "\n" for row in cells)


def json_lines(log: Log) -> str:
    rows = [{"user": u, "item": i} | ({"time": t} if t is not None else {}) for u, i, t in log]
    return "".join(json.dumps(row) + "\n" for row in rows)


def literals(log: Log) -> str:
    rows = [{"username": u, "product_id": i} | ({"timestamp": t} if t is not None else {}) for u, i, t in log]
    return "".join(repr(row) + "\n" for row in rows)


def recbole(log: Log) -> str | None:
    head = ["user_id:token", "item_id:token", "timestamp:float"][: 3 if log[0][2] is not None else 2]
    return bare(log, "\t", "\t".join(head) + "\n")


def movielens(log: Log) -> str | None:
    if any(":" in str(c) for e in log for c in e) or log[0][2] is None:
        return None
    return bare([(u, i, f"5::{t}") for u, i, t in log], "::")  # type: ignore[misc]


WRITERS: dict[str, Callable[[Log], str | None]] = {
    "csv": lambda log: delimited(log, ",", ["user_id", "item_id", "timestamp"]),
    "csv quoted": lambda log: delimited(log, ";", ["user", "item", "time"], csv.QUOTE_ALL),
    "tsv": lambda log: delimited(log, "\t", ["uid", "iid", "ts"]),
    "jsonl": json_lines,
    "steam": literals,
    "recbole": recbole,
    "movielens": movielens,
    "pairs": lambda log: bare(log, " "),
}
PACKS = {"plain": lambda b: b, "gzip": gzip.compress, "zstd": zstandard.compress}


def as_seen(by_user: dict[object, list[object]]) -> dict[str, list[str]]:
    """As a person sees them: 7 and "7" look the same."""
    return {str(u): [str(i) for i in h] for u, h in by_user.items()}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(log=logs(), pack=st.sampled_from(sorted(PACKS)))
@example(log=[("a\r", 'b"', None), ("a\r", " b ", None)], pack="plain")
@example(log=[("\ufeff", "x", 5), ("\ufeff", "y", 4)], pack="plain")
@pytest.mark.parametrize("kind", WRITERS)
def test_ids_and_order_come_back(tmp_path_factory: pytest.TempPathFactory, kind: str, log: Log, pack: str) -> None:
    text = WRITERS[kind](log)
    if text is None:
        return
    path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_bytes(PACKS[pack](text.encode()))
    # 7 and "7" are one user wherever the file cannot tell them apart.
    same = [(str(u), str(i), t) for u, i, t in log]
    expected = slow_prepare(list(same))
    format = kind.split()[0] if kind in ("pairs", "csv", "csv quoted", "tsv") else None
    header = True if format in ("csv", "tsv") else None
    if max(map(len, expected.values())) < 2:
        with pytest.raises(NothingLeftError):
            lrurec.load_events(path, format=format, header=header)
        return
    dataset = lrurec.load_events(path, format=format, header=header)
    assert as_seen(histories(dataset)) == expected
    if log[0][2] is not None:
        assert dataset.times is not None
        seconds = sorted(t for _, _, t in log if t is not None)
        assert sorted((dataset.times // 10**6).tolist()) == seconds


@settings(max_examples=100)
@given(log=logs())
@pytest.mark.parametrize("kind", ["polars", "parquet"])
def test_typed_ids_come_back_with_their_type(tmp_path_factory: pytest.TempPathFactory, kind: str, log: Log) -> None:
    # A typed column holds one type; mixed columns become text before they get here.
    def one_type(values: list[object]) -> list[object]:
        return values if len({type(v) for v in values}) == 1 else [str(v) for v in values]

    users, items = one_type([e[0] for e in log]), one_type([e[1] for e in log])
    frame = pl.DataFrame(
        {"user": users, "item": items} | ({"time": [e[2] for e in log]} if log[0][2] is not None else {})
    )
    source: object = frame
    if kind == "parquet":
        source = tmp_path_factory.mktemp("fuzz") / "log"
        frame.write_parquet(source)
    expected = slow_prepare(list(zip(users, items, [e[2] for e in log], strict=True)))
    if max(map(len, expected.values())) < 2:
        with pytest.raises(NothingLeftError):
            lrurec.load_events(source)
        return
    assert histories(lrurec.load_events(source)) == expected


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.binary(max_size=200) | st.text(max_size=120).map(str.encode), skip=st.booleans())
@example(content=b"user,item\n1,2\n1,3\n" + b"\xff", skip=True)
@example(content=b"{", skip=True)
@example(content=b"\x1f\x8b", skip=False)
@example(content=b"(\xb5/\xfd", skip=False)
@example(content=b'user,item\n"', skip=True)
@example(content=b"{'a': 1}\n", skip=False)
def test_any_bytes_end_well(tmp_path_factory: pytest.TempPathFactory, content: bytes, skip: bool) -> None:
    """Random bytes are read or refused with an error of ours; never a crash."""
    path: Path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_bytes(content)
    try:
        lrurec.load_events(path, skip_bad_rows=skip)
    except lrurec.LrurecError as error:
        assert "\n" not in str(error)
