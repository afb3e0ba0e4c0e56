"""The way into a model against the same in plain torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrurec.nn import entry as module
from lrurec.nn.dropout import Keys
from lrurec.nn.entry import entry, entry_reference


def check(inputs: Tensor, items: int, width: int, rate: float, threads: int, training: bool = True) -> None:
    g = torch.Generator().manual_seed(0)
    given = [torch.randn(items, width, generator=g), torch.randn(width, generator=g), torch.randn(width, generator=g)]
    upstream = torch.randn(len(inputs), width, generator=g)
    found = []
    before = torch.get_num_threads()
    for function in (entry, entry_reference):
        table, gain, shift = (t.clone().requires_grad_() for t in given)
        torch.set_num_threads(threads)
        try:
            out = function(table, inputs, gain, shift, rate, Keys(3) if training else None)
            gradients = torch.autograd.grad(out, [table, gain, shift], upstream)
        finally:
            torch.set_num_threads(before)
        found.append([out.detach(), *gradients])
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= 2e-5 * max(1.0, float(b.abs().max()))


@given(
    inputs=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    width=st.sampled_from([2, 5, 64]),
    rate=st.sampled_from([0.0, 0.3]),
    threads=st.integers(1, 3),
    training=st.booleans(),
)
@settings(max_examples=60)
def test_as_plain_torch(inputs: list[int], width: int, rate: float, threads: int, training: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST", 7)
        check(torch.tensor(inputs), 7, width, rate, threads, training)


def test_at_the_size_of_the_paper() -> None:
    check(torch.randint(0, 3417, (9000,), generator=torch.Generator().manual_seed(1)), 3417, 64, 0.2, 2)


def test_nothing_in_the_batch() -> None:
    table = torch.randn(3, 4, requires_grad=True)
    out = entry(table, torch.empty(0, dtype=torch.int64), torch.ones(4), torch.zeros(4), 0.2, Keys(0))
    out.sum().backward()
    assert out.shape == (0, 4) and table.grad is not None and not table.grad.any()


def test_the_same_twice() -> None:
    """Bit for bit: resuming exactly depends on it."""
    inputs = torch.randint(0, 50, (5000,), generator=torch.Generator().manual_seed(2))
    found = []
    for _ in range(2):
        table = torch.randn(50, 64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        out = entry(table, inputs, torch.ones(64), torch.zeros(64), 0.2, Keys(4))
        found.append([out.detach(), *torch.autograd.grad(out, [table], out.detach() ** 2)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_an_item_that_is_not_there() -> None:
    with pytest.raises(IndexError):
        entry(torch.randn(3, 4), torch.tensor([3]), torch.ones(4), torch.zeros(4), 0.0, None)
