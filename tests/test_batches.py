"""Windows keep every target; packing loses nothing; step t is always the same batch."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrurec
from lrurec.data.batches import START, Lanes, PackedArrays, Sampler, Windows, pack_histories
from lrurec.data.split import Sequences
from lrurec.errors import NothingLeftError


def sequences(lengths: list[int]) -> Sequences:
    """Item numbers are positions, so that everything can be recognised."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    items = np.arange(offsets[-1], dtype=np.int32)
    return Sequences(items, np.arange(len(lengths), dtype=np.int32), offsets[:-1], offsets[1:])


def unpacked(packed: PackedArrays) -> list[list[tuple[int, int]]]:
    pairs = list(zip(packed.inputs.tolist(), packed.targets.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(packed.offsets, packed.offsets[1:], strict=False)]


def test_by_hand() -> None:
    windows = Windows.of(sequences([5, 1, 2]), 2)
    assert len(windows) == 5 and windows.n_targets == 8
    packed = windows.pack(np.arange(5))
    assert unpacked(packed) == [
        [(3, 3), (4, 4)],  # the newest two of the first user: from item 2 (input 3) to item 3, from 3 to 4
        [(1, 1), (2, 2)],
        [(START, 0)],
        [(START, 5)],
        [(START, 6)],
        [(7, 7)],
    ]


lengths = st.lists(st.integers(0, 30), min_size=1, max_size=9).filter(any)


@given(lengths, st.integers(1, 12))
def test_every_target_once_and_from_its_predecessor(given: list[int], longest: int) -> None:
    train = sequences(given)
    windows = Windows.of(train, longest)
    found = [pair for sequence in unpacked(windows.pack(np.arange(len(windows)))) for pair in sequence]
    first = {int(s) for s, e in zip(train.starts, train.stops, strict=True) if e > s}
    expected = [(START if k in first else k, k) for k in range(len(train.items))]
    assert sorted(found, key=lambda p: p[1]) == expected
    assert all(stop - start <= longest for start, stop in zip(windows.starts, windows.stops, strict=True))


@given(lengths, st.integers(1, 12), st.integers(0, 99))
def test_packing_a_few_is_packing_them_alone(given: list[int], longest: int, seed: int) -> None:
    windows = Windows.of(sequences(given), longest)
    chosen = np.random.default_rng(seed).permutation(len(windows))[:4]
    together = unpacked(windows.pack(chosen))
    assert together == [s for w in chosen for s in unpacked(windows.pack(np.array([w])))]


def test_the_authors_windows_drop_the_rest() -> None:
    windows = Windows.of(sequences([11, 7, 3]), 4, drop_rest=True)
    assert [(int(a), int(b)) for a, b in zip(windows.starts, windows.stops, strict=True)] == [
        (7, 11),
        (3, 7),
        (14, 18),
        (18, 21),
    ]


def test_nothing_to_train_on() -> None:
    with pytest.raises(NothingLeftError):
        Windows.of(sequences([0, 0]), 5)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 5))
def test_every_epoch_takes_every_window_once(count: int, batch: int, seed: int) -> None:
    sampler = Sampler(count, batch, seed)
    for epoch in range(2):
        steps = range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch)
        taken = np.concatenate([sampler.chosen(s) for s in steps])
        assert sorted(taken.tolist()) == list(range(count))
    assert np.array_equal(Sampler(count, batch, seed).chosen(3), sampler.chosen(3))


@given(lengths, st.integers(1, 12), st.integers(1, 6), st.integers(0, 5))
def test_lanes_follow_histories(given: list[int], longest: int, batch: int, seed: int) -> None:
    """Every window once per epoch; where it is said to go on, the window before it ended where it begins, and only there."""
    windows = Windows.of(sequences(given), longest)
    lanes = Lanes(windows, batch, seed)
    for epoch in range(2):
        taken: list[int] = []
        ends: dict[int, tuple[int, int]] = {}
        for place in range(lanes.steps_per_epoch):
            step = epoch * lanes.steps_per_epoch + place
            chosen, go_on = lanes.chosen(step), lanes.go_on(step)
            assert len(chosen) == len(go_on) <= batch
            for lane, (w, follows) in enumerate(zip(chosen, go_on, strict=True)):
                whose, where = ends.get(lane, (-1, -1))
                assert follows == (whose == windows.users[w])
                assert not follows or where == windows.starts[w]
                ends[lane] = int(windows.users[w]), int(windows.stops[w])
            taken.extend(chosen.tolist())
        assert sorted(taken) == list(range(len(windows)))
    # But for those that a lane begins with, every window that does not open its history goes on.
    first = lanes.chosen(0)
    cut = sum(not windows.opens[w] for w in first)
    follow = sum(int(lanes.go_on(s).sum()) for s in range(lanes.steps_per_epoch))
    assert follow == int((~windows.opens).sum()) - cut


def test_histories() -> None:
    items = np.array([5, 6, 7, 8], np.int32)
    packed = pack_histories(items, np.array([0, 2, 4, 0]), np.array([3, 4, 4, 0]), 2)
    assert packed.inputs.tolist() == [7, 8, 8, 9, START, START]
    assert packed.offsets.tolist() == [0, 2, 4, 5, 6]


def test_on_a_dataset() -> None:
    log = pl.DataFrame({"user": [1, 1, 1, 1, 2, 2], "item": list("abcdef")})
    split = lrurec.leave_last_out(lrurec.load_events(log))
    assert Windows.of(split.train, 50).n_targets == split.train.n_events == 4
