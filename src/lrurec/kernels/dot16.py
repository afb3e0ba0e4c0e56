"""Products of bfloat16 with sums in float32, for processors that multiply pairs of them (AVX512-BF16). Knows matrices.

The instruction takes 16 floats and adds to each the products of two pairs of 16-bit floats. So factors come in pairs
along the axis that is summed over: the left one as it is, the right one with pairs of rows interleaved, [K / 2, N, 2]. A tile
of the result, 4 rows of 64, stays in registers all along that axis.

Measured on one core: on AMD (EPYC) that is faster than products of floats, on Intel (Sapphire Rapids) slower. There, the 16-bit floats of a
pair are widened, and multiplied as floats: the same sums, but for their last bits.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types

from lrurec.kernels.arithmetic import compiled, has_feature, i4, intrinsic

ROWS, VECTORS = 4, 4  # of a tile; a vector has 16 floats
COLUMNS = 16 * VECTORS


def has_dot16() -> bool:
    """Whether the processor has the instruction."""
    return has_feature("avx512bf16")


class _BFloat(ir.types._BaseFloatType):  # type: ignore[misc]  # llvmlite knows no bfloat
    null, intrinsic_name = "0.0", "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloat._create_instance()
_int, _word = ir.IntType(64), ir.IntType(32)
_floats, _words = ir.VectorType(ir.FloatType(), 16), ir.VectorType(_word, 16)
_halves, _shorts = ir.VectorType(_BFloat(), 32), ir.VectorType(ir.IntType(16), 32)
_mask = ir.VectorType(_word, 32)


def _at(builder: Any, address: Any, rows: int, row: Any, offset: int, kind: Any) -> Any:
    """A pointer to what lies `rows` rows and some bytes behind an address."""
    there = builder.add(address, builder.mul(row, ir.Constant(_int, rows)))
    return builder.inttoptr(builder.add(there, ir.Constant(_int, offset)), kind.as_pointer())


def _call(builder: Any, name: str, result: Any, arguments: Any) -> Any:
    """Call a function that LLVM knows."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [x.type for x in arguments]), name)
    return builder.call(function, arguments)


def _phi(builder: Any, kind: Any, *incoming: Any) -> Any:
    made = builder.phi(kind)
    for value, block in incoming:
        made.add_incoming(value, block)
    return made


_Way = Callable[[Any, list[Any], list[Any], list[Any]], list[Any]]


def by_pairs(builder: Any, sums: list[Any], left: list[Any], right: list[Any]) -> list[Any]:
    """The vectors of a tile plus the products of pairs: a pair of each row (repeated), and those of each column."""
    left, right = ([builder.bitcast(words, _halves) for words in side] for side in (left, right))
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    return [_call(builder, name, _floats, [s, left[k // VECTORS], right[k % VECTORS]]) for k, s in enumerate(sums)]


def by_floats(builder: Any, sums: list[Any], left: list[Any], right: list[Any]) -> list[Any]:
    """The same: first with the lower halves of all words, then with the upper ones. A float begins as the 16-bit one does."""
    shift, upper = ir.Constant(_words, [16] * 16), ir.Constant(_words, [-65536] * 16)
    for widen, by in ((builder.shl, shift), (builder.and_, upper)):
        a, b = ([builder.bitcast(widen(words, by), _floats) for words in side] for side in (left, right))
        sums = [
            _call(builder, "llvm.fma.v16f32", _floats, [a[k // VECTORS], b[k % VECTORS], s]) for k, s in enumerate(sums)
        ]
    return sums


def quicker() -> _Way:
    """Of the two, on this processor."""
    return by_pairs if llvmlite.binding.get_host_cpu_name().startswith("znver") else by_floats


def _products(
    builder: Any, way: _Way, first: Any, a: Any, a_row: Any, a_step: Any, b: Any, b_step: Any, steps: Any
) -> Any:
    """The loop: `first`, the vectors of a tile row by row, plus the sum over `steps` pairs."""
    begin, loop, end = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("end")
    builder.branch(loop)
    builder.position_at_end(loop)
    left, here, there = (_phi(builder, _int, (start, begin)) for start in (steps, a, b))
    sums = [_phi(builder, _floats, (value, begin)) for value in first]
    none, zeros = ir.Constant(_words, ir.Undefined), ir.Constant(_words, [0] * 16)
    columns = [builder.load(_at(builder, there, 0, b_step, 64 * j, _words), align=4) for j in range(VECTORS)]
    rows = []
    for i in range(ROWS):
        pair = builder.load(_at(builder, here, i, a_row, 0, _word), align=2)
        lone = builder.insert_element(none, pair, ir.Constant(_word, 0))
        rows.append(builder.shuffle_vector(lone, none, zeros))
    new = way(builder, sums, rows, columns)
    fewer = builder.sub(left, ir.Constant(_int, 1))
    following = [fewer, builder.add(here, a_step), builder.add(there, b_step), *new]
    for value, after in zip([left, here, there, *sums], following, strict=True):
        value.add_incoming(after, loop)
    builder.cbranch(builder.icmp_signed("!=", fewer, ir.Constant(_int, 0)), loop, end)
    builder.position_at_end(end)
    return new


def tile_of(way: _Way) -> Any:
    """The intrinsic that computes a tile in one of the two ways."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        context: Any, a: Any, a_row: Any, a_step: Any, b: Any, b_step: Any, steps: Any, out: Any, out_row: Any, add: Any
    ) -> Any:
        """out [4, 64] = (out, if `add`, plus) the sum over `steps` pairs; addresses, and distances in bytes."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            *factors, out, out_row, add = arguments
            places = [_at(builder, out, i, out_row, 64 * j, _floats) for i in range(ROWS) for j in range(VECTORS)]
            entry, load, begin = builder.block, builder.append_basic_block("load"), builder.append_basic_block("begin")
            builder.cbranch(add, load, begin)
            builder.position_at_end(load)
            before = [builder.load(place, align=4) for place in places]
            builder.branch(begin)
            builder.position_at_end(begin)
            zero = ir.Constant(_floats, [0.0] * 16)
            first = [_phi(builder, _floats, (zero, entry), (value, load)) for value in before]
            for place, value in zip(places, _products(builder, way, first, *factors), strict=True):
                builder.store(value, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8, types.boolean), generate

    return tile


_QUICKER = quicker()
_tile = tile_of(_QUICKER)
_POWER = (0.013534147, 0.052011502, 0.24144274, 0.69300381, 1.0000027)  # 2^r, r from 0 to 1, to 3e-6 of its value


def _power(builder: Any, t: Any) -> Any:
    """2^t of a vector: 2^r of what is behind the point, times two as often as what is before it says."""

    def constant(value: float) -> Any:
        return ir.Constant(_floats, [float(np.float32(value))] * 16)

    every, as_set, down = ir.Constant(ir.IntType(16), -1), ir.Constant(_word, 4), ir.Constant(_word, 9)
    zero = ir.Constant(_floats, [0.0] * 16)
    r = _call(builder, "llvm.x86.avx512.mask.reduce.ps.512", _floats, [t, down, zero, every, as_set])
    p = constant(_POWER[0])
    for factor in _POWER[1:]:
        p = _call(builder, "llvm.fma.v16f32", _floats, [p, r, constant(factor)])
    return _call(builder, "llvm.x86.avx512.mask.scalef.ps.512", _floats, [p, t, zero, every, as_set])


@intrinsic  # type: ignore[untyped-decorator]
def _powers_tile(
    context: Any, a: Any, a_row: Any, a_step: Any, b: Any, b_step: Any, steps: Any, bias: Any,
    sums: Any, sums_row: Any, halves: Any, halves_row: Any, pairs: Any, pairs_row: Any,
) -> Any:  # fmt: skip
    """2^(bias [64] + products), [4, 64]: the sum of each row's vectors to `sums`, the rest rounded, in two layouts."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *factors, bias, sums, sums_row, halves, halves_row, pairs, pairs_row = arguments
        zero = ir.Constant(_int, 0)
        offsets = [builder.load(_at(builder, bias, 0, zero, 64 * j, _floats), align=4) for j in range(VECTORS)]
        scores = _products(builder, _QUICKER, offsets * ROWS, *factors)
        rounded = []
        for i in range(ROWS):
            place = _at(builder, sums, i, sums_row, 0, _floats)
            total = builder.load(place, align=4)
            for j in range(0, VECTORS, 2):
                low, high = (_power(builder, scores[i * VECTORS + k]) for k in (j, j + 1))
                total = builder.fadd(builder.fadd(total, low), high)
                both = _call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", _halves, [high, low])
                builder.store(both, _at(builder, halves, i, halves_row, 32 * j, _halves), align=2)
                rounded.append(builder.bitcast(both, _shorts))
            builder.store(total, place, align=4)
        for i in range(0, ROWS, 2):
            for j in range(VECTORS):
                upper, lower = (rounded[(i + k) * VECTORS // 2 + j // 2] for k in (1, 0))
                mixed = [x for k in range(16 * (j % 2), 16 * (j % 2) + 16) for x in (k, 32 + k)]
                pair = builder.shuffle_vector(lower, upper, ir.Constant(_mask, mixed))
                builder.store(pair, _at(builder, pairs, i // 2, pairs_row, 64 * j, _shorts), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 13), generate


@intrinsic  # type: ignore[untyped-decorator]
def half(context: Any, value: Any) -> Any:
    """A float rounded to the bits of a 16-bit one: by the processor where it can, else as `halved` does it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if has_dot16():
            return builder.bitcast(builder.fptrunc(arguments[0], _BFloat()), ir.IntType(16))
        words, at = ir.IntType(32), ir.Constant(ir.IntType(32), 16)  # where it cannot, the library has no such call
        bits = builder.bitcast(arguments[0], words)
        odd = builder.and_(builder.lshr(bits, at), ir.Constant(words, 1))
        up = builder.add(builder.add(bits, ir.Constant(words, 0x7FFF)), odd)
        return builder.trunc(builder.lshr(up, at), ir.IntType(16))

    return types.int16(types.float32), generate


@compiled
def multiply(a: Any, rows: Any, b: Any, out: Any, add: Any) -> None:
    """out [R, N] = (or +=) a [R, K] times b [K / 2, N, 2] for `rows` rows; reads and writes up to 3 rows more."""
    steps, columns = b.shape[0], b.shape[1]
    here, there, where = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(out.ctypes.data)
    a_row, b_step, out_row = np.int64(a.strides[0]), np.int64(4 * columns), np.int64(out.strides[0])
    for j in range(0, columns, COLUMNS):
        for i in range(0, rows, ROWS):
            place = where + i * out_row + 4 * j
            _tile(here + i * a_row, a_row, np.int64(4), there + 4 * j, b_step, np.int64(steps), place, out_row, add)


@compiled
def multiply_to_powers(a: Any, rows: Any, b: Any, bias: Any, sums: Any, halves: Any, pairs: Any) -> None:
    """2^(a [R, K] times b [K / 2, N, 2] + bias [N]), rounded, for `rows` rows, a multiple of 4.

    Into halves [R, N] and, with pairs of rows in each 32 bits, into pairs [R / 2, N]. What they were before rounding is added to
    sums [R, 16], over every sixteenth column.
    """
    steps, columns = b.shape[0], b.shape[1]
    here, there, offsets = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(bias.ctypes.data)
    added, single, double = np.int64(sums.ctypes.data), np.int64(halves.ctypes.data), np.int64(pairs.ctypes.data)
    a_row, b_step, added_row = np.int64(a.strides[0]), np.int64(4 * columns), np.int64(sums.strides[0])
    single_row, double_row = np.int64(halves.strides[0]), np.int64(pairs.strides[0])
    for j in range(0, columns, COLUMNS):
        for i in range(0, rows, ROWS):
            _powers_tile(
                here + i * a_row, a_row, np.int64(4), there + 4 * j, b_step, np.int64(steps), offsets + 4 * j,
                added + i * added_row, added_row, single + i * single_row + 2 * j, single_row,
                double + i // 2 * double_row + 4 * j, double_row,
            )  # fmt: skip


@compiled
def multiply_columns(a: Any, b: Any, steps: Any, out: Any, add: Any) -> None:
    """out [M, N] = (or +=) the sum over rows of a^T b, `steps` pairs of rows: a [K / 2, M, 2], b [K / 2, N, 2]."""
    many, columns = a.shape[1], b.shape[1]
    here, there, where = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(out.ctypes.data)
    a_step, b_step, out_row = np.int64(4 * many), np.int64(4 * columns), np.int64(out.strides[0])
    for j in range(0, columns, COLUMNS):
        for i in range(0, many, ROWS):
            place = where + i * out_row + 4 * j
            _tile(here + 4 * i, np.int64(4), a_step, there + 4 * j, b_step, np.int64(steps), place, out_row, add)


@compiled
def pair_rows(x: Any, rows: Any, out: Any) -> None:
    """Pairs of rows of x [R, W], interleaved: out [R / 2, W], a pair in each 32 bits. An odd last row goes with zeros."""
    width = x.shape[1]
    for p in range(rows // 2):
        for j in range(width):
            out[p, j] = i4(i4(x[2 * p, j]) & i4(0xFFFF)) | i4(i4(x[2 * p + 1, j]) << i4(16))
    if rows % 2:
        for j in range(width):
            out[rows // 2, j] = i4(i4(x[rows - 1, j]) & i4(0xFFFF))


def paired(x: Any) -> Any:
    """`pair_rows` of a whole matrix [K, N] with even K."""
    out = np.empty((len(x) // 2, x.shape[1]), np.int32)
    pair_rows(x, len(x), out)
    return out
