"""Packed sequences as padded groups of similar lengths, for what cannot work on the packed run. Knows rows, not layers.

Padding stands behind the items of a sequence, so a causal operation never sees it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_WASTE = 0.2  # share of a group that may be padding
_LEAST = 64  # rows that are not worth a group of their own


@dataclass(frozen=True)
class Group:
    """Some sequences of a packed run, side by side."""

    rows: Tensor  # [B, L]: where in the packed run a position is; padding repeats the newest row
    lengths: Tensor  # [B]
    real: Tensor  # [B, L]: False where it is padding


def groups_of(offsets: Tensor, device: torch.device | str = "cpu") -> list[Group]:
    """The sequences of a packed run in groups, each padded to its longest; empty ones are in none."""
    lengths = offsets.diff()
    order = torch.argsort(lengths, stable=True)
    order = order[lengths[order] > 0]
    found, first, filled = [], 0, 0
    sizes = lengths[order].tolist()
    for k, length in enumerate(sizes):
        padded = (k + 1 - first) * length
        if filled >= _LEAST and padded - filled - length > _WASTE * padded:
            found.append(order[first:k])
            first, filled = k, 0
        filled += length
    if len(order) > first:
        found.append(order[first:])
    return [_group(offsets[chosen], lengths[chosen], device) for chosen in found]


def _group(starts: Tensor, lengths: Tensor, device: torch.device | str) -> Group:
    place = torch.arange(int(lengths.max()))
    rows = starts[:, None] + torch.minimum(place, lengths[:, None] - 1)
    return Group(rows.to(device), lengths.to(device), (place < lengths[:, None]).to(device))


def side_by_side(x: Tensor, group: Group) -> Tensor:
    """[N, ...] to [B, L, ...]."""
    return x.index_select(0, group.rows.reshape(-1)).view(*group.rows.shape, *x.shape[1:])


def packed_again(parts: list[Tensor], groups: list[Group]) -> Tensor:
    """What was computed group by group, [B, L, ...] each, as one packed run; padding is left out."""
    rows = torch.cat([group.rows[group.real] for group in groups])
    values = torch.cat([part[group.real] for part, group in zip(parts, groups, strict=True)])
    return values.index_select(0, torch.argsort(rows))
