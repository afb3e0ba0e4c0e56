"""The fused block against the same block in plain torch."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.kernels import arithmetic, block
from lrurec.models.lrurec import Block, LRURecConfig
from lrurec.nn import fused
from lrurec.nn.dropout import Keys


def blocks(width: int, channels: int, dropout: float) -> tuple[Block, Block]:
    """(fused, plain) with the same weights, none of them at a value that hides a mistake."""
    found = []
    for scan in ("auto", "steps"):
        block = Block(LRURecConfig(width=width, channels=channels, dropout=dropout, scan=scan), torch.Generator())
        g = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in block.parameters():
                p.add_(0.2 * torch.randn(p.shape, generator=g))
        found.append(block)
    return found[0], found[1]


def gradients(block: Block, x: Tensor, offsets: Tensor, keys: Keys | None) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = block(x, offsets, keys)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    return [out.detach(), *torch.autograd.grad(out, [x, *block.parameters()], g)]


def check(lengths: list[int], width: int, channels: int, dropout: float, threads: int) -> None:
    first, second = blocks(width, channels, dropout)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    x = torch.randn(int(offsets[-1]), width, generator=torch.Generator().manual_seed(3))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = gradients(first, x, offsets, Keys(7))
    finally:
        torch.set_num_threads(before)
    expected = gradients(second, x, offsets, Keys(7))
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * max(1.0, float(b.abs().max()))


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    width=st.sampled_from([3, 5, 16]),
    channels=st.sampled_from([1, 7, 16]),
    dropout=st.sampled_from([0.0, 0.3]),
    threads=st.integers(1, 3),
    piece=st.integers(1, 50),
)
@settings(max_examples=40)
def test_fused_is_plain(
    lengths: list[int], width: int, channels: int, dropout: float, threads: int, piece: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_PIECE", piece)
        check(lengths, width, channels, dropout, threads)


@pytest.mark.parametrize("lengths", [[2500, 1, 1, 700], [1]])
def test_at_the_size_of_the_paper(lengths: list[int]) -> None:
    check(lengths, 64, 128, 0.2, 2)


def test_the_same_twice() -> None:
    """Bit for bit: resuming exactly depends on it."""
    block, _ = blocks(16, 8, 0.5)
    x, offsets = torch.randn(3000, 16), torch.tensor([0, 700, 1500, 3000])
    once, twice = (gradients(block, x, offsets, Keys(1)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def test_nothing_in_the_batch() -> None:
    block, _ = blocks(4, 4, 0.0)
    assert block(torch.empty(0, 4), torch.tensor([0]), None).shape == (0, 4)


def test_a_bad_number_shows() -> None:
    block, _ = blocks(8, 4, 0.0)
    x = torch.zeros(5, 8)
    x[2, 3] = float("nan")
    assert not torch.isfinite(block(x, torch.tensor([0, 5]), None)[2:]).any()


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
