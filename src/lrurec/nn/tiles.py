"""Logarithms of sums of exponentials over a catalogue, with their gradients, in compiled tiles on a CPU. Knows vectors.

A group of positions meets the catalogue in tiles that fit the cache: first every tile's product and its exponentials, then,
with the sums known, the gradients from the same tiles. Small catalogues: each thread takes groups of its own. Large ones:
each thread takes a part of the items, so that the table is read and its gradient written once per group, by one thread.

A table may have rows in front that are no items (a start token's): the last rows, one per bias, are the catalogue. The
gradient has their zeros already, so that nobody copies a large one to put them there.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrurec.kernels.softmax import (
    add_rows16,
    at_targets,
    column_sums16,
    exponentials,
    exponentials16,
    take_from_targets,
    weigh,
)
from lrurec.nn.groups16 import DotGroup
from lrurec.nn.threads import at_once

_FEW_ITEMS = 1 << 14  # up to here threads share out positions, beyond it items
_STORE = 64 << 20  # bytes of exponentials per group of positions where items are shared out


def catalogue(table: Tensor, bias: Tensor) -> Tensor:
    """The rows of a table that are items: as many as there are biases, the last ones."""
    return table[len(table) - len(bias) :]


class Group:
    """Some positions against the items of one part of the catalogue, tile by tile."""

    unit = 1  # parts of the catalogue begin at multiples of it
    dtype = torch.float32
    tile = 1712  # items per tile; not near a power of two, whose strides fall on the same lines of the cache
    few_rows = 128  # positions per group over few items

    @classmethod
    def rows(cls, items: int) -> int:
        """How many positions meet the catalogue together: at least 64, or reading it costs more than the products."""
        return cls.few_rows if items <= _FEW_ITEMS else min(256, max(64, _STORE // (cls.dtype.itemsize * items)))

    def __init__(self, table: Tensor, bias: Tensor, rows: int) -> None:
        self.table, self.bias = table.to(self.dtype), bias
        self.tiles = [(k, min(k + self.tile, len(table))) for k in range(0, len(table), self.tile)]
        self.store = torch.empty(rows * len(table), dtype=self.dtype)
        self.references = np.empty((len(self.tiles), rows), np.float32)

    def _tile(self, rows: int, start: int, stop: int) -> Tensor:
        return self.store[start * rows : stop * rows].view(rows, stop - start)

    def sums(self, hidden: Tensor, gradients: bool) -> tuple[Any, Any]:
        """(largest score, sum of exponentials relative to it) per position; the exponentials stay in the store."""
        rows, hidden = len(hidden), hidden.to(self.dtype)
        largest, total = np.full(rows, -3e38, np.float32), np.zeros(rows, np.float32)
        bias = self.bias.numpy()
        for k, (start, stop) in enumerate(self.tiles):
            scores = torch.mm(hidden, self.table[start:stop].T, out=self._tile(rows, start, stop))
            self._exponentials(scores, bias[start:stop], largest, total, self.references[k, :rows])
        return largest, total

    def _exponentials(self, scores: Tensor, *others: Any) -> None:
        exponentials(scores.numpy(), *others)

    def gradients(
        self, hidden: Tensor, largest: Any, weight: Any, d_hidden: Tensor, d_table: Tensor, d_bias: Tensor, fresh: bool
    ) -> None:
        """Add the gradients of the log of the sums, weighed per position; a `fresh` d_table and d_bias hold nothing yet."""
        rows, sums = len(hidden), d_bias.numpy()
        if fresh:
            d_bias.zero_()
        for k, (start, stop) in enumerate(self.tiles):
            p = self._tile(rows, start, stop)
            weigh(p.numpy(), self.references[k, :rows], largest, weight, sums[start:stop])
            d_hidden.addmm_(p, self.table[start:stop])
            d_table[start:stop].addmm_(p.T, hidden, beta=0 if fresh else 1)


class HalfGroup(Group):
    """The same with products of bfloat16."""

    dtype = torch.bfloat16
    tile = 3420
    few_rows = 256

    def _exponentials(self, scores: Tensor, *others: Any) -> None:
        exponentials16(scores.view(torch.int16).numpy(), *others)

    def gradients(
        self, hidden: Tensor, largest: Any, weight: Any, d_hidden: Tensor, d_table: Tensor, d_bias: Tensor, fresh: bool
    ) -> None:
        if fresh:
            d_table.zero_()
            d_bias.zero_()
        rows, sums, ones = len(hidden), d_bias.numpy(), np.ones(self.tile, np.float32)
        for k, (start, stop) in enumerate(self.tiles):
            p = self._tile(rows, start, stop)
            w = weight * np.exp(self.references[k, :rows] - largest)
            column_sums16(p.view(torch.int16).numpy(), w, sums[start:stop])
            to_hidden = torch.mm(p, self.table[start:stop])
            add_rows16(to_hidden.view(torch.int16).numpy(), w, d_hidden.numpy())
            to_table = torch.mm(p.T, (hidden * torch.from_numpy(w)[:, None]).to(self.dtype))
            add_rows16(to_table.view(torch.int16).numpy(), ones, d_table[start:stop].numpy())


Gradients = tuple[Tensor, Tensor, Tensor]  # of hidden, table and bias


def _kind(hidden: Tensor, table: Tensor, bias: Tensor, half: bool) -> type[Group | DotGroup]:
    if not half:
        return Group
    return DotGroup if DotGroup.suits(hidden, table, bias) else HalfGroup


def _share_positions(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor | None, gradients: bool, weights: Tensor, half: bool,
    beside: Tensor | None = None,
) -> tuple[Tensor, Gradients | None]:  # fmt: skip
    """Every thread takes groups of positions and gathers the gradients of the table for itself."""
    before, table = len(table) - len(bias), catalogue(table, bias)
    kind = _kind(hidden, table, bias, half)
    count, rows, threads = len(hidden), kind.rows(len(table)), torch.get_num_threads()
    share = -(-max(count, 1) // threads)
    losses, padded = torch.empty(count), -(-len(table) // kind.unit) * kind.unit
    d_hidden = torch.zeros_like(hidden) if gradients else hidden[:0]

    def work(begin: int) -> tuple[Tensor, Tensor]:
        group = kind(table, bias, min(rows, count))
        whole, d_table, d_bias = _to_fill(before, padded, table.shape[1] if gradients else 0)
        end = min(begin + share, count)
        mine = slice(begin, end)
        found = (d_hidden[mine], d_table, d_bias) if gradients else None
        if isinstance(group, DotGroup) and beside is None:
            group.meet(hidden[mine], weights[mine], rows, losses[mine], found)
        else:
            for start in range(begin, end, rows):
                span = slice(start, min(start + rows, end))
                largest, total = group.sums(hidden[span], gradients)
                losses[span], weight = _normalised(largest, total, weights[span], span, beside)
                if gradients:
                    fresh = start == begin
                    group.gradients(hidden[span], largest, weight, d_hidden[span], d_table, d_bias, fresh)
        if targets is not None:
            meet_targets(hidden[mine], table, bias, targets[mine], weights[mine], losses[mine], found)
        return whole, d_bias

    parts = at_once(work, range(0, max(count, 1), share))
    if not gradients:
        return losses, None
    whole, d_bias = (_sum([p[k] for p in parts]) for k in (0, 1))
    return losses, (d_hidden, _cut(whole, before + len(table)), _cut(d_bias, len(table)))


def _share_items(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor | None, gradients: bool, weights: Tensor, half: bool,
    beside: Tensor | None = None,
) -> tuple[Tensor, Gradients | None]:  # fmt: skip
    """Every thread takes a part of the items; all meet the same group of positions."""
    before, table = len(table) - len(bias), catalogue(table, bias)
    kind = _kind(hidden, table, bias, half)
    count, rows, threads = len(hidden), kind.rows(len(table)), torch.get_num_threads()
    padded = -(-len(table) // kind.unit) * kind.unit
    bounds = np.linspace(0, padded // kind.unit, threads + 1).astype(int) * kind.unit
    parts = [slice(int(a), int(b)) for a, b in pairwise(bounds)]
    groups = at_once(lambda part: kind(table[part], bias[part], min(rows, count)), parts)
    losses = torch.empty(count)
    d_hidden = torch.zeros(len(parts) if gradients else 0, *hidden.shape)
    whole, d_table, d_bias = _to_fill(before, padded, table.shape[1] if gradients else 0)
    for start in range(0, count, rows):
        span = slice(start, min(start + rows, count))
        summed = at_once(lambda group, h=hidden[span]: group.sums(h, gradients), groups)  # type: ignore[misc]
        largest = np.max([m for m, _ in summed], 0)
        total = np.sum([z * np.exp(m - largest) for m, z in summed], 0)
        losses[span], weight = _normalised(largest, total, weights[span], span, beside)
        if gradients:

            def work(k: int, span: slice = span, largest: Any = largest, weight: Any = weight) -> None:
                to_items, to_bias, fresh = d_table[parts[k]], d_bias[parts[k]], span.start == 0
                groups[k].gradients(hidden[span], largest, weight, d_hidden[k, span], to_items, to_bias, fresh)

            at_once(work, range(len(parts)))
    found = (d_hidden.sum(0), d_table, d_bias) if gradients else None
    if targets is not None:
        meet_targets(hidden, table, bias, targets, weights, losses, found)
    return losses, found and (found[0], _cut(whole, before + len(table)), _cut(d_bias, len(table)))


def _to_fill(before: int, rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of a table, its rows that are items, and the gradient of their biases; the first group fills them."""
    whole = torch.empty(before + rows, width)
    whole[:before] = 0
    return whole, whole[before:], torch.empty(rows)


def _cut(x: Tensor, rows: int) -> Tensor:
    """The first rows, in place and no view: autograd adds to a gradient that nobody else holds without copying it."""
    return x.resize_(rows, *x.shape[1:])


def _normalised(largest: Any, total: Any, weights: Tensor, span: slice, beside: Tensor | None) -> tuple[Tensor, Any]:
    """The logarithms of the sums, with what stands `beside`, and the weights over them (relative to the largest scores)."""
    if beside is None:
        return torch.from_numpy(largest + np.log(total)), weights.numpy() / total
    score = beside[span].numpy()
    most = np.maximum(largest, score)
    whole = total * np.exp(largest - most) + np.exp(score - most)
    return torch.from_numpy(most + np.log(whole)), weights.numpy() * np.exp(largest - most) / whole


def meet_targets(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    weights: Tensor,
    losses: Tensor,
    gradients: Gradients | None,
) -> None:
    """Take the scores of the targets from the losses, and their gradients from the gradients."""
    table = catalogue(table, bias)
    d_hidden, d_table, d_bias = gradients or (hidden, table, bias)
    d_table = catalogue(d_table, d_bias)
    if hidden.device.type == "cpu" and hidden.dtype == torch.float32:
        h, e, y, own = hidden.numpy(), table.numpy(), targets.numpy(), torch.empty(len(hidden))
        at_targets(h, e, bias.numpy(), y, own.numpy())
        if gradients is not None:
            take_from_targets(h, e, y, weights.numpy(), d_hidden.numpy(), d_table.numpy(), d_bias.numpy())
    else:
        own = (hidden * table[targets]).sum(1) + bias[targets]
        if gradients is not None:
            d_hidden.sub_(weights[:, None] * table[targets])
            d_table.index_add_(0, targets, weights[:, None] * hidden, alpha=-1)
            d_bias.index_add_(0, targets, weights, alpha=-1)
    losses.sub_(own)


def _sum(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def log_sums(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor | None, gradients: bool, weights: Tensor,
    half: bool = False, beside: Tensor | None = None,
) -> tuple[Tensor, Gradients | None]:  # fmt: skip
    """Of some positions, float32 on a CPU: the logarithms of their sums, less the scores of the targets if there are any.

    With `gradients`, those of these logarithms, each times its weight. `beside` is another score per position, in its sum.
    """
    work = _share_positions if len(bias) <= _FEW_ITEMS else _share_items
    return work(hidden, table, bias, targets, gradients, weights, half, beside)
