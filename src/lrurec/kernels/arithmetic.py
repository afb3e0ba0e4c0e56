"""What the loops are made of. Knows single numbers.

These become part of the loops that use them, and numba looks only at a loop's own file to see whether what it has kept
is still right: after a change here, remove `__pycache__` beside it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import llvmlite.binding
import numba
import numpy as np
from numba import extending, types
from numba.core import config

intrinsic: Any = extending.intrinsic
f4, i4 = np.float32, np.int32
LOWEST = i4(-(2**31) + 1)
_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """With numpy's rules for division: Python's would look for a zero each time, one element after the other."""
    made: Any = numba.njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True, cache=True)(function)
    return made  # type: ignore[no-any-return]


def inlined(function: _F) -> _F:
    made: Any = numba.njit(inline="always", cache=True)(function)
    return made  # type: ignore[no-any-return]


@cache
def has_feature(name: str) -> bool:
    """Whether the processor has some instructions, and numba compiles for this processor."""
    chosen: Any = config  # filled from the environment
    if chosen.CPU_NAME or chosen.CPU_FEATURES or not chosen.ENABLE_AVX:
        return False
    return bool(llvmlite.binding.get_host_cpu_features().get(name, False))


@intrinsic  # type: ignore[untyped-decorator]
def as_float(context: Any, bits: Any) -> Any:
    """The float with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@intrinsic  # type: ignore[untyped-decorator]
def as_bits(context: Any, value: Any) -> Any:
    """The bits of a float."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


@inlined
def exp(x: Any) -> Any:
    """e^x for x up to 88, to 5e-7 of its value; below -87 it stays at e^-87."""
    x = f4(-87.0) if x < f4(-87.0) else x
    n = np.floor(f4(x * f4(1.44269504) + f4(0.5)))  # e^x = 2^n e^r, r within half of ln 2
    r = f4(x - n * f4(0.693359375))
    r = f4(r - n * f4(-2.12194440e-4))
    p = f4(r * f4(1.0 / 720) + f4(1.0 / 120))
    p = f4(p * r + f4(1.0 / 24))
    p = f4(p * r + f4(1.0 / 6))
    p = f4(p * r + f4(0.5))
    p = f4(p * r * r + r + f4(1.0))
    return f4(p * as_float(i4((i4(n) + i4(127)) << i4(23))))


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), to 3e-7."""
    x = f4(-80.0) if x < f4(-80.0) else x
    return f4(f4(1.0) / (f4(1.0) + exp(f4(-x))))


@inlined
def ordered(bits: Any) -> Any:
    """Bits of floats as integers in the same order (and back): the largest of integers is found in vectors."""
    return i4(bits ^ i4(i4(bits >> i4(31)) & i4(0x7FFFFFFF)))


@inlined
def widened(half: Any) -> Any:
    return as_float(i4(i4(half) << i4(16)))


@inlined
def halved(value: Any) -> Any:
    """Rounded to the nearest, to even in the middle."""
    bits = as_bits(value)
    return np.int16(i4(bits + i4(0x7FFF) + i4(i4(bits >> i4(16)) & i4(1))) >> i4(16))


@inlined
def is_kept(number: Any, key: Any, limit: Any) -> Any:
    """Whether dropout keeps an element: the hash of lrurec.nn.dropout."""
    z = np.uint32(np.uint32(number) + key)
    z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D))
    z = np.uint32((z ^ (z >> np.uint32(15))) * np.uint32(0x846CA68B))
    z = np.uint32(z ^ (z >> np.uint32(16)))
    return z >= limit


@inlined
def upper_tail(x: Any, bell: Any) -> Any:
    """The chance that a normal variable exceeds |x|, to 1e-7; `bell` is exp(-x^2 / 2).

    Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    t = f4(f4(1.0) / (f4(1.0) + f4(0.3275911 * 0.7071067811865476) * abs(x)))
    p = f4(f4(1.061405429) * t + f4(-1.453152027))
    p = f4(p * t + f4(1.421413741))
    p = f4(p * t + f4(-0.284496736))
    p = f4(p * t + f4(0.254829592))
    return f4(f4(0.5) * p * t * bell)
