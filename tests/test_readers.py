"""Every format: recognised from its content, read exactly."""

import ast
import functools
import gzip
import json
import re
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

import lrurec
from conftest import histories
from lrurec.data import readers
from lrurec.data.layout import Wanted, recognise
from lrurec.data.literals import literal
from lrurec.data.text import blocks
from lrurec.errors import InputError, LrurecError

# format, the file, the histories it must give
FORMATS: list[tuple[str, str, dict[object, list[object]]]] = [
    ("csv", "user_id,item_id,timestamp\n7,10,3\n7,11,1\n8,10,2\n", {7: [11, 10], 8: [10]}),
    ("csv", "uid;iid;ts\na;x;2\na;y;1\n", {"a": ["y", "x"]}),
    (
        "csv",
        'user,item,time\n"a, b","say ""hi""",1\n"a, b","two\nlines",2\n',
        {"a, b": ['say "hi"', "two\nlines"]},
    ),
    ("csv", "7,10\n7,11\n8,10\n", {7: [10, 11], 8: [10]}),
    ("csv", "7,10,5,881250949\n7,11,3,881250940\n", {7: [11, 10]}),
    ("csv", "7,10,881250949\n7,11,881250940\n", {7: [11, 10]}),
    ("csv", "\n\nuser,item\n\n1,2\n\n\n1,3\n\n", {1: [2, 3]}),
    ("tsv", "visitor\tsku\twhen\nv1\ts1\t2020-01-02\nv1\ts2\t2020-01-01\n", {"v1": ["s2", "s1"]}),
    ("tsv", "196\t242\t3\t881250949\n196\t302\t3\t881250940\n", {196: [302, 242]}),
    ("jsonl", '{"uid": 7, "item": "x", "ts": 2}\n{"uid": 7, "item": "y", "ts": 1}\n', {7: ["y", "x"]}),
    ("jsonl", '{"user":"7","item":"01"}\n\n{"user":"7","item":"1"}\n', {"7": ["01", "1"]}),
    ("movielens", "1::1193::5::978300760\n1::661::3::978300750\n", {1: [661, 1193]}),
    (
        "recbole",
        'user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t"a\t5\t2\n1\tb\t5\t1\n',
        {1: ["b", '"a']},
    ),
    ("pairs", "1 30\n1 20\n2 30\n", {1: [30, 20], 2: [30]}),
    ("pairs", "ann  tea \nann\tjam\nbob tea\n", {"ann": ["tea", "jam"], "bob": ["tea"]}),
    (
        "amazon-csv",
        "A1YJEY40YUW4SE,7806397051,1.0,1391040000\nA1YJEY40YUW4SE,B0009RF9DW,5.0,1390000000\n",
        {"A1YJEY40YUW4SE": ["B0009RF9DW", "7806397051"]},
    ),
    (
        "amazon-csv",
        "7806397051,A1YJEY40YUW4SE,1.0,1391040000\nB0009RF9DW,A1YJEY40YUW4SE,5.0,1390000000\n",
        {"A1YJEY40YUW4SE": ["B0009RF9DW", "7806397051"]},
    ),
    (
        "amazon-json",
        '{"reviewerID": "A1", "asin": "B1", "reviewText": "so\\nso, {ok}", "overall": 5.0, "unixReviewTime": 20,'
        ' "reviewTime": "01 1, 1970"}\n{"reviewerID": "A1", "asin": "B2", "overall": 1.0, "unixReviewTime": 10}\n',
        {"A1": ["B2", "B1"]},
    ),
    (
        "steam",
        "{u'username': u'Mr. \"X\"', u'product_id': u'10', u'date': u'2018-01-02', u'text': u'it\\'s\\nok'}\n"
        "{u'username': u'Mr. \"X\"', u'product_id': u'20', u'date': u'2018-01-01', u'user_id': u'9'}\n",
        {'Mr. "X"': ["20", "10"]},
    ),
    ("xlong", "0\t77\t5,6,5\t9\n1\t78\t6,7\t5\n", {0: [5, 6, 5, 9], 1: [6, 7, 5]}),
    ("xlong", "0\t77\t5,6,5\t9\t1\t0\t3\n1\t78\t6,7\t5\t1\t0\t3\n", {0: [5, 6, 5, 9], 1: [6, 7, 5]}),
]


@pytest.mark.parametrize(("kind", "text", "expected"), FORMATS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_format(tmp_path: Path, kind: str, text: str, expected: object, pack: object, ending: str) -> None:
    path = tmp_path / "log"
    inside = "two\nlines"  # this break is content, not an ending
    text = text.replace(inside, "\0").replace("\n", ending).replace("\0", inside)
    path.write_bytes(pack(text.encode()))  # type: ignore[operator]
    assert recognise(path, None, Wanted()).format == kind
    assert histories(lrurec.load_events(path)) == expected
    assert histories(lrurec.load_events(path, format=kind)) == expected


def test_a_last_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for _, text, expected in FORMATS:
        path.write_text(text.rstrip("\n"), newline="")
        assert histories(lrurec.load_events(path)) == expected


def test_parquet_of_every_id_type(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    for dtype in (pl.Int8, pl.UInt32, pl.Int64, pl.UInt64, pl.Float64):
        pl.DataFrame({"user": [1, 1, 2], "item": [5, 4, 5]}).cast({"user": dtype}).write_parquet(path)
        assert histories(lrurec.load_events(path)) == {1: [5, 4], 2: [5]}
    for text in (pl.String, pl.Categorical, pl.Enum(["1", "2"])):
        pl.DataFrame({"user": ["1", "1", "2"], "item": [5, 4, 5]}).cast({"user": text}).write_parquet(path)
        assert histories(lrurec.load_events(path)) == {"1": [5, 4], "2": [5]}
    pl.DataFrame(
        {"user": [1 << 63, 1 << 63], "item": [5, 4]}, schema={"user": pl.UInt64, "item": pl.Int64}
    ).write_parquet(path)
    assert histories(lrurec.load_events(path)) == {str(1 << 63): [5, 4]}


def test_parquet_ids_that_are_neither_integers_nor_text(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"user": [1.5, 1.5], "item": [5, 4]}).write_parquet(path)
    with pytest.raises(InputError, match="fractions"):
        lrurec.load_events(path)
    pl.DataFrame({"user": [[1], [2]], "item": [5, 4]}).write_parquet(path)
    with pytest.raises(InputError, match="have the type List"):
        lrurec.load_events(path)


def test_columns_by_name_and_number(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("who,what,moment\nann,tea,2\nann,jam,1\n")
    with pytest.raises(InputError, match="no user column"):
        lrurec.load_events(path)
    expected = {"ann": ["jam", "tea"]}
    assert histories(lrurec.load_events(path, user="who", item="what", time="moment")) == expected
    assert histories(lrurec.load_events(path, user="WHO", item="2", time="3")) == expected
    assert histories(lrurec.load_events(path, user=1, item=2, time=3)) == expected
    with pytest.raises(InputError, match=r"no column 'whom' .* who, what, moment"):
        lrurec.load_events(path, user="whom", item="what")
    with pytest.raises(InputError, match="both name"):
        lrurec.load_events(path, user="who", item="who")


def test_times_by_the_look_of_their_names_and_by_their_type(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for name in ("order_date", "seenAt", "Viewed At", "event-ts"):
        path.write_text(f"user,item,{name}\nann,tea,2020-01-02\nann,jam,2020-01-01\n")
        assert histories(lrurec.load_events(path)) == {"ann": ["jam", "tea"]}
    path.write_text("user,item,lat,format\nann,tea,2,2\nann,jam,1,1\n")
    assert lrurec.load_events(path).times is None
    path.write_text("user,item,start_date,end_date\nann,tea,2,2\nann,jam,1,1\n")
    assert lrurec.load_events(path).times is None  # which of the two?
    path.write_text("user,item,time\nann,tea,2\nann,jam,1\n")
    assert histories(lrurec.load_events(path, time="none")) == {"ann": ["tea", "jam"]}
    frame = pl.DataFrame({"user": ["a", "a"], "item": [1, 2], "seen": [datetime(2020, 1, 2), datetime(2020, 1, 1)]})
    frame.write_parquet(tmp_path / "log.parquet")
    for source in (frame, tmp_path / "log.parquet"):
        assert histories(lrurec.load_events(source)) == {"a": [2, 1]}


def test_words_between_spaces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("1 30 1700000010\n1 20 1700000000\n")
    assert histories(lrurec.load_events(path)) == {1: [20, 30]}


def test_text_without_header_needs_a_word(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ann,tea\nann,jam\n")
    with pytest.raises(InputError, match="--header yes or no"):
        lrurec.load_events(path)
    assert histories(lrurec.load_events(path, header=False)) == {"ann": ["tea", "jam"]}


def test_two_formats_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("user,item,ts\n1,3,30\n")
    (tmp_path / "a.jsonl").write_text('{"uid": 1, "iid": 2, "time": 40}\n{"uid": 1, "iid": 9, "time": 10}\n')
    (tmp_path / ".hidden").write_text("not a log")
    assert histories(lrurec.load_events(tmp_path)) == {1: [9, 3, 2]}


def test_xlong_lines_are_people(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("0\t77\t5,6\t9\n0\t78\t6,7\t5\n")
    with pytest.raises(InputError, match="--user line"):
        lrurec.load_events(path)
    assert histories(lrurec.load_events(path, user="2")) == {77: [5, 6, 9], 78: [6, 7, 5]}
    assert histories(lrurec.load_events(path, user="line")) == {1: [5, 6, 9], 2: [6, 7, 5]}


def test_literals_are_never_evaluated(tmp_path: Path) -> None:
    path, trace = tmp_path / "log", tmp_path / "trace"
    path.write_text(
        "{'username': 'a', 'product_id': 'x'}\n"
        f"{{'username': 'a', 'product_id': __import__('pathlib').Path({str(trace)!r}).write_text('ran')}}\n"
    )
    with pytest.raises(InputError, match="line 2 is not a Python literal"):
        lrurec.load_events(path, format="steam")
    assert not trace.exists()


@pytest.mark.parametrize("bomb", ["(" * 100_000, "-" * 100_000 + "1", "[" * 5000 + "]" * 5000])
def test_literals_that_nest_too_deep(tmp_path: Path, bomb: str) -> None:
    path = tmp_path / "log"
    path.write_text("{'username': 'a', 'product_id': 'x'}\n{'username': " + bomb + "}\n")
    with pytest.raises(InputError, match="line 2"):
        lrurec.load_events(path, format="steam")


def test_a_json_array_is_told_how_to_become_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"user": 1, "item": 2}]))
    with pytest.raises(InputError, match="jq -c"):
        lrurec.load_events(path)


def test_unknown_format(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("1 2\n")
    with pytest.raises(LrurecError, match="did you mean 'parquet'"):
        lrurec.load_events(path, format="parket")


def test_many_blocks_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file in one block and in many gives the same events, quotes and blank lines included."""
    path = tmp_path / "log.csv"
    rows = [f'"u{k % 7}","i\n{k % 13}",{k}' + ("\n" if k % 5 == 0 else "") for k in range(500)]
    path.write_text("user,item,time\n" + "\n".join(rows) + "\n")
    whole = lrurec.load_events(path).events()
    assert len(whole) == 500
    monkeypatch.setattr(readers, "blocks", functools.partial(blocks, size=64))
    assert lrurec.load_events(path).events().equals(whole)


flat = st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none())
nested = st.dictionaries(st.text(max_size=3), st.lists(st.text()) | flat)


@given(flat | nested, st.booleans())
@example({"a": 'it\'s \\ "so"'}, True)
@example({}, False)
def test_literals_agree_with_the_slow_twin(row: dict[str, object], old: bool) -> None:
    line = repr(row)
    if old:  # as Python 2 wrote them
        line = re.sub(r"(^\{|: |, )(?=['\"])", r"\1u", line)
    try:
        expected: object = ast.literal_eval(line)
    except (ValueError, SyntaxError):
        return
    keys = list(expected) if isinstance(expected, dict) else []
    assert literal(line, keys) == expected


@given(st.text(alphabet="{}'\"u:, 01٣.\\a-", max_size=25))
def test_no_line_is_a_literal_that_python_refuses(line: str) -> None:
    try:
        expected: object = ast.literal_eval(line)
    except (ValueError, SyntaxError):
        with pytest.raises((ValueError, SyntaxError)):
            literal(line, [])
        return
    keys = list(expected) if isinstance(expected, dict) else []
    assert literal(line, keys) == expected
