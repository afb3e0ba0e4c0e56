"""RWKV: the average against its formula, kernels against their twins, stepping against whole sequences."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.errors import SettingsError
from lrurec.kernels.dot16 import has_dot16
from lrurec.nn.channels import mixed, mixed_halves, mixed_whole, suits
from lrurec.nn.mixer import Mixer
from lrurec.nn.rwkv import ChannelMixing, TimeMixing
from lrurec.nn.shift import shift, shift_packed, shift_whole
from lrurec.nn.wkv import IMPLEMENTATIONS, wkv

Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
EXACT = {torch.float64: 1e-11, torch.float32: 1e-5}


def case(lengths: list[int], width: int, dtype: torch.dtype, seed: int, keys: float = 2.0, wild: bool = False) -> Case:
    """k, v, w, u, offsets; `wild`: decays from almost nothing to everything."""
    g = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    shape = int(offsets[-1]), width
    k = keys * (2 * torch.rand(shape, generator=g, dtype=dtype) - 1)
    v = torch.randn(shape, generator=g, dtype=dtype)
    low, high = (-20, 10) if wild else (-5, 3)
    w = torch.exp(low + (high - low) * torch.rand(width, generator=g, dtype=dtype))
    return k, v, w, torch.randn(width, generator=g, dtype=dtype) * (5 if wild else 1), offsets


def outcome(function: Callable[..., Tensor], *inputs: Tensor, **more: Any) -> list[Tensor]:
    """The result and the gradients of all inputs but the last, for a fixed random gradient of the result."""
    leaves = [t.clone().requires_grad_() for t in inputs[:-1]]
    y = function(*leaves, inputs[-1], **more)
    g = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, g, materialize_grads=True)]


def check(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and torch.isfinite(a).all()
        assert float((a - b).abs().max()) <= tolerance * (1 + float(b.abs().max()))


# --- the weighted average -----------------------------------------------------------------------


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_wkv_is_its_formula(name: str) -> None:
    k, v, w, u, offsets = case([6, 1, 9], 4, torch.float64, 0)
    found = wkv(k, v, w, u, offsets, name)
    for s in range(3):
        start, stop = int(offsets[s]), int(offsets[s + 1])
        for t in range(start, stop):
            age = torch.arange(t - start - 1, -1, -1, dtype=torch.float64)[:, None]
            weights = torch.cat([torch.exp(-age * w + k[start:t]), torch.exp(u + k[t])[None]])
            expected = (weights * v[start : t + 1]).sum(0) / weights.sum(0)
            assert torch.allclose(found[t], expected, rtol=0, atol=1e-13)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    width=st.integers(1, 20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 99),
    wild=st.booleans(),
)
@settings(max_examples=50)
def test_kernel_and_twin_agree(lengths: list[int], width: int, dtype: torch.dtype, seed: int, wild: bool) -> None:
    inputs = case([*lengths, 1], width, dtype, seed, 50.0 if wild else 2.0, wild)
    packed, steps = (outcome(wkv, *inputs, implementation=name) for name in ("packed", "steps"))
    check(packed, steps, EXACT[dtype])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_large_keys_and_decays_do_not_overflow(name: str) -> None:
    """In single precision, against double: |k| up to 50, and one key that outweighs all others by far."""
    inputs = case([500, 1, 40], 64, torch.float32, 3, 50.0, wild=True)
    inputs[0][100] = 300.0
    inputs[0][101] = -300.0
    exact = [t.double() if t.is_floating_point() else t for t in inputs]
    check(
        outcome(wkv, *inputs, implementation=name),
        [t.float() for t in outcome(wkv, *exact, implementation="steps")],
        1e-3,  # the twin is as far from it: at 300, single precision has steps of 3e-5
    )


def test_far_away_is_the_same_in_relation() -> None:
    """Only differences of keys count: all of them 1,000 higher change nothing."""
    k, v, w, u, offsets = case([30], 5, torch.float64, 1)
    for name in IMPLEMENTATIONS:
        assert torch.allclose(wkv(k, v, w, u, offsets, name), wkv(k + 1000, v, w, u, offsets, name), atol=1e-10)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_wkv_gradcheck(name: str) -> None:
    k, v, w, u, offsets = case([3, 0, 1, 4], 2, torch.float64, 0)
    leaves = [t.requires_grad_() for t in (k, v, w, u)]
    torch.autograd.gradcheck(lambda k, v, w, u: wkv(k, v, w, u, offsets, name), leaves)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_nothing_in_nothing_out(name: str) -> None:
    k, v, w, u, _ = case([], 3, torch.float32, 0)
    assert wkv(k, v, w, u, torch.tensor([0]), name).shape == (0, 3)
    with pytest.raises(SettingsError, match="did you mean 'packed'"):
        wkv(k, v, w, u, torch.tensor([0]), "paked")


def test_threads_do_not_matter() -> None:
    inputs = case([50, 3, 0, 90, 1, 70], 5, torch.float64, 2)
    k, mu = inputs[0], torch.rand(3, 5, dtype=torch.float64)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 5):
            torch.set_num_threads(threads)
            found.append([*outcome(wkv, *inputs), *outcome(shift, k, mu, inputs[-1])])
    finally:
        torch.set_num_threads(before)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*found, strict=True))


def test_a_bad_number_shows() -> None:
    k, v, w, u, offsets = case([5, 2], 4, torch.float32, 0)
    v[2, 1] = float("nan")
    y = wkv(k, v, w, u, offsets)
    assert not torch.isfinite(y[2:5, 1]).any() and torch.isfinite(y[:, 0]).all() and torch.isfinite(y[5:]).all()


# --- the token shift ----------------------------------------------------------------------------


def test_shift_is_its_formula() -> None:
    x, mu = torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.tensor([[0.75], [1.0]])
    for function in (shift_packed, shift_whole):
        found = function(x, mu, torch.tensor([0, 2, 2, 4, 4]))
        assert found[..., 0].tolist() == [[0.75, 1.75, 3.0, 7.0], [1.0, 2.0, 4.0, 8.0]]


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    width=st.integers(1, 20),
    mixtures=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=40)
def test_shift_and_twin_agree(lengths: list[int], width: int, mixtures: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(int(offsets[-1]), width, generator=g, dtype=dtype)
    mu = torch.randn(mixtures, width, generator=g, dtype=dtype)
    assert shift(x, mu, offsets).shape == shift_whole(x, mu, offsets).shape == (mixtures, *x.shape)
    if len(x):
        check(outcome(shift_packed, x, mu, offsets), outcome(shift_whole, x, mu, offsets), EXACT[dtype])


@pytest.mark.parametrize("function", [shift_packed, shift_whole])
def test_shift_gradcheck(function: Callable[..., Tensor]) -> None:
    x, mu = torch.randn(7, 2, dtype=torch.float64), torch.rand(3, 2, dtype=torch.float64)
    leaves = (x.requires_grad_(), mu.requires_grad_())
    torch.autograd.gradcheck(lambda a, b: function(a, b, torch.tensor([0, 3, 3, 7])), leaves)


# --- channel mixing -----------------------------------------------------------------------------


def channels_case(rows: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> list[Tensor]:
    """r and k, and the three matrices."""
    g = torch.Generator().manual_seed(seed)
    shapes = (2, rows, 64), (64, 64), (128, 64), (64, 128)
    sizes = scale, 0.2, 0.2, 0.1
    return [size * torch.randn(shape, generator=g, dtype=dtype) for shape, size in zip(shapes, sizes, strict=True)]


def test_channel_mixing_is_its_formula() -> None:
    both, r, k, v = channels_case(5, torch.float64)
    found = mixed(both, r, k, v)
    for t in range(5):
        inner = (k @ both[1, t]).clamp(min=0) ** 2
        assert torch.allclose(found[t], torch.sigmoid(r @ both[0, t]) * (v @ inner), atol=1e-12)
    leaves = [t.requires_grad_() for t in channels_case(3, torch.float64, 1)]
    assert torch.autograd.gradcheck(lambda *x: mixed_whole(*x), leaves)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 127, 130, 2077])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_channel_mixing_with_products_of_bfloat16(rows: int, scale: float) -> None:
    """The compiled way against the obvious one, which rounds its products more often.

    A sum whose last bit differs may be rounded to another 16-bit float: of a hundred thousand numbers a few differ by that.
    """
    if not has_dot16():
        pytest.skip("this processor has no instruction for it")
    inputs = [*channels_case(rows, torch.float32, rows, scale), torch.zeros(())]
    assert suits(inputs[0], inputs[2])
    found = outcome(lambda b, r, k, v, _: mixed_halves(b, r, k, v), *inputs)
    expected = outcome(lambda b, r, k, v, _: mixed_whole(b, r, k, v, half=True), *inputs)
    exact = outcome(lambda b, r, k, v, _: mixed_whole(b, r, k, v), *(t.double() for t in inputs))
    alike = torch.isclose(found[0], expected[0], atol=1e-6)
    assert int((~alike).sum()) <= 1e-4 * alike.numel()
    assert torch.allclose(found[0], expected[0], atol=1e-3 * float(expected[0].abs().max()) if rows else 0.0)
    for a, b, e in zip(found, expected, exact, strict=True):
        near = 0.02 * float(e.abs().max()) if e.numel() else 0.0
        assert ((a - b).abs() <= near).all() and ((a - e).abs() <= near).all()


def test_channel_mixing_does_not_depend_on_the_threads() -> None:
    if not has_dot16():
        pytest.skip("this processor has no instruction for it")
    inputs, threads = [*channels_case(2077, torch.float32), torch.zeros(())], torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(outcome(lambda b, r, k, v, _: mixed_halves(b, r, k, v), *inputs))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0]) and torch.equal(found[0][1], other[1])
        check(found[0], other, 1e-5)


def test_where_the_compiled_channel_mixing_is_not_taken() -> None:
    both, _, k, _ = channels_case(2, torch.float32)
    assert not suits(both.double(), k.double())
    assert not suits(both[..., :60], k[:, :60]) and not suits(both, k[:100])


# --- the layers ---------------------------------------------------------------------------------


def layer(kind: type[TimeMixing] | type[ChannelMixing], width: int, dtype: torch.dtype) -> Mixer:
    """With larger matrices than at the beginning, so that errors would show."""
    made = kind(width, torch.Generator().manual_seed(0), 1, 3).to(dtype)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "weight" in name:
                p.mul_(10)
    return made


@pytest.mark.parametrize("kind", [TimeMixing, ChannelMixing])
@pytest.mark.parametrize(
    ("dtype", "length", "tolerance"), [(torch.float32, 200, 1e-5), (torch.float64, 1000, 1e-11)], ids=str
)
def test_stepping_equals_the_whole(
    kind: type[TimeMixing] | type[ChannelMixing], dtype: torch.dtype, length: int, tolerance: float
) -> None:
    m = layer(kind, 64, dtype)
    lengths = [length, 1, 7]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(sum(lengths), 64, generator=torch.Generator().manual_seed(1), dtype=dtype)
    with torch.no_grad():
        whole = m(x, offsets)
        assert float(whole.std()) > 0.3
        for s in range(3):
            state = m.initial_state()
            assert state.shape == (1, *m.state_shape) and state.dtype == dtype
            for k in range(int(offsets[s]), int(offsets[s + 1])):
                state, y = m.step(state, x[k : k + 1])
                assert torch.allclose(y[0], whole[k], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [TimeMixing, ChannelMixing])
def test_gradcheck(kind: type[TimeMixing] | type[ChannelMixing]) -> None:
    m = layer(kind, 3, torch.float64)
    x = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    names, values = zip(*((n, p.detach().requires_grad_()) for n, p in m.named_parameters()), strict=True)

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        found: Tensor = torch.func.functional_call(m, named, (x, torch.tensor([0, 3, 3, 9])))
        return found

    torch.autograd.gradcheck(run, (x.requires_grad_(), *values))


def test_initial_values() -> None:
    """Those of the paper's appendix: the second of three blocks."""
    time, channel = TimeMixing(5, torch.Generator(), 1, 3), ChannelMixing(5, torch.Generator(), 1, 3)
    ramp = [(i / 5) ** (1 - 1 / 3) for i in range(5)]
    with torch.no_grad():
        assert torch.allclose(time.decay, torch.tensor([-5 + 8 * (i / 4) ** (0.7 + 1.3 / 2) for i in range(5)]))
        assert torch.allclose(time.bonus, math.log(0.3) + torch.tensor([0.0, 0.5, -0.5, 0.0, 0.5]))
        r, k, v = (torch.tensor(f) for f in ([a / 2 for a in ramp], ramp, [a + 0.15 for a in ramp]))
        assert torch.allclose(time.mu, torch.stack([r, k, v]))
        assert torch.allclose(channel.mu, torch.tensor([ramp, ramp]))
        assert torch.allclose(time.eigenvalues(), torch.stack([torch.exp(-time.decay.exp()), torch.zeros(5)]))
        assert channel.eigenvalues().shape == (2, 0)
    alone = TimeMixing(1, torch.Generator())  # one channel, one block: no division by zero
    assert all(torch.isfinite(p).all() for p in alone.parameters())


@pytest.mark.parametrize("part", [TimeMixing, ChannelMixing])
def test_products_in_half_are_the_same_to_rounding(part: type[TimeMixing] | type[ChannelMixing]) -> None:
    generator = torch.Generator().manual_seed(1)
    mixing, offsets = part(32, generator), torch.tensor([0, 40, 41, 41, 90])
    for p in mixing.parameters():  # as large as after training: the outcome is not all rounding
        if p.ndim > 1 and p.shape[-2] >= 32:
            p.data.normal_(0.0, 0.2, generator=generator)
    x, upon = (torch.randn(90, 32, generator=generator) for _ in range(2))

    def outcome(half: bool) -> list[torch.Tensor]:
        given = x.clone().requires_grad_()
        y = mixing(given, offsets, half)
        return [y.detach(), *torch.autograd.grad(y, [given, *mixing.parameters()], upon)]

    for exact, rounded in zip(outcome(False), outcome(True), strict=True):
        assert rounded.dtype == torch.float32
        off = float((exact - rounded).norm() / exact.norm())
        assert 0 < off < 0.02
