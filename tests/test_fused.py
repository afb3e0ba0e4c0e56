"""The fused block against the same block in plain torch."""

import os
import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.kernels import arithmetic, block, block16, dot16
from lrurec.models.lrurec import Block, LRURecConfig
from lrurec.nn import fused, fused16
from lrurec.nn.dropout import Keys


def blocks(width: int, channels: int, dropout: float, pffn: bool = True) -> tuple[Block, Block]:
    """(fused, plain) with the same weights, none of them at a value that hides a mistake."""
    found = []
    for scan in ("auto", "steps"):
        config = LRURecConfig(width=width, channels=channels, dropout=dropout, scan=scan, pffn=pffn)
        block = Block(config, torch.Generator())
        g = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in block.parameters():
                p.add_(0.2 * torch.randn(p.shape, generator=g))
        found.append(block)
    return found[0], found[1]


def gradients(
    block: Block, x: Tensor, offsets: Tensor, keys: Keys | None, half: bool = False, states: Tensor | None = None
) -> list[Tensor]:
    """What the block gives and the gradients; from states, also those that sequences end with."""
    x = x.clone().requires_grad_()
    ends: list[Tensor] = []
    if states is None:
        out = block(x, offsets, keys, half)
    else:
        out, *ends = block.forward_from(x, offsets, states, keys, half)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(x.dtype)
    return [out.detach(), *torch.autograd.grad(out, [x, *block.parameters()], g), *ends]


def on_threads(threads: int, block: Block, x: Tensor, *others: object) -> list[Tensor]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        return gradients(block, x, *others)  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)


def some_states(lengths: list[int], channels: int) -> Tensor:
    return torch.randn(len(lengths), 2, channels, generator=torch.Generator().manual_seed(5))


def check(
    lengths: list[int],
    width: int,
    channels: int,
    dropout: float,
    threads: int,
    carried: bool = False,
    pffn: bool = True,
) -> None:
    first, second = blocks(width, channels, dropout, pffn)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    x = torch.randn(int(offsets[-1]), width, generator=torch.Generator().manual_seed(3))
    states = some_states(lengths, channels) if carried else None
    found = on_threads(threads, first, x, offsets, Keys(7), False, states)
    plain = gradients(second, x, offsets, Keys(7), False, states)
    second.double()
    exact = gradients(second, x.double(), offsets, Keys(7), False, None if states is None else states.double())
    # A LayerNorm of numbers that are nearly alike magnifies what rounding did: there plain torch is off, too.
    noise = max(away(b, c) for b, c in zip(plain, exact, strict=True))
    assert max(away(a, c) for a, c in zip(found, exact, strict=True)) <= 1e-5 + 2 * noise


def away(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).abs().max()) / max(1.0, float(exact.abs().max()))


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any),
    width=st.sampled_from([7, 9, 16]),
    channels=st.sampled_from([1, 7, 16]),
    dropout=st.sampled_from([0.0, 0.3]),
    threads=st.integers(1, 3),
    piece=st.integers(1, 50),
    carried=st.booleans(),
    pffn=st.booleans(),
)
@settings(max_examples=60)
def test_fused_is_plain(
    lengths: list[int], width: int, channels: int, dropout: float, threads: int, piece: int, carried: bool, pffn: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_PIECE", piece)
        check(lengths, width, channels, dropout, threads, carried, pffn)


@pytest.mark.parametrize("pffn", [True, False])
@pytest.mark.parametrize("lengths", [[2500, 1, 1, 700], [1]])
def test_at_the_size_of_the_paper(lengths: list[int], pffn: bool) -> None:
    check(lengths, 64, 128, 0.2, 2, pffn=pffn)


@pytest.mark.parametrize("pffn", [True, False])
@pytest.mark.parametrize("half", [False, True])
def test_the_same_twice(half: bool, pffn: bool) -> None:
    """Bit for bit: resuming exactly depends on it."""
    block, _ = blocks(64, 32, 0.5, pffn)
    x, offsets = torch.randn(3000, 64), torch.tensor([0, 700, 1500, 3000])
    once, twice = (gradients(block, x, offsets, Keys(1), half) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def check_half(
    lengths: list[int], channels: int, dropout: float, threads: int, carried: bool = False, pffn: bool = True
) -> None:
    """Products of bfloat16, fused and plain, against float32: values to 1%, gradients to 2% of their length."""
    first, second = blocks(64, channels, dropout, pffn)
    with torch.no_grad():
        for p in [*first.parameters(), *second.parameters()]:
            if p.ndim == 2 and len(p) > 3:  # a matrix: as large as in a trained model
                p.mul_(0.5)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    x = torch.randn(int(offsets[-1]), 64, generator=torch.Generator().manual_seed(3))
    states = some_states(lengths, channels) if carried else None
    found = on_threads(threads, first, x, offsets, Keys(7), True, states)
    plain = gradients(second, x, offsets, Keys(7), True, states)
    exact = gradients(second, x, offsets, Keys(7), False, states)
    for bound, *rows in zip([0.01] + [0.02] * len(exact), found, plain, exact, strict=False):
        a, b, c = rows
        assert max(float((a - c).norm()), float((b - c).norm())) <= bound * float(c.norm()) + 1e-6


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    channels=st.sampled_from([32, 96]),
    dropout=st.sampled_from([0.0, 0.3]),
    threads=st.integers(1, 3),
    piece=st.integers(1, 50),
    carried=st.booleans(),
    pffn=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_half_precision_is_near(
    lengths: list[int], channels: int, dropout: float, threads: int, piece: int, carried: bool, pffn: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused16, "_PIECE", piece)
        patch.setattr(fused16, "_PIECE_BACK", piece)
        check_half(lengths, channels, dropout, threads, carried, pffn)


@pytest.mark.parametrize("pffn", [True, False])
@pytest.mark.parametrize("lengths", [[2500, 1, 1, 700], [1]])
def test_half_precision_at_the_size_of_the_paper(lengths: list[int], pffn: bool) -> None:
    check_half(lengths, 128, 0.2, 2, pffn=pffn)


def test_half_precision_without_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder then multiplies as it always does."""
    monkeypatch.setattr(fused16, "has_dot16", lambda: False)
    block, _ = blocks(64, 32, 0.1)
    x, offsets = torch.randn(30, 64), torch.tensor([0, 10, 30])
    once, twice = (gradients(block, x, offsets, Keys(1), half) for half in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def test_nothing_in_the_batch() -> None:
    block, _ = blocks(4, 4, 0.0)
    assert block(torch.empty(0, 4), torch.tensor([0]), None).shape == (0, 4)


@pytest.mark.parametrize("half", [False, True])
def test_a_bad_number_shows(half: bool) -> None:
    block, _ = blocks(64, 32, 0.0)
    x = torch.zeros(9, 64)
    x[2, 3] = float("nan")
    found = torch.isfinite(block(x, torch.tensor([0, 5, 9]), None, half))
    assert not found[2:5].any() and found[:2].all() and found[5:].all()


def test_exponential() -> None:
    @numba.njit
    def apply(x: np.ndarray, out: np.ndarray) -> None:
        for i in range(len(x)):
            out[i] = arithmetic.exp(x[i])

    x = np.linspace(-86, 80, 100_001).astype(np.float32)
    out = np.empty_like(x)
    apply(x, out)
    assert np.max(np.abs(out / np.exp(x.astype(np.float64)) - 1)) < 6e-7
    apply(np.array([-1e30, -3e38, 0.0], np.float32), out[:3])
    assert out[:2].max() < 2e-38
    assert out[2] == 1.0


def test_gelu_of_half_precision() -> None:
    """Its value and its slope as polynomials."""
    a = torch.linspace(-12, 12, 100_001)[None].requires_grad_()
    expected = torch.nn.functional.gelu(a.double())
    (slopes,) = torch.autograd.grad(expected.sum(), a)
    x, zero, none = a.detach().numpy(), np.uint32(0), np.zeros(a.shape[1], np.float32)
    numbers = (0, zero, zero, np.float32(1))
    inner, out, again, d_a = (np.empty(x.shape, np.int16) for _ in range(4))

    def wide(bits: np.ndarray) -> np.ndarray:
        return np.asarray((bits.astype(np.int32) << 16).view(np.float32))

    block16._gelu(x, none, *numbers, inner, out)
    assert np.abs(wide(out) - expected.detach().numpy()).max() < 0.033  # of 12: the next 16-bit float is 0.06 away
    assert np.abs(wide(out) - expected.detach().numpy())[np.abs(x) < 1].max() < 0.002
    block16._gelu_backward(inner, np.ones_like(x), *numbers, again, d_a, none.copy())
    assert np.abs(wide(again) - wide(out)).max() < 0.07
    assert np.abs(wide(d_a) - slopes.numpy()).max() < 0.01


def test_products_of_pairs() -> None:
    if not dot16.has_dot16():
        pytest.skip("this processor has no instruction for it")
    g = torch.Generator().manual_seed(0)
    for rows, inside, columns in ((1, 2, 64), (6, 64, 128), (8, 250, 64)):
        a, b = (torch.randn(*s, generator=g).to(torch.bfloat16) for s in ((rows + 3, inside), (inside, columns)))
        pairs = dot16.paired(b.view(torch.int16).numpy())
        out = np.ones((rows + 3, columns), np.float32)
        for add, start in ((False, 0.0), (True, 1.0)):
            out[:] = start
            dot16.multiply(a.view(torch.int16).numpy(), rows, pairs, out, add)
            assert np.abs(out[:rows] - start - (a.double() @ b.double()).numpy()[:rows]).max() < 1e-4
        left = torch.randn(inside - 1, 4 * rows, generator=g).to(torch.bfloat16)  # odd: the last one goes with zeros
        words = np.empty((inside // 2, 4 * rows), np.int32)
        dot16.pair_rows(left.view(torch.int16).numpy(), inside - 1, words)
        expected = (left.double().T @ b[:-1].double()).numpy()
        for add, start, total in ((False, 1.0, 0.0), (True, 1.0, 1.0)):
            summed = np.full((4 * rows, columns), start, np.float32)
            dot16.multiply_columns(words, pairs, inside // 2, summed, add)
            assert np.abs(summed - total - expected).max() < 1e-4


@pytest.mark.parametrize("way", [dot16.by_pairs, dot16.by_floats])
def test_both_ways_to_multiply_pairs(way: Any) -> None:
    """Whichever of them this processor does not take must be right, too."""
    if not dot16.has_dot16():
        pytest.skip("this processor has no instruction for it")
    tile = dot16.tile_of(way)

    @arithmetic.compiled
    def multiplied(a: Any, b: Any, out: Any, add: Any) -> None:
        here, there, where = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(out.ctypes.data)
        rows, steps = np.int64(a.strides[0]), np.int64(b.shape[0])
        tile(here, rows, np.int64(4), there, np.int64(256), steps, where, np.int64(256), add)

    g = torch.Generator().manual_seed(0)
    for inside in (2, 64, 250):
        a, b = (torch.randn(*s, generator=g).to(torch.bfloat16) for s in ((4, inside), (inside, 64)))
        for add, total in ((False, 0.0), (True, 1.0)):
            out = np.ones((4, 64), np.float32)
            multiplied(a.view(torch.int16).numpy(), dot16.paired(b.view(torch.int16).numpy()), out, add)
            assert np.abs(out - total - (a.double() @ b.double()).numpy()).max() < 1e-4


def test_powers_of_products() -> None:
    """Sums to 1e-5 of them, powers to half of a last bit; nothing comes of a score that is far below; both layouts agree."""
    if not dot16.has_dot16():
        pytest.skip("this processor has no instruction for it")
    g = torch.Generator().manual_seed(0)
    for rows, inside, columns in ((4, 2, 64), (12, 64, 128)):
        a, b = (torch.randn(*s, generator=g).to(torch.bfloat16) for s in ((rows, inside), (inside, columns)))
        bias = 3 * torch.randn(columns, generator=g)
        bias[7], bias[9] = -1e30, -200.0
        lanes, halves = np.ones((rows, 16), np.float32), np.empty((rows, columns), np.int16)
        words = np.empty((rows // 2, columns), np.int32)
        factors = a.view(torch.int16).numpy(), rows, dot16.paired(b.view(torch.int16).numpy())
        dot16.multiply_to_powers(*factors, bias.numpy(), lanes, halves, words)
        expected = torch.exp2(a.double() @ b.double() + bias.double()).numpy()
        assert np.allclose(lanes.sum(1) - 16, expected.sum(1), rtol=1e-5, atol=1e-5)
        found = torch.from_numpy(halves).view(torch.bfloat16).double().numpy()
        assert np.abs(found - expected).max() <= 0.004 * expected.max() and np.all(found[:, 7] == 0)
        assert np.allclose(found, expected, rtol=0.004, atol=1e-37)
        paired = np.empty_like(words)
        dot16.pair_rows(halves, rows, paired)
        assert np.array_equal(words, paired)


def test_rounding_by_the_processor() -> None:
    if not dot16.has_dot16():
        pytest.skip("this processor has no instruction for it")
    x = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0))
    x[0, :3] = torch.tensor([1.00390625, 1.01171875, -0.0])  # in the middle of two: to the even one
    out = np.empty(x.shape, np.int16)
    block16.halve(x.numpy(), out)
    assert np.array_equal(out, x.to(torch.bfloat16).view(torch.int16).numpy())


def test_gelu() -> None:
    a = torch.linspace(-12, 12, 100_001)[None]
    out = np.empty_like(a.numpy())
    zero = np.uint32(0)
    block.gelu(a.numpy(), 0, zero, zero, np.float32(1), out)
    assert np.abs(out - torch.nn.functional.gelu(a.double()).numpy()).max() < 1e-6


def test_the_number_of_threads_is_the_users() -> None:
    """numba's own threads would set torch's to the number of cores."""
    code = """
import torch
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.scan import scan
x = torch.zeros(10**5, 2, 1)
scan(dropout(x, 0.5, Keys(1)), torch.zeros(2, 1), torch.tensor([0, 10**5]))
assert torch.get_num_threads() == 1, torch.get_num_threads()
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
