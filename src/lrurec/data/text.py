"""Bytes of a text file, plain, gzip or zstd, in blocks of whole lines. Knows lines, not columns."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zstandard

from lrurec.errors import InputError

BLOCK = 24 << 20  # bytes of text handed on at a time
_READ = 1 << 18  # bytes read from disk at a time: bounds what a compressed bomb can expand to
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"

Report = Callable[[int], None]  # called with the bytes read from disk so far


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True)
class Block:
    """Whole lines of a file. `first_line` counts from 1 in the decompressed file."""

    data: bytes
    first_line: int


def raw_bytes(path: Path, report: Report | None = None) -> Iterator[bytes]:
    """The decompressed bytes of a file, piece by piece. A file cut short is an error."""
    done = 0
    try:
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(0)
            make, kind = _decoder_for(head)
            decoder = make() if make else None
            while piece := file.read(_READ):
                done += len(piece)
                if report:
                    report(done)
                if decoder is None:
                    yield piece
                    continue
                while piece:
                    if decoder.eof:
                        if not piece.strip(b"\0"):  # padding after the last member
                            break
                        assert make is not None
                        decoder = make()
                    yield decoder.decompress(piece)
                    piece = decoder.unused_data if decoder.eof else b""
            if decoder is not None and not decoder.eof:
                raise InputError(f"{path}: the {kind} data ends early (a broken download?); get the file again")
    except (zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"{path}: the compressed data is damaged ({error}); get the file again") from None
    except OSError as error:
        raise cannot_read(path, error) from None


def _decoder_for(head: bytes) -> tuple[Callable[[], _Decoder] | None, str]:
    if head.startswith(_GZIP):
        return lambda: zlib.decompressobj(31), "gzip"
    if head.startswith(_ZSTD):
        return lambda: zstandard.ZstdDecompressor().decompressobj(), "zstd"
    return None, "plain"


def cannot_read(path: Path, error: OSError) -> InputError:
    """The one sentence for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} does not exist; check the path")
    return InputError(f"{path} cannot be read ({error.strerror})")


def head_of(path: Path, size: int = 1 << 18) -> bytes:
    """The first whole lines of a file, about `size` bytes; the BOM is removed."""
    taken = b""
    pieces = raw_bytes(path)
    for piece in pieces:
        taken += piece
        if len(taken) > size:
            taken = taken[:size]
            taken = taken[: taken.rfind(b"\n") + 1] or taken
            break
    return taken.removeprefix(_BOM)


def blocks(path: Path, *, quotes: bool, report: Report | None = None, size: int = BLOCK) -> Iterator[Block]:
    """Blocks of whole lines. With `quotes`, a line break inside a quoted field does not end a line."""
    pending, line, first = bytearray(), 1, True
    for piece in raw_bytes(path, report):
        pending += piece
        if first and len(pending) >= len(_BOM):
            if pending.startswith(_BOM):
                del pending[: len(_BOM)]
            first = False
        if len(pending) >= size and (cut := _last_break(pending, quotes)):
            data = bytes(memoryview(pending)[:cut])
            del pending[:cut]
            yield Block(data, line)
            line += data.count(b"\n")
    if pending:
        yield Block(bytes(pending), line)


def _last_break(data: bytearray, quotes: bool) -> int:
    """Where the last complete record ends (0: nowhere yet)."""
    end = data.rfind(b"\n") + 1
    if not quotes or not end or data.count(b'"', 0, end) % 2 == 0:
        return end
    cut, odd = end, True
    while odd and cut:
        previous = data.rfind(b"\n", 0, cut - 1) + 1
        odd ^= data.count(b'"', previous, cut) % 2 == 1
        cut = previous
    # No balanced break at all: these quotes are part of the text, so any line break will do.
    return cut or end


def check_utf8(path: Path, block: Block) -> int | None:
    """None if the block is UTF-8, else the index of the first line (within the block) that is not."""
    if block.data.isascii():
        return None
    try:
        block.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return block.data.count(b"\n", 0, error.start)
    return None


def not_utf8(path: Path, line: int) -> InputError:
    """The one sentence for bytes that are not UTF-8."""
    return InputError(
        f"{path}: line {line} is not UTF-8; convert the file (iconv -f latin1 -t utf-8),"
        " or pass --skip-bad-rows to leave such rows out"
    )
