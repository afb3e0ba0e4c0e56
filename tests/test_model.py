"""LRURec: stepping equals the parallel forward, for every switch; the start carries nothing."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, RecurrentModel, Sizes
from lrurec.models.lrurec import MIXERS, LRURec, LRURecConfig
from lrurec.nn import init
from lrurec.nn.dropout import Keys, dropout, mask_reference
from lrurec.nn.loss import cross_entropy
from lrurec.nn.lru import unlogged, unlogged_reference
from lrurec.nn.mixer import recurrences

SWITCHES: list[dict[str, Any]] = [
    {},
    {"layer_norm": False},
    {"residual": False},
    {"pffn": False},
    {"pffn": False, "layer_norm": False, "residual": False},
    {"blocks": 1},
    {"blocks": 3},
    {"outer_gelu": True},
    {"width": 16, "channels": 5},
    {"temperature": 0.2},
]
SWITCHES += [
    {"mixer": mixer, **switches}
    for mixer in ("s4", "rwkv")
    for switches in SWITCHES
    if not (mixer == "rwkv" and "outer_gelu" in switches) and "channels" not in switches
] + [{"mixer": "s4", "state": 3}]
STATES = {"lru": (2, 128), "s4": (2, 64, 32), "rwkv": (5, 64)}
every_mixer = pytest.mark.parametrize("mixer", MIXERS)


def model(**switches: Any) -> LRURec:
    made = LRURec(Sizes(30), LRURecConfig(**switches), torch.Generator().manual_seed(1))
    with torch.no_grad():  # larger weights than at the beginning, so that errors would show
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1 and name not in recurrences(made) and parameter.abs().max() < 1:
                parameter.mul_(8)
    return made


@pytest.mark.parametrize("copies", [1, 2])
def test_scores_are_cosines_over_the_temperature(copies: int) -> None:
    """Those of vectors whose lengths nobody set to 1, but for what LayerNorm's epsilon makes of them."""
    made, plain = (model(temperature=t, copies=copies) for t in (0.2, 0.0))
    batch = Batch(torch.tensor([0, 3, 7, 7, 2]), torch.tensor([0, 1, 5]))
    with torch.no_grad():
        plain.embedding.mul_(5), plain.bias.copy_(made.bias)
        hidden, (items, bias) = plain.last(batch), plain.item_table()
        parts = zip(hidden.chunk(copies, 1), items.chunk(copies, 1), strict=True)
        cosines = sum(torch.cosine_similarity(h[:, None], e[None], dim=-1) for h, e in parts) / copies
        assert torch.allclose(made.scores(batch), cosines / 0.2 + bias, atol=2e-2)
        assert float(made.scores(batch).std()) > 0.2
        assert torch.allclose(made.vectors().view(-1, 64).norm(dim=1), torch.ones(31 * copies))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
def test_eigenvalues_are_those_of_plain_torch(dtype: torch.dtype, tolerance: float) -> None:
    log = init.ring(200, torch.Generator().manual_seed(4)).to(dtype).requires_grad_()
    above = torch.randn(3, 200, generator=torch.Generator().manual_seed(5)).to(dtype)
    found = []
    for way in (unlogged, unlogged_reference):
        lam, gamma = way(log)
        (gradient,) = torch.autograd.grad((lam * above[:2]).sum() + (gamma * above[2]).sum(), log)
        found.append((lam, gamma, gradient))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_stepping_equals_encoding(switches: dict[str, Any]) -> None:
    m = model(**switches)
    lengths = [1, 70, 5]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    inputs = torch.randint(1, 31, (76,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden = m.encode(Batch(inputs, offsets))
        for s in range(3):
            state = m.initial_state()
            for k in range(int(offsets[s]), int(offsets[s + 1])):
                state, y = m.step(state, inputs[k : k + 1])
                assert torch.allclose(y[0], hidden[k], atol=1e-5, rtol=1e-5)


@every_mixer
def test_a_batch_of_users_steps_at_once(mixer: str) -> None:
    m = model(mixer=mixer)
    inputs = torch.tensor([3, 9, 9])
    with torch.no_grad():
        together = m.step(m.initial_state(3), inputs)[1]
        alone = torch.cat([m.step(m.initial_state(), i[None])[1] for i in inputs])
    assert torch.allclose(together, alone, atol=1e-6)


@pytest.mark.parametrize("name", ["steps", "recursive", "packed"])
def test_every_scan_gives_the_same_model(name: str) -> None:
    inputs, offsets = torch.randint(0, 31, (20,)), torch.tensor([0, 7, 7, 20])
    with torch.no_grad():
        a, b = model().encode(Batch(inputs, offsets)), model(scan=name).encode(Batch(inputs, offsets))
    assert torch.allclose(a, b, atol=1e-5)


@every_mixer
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 50))
@settings(max_examples=25)
def test_causal_and_apart(mixer: str, lengths: list[int], seed: int) -> None:
    """Changing an item changes nothing before it and nothing in other sequences."""
    m = model(mixer=mixer)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    g = torch.Generator().manual_seed(seed)
    inputs = torch.randint(1, 31, (int(offsets[-1]),), generator=g)
    at = int(torch.randint(0, len(inputs), (1,), generator=g))
    changed = inputs.clone()
    changed[at] = changed[at] % 30 + 1
    end = int(offsets[torch.searchsorted(offsets, at, right=True)])
    with torch.no_grad():
        a, b = m.encode(Batch(inputs, offsets)), m.encode(Batch(changed, offsets))
    untouched = torch.ones(len(inputs), dtype=torch.bool)
    untouched[at:end] = False
    if mixer == "s4":  # a Fourier transform rounds with all numbers of a sequence
        assert torch.allclose(a[untouched], b[untouched], rtol=0, atol=1e-5)
    else:
        assert torch.equal(a[untouched], b[untouched])
    assert not torch.allclose(a[at], b[at])


@every_mixer
def test_gradients_reach_every_parameter(mixer: str) -> None:
    m = model(mixer=mixer)
    inputs, offsets = torch.arange(1, 31), torch.tensor([0, 10, 30])
    table, bias = m.item_table()
    cross_entropy(m.encode(Batch(inputs, offsets), Keys(0)), table, bias, inputs - 1).backward()
    for name, parameter in m.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), name


def test_the_state_is_two_kilobytes() -> None:
    m = LRURec(Sizes(5), LRURecConfig(), torch.Generator())
    assert isinstance(m, RecurrentModel)
    assert m.initial_state().numel() * 4 == 2048


@every_mixer
def test_the_shape_of_the_state(mixer: str) -> None:
    m = model(mixer=mixer)
    assert m.initial_state(3).shape == (3, 2, *STATES[mixer])
    assert m.step(m.initial_state(3), torch.tensor([1, 2, 0]))[0].shape == (3, 2, *STATES[mixer])
    assert model(mixer="rwkv", pffn=False).initial_state().shape == (1, 2, 4, 64)  # no channel mixing
    radii = m.mean_abs_lambda()
    assert len(radii) == 2 and all(0 < radius < 1 for radius in radii)
    assert m.facts() == {"mean_abs_lambda": radii}


@pytest.mark.filterwarnings("default")  # torch warns of its own doings while it compiles
@every_mixer
def test_compiling_does_not_break_it(mixer: str) -> None:
    m = model(mixer=mixer)
    inputs, offsets = torch.randint(0, 31, (20,)), torch.tensor([0, 7, 20])
    compiled = torch.compile(m, backend="aot_eager")
    assert torch.allclose(compiled(inputs, offsets), m(inputs, offsets), atol=1e-6)
    compiled(inputs, offsets).sum().backward()


def test_same_seed_same_model() -> None:
    a, b = model(), model()
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_initial_values() -> None:
    m = LRURec(Sizes(2000), LRURecConfig(), torch.Generator().manual_seed(0))
    assert float(m.embedding.detach().abs().max()) <= 0.04
    assert float(m.embedding.detach().std()) == pytest.approx(0.0176, abs=1e-3)  # 0.02 cut at two deviations
    radius = m.blocks[0].mixer.eigenvalues().detach().square().sum(0).sqrt()  # type: ignore[operator, union-attr]
    assert float(radius.min()) >= 0.8 and float(radius.max()) <= 0.99
    gamma = m.blocks[0].mixer.log.detach()[2].exp()  # type: ignore[operator, union-attr]
    assert torch.allclose(gamma.square() + radius.square(), torch.ones(128), atol=1e-5)


@pytest.mark.parametrize("wrong", [{"dropout": 1.0}, {"dropout": -0.1}, {"width": 0}, {"blocks": 0}, {"state": 0}])
def test_impossible_configs(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        LRURecConfig(**wrong)  # type: ignore[arg-type]


def test_mixers_that_do_not_fit() -> None:
    with pytest.raises(SettingsError, match="unknown model.mixer 'rwvk'; did you mean 'rwkv'"):
        LRURecConfig(mixer="rwvk")
    with pytest.raises(SettingsError, match="model.scan.*leave it out for s4"):
        LRURecConfig(mixer="s4", scan="packed")
    with pytest.raises(SettingsError, match="model.channels is a size of model.mixer=lru; leave it out for s4"):
        LRURecConfig(mixer="s4", channels=64)
    with pytest.raises(SettingsError, match="model.state is a size of model.mixer=s4; leave it out for lru"):
        LRURecConfig(state=8)
    with pytest.raises(SettingsError, match="model.outer_gelu is part of the PFFN"):
        LRURecConfig(mixer="rwkv", outer_gelu=True)


# --- dropout ------------------------------------------------------------------------------------


@given(st.integers(0, 5000), st.floats(0, 0.95), st.integers(0, 2**32 - 1), st.booleans())
def test_dropout_agrees_with_its_twin(count: int, rate: float, seed: int, double: bool) -> None:
    x = torch.linspace(1, 2, count, dtype=torch.float64 if double else torch.float32).requires_grad_()
    found = dropout(x, rate, Keys(seed))
    mask = mask_reference(count, rate, Keys(seed).next(), x.device)
    expected = x.detach() * mask / (1 - rate) if rate else x.detach()
    assert torch.allclose(found.detach(), expected.to(x.dtype))
    if count:
        found.sum().backward()
        assert x.grad is not None
        assert torch.allclose(x.grad, (mask.to(x.dtype) / (1 - rate)) if rate else torch.ones_like(x))


def test_dropout_drops_its_share_and_not_by_a_pattern() -> None:
    x = torch.ones(400, 500)
    keys = Keys(3)
    first, second = dropout(x, 0.3, keys), dropout(x, 0.3, keys)
    for drawn in (first, second):
        kept = (drawn != 0).double()
        assert float(kept.mean()) == pytest.approx(0.7, abs=0.005)
        assert kept.mean(0).std() < 0.03 and kept.mean(1).std() < 0.03  # no rows, no columns
        neighbours = (kept[:, 1:] * kept[:, :-1]).mean()
        assert float(neighbours) == pytest.approx(0.49, abs=0.01)
    both = ((first != 0) & (second != 0)).double().mean()
    assert float(both) == pytest.approx(0.49, abs=0.01)
    assert dropout(x, 0.3, None) is x


def test_a_large_table_begins_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn in parts: normal, cut at two deviations, no part like another."""
    monkeypatch.setattr(init, "_TOGETHER", 1000)
    drawn = init.truncated_normal_(torch.empty(500, 8), torch.Generator().manual_seed(0), std=0.5)
    assert 0.87 < float(drawn.std()) / 0.5 < 0.89 and float(drawn.abs().max()) <= 1.0  # what is left of the deviation
    parts = drawn.view(4, 1000)
    assert len({tuple(part[:3].tolist()) for part in parts}) == 4
    whole = torch.nn.init.trunc_normal_(
        torch.empty(1000), 0.0, 0.5, -1.0, 1.0, generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(parts[0], whole)
