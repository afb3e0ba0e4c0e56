"""`stable_order` against its obvious twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from lrurec.data.order import stable_order, stable_order_reference

BIG = 1 << 62


@st.composite
def several_keys(draw: st.DrawFn) -> list[NDArray[np.int64]]:
    n = draw(st.integers(0, 60))
    kinds = [st.integers(0, 3), st.integers(-BIG, BIG), st.integers(-(1 << 63), (1 << 63) - 1), st.just(5)]
    how_many = draw(st.integers(1, 4))
    return [draw(hnp.arrays(np.int64, n, elements=draw(st.sampled_from(kinds)))) for _ in range(how_many)]


@given(several_keys())
def test_agrees_with_lexsort(keys: list[NDArray[np.int64]]) -> None:
    assert stable_order(keys).tolist() == stable_order_reference(keys).tolist()


@pytest.mark.parametrize("n", [0, 1, 2, 100_000])
def test_agrees_on_user_time_item(n: int) -> None:
    rng = np.random.default_rng(n)
    user = rng.integers(0, 50, n).astype(np.int32)
    time = rng.integers(0, 1000, n) * 10**15
    item = rng.integers(0, 9, n).astype(np.int32)
    assert np.array_equal(stable_order([user, time, item]), stable_order_reference([user, time, item]))


def test_order_that_is_already_there_is_kept() -> None:
    keys = np.arange(1000) // 7
    assert np.array_equal(stable_order([keys]), np.arange(1000))
