"""Products of 8-bit items with a 16-bit query, and which items may still be among the best. Knows rows of numbers.

Items come in blocks of 64, pairs of numbers of each beside those of the next: codes [B, D / 2, 64, 2]. The processor
multiplies 32 numbers and adds them in pairs by one instruction (AVX512-BW); elsewhere the same loops are plain.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from lrurec.kernels.arithmetic import f4, has_feature, i4, intrinsic

BLOCK, VECTORS = 64, 4  # items in a block; vectors of 16 that hold their sums

_int, _word = ir.IntType(64), ir.IntType(32)
_words, _pairs, _bytes = ir.VectorType(_word, 16), ir.VectorType(ir.IntType(16), 32), ir.VectorType(ir.IntType(8), 32)


def has_pairs() -> bool:
    """Whether the processor has the instruction."""
    return has_feature("avx512bw")


@intrinsic  # type: ignore[untyped-decorator]
def _products(context: Any, codes: Any, query: Any, steps: Any, out: Any) -> Any:
    """out [64] int32 = the products of a block with `steps` pairs of a query; addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, query, steps, out = arguments
        begin, loop, end = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("end")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_int)
        step.add_incoming(ir.Constant(_int, 0), begin)
        sums = [builder.phi(_words) for _ in range(VECTORS)]
        zeros, none = ir.Constant(_words, [0] * 16), ir.Constant(_words, ir.Undefined)
        for total in sums:
            total.add_incoming(zeros, begin)
        at = builder.add(query, builder.mul(step, ir.Constant(_int, 4)))
        pair = builder.load(builder.inttoptr(at, _word.as_pointer()), align=2)
        lone = builder.insert_element(none, pair, ir.Constant(_word, 0))
        asked = builder.bitcast(builder.shuffle_vector(lone, none, zeros), _pairs)
        name, new = "llvm.x86.avx512.pmaddw.d.512", []
        multiply = builder.module.globals.get(name)
        if multiply is None:
            multiply = ir.Function(builder.module, ir.FunctionType(_words, [_pairs, _pairs]), name)
        here = builder.add(codes, builder.mul(step, ir.Constant(_int, 2 * BLOCK)))
        for k in range(VECTORS):
            there = builder.add(here, ir.Constant(_int, 32 * k))
            wide = builder.sext(builder.load(builder.inttoptr(there, _bytes.as_pointer()), align=1), _pairs)
            new.append(builder.add(sums[k], builder.call(multiply, [wide, asked])))
        following = builder.add(step, ir.Constant(_int, 1))
        step.add_incoming(following, loop)
        for total, value in zip(sums, new, strict=True):
            total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, steps), loop, end)
        builder.position_at_end(end)
        for k, value in enumerate(new):
            place = builder.add(out, ir.Constant(_int, 64 * k))
            builder.store(value, builder.inttoptr(place, _words.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@numba.njit(nogil=True, cache=True)
def scan(codes: Any, query: Any, first: Any, out: Any) -> None:
    """out [R] int32, R a multiple of 64 = products of the items from block `first` on with query [D] int16."""
    size = np.int64(codes.strides[0])
    here, where = np.int64(codes.ctypes.data) + first * size, np.int64(out.ctypes.data)
    asked, steps = np.int64(query.ctypes.data), np.int64(codes.shape[1])
    for k in range(len(out) // BLOCK):
        _products(here + k * size, asked, steps, where + k * np.int64(4 * BLOCK))


@numba.njit(nogil=True, cache=True)
def scan_reference(codes: Any, query: Any, first: Any, out: Any) -> None:
    """The same in plain loops."""
    steps = codes.shape[1]
    for i in range(len(out)):
        block, lane, total = first + i // BLOCK, i % BLOCK, i4(0)
        for p in range(steps):
            total += i4(codes[block, p, lane, 0]) * i4(query[2 * p]) + i4(codes[block, p, lane, 1]) * i4(
                query[2 * p + 1]
            )
        out[i] = total


@numba.njit(nogil=True, cache=True)
def encode(table: Any, codes: Any, scales: Any) -> None:
    """Rows of table [V, D] as codes, each times 127 over its largest number; `scales` [V] brings them back."""
    items, width = table.shape
    for v in range(items):
        most = f4(0)
        for d in range(width):
            most = max(most, abs(table[v, d]))
        scales[v] = most / f4(127)
        if most > 0:
            for d in range(width):
                codes[v // BLOCK, d // 2, v % BLOCK, d % 2] = np.int8(np.rint(table[v, d] / scales[v]))


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
def upper_bounds(products: Any, scales: Any, bias: Any, by: Any, slack: Any, out: Any) -> None:
    """out [R] = the most that the scores of items can be: the one found, and what rounding may have taken from it."""
    for i in range(len(out)):
        s = f4(f4(products[i]) * scales[i] * by + bias[i])
        out[i] = s + scales[i] * slack + f4(1e-6) * abs(s)


@numba.njit(nogil=True, cache=True)
def still_possible(
    uppers: Any, scales: Any, slack: Any, first: Any, lowers: Any, items: Any, bounds: Any, count: Any
) -> Any:
    """Adds items whose upper bound reaches the k-th best lower bound so far, `lowers` [k], to items and bounds.

    Gives how many there are now, or -1 if there is no room for them. A lower bound is `slack` twice below the upper one.
    """
    k = len(lowers)
    worst = lowers[k - 1]
    for start in range(0, len(uppers), 64):
        stop = min(start + 64, len(uppers))
        most = uppers[start]
        for i in range(start, stop):
            most = max(most, uppers[i])
        if most < worst or most == -np.inf:
            continue
        for i in range(start, stop):
            upper = uppers[i]
            if upper < worst or upper == -np.inf:
                continue
            if count == len(items):
                return -1
            items[count] = first + i
            bounds[count] = upper
            count += 1
            lower = f4(upper - f4(2) * (scales[i] * slack + f4(1e-6) * abs(upper)) - f4(1e-6) * abs(upper))
            if lower > worst:
                at = k - 1
                while at > 0 and lowers[at - 1] < lower:
                    lowers[at] = lowers[at - 1]
                    at -= 1
                lowers[at] = lower
                worst = lowers[k - 1]
    return count
