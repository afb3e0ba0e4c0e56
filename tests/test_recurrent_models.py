"""GRU4Rec and NARM: what the contract does not say."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Sizes
from lrurec.models.gru4rec import GRU4Rec, GRU4RecConfig
from lrurec.models.narm import NARM, NARMConfig
from lrurec.nn.dropout import Keys

SIZES = Sizes(9, 5, 30)


def histories(lengths: list[int]) -> Batch:
    g = torch.Generator().manual_seed(5)
    inputs = torch.randint(1, 10, (sum(lengths),), generator=g)
    return Batch(inputs, torch.tensor([0, *lengths]).cumsum(0))


def gru4rec(width: int = 8, hidden: int = 6, layers: int = 1, rate: float = 0.3) -> GRU4Rec:
    return GRU4Rec(SIZES, GRU4RecConfig(width, hidden, layers, rate), torch.Generator().manual_seed(1))


def narm(layers: int = 1) -> NARM:
    return NARM(SIZES, NARMConfig(8, 6, layers, 0.3, 0.4), torch.Generator().manual_seed(1))


def states(model: GRU4Rec | NARM, items: Tensor) -> Tensor:
    """The published recurrence, one item after the other."""
    weights = model.state_dict()
    w_r, w_z, w_n = weights["layers.0.cell.weight_ih_l0"].chunk(3)
    u_r, u_z, u_n = weights["layers.0.cell.weight_hh_l0"].chunk(3)
    h, found = torch.zeros(6), []
    for item in items:
        x = model.embedding[item]
        r, z = torch.sigmoid(w_r @ x + u_r @ h), torch.sigmoid(w_z @ x + u_z @ h)
        h = (1 - z) * torch.tanh(w_n @ x + r * (u_n @ h)) + z * h
        found.append(h)
    return torch.stack(found)


@torch.no_grad()
def test_gru4rec_is_its_equations() -> None:
    model, batch = gru4rec(), histories([7])
    assert model.project is not None
    expected = model.embedding[1:] @ model.project @ states(model, batch.inputs)[-1] + model.bias
    assert torch.allclose(model.scores(batch)[0], expected, atol=1e-6)


@torch.no_grad()
def test_narm_is_its_equations() -> None:
    model, batch = narm(), histories([7])
    h = states(model, batch.inputs)
    local = torch.zeros(6)
    for j in range(7):
        local += (model.v[0] @ torch.sigmoid(model.query @ h[-1] + model.key @ h[j])) * h[j]
    expected = model.embedding[1:] @ model.decoder @ torch.cat([h[-1], local]) + model.bias
    assert torch.allclose(model.scores(batch)[0], expected, atol=1e-6)


@pytest.mark.parametrize("model", [gru4rec(), gru4rec(layers=2), gru4rec(6, 6), narm(), narm(2)], ids=str)
@torch.no_grad()
def test_the_last_are_the_last_of_all(model: GRU4Rec | NARM) -> None:
    batch = histories([4, 1, 30, 2])
    assert torch.allclose(model.last(batch), model.encode(batch)[batch.lasts], atol=1e-6)


@pytest.mark.parametrize("build", [gru4rec, narm])
def test_what_other_devices_compute(build: Callable[..., GRU4Rec | NARM]) -> None:
    """In double precision no compiled loop runs: the way of every other device, with the same dropout."""
    batch = histories([4, 1, 30, 2])
    compiled, plain = build(layers=2), build(layers=2).double()
    found, expected = compiled.encode(batch, Keys(3)), plain.encode(batch, Keys(3))
    assert torch.allclose(found.double(), expected, atol=1e-6)
    found.square().sum().backward()  # type: ignore[no-untyped-call]
    expected.square().sum().backward()  # type: ignore[no-untyped-call]
    for (name, a), b in zip(compiled.named_parameters(), plain.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None and b.grad is not None:
            assert torch.allclose(a.grad.double(), b.grad, atol=1e-5 * max(1.0, float(b.grad.abs().max()))), name


def test_a_projection_only_where_it_is_needed() -> None:
    assert gru4rec(6, 6).project is None and gru4rec(8, 6).project is not None
    assert gru4rec(8, 6, 2).initial_state(3).shape == (3, 2, 6)


def test_torchs_own_randomness_does_not_matter() -> None:
    for build in (gru4rec, narm):
        torch.manual_seed(1)
        first = build()
        torch.manual_seed(2)
        for a, b in zip(first.parameters(), build().parameters(), strict=True):
            assert torch.equal(a, b)


def test_settings_that_make_no_sense() -> None:
    for config in (GRU4RecConfig, NARMConfig):
        with pytest.raises(SettingsError, match=r"model\.dropout must lie between 0 and 1, not 1\.0"):
            config(dropout=1.0)
        with pytest.raises(SettingsError, match=r"model\.hidden and model\.layers must be 1 or more"):
            config(hidden=0)
    with pytest.raises(SettingsError, match=r"model\.context_dropout must lie between"):
        NARMConfig(context_dropout=-0.1)
