"""Products of bfloat16 with sums in float32, for processors that multiply pairs of them (AVX512-BF16). Knows matrices.

The instruction takes 16 floats and adds to each the products of two pairs of 16-bit floats. So factors come in pairs
along the axis that is summed over: the left one as it is, the right one with pairs of rows interleaved, [K / 2, N, 2]. A tile
of the result, 4 rows of 64, stays in registers all along that axis.
"""

from functools import cache
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import config

from lrurec.kernels.arithmetic import compiled, i4, intrinsic

ROWS, VECTORS = 4, 4  # of a tile; a vector has 16 floats
COLUMNS = 16 * VECTORS


@cache
def has_dot16() -> bool:
    """Whether the processor has the instruction, and numba compiles for this processor."""
    chosen: Any = config  # filled from the environment
    if chosen.CPU_NAME or chosen.CPU_FEATURES or not chosen.ENABLE_AVX:
        return False
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512bf16", False))


class _BFloat(ir.types._BaseFloatType):  # type: ignore[misc]  # llvmlite knows no bfloat
    null, intrinsic_name = "0.0", "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloat._create_instance()
_int, _word = ir.IntType(64), ir.IntType(32)
_floats, _words = ir.VectorType(ir.FloatType(), 16), ir.VectorType(_word, 16)
_halves = ir.VectorType(_BFloat(), 32)


@intrinsic  # type: ignore[untyped-decorator]
def _tile(
    context: Any, a: Any, a_row: Any, a_step: Any, b: Any, b_step: Any, steps: Any, out: Any, out_row: Any, add: Any
) -> Any:
    """out [4, 64] = (out, if `add`, plus) the sum over `steps` pairs; addresses, and distances in bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, a_row, a_step, b, b_step, steps, out, out_row, add = arguments
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        dot = builder.module.globals.get(name)
        if dot is None:
            dot = ir.Function(builder.module, ir.FunctionType(_floats, [_floats, _halves, _halves]), name)

        def at(address: Any, rows: int, row: Any, offset: int, kind: Any) -> Any:
            there = builder.add(address, builder.mul(row, ir.Constant(_int, rows)))
            return builder.inttoptr(builder.add(there, ir.Constant(_int, offset)), kind.as_pointer())

        places = [at(out, i, out_row, 64 * j, _floats) for i in range(ROWS) for j in range(VECTORS)]
        entry = builder.block
        load, begin, loop, end = (builder.append_basic_block(n) for n in ("load", "begin", "loop", "end"))
        builder.cbranch(add, load, begin)
        builder.position_at_end(load)
        before = [builder.load(place, align=4) for place in places]
        builder.branch(begin)

        def phi(kind: Any, *incoming: Any) -> Any:
            made = builder.phi(kind)
            for value, block in incoming:
                made.add_incoming(value, block)
            return made

        builder.position_at_end(begin)
        zero = ir.Constant(_floats, [0.0] * 16)
        first = [phi(_floats, (zero, entry), (value, load)) for value in before]
        builder.branch(loop)
        builder.position_at_end(loop)
        left, here, there = phi(_int, (steps, begin)), phi(_int, (a, begin)), phi(_int, (b, begin))
        sums = [phi(_floats, (value, begin)) for value in first]
        none, zeros = ir.Constant(_words, ir.Undefined), ir.Constant(_words, [0] * 16)
        right = [
            builder.bitcast(builder.load(at(there, 0, b_step, 64 * j, _words), align=4), _halves)
            for j in range(VECTORS)
        ]
        new = []
        for i in range(ROWS):
            pair = builder.load(at(here, i, a_row, 0, _word), align=2)
            lone = builder.insert_element(none, pair, ir.Constant(_word, 0))
            pairs = builder.bitcast(builder.shuffle_vector(lone, none, zeros), _halves)
            new += [builder.call(dot, [sums[i * VECTORS + j], pairs, right[j]]) for j in range(VECTORS)]
        fewer = builder.sub(left, ir.Constant(_int, 1))
        following = [fewer, builder.add(here, a_step), builder.add(there, b_step), *new]
        for value, after in zip([left, here, there, *sums], following, strict=True):
            value.add_incoming(after, loop)
        builder.cbranch(builder.icmp_signed("!=", fewer, ir.Constant(_int, 0)), loop, end)
        builder.position_at_end(end)
        for place, value in zip(places, new, strict=True):
            builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8, types.boolean), generate


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
def multiply_columns(a: Any, b: Any, steps: Any, out: Any) -> None:
    """out [M, N] += the sum over rows of a^T b, `steps` pairs of rows: a [K / 2, M, 2], b [K / 2, N, 2]."""
    many, columns = a.shape[1], b.shape[1]
    here, there, where = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(out.ctypes.data)
    a_step, b_step, out_row = np.int64(4 * many), np.int64(4 * columns), np.int64(out.strides[0])
    for j in range(0, columns, COLUMNS):
        for i in range(0, many, ROWS):
            place = where + i * out_row + 4 * j
            _tile(here + 4 * i, np.int64(4), a_step, there + 4 * j, b_step, np.int64(steps), place, out_row, True)


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
