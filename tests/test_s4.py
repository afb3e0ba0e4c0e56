"""S4: the convolution against its sum, the kernel against its formula, stepping against both."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.nn import transforms
from lrurec.nn.s4 import S4
from lrurec.nn.transforms import convolved_spectral, quick_size

# --- causal convolution -------------------------------------------------------------------------


def obvious(x: Tensor, kernel: Tensor, offsets: Tensor) -> Tensor:
    rows = []
    for s in range(len(offsets) - 1):
        start, stop = int(offsets[s]), int(offsets[s + 1])
        for k in range(start, stop):
            rows.append((kernel[: k - start + 1].flip(0) * x[start : k + 1]).sum(0))
    return torch.stack(rows) if rows else x


def case(lengths: list[int], width: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(int(offsets[-1]), width, generator=g, dtype=dtype)
    return x, torch.randn(max([*lengths, 1]) + seed % 2, width, generator=g, dtype=dtype), offsets


def outcome(convolve: object, x: Tensor, kernel: Tensor, offsets: Tensor) -> list[Tensor]:
    """The result, and both gradients for a fixed random gradient of it."""
    assert callable(convolve)
    x, kernel = x.clone().requires_grad_(), kernel.clone().requires_grad_()
    y = convolve(x, kernel, offsets)
    g = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
    return [y.detach(), *torch.autograd.grad(y, [x, kernel], g)]


def check(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= tolerance * (1 + float(b.abs().max()))


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    width=st.integers(1, 9),
    double=st.booleans(),
    seed=st.integers(0, 99),
    numbers=st.sampled_from([1, 500, 1 << 19]),
)
@settings(max_examples=50)
def test_convolution_is_its_sum(lengths: list[int], width: int, double: bool, seed: int, numbers: int) -> None:
    dtype, tolerance = (torch.float64, 1e-12) if double else (torch.float32, 3e-6)
    arguments = case([*lengths, 1], width, dtype, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "_NUMBERS", numbers)
        check(outcome(convolved_spectral, *arguments), outcome(obvious, *arguments), tolerance)


def test_convolution_gradcheck() -> None:
    x, kernel, offsets = case([3, 1, 0, 5], 2, torch.float64)
    torch.autograd.gradcheck(
        lambda a, b: convolved_spectral(a, b, offsets), (x.requires_grad_(), kernel.requires_grad_())
    )


def test_threads_do_not_matter() -> None:
    arguments = case([300, 3, 0, 90, 1, 70, 250, 280], 64, torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = outcome(convolved_spectral, *arguments)
        torch.set_num_threads(3)
        three = outcome(convolved_spectral, *arguments)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


def test_sizes() -> None:
    assert [quick_size(n) for n in (1, 2, 7, 11, 13, 399, 1999)] == [1, 2, 8, 12, 15, 400, 2000]


# --- the layer ----------------------------------------------------------------------------------


def layer(width: int = 8, state: int = 5, dtype: torch.dtype = torch.float64, seed: int = 0) -> S4:
    """None of its parameters where they begin."""
    g = torch.Generator().manual_seed(seed)
    made = S4(width, state, g).to(dtype)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g, dtype=dtype))
    return made


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 50])
def test_kernel_is_its_formula(length: int) -> None:
    m = layer()
    with torch.no_grad():
        a = torch.complex(-m.log_a.exp(), m.a_imag)
        lam = torch.exp(m.log_dt.exp()[:, None] * a)
        b, c = torch.complex(m.b[0], m.b[1]), torch.complex(m.c[0], m.c[1])
        expected = torch.stack([2 * (c * (lam - 1) / a * b * lam**k).sum(1).real for k in range(length)])
        found = m.kernel(length)
    assert found.shape == (length, 8)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_zero_order_hold_solves_the_equation() -> None:
    """Under a constant input, h(t) = (exp(A t) - 1) / A B: sampled, not approximated."""
    m = layer()
    x, state = torch.ones(1, 8, dtype=torch.float64), m.initial_state()
    with torch.no_grad():
        a = torch.complex(-m.log_a.exp(), m.a_imag)
        for k in range(1, 30):
            state, _ = m.step(state, x)
            exact = (torch.exp(k * m.log_dt.exp()[:, None] * a) - 1) / a * torch.complex(m.b[0], m.b[1])
            assert torch.allclose(torch.complex(state[0, 0], state[0, 1]), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "length", "tolerance"), [(torch.float32, 200, 1e-5), (torch.float64, 1000, 1e-11)], ids=str
)
def test_stepping_equals_convolving(dtype: torch.dtype, length: int, tolerance: float) -> None:
    m = layer(64, 32, dtype)
    lengths = [length, 1, 7]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(sum(lengths), 64, generator=torch.Generator().manual_seed(1), dtype=dtype)
    with torch.no_grad():
        whole = m(x, offsets)
        assert float(whole.std()) > 0.3  # there is something to compare
        for s in range(3):
            state = m.initial_state()
            assert state.shape == (1, *m.state_shape) and state.dtype == dtype
            for k in range(int(offsets[s]), int(offsets[s + 1])):
                state, y = m.step(state, x[k : k + 1])
                assert torch.allclose(y[0], whole[k], rtol=tolerance, atol=tolerance)


def test_gradcheck() -> None:
    m = layer(2, 2)
    x, offsets = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), [0, 3, 3, 9]
    names, values = zip(*((n, p.detach().requires_grad_()) for n, p in m.named_parameters()), strict=True)

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        found: Tensor = torch.func.functional_call(m, named, (x, torch.tensor(offsets)))
        return found

    torch.autograd.gradcheck(run, (x.requires_grad_(), *values))


def test_nothing_in_nothing_out() -> None:
    assert layer()(torch.empty(0, 8, dtype=torch.float64), torch.tensor([0])).shape == (0, 8)


def test_initial_values() -> None:
    m = S4(500, 4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        dt = m.log_dt.exp()
        assert 1e-3 <= float(dt.min()) < 1.1e-3 and 0.09 < float(dt.max()) <= 0.1
        assert float(m.log_dt.mean()) == pytest.approx(math.log(1e-2), abs=0.15)  # its logarithm is uniform
        assert torch.allclose(-m.log_a.exp(), torch.tensor(-0.5))
        assert torch.allclose(m.a_imag[7], torch.tensor([0.0, math.pi, 2 * math.pi, 3 * math.pi]))
        radius = m.eigenvalues().square().sum(0).sqrt()
        assert m.eigenvalues().shape == (2, 2000)
        assert torch.allclose(radius.view(500, 4), torch.exp(-0.5 * dt)[:, None].expand(500, 4), atol=1e-6)
