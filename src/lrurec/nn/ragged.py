"""Packed sequences as padded groups of similar lengths, for what cannot work on the packed run. Knows rows, not layers.

Padding stands behind the items of a sequence, so a causal operation never sees it. Whatever is computed from padding is
left out again, and no gradient comes back from it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

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


def alike(lengths: Tensor) -> list[Tensor]:
    """The sequences in groups of similar lengths, the shortest first; empty ones are in none."""
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
    return found


def groups_of(offsets: Tensor, device: torch.device | str = "cpu") -> list[Group]:
    """The sequences of a packed run in groups, each padded to its longest; empty ones are in none."""
    return Spread.of(offsets, device).groups


def _group(starts: Tensor, lengths: Tensor, device: torch.device | str) -> Group:
    place = torch.arange(int(lengths.max()))
    rows = starts[:, None] + torch.minimum(place, lengths[:, None] - 1)
    return Group(rows.to(device), lengths.to(device), (place < lengths[:, None]).to(device))


class _Moved(torch.autograd.Function):
    """x[there], where x[there][back] is x again: both ways are a gather, which is much faster than adding up rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor, unused: Tensor | None) -> Tensor:
        ctx.back, ctx.unused = back, unused
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        moved = grad.index_select(0, ctx.back)
        if ctx.unused is not None:
            moved.index_fill_(0, ctx.unused, 0.0)
        return moved, None, None, None


class Spread:
    """All groups of a packed run: there and back as often as needed, the indices are found once."""

    def __init__(self, groups: list[Group], sequences: list[Tensor]) -> None:
        self.groups, self.sequences = groups, sequences

    @classmethod
    def of(cls, offsets: Tensor, device: torch.device | str, sequences: list[Tensor] | None = None) -> "Spread":
        """In groups of similar lengths; or in the groups of another spread, in which no sequence may be empty here."""
        lengths = offsets.diff()
        chosen = alike(lengths) if sequences is None else sequences
        return cls([_group(offsets[some], lengths[some], device) for some in chosen], chosen)

    @cached_property
    def _there(self) -> Tensor:
        """[P]: the row of every place, padding included."""
        return torch.cat([group.rows.reshape(-1) for group in self.groups])

    @cached_property
    def _real(self) -> Tensor:
        return torch.cat([group.real.reshape(-1) for group in self.groups])

    @cached_property
    def _back(self) -> Tensor:
        """[N]: the place of every row."""
        places = self._real.nonzero()[:, 0]
        back = torch.empty_like(places)
        back[self._there[places]] = places
        return back

    @cached_property
    def _padding(self) -> Tensor:
        return (~self._real).nonzero()[:, 0]

    def apart(self, x: Tensor) -> list[Tensor]:
        """[N, ...] to [B, L, ...] of each group."""
        moved: Tensor = _Moved.apply(x, self._there, self._back, None)  # type: ignore[no-untyped-call]
        parts = torch.split(moved, [group.rows.numel() for group in self.groups])
        return [part.view(*group.rows.shape, *x.shape[1:]) for part, group in zip(parts, self.groups, strict=True)]

    def together(self, parts: list[Tensor]) -> Tensor:
        """[B, L, ...] of each group to [N, ...]."""
        flat = torch.cat([part.flatten(0, 1) for part in parts])
        packed: Tensor = _Moved.apply(flat, self._back, self._there, self._padding)  # type: ignore[no-untyped-call]
        return packed


def side_by_side(x: Tensor, group: Group) -> Tensor:
    """[N, ...] to [B, L, ...]."""
    return x.index_select(0, group.rows.reshape(-1)).view(*group.rows.shape, *x.shape[1:])


def packed_again(parts: list[Tensor], groups: list[Group]) -> Tensor:
    """What was computed group by group, [B, L, ...] each, as one packed run; padding is left out."""
    return Spread(groups, []).together(parts)
