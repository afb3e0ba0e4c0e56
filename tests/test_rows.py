"""AdamW on the rows that a step touches against torch's on all of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lrurec.training import rows as module
from lrurec.training.rows import Table, Tables


def rate(step: int) -> float:
    return 0.01 * (1.0 + math.sin(step / 7.0))


def both(
    steps: list[list[int]], width: int, decay: float, seed: int, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.optim.Optimizer, Tables]:
    """A table of 9 rows under torch's AdamW in double precision, and under ours; each step has gradients in some rows."""
    g = torch.Generator().manual_seed(seed)
    start = torch.randn(9, width, generator=g) if width else torch.randn(9, generator=g)
    dense = nn.Parameter(start.double().clone())
    lazy = nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([dense], lr=0.0, eps=1e-9, weight_decay=decay)
    tables = Tables({"t": (lazy, decay)}, rate)
    for t, touched in enumerate(steps):
        rows = np.array(sorted(set(touched)), np.int64)
        values = scale * torch.randn(len(rows), *start.shape[1:], generator=g)
        taken = tables.tables["t"].take(rows)
        near = 1e-5 if scale == 1.0 else 1e-3  # of steps of 0.01: some gradients are hardly larger than eps
        assert torch.allclose(taken.detach().double(), dense.detach()[torch.from_numpy(rows)], atol=near)
        dense.grad = torch.zeros_like(dense)
        dense.grad[torch.from_numpy(rows)] = values.double()
        optimizer.param_groups[0]["lr"] = rate(t)
        optimizer.step()
        tables.update({"t": (rows, values)})
    return dense.detach(), lazy.detach(), optimizer, tables


@given(
    st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=60),
    st.sampled_from([0, 1, 5]),
    st.sampled_from([0.0, 0.01, 0.5]),
    st.integers(0, 9),
    st.sampled_from([1.0, 1e-4]),
)
@settings(max_examples=60, deadline=None)
def test_it_is_adamw(steps: list[list[int]], width: int, decay: float, seed: int, scale: float) -> None:
    dense, lazy, optimizer, tables = both(steps, width, decay, seed, scale)
    tables.catch_up_all()
    assert torch.allclose(lazy.double(), dense, atol=1e-5 if scale == 1.0 else 1e-3)
    if any(steps) and steps:
        moments = next(iter(optimizer.state.values()))
        table = tables.tables["t"]
        assert torch.allclose(table.first.double(), moments["exp_avg"], atol=1e-6 * scale)
        assert torch.allclose(table.second.double(), moments["exp_avg_sq"], atol=1e-6 * scale)
        assert (table.last == len(steps)).all()


def test_a_row_that_waits_for_thousands_of_steps() -> None:
    steps = [[0, 1]] * 3 + [[2]] * 3000 + [[0]]
    dense, lazy, _, tables = both(steps, 4, 0.01, 1)
    tables.catch_up_all()
    assert torch.allclose(lazy.double(), dense, atol=3e-5)


def test_the_compiled_way_is_the_obvious_one(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(3)
    given = [torch.randn(2500, 6, generator=g), torch.randn(2500, 6, generator=g), torch.rand(2500, 6, generator=g)]
    rows = np.random.default_rng(0).permutation(2500)[:2100]
    monkeypatch.setattr(module, "_LEAST", 64)
    found = []
    for obvious in (False, True):
        table = Table(nn.Parameter(given[0].clone()), module.Past(0.1))
        table.first, table.second = given[1].clone(), given[2].clone()
        for k in range(5):
            table.past.advance(rate(k))
        gradients = torch.randn(len(rows), 6, generator=torch.Generator().manual_seed(4))
        if obvious:
            parts = [t.detach() for t in (table.parameter, table.first, table.second)]
            index = torch.from_numpy(rows)
            numbers = [torch.from_numpy(n) for n in table.past.since(table.last[rows])]
            module.catch_up_reference(index, *numbers, *parts)
            shrink, r, root = 1.0 - rate(5) * 0.1, rate(5) / (1.0 - 0.9**6), (1.0 - 0.999**6) ** 0.5
            module.update_reference(index, gradients, shrink, 0.9, 0.999, r, root, 1e-9, *parts)
        else:
            table.catch_up(rows)
            table.update(rows, gradients, rate(5))
        found.append((table.parameter.detach(), table.first, table.second))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-5)


def test_going_on_from_a_step_counts_the_same() -> None:
    one, other = (
        Tables({"t": (nn.Parameter(torch.zeros(2)), 0.1)}, rate),
        Tables({"t": (nn.Parameter(torch.zeros(2)), 0.1)}, rate),
    )
    for _ in range(1500):
        one.update({})
    other.forward_to(1500)
    last = np.arange(1501)
    for a, b in zip(one.pasts[0.1].since(last), other.pasts[0.1].since(last), strict=True):
        assert np.array_equal(a, b)
