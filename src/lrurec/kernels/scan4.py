"""Sums of table entries by 4-bit codes, and the items with the largest. Knows rows of codes.

An item has M codes of 4 bits, one for each slice of its vector; a question has M tables of 16 entries, one for each value
of a code. Items come in blocks of 64, codes [B, ceil(M / 2), 64]: a byte has code 2p of an item in its low half and code
2p + 1 in its high half. Byte 2i of a row is of item i, byte 2i + 1 of item 32 + i, so that the sums, 16 bits each, come
out in order. The processor looks up 64 bytes by one instruction (AVX512-BW), or 32 (AVX2); elsewhere the loops are plain.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from lrurec.kernels.arithmetic import f4, has_feature, intrinsic

BLOCK, ENTRIES = 64, 16
_int = ir.IntType(64)


def widest() -> int:
    """How many bytes the processor looks up at once; 1: there is no instruction for it."""
    return 64 if has_feature("avx512bw") else 32 if has_feature("avx2") else 1


def _looked_up(lanes: int) -> Any:
    """The sums of a block by instructions on so many bytes."""
    name = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}[lanes]
    part, row = ir.VectorType(ir.IntType(8), ENTRIES), ir.VectorType(ir.IntType(8), lanes)
    half = lanes // 2
    sums = ir.VectorType(ir.IntType(16), half)

    def called(builder: Any, name: str, result: Any, arguments: Any) -> Any:
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return builder.call(function, arguments)

    def loaded(builder: Any, at: Any, kind: Any) -> Any:
        return builder.load(builder.inttoptr(at, kind.as_pointer()), align=1)

    @intrinsic  # type: ignore[untyped-decorator]
    def look_up(context: Any, codes: Any, tables: Any, steps: Any, out: Any) -> Any:
        """out [64] uint16 = sums of a block over `steps` pairs of tables; addresses. Gives the largest."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            codes, tables, steps, out = arguments
            begin, loop, end = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("end")
            builder.branch(loop)
            builder.position_at_end(loop)
            step = builder.phi(_int)
            step.add_incoming(ir.Constant(_int, 0), begin)
            none = ir.Constant(sums, [0] * half)
            totals = [builder.phi(sums) for _ in range(2 * BLOCK // lanes)]
            for total in totals:
                total.add_incoming(none, begin)
            low = ir.Constant(row, [15] * lanes)
            four, eight = ir.Constant(sums, [4] * half), ir.Constant(sums, [8] * half)
            everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [k % ENTRIES for k in range(lanes)])
            entries = []
            for odd in range(2):
                at = builder.add(tables, builder.mul(step, ir.Constant(_int, 2 * ENTRIES)))
                table = loaded(builder, builder.add(at, ir.Constant(_int, odd * ENTRIES)), part)
                entries.append(builder.shuffle_vector(table, table, everywhere))
            new = []
            for piece in range(BLOCK // lanes):
                at = builder.add(codes, builder.mul(step, ir.Constant(_int, BLOCK)))
                bytes_ = loaded(builder, builder.add(at, ir.Constant(_int, piece * lanes)), row)
                shifted = builder.bitcast(builder.lshr(builder.bitcast(bytes_, sums), four), row)
                even, odds = totals[2 * piece], totals[2 * piece + 1]
                for table, which in zip(entries, (bytes_, shifted), strict=True):
                    found = called(builder, name, row, [table, builder.and_(which, low)])
                    pairs = builder.bitcast(found, sums)  # two bytes: what is added to `even` is taken off at the end
                    even, odds = builder.add(even, pairs), builder.add(odds, builder.lshr(pairs, eight))
                new += [even, odds]
            following = builder.add(step, ir.Constant(_int, 1))
            step.add_incoming(following, loop)
            for total, value in zip(totals, new, strict=True):
                total.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, steps), loop, end)
            builder.position_at_end(end)
            most = none
            for piece in range(BLOCK // lanes):
                even, odds = new[2 * piece : 2 * piece + 2]
                even = builder.sub(even, builder.shl(odds, eight))
                for first, value in ((0, even), (BLOCK // 2, odds)):
                    place = builder.add(out, ir.Constant(_int, 2 * (first + piece * half)))
                    builder.store(value, builder.inttoptr(place, sums.as_pointer()), align=2)
                    most = builder.select(builder.icmp_unsigned(">", value, most), value, most)
            top = called(builder, f"llvm.vector.reduce.umax.v{half}i16", ir.IntType(16), [most])
            return builder.zext(top, _int)

        return types.int64(*[types.int64] * 4), generate

    return look_up


_look_up_64, _look_up_32 = _looked_up(64), _looked_up(32)


@numba.njit(nogil=True, cache=True)
def scan_64(codes: Any, tables: Any, first: Any, out: Any, most: Any) -> None:
    """out [B, 64] uint16 = the sums of the items from block `first` on, by tables [2 P, 16] uint8; most [B] the largest of each."""
    size, asked, steps = np.int64(codes.strides[0]), np.int64(tables.ctypes.data), np.int64(codes.shape[1])
    here, where = np.int64(codes.ctypes.data) + first * size, np.int64(out.ctypes.data)
    for b in range(len(out)):
        most[b] = _look_up_64(here + b * size, asked, steps, where + b * np.int64(2 * BLOCK))


@numba.njit(nogil=True, cache=True)
def scan_32(codes: Any, tables: Any, first: Any, out: Any, most: Any) -> None:
    """The same by narrower instructions."""
    size, asked, steps = np.int64(codes.strides[0]), np.int64(tables.ctypes.data), np.int64(codes.shape[1])
    here, where = np.int64(codes.ctypes.data) + first * size, np.int64(out.ctypes.data)
    for b in range(len(out)):
        most[b] = _look_up_32(here + b * size, asked, steps, where + b * np.int64(2 * BLOCK))


@numba.njit(nogil=True, cache=True)
def scan_reference(codes: Any, tables: Any, first: Any, out: Any, most: Any) -> None:
    """The same in plain loops."""
    for b in range(len(out)):
        largest = np.int64(0)
        for i in range(BLOCK):
            at, total = 2 * (i % 32) + i // 32, np.int64(0)
            for p in range(codes.shape[1]):
                byte = codes[first + b, p, at]
                total += np.int64(tables[2 * p, byte & 15]) + np.int64(tables[2 * p + 1, byte >> 4])
            out[b, i] = total
            largest = max(largest, total)
        most[b] = largest


@numba.njit(nogil=True, cache=True)
def take(sums: Any, most: Any, first: Any, wanted: Any, items: Any, values: Any, numbers: Any, state: Any) -> None:
    """Adds the items from `first` on whose sums [B, 64] reach the least that counts to items and values.

    state = [how many are kept, the least that counts, how many of those kept reach it]; numbers[s] of them have the sum s. The
    least rises as long as `wanted` of them reach the next.
    """
    kept, least, reach = state[0], state[1], state[2]
    for b in range(len(sums)):
        if most[b] < least:
            continue
        for i in range(BLOCK):
            total = np.int64(sums[b, i])
            if total < least:
                continue
            items[kept], values[kept] = first + b * BLOCK + i, total
            kept += 1
            reach += 1
            numbers[total] += 1
            while reach - numbers[least] >= wanted:
                reach -= numbers[least]
                least += 1
    state[0], state[1], state[2] = kept, least, reach


@numba.njit(nogil=True, cache=True)
def tidy(items: Any, values: Any, state: Any) -> None:
    """What does not reach the least that counts any more goes."""
    kept = 0
    for k in range(state[0]):
        if values[k] >= state[1]:
            items[kept], values[kept] = items[k], values[k]
            kept += 1
    state[0] = kept


@numba.njit(nogil=True, cache=True)
def _closest(row: Any, centres: Any) -> Any:
    best, least = 0, np.inf
    for c in range(len(centres)):
        far = 0.0
        for d in range(len(row)):
            far += (row[d] - centres[c, d]) * (row[d] - centres[c, d])
        if far < least:
            best, least = c, far
    return best


@numba.njit(nogil=True, cache=True)
def improve(rows: Any, centres: Any) -> None:
    """A round of k-means: every centre [C, d] becomes the mean of the rows [N, d] next to it; one without rows stays."""
    totals, counts = np.zeros(centres.shape, np.float64), np.zeros(len(centres), np.int64)
    for n in range(len(rows)):
        c = _closest(rows[n], centres)
        counts[c] += 1
        for d in range(rows.shape[1]):
            totals[c, d] += rows[n, d]
    for c in range(len(centres)):
        if counts[c]:
            for d in range(rows.shape[1]):
                centres[c, d] = f4(totals[c, d] / counts[c])


@numba.njit(nogil=True, cache=True)
def encode(rows: Any, first: Any, centres: Any, codes: Any) -> None:
    """codes of items from `first` on: of each slice of a row [M d] the centre next to it, centres [M, 16, d]."""
    width = centres.shape[2]
    for n in range(len(rows)):
        item = first + n
        block, i = item // BLOCK, item % BLOCK
        at = 2 * (i % 32) + i // 32
        for m in range(len(centres)):
            code = np.uint8(_closest(rows[n, m * width : (m + 1) * width], centres[m]))
            codes[block, m // 2, at] |= code << np.uint8(4) if m % 2 else code
