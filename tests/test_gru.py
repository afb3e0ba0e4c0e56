"""The gated recurrent unit: compiled gates against torch's own, and against its equations."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.kernels import gru as kernels
from lrurec.nn import gru
from lrurec.nn.gru import GRU, Schedule, gru_packed, gru_torch


def layer(width: int, channels: int) -> GRU:
    """None of the weights at a value that hides a mistake."""
    found = GRU(width, channels, torch.Generator())
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in found.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g))
    return found


def gradients(function: object, x: Tensor, offsets: Tensor, found: GRU) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = function(x, offsets, found.cell)  # type: ignore[operator]
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [x, *found.parameters()], g)]


def check(lengths: list[int], width: int, channels: int, threads: int) -> None:
    found = layer(width, channels)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    x = torch.randn(int(offsets[-1]), width, generator=torch.Generator().manual_seed(3))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        packed = gradients(gru_packed, x, offsets, found)
    finally:
        torch.set_num_threads(before)
    exact = gradients(gru_torch, x.double(), offsets, found.double())
    for a, b in zip(packed, exact, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * max(1.0, float(b.abs().max()))


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any),
    width=st.sampled_from([1, 5, 16]),
    channels=st.sampled_from([1, 7, 16]),
    threads=st.integers(1, 3),
    piece=st.integers(1, 60),
)
@settings(max_examples=40)
def test_packed_is_torch(lengths: list[int], width: int, channels: int, threads: int, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gru, "_PIECE", piece)
        check(lengths, width, channels, threads)


@pytest.mark.parametrize("lengths", [[300, 1, 1, 120, 200], [1], [1] * 40])
def test_at_the_usual_size(lengths: list[int]) -> None:
    check(lengths, 64, 128, 2)


def test_stepping_is_the_whole() -> None:
    found, offsets = layer(5, 6), torch.tensor([0, 9, 10, 30])
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = found(x, offsets)
        for start, stop in ((0, 9), (9, 10), (10, 30)):
            state = torch.zeros(1, 6)
            for k in range(start, stop):
                state = found.step(state, x[k : k + 1])
                assert torch.allclose(state[0], whole[k], atol=1e-6)


def test_the_longest_come_first() -> None:
    """Sequences of rows 0-1, 2-5 and 6: through time they are b, a, c; b, a; b; b."""
    schedule = Schedule.of(np.array([0, 2, 6]), np.array([2, 4, 1]))
    assert schedule.rows.tolist() == [2, 0, 6, 3, 1, 4, 5]
    assert schedule.bounds.tolist() == [0, 3, 5, 6, 7]
    assert schedule.befores[3:].tolist() == [0, 1, 3, 5]
    pieces = [(p.start, p.stop, len(steps)) for p, steps in schedule.pieces(4)]
    assert pieces == [(0, 5, 2), (5, 7, 2)]


def test_nothing_in_the_batch() -> None:
    found, nothing = layer(3, 4), torch.empty(0, 3)
    out, *d = gradients(gru_packed, nothing, torch.tensor([0]), found)
    assert out.shape == gru_torch(nothing, torch.tensor([0]), found.cell).shape == (0, 4)
    assert not any(bool(g.any()) for g in d)


def test_the_same_twice() -> None:
    """Bit for bit: resuming exactly depends on it."""
    found = layer(8, 16)
    x, offsets = torch.randn(3000, 8), torch.tensor([0, 700, 701, 1500, 3000])
    once, twice = (gradients(gru_packed, x, offsets, found) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def test_a_bad_number_shows() -> None:
    x = torch.zeros(5, 8)
    x[2, 3] = float("nan")
    out = layer(8, 20)(x, torch.tensor([0, 5]))
    assert torch.isfinite(out[:2]).all() and not torch.isfinite(out[2:]).any()


def test_gates_far_out() -> None:
    """Where an exponential would overflow, the gates are open or shut."""
    far = np.array([[[-1e4, 1e4, -200.0, 200.0]] * 3], np.float32)
    nothing, before = np.zeros_like(far), np.full((1, 4), 0.5, np.float32)
    r, z, n, m, h = np.empty((5, 1, 4), np.float32)
    kernels.gates(far, nothing, nothing[0], before, r, z, n, m, h)
    assert np.allclose(r, [[0, 1, 0, 1]]) and np.allclose(z, r)
    assert np.allclose(n, [[-1, 1, -1, 1]]) and np.allclose(h, [[-1, 0.5, -1, 0.5]])


def test_the_generator_is_all_the_randomness() -> None:
    built = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        built.append(GRU(4, 5, torch.Generator().manual_seed(9)))
        assert torch.equal(state, torch.get_rng_state())
    for a, b in zip(built[0].parameters(), built[1].parameters(), strict=True):
        assert torch.equal(a, b)
