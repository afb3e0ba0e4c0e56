"""Groups lose nothing and add little."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lrurec.nn.ragged import groups_of, packed_again, side_by_side


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any))
def test_there_and_back_is_the_same(lengths: list[int]) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.arange(float(offsets[-1]))[:, None].expand(-1, 3).requires_grad_()
    groups = groups_of(offsets)
    parts = [side_by_side(x, g) for g in groups]
    assert torch.equal(packed_again(parts, groups), x)
    for part, group in zip(parts, groups, strict=True):
        for row, length in zip(part, group.lengths, strict=True):
            assert torch.equal(row[:length, 0].diff(), torch.ones(int(length) - 1))  # one sequence, in order
    torch.autograd.backward((2 * packed_again(parts, groups)).sum())
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x.grad, 2.0))


def test_little_is_padding() -> None:
    lengths = torch.randint(1, 201, (500,), generator=torch.Generator().manual_seed(0))
    groups = groups_of(torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))
    assert sum(g.rows.numel() for g in groups) < 1.25 * int(lengths.sum())
    assert len(groups) < 20
