"""The engine without torch against the model in torch, for every switch."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lrurec.export import shape_of, weights_of
from lrurec.models.base import Sizes
from lrurec.models.lrurec import LRURec, LRURecConfig
from lrurec.serving import engine as module
from lrurec.serving.copies import AnyEngine, engine_of

SWITCHES: list[dict[str, Any]] = [
    {},
    {"layer_norm": False},
    {"residual": False},
    {"pffn": False},
    {"pffn": False, "layer_norm": False, "residual": False},
    {"blocks": 3},
    {"outer_gelu": True},
    {"width": 6, "channels": 5},
    {"mixer": "rwkv"},
    {"mixer": "rwkv", "layer_norm": False, "residual": False, "width": 6},
    {"mixer": "rwkv", "pffn": False, "blocks": 3, "width": 10},
    {"copies": 2},
    {"copies": 3, "pffn": False, "width": 6, "channels": 5},
    {"copies": 2, "mixer": "rwkv", "width": 6},
    {"temperature": 0.1},
    {"temperature": 0.5, "pffn": False, "copies": 2},
    {"temperature": 0.1, "mixer": "rwkv", "width": 6},
]


def pair(**switches: Any) -> tuple[LRURec, AnyEngine]:
    model = LRURec(Sizes(30), LRURecConfig(**switches), torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=g))
    table = model.item_table()[0].detach().numpy().copy()
    return model, engine_of(shape_of(model), weights_of(model), table)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_stepping_is_that_of_the_model(switches: dict[str, Any]) -> None:
    model, engine = pair(**switches)
    items = np.random.default_rng(0).integers(0, 30, (60, 3))
    state, mine = model.initial_state(3), engine.initial(3)
    with torch.no_grad():
        for row in items:
            state, hidden = model.step(state, torch.from_numpy(row) + 1)
            found = engine.step(mine, row)
            assert np.allclose(found, hidden.numpy(), rtol=1e-5, atol=1e-5)
            rows = state.shape[2]  # without channel mixing, RWKV keeps nothing for it
            assert np.allclose(mine[:, :, :rows], state.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_encoding_is_stepping(switches: dict[str, Any]) -> None:
    _, engine = pair(**switches)
    check_encoding(engine, [7, 0, 1, 40, 0])


@given(lengths=st.lists(st.integers(0, 9), max_size=12), rows=st.integers(1, 30))
@settings(max_examples=50)
def test_groups_do_not_matter(lengths: list[int], rows: int) -> None:
    _, engine = pair(width=4, channels=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS", rows)
        check_encoding(engine, lengths)


def check_encoding(engine: AnyEngine, lengths: list[int]) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    items = np.random.default_rng(1).integers(0, 30, int(offsets[-1]))
    states, hidden = engine.encode(items, offsets)
    for k in range(len(lengths)):
        state, vector = engine.initial(1), engine.start
        for item in items[offsets[k] : offsets[k + 1]]:
            vector = engine.step(state, np.array([item]))[0]
        assert np.allclose(states[k], state[0], rtol=1e-5, atol=1e-5)
        assert np.allclose(hidden[k], vector, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mixer", ["lru", "rwkv"])
def test_a_new_user_is_shown_what_follows_the_start(mixer: str) -> None:
    model, engine = pair(mixer=mixer)
    with torch.no_grad():
        _, hidden = model.step(model.initial_state(), torch.tensor([0]))
    assert np.allclose(engine.start, hidden[0].numpy(), rtol=1e-5, atol=1e-5)


def test_the_state_of_a_user_has_two_kilobytes() -> None:
    _, engine = pair()
    assert engine.initial(1).nbytes == 4 * engine.shape.state_floats == 2048


@pytest.mark.parametrize("mixer", ["lru", "rwkv"])
@pytest.mark.parametrize("copies", [1, 2])
def test_what_is_shown_of_a_state(mixer: str, copies: int) -> None:
    _, engine = pair(mixer=mixer, width=8, copies=copies, **({"channels": 8} if mixer == "lru" else {}))
    states = engine.initial(3)
    assert not engine.magnitudes(states).any()
    engine.step(states, np.array([1, 2, 3]))
    shown = engine.magnitudes(states)
    assert shown.shape == (3, 2 * copies, 8) and np.isfinite(shown).all() and (shown > 0).all()
    assert engine.kept.shape == (2 * copies, 8) and (engine.kept > 0).all() and (engine.kept < 1).all()


def test_the_table_is_not_written_to() -> None:
    for copies in (1, 2):
        _, engine = pair(copies=copies)
        before = engine.table[:].copy()
        engine.step(engine.initial(2), np.array([3, 3]))
        assert np.array_equal(before, engine.table[:])


def test_a_step_allocates_nothing() -> None:
    _, engine = pair()
    states, items, out = engine.initial(1), np.zeros(1, np.int64), np.empty((1, 64), np.float32)
    engine.step(states, items, out)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for _ in range(100):
        engine.step(states, items, out)
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    grown = [s for s in after.compare_to(before, "filename") if s.size_diff > 200 and "tracemalloc" not in str(s)]
    assert not grown, grown
    tracemalloc.start()
    engine.step(states, items, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 1024  # the views of a call; a state alone has 2 KB
