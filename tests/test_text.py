"""Bytes to blocks of whole lines."""

import gzip
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lrurec.data.text import blocks, head_of, raw_bytes
from lrurec.errors import InputError

TEXT = b"".join(b"line %d\n" % k for k in range(5000))


def packed(kind: str) -> bytes:
    return {
        "plain": TEXT,
        "gzip": gzip.compress(TEXT),
        "zstd": zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
    }[kind]


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_compression_is_seen_in_the_content(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(packed(kind))
    assert b"".join(raw_bytes(path)) == TEXT


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_several_members_in_one_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(packed(kind) * 3)
    assert b"".join(raw_bytes(path)) == TEXT * 3


def test_zeros_after_a_gzip_member_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(TEXT) + b"\0" * 512)
    assert b"".join(raw_bytes(path)) == TEXT


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [1, 5, 50])
def test_a_file_cut_short_is_an_error(tmp_path: Path, kind: str, cut: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(packed(kind)[:-cut])
    with pytest.raises(InputError, match="ends early"):
        b"".join(raw_bytes(path))


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_damaged_file_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    data = bytearray(packed(kind))
    data[len(data) // 2] ^= 0xFF
    data[len(data) // 2 + 1] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged|ends early"):
        b"".join(raw_bytes(path))


@given(st.lists(st.sampled_from([b"a", b"bb", b"", b'"x"', b'"y\nz"', b"c,d"]), max_size=40), st.integers(1, 30))
def test_blocks_are_whole_records(tmp_path_factory: pytest.TempPathFactory, records: list[bytes], size: int) -> None:
    path = tmp_path_factory.mktemp("b") / "log"
    path.write_bytes(b"".join(r + b"\n" for r in records))
    found = list(blocks(path, quotes=True, size=size))
    assert b"".join(b.data for b in found) == path.read_bytes()
    line = 1
    for block in found:
        assert block.first_line == line
        assert block.data.count(b'"') % 2 == 0 and block.data.endswith(b"\n")
        line += block.data.count(b"\n")


def test_quotes_that_never_balance_do_not_pile_up(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'5" pipe\n' + b"plain\n" * 200_000)
    assert len(list(blocks(path, quotes=True, size=1000))) > 1


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbfuser,item\n")
    assert next(blocks(path, quotes=False)).data == b"user,item\n"
    assert head_of(path) == b"user,item\n"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        list(raw_bytes(tmp_path))
