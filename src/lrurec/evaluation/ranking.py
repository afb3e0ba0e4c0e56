"""Ranks of targets against the whole catalogue, or among candidates. Knows models and positions, not files.

Items that the model has seen in its input are masked out, as the paper does; ties count against the model. A target
that was seen itself is masked, too, and comes last.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lrurec.arrays import spans
from lrurec.data.batches import pack_histories
from lrurec.data.split import Targets
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.tiles import Added, rank_in_tiles
from lrurec.kernels.softmax import at_least
from lrurec.models.base import Batch, Model, TrainedModel
from lrurec.nn.threads import at_once, shares

_SCORES = 1 << 25  # bytes of scores per block
_EVENTS = 1 << 15  # events encoded together
_RIVALS = 1 << 15  # candidates scored together
_LARGE, _TOGETHER = 1 << 17, 256  # items from which on users meet them tile by tile, so many at once


@dataclass(frozen=True)
class Ranking:
    """Per target: its rank, and the items recommended in its place (the best `top`)."""

    ranks: NDArray[np.int64]
    recommended: NDArray[np.int64]


@torch.no_grad()
def rank(
    model: Model,
    targets: Targets,
    max_length: int,
    *,
    filter_seen: bool = True,
    top: int = 0,
    candidates: Candidates | None = None,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda count: None,
    vectors: Tensor | None = None,
) -> Ranking:
    """Rank every target against all items; with candidates, among those alone (then there is no `top` of all items).

    `vectors` are those that `vectors_of` gave for the same targets, where they are at hand.
    """
    items = model.sizes.items
    if candidates is not None and not candidates.covers(items):
        ranks = _rank_among(model, targets, max_length, candidates, filter_seen, device, progress, vectors)
        return Ranking(ranks, np.empty((len(targets), 0), np.int64))
    top = min(top, items)
    if items >= _LARGE and device == "cpu" and isinstance(model, TrainedModel):
        return _rank_in_tiles(model, targets, max_length, filter_seen, top, progress, vectors)
    rows = max(8, min(1024, _SCORES // (4 * items)))
    ranks = np.empty(len(targets), np.int64)
    best = np.empty((len(targets), top), np.int64)
    for first, last in _blocks(targets, max_length, rows):
        batch = histories(targets, first, last, max_length, device)
        if vectors is not None and isinstance(model, TrainedModel):
            scores = model.scored(batch, vectors[first:last])
        else:
            scores = model.scores(batch)
        answers = torch.from_numpy(targets.answers()[first:last].astype(np.int64)).to(device)
        if filter_seen:
            who, what = seen_by(targets, first, last, max_length)
            scores[torch.from_numpy(who).to(device), torch.from_numpy(what).to(device)] = float("-inf")
        ranks[first:last] = ranks_of(scores, answers).cpu().numpy()
        if top:
            best[first:last] = scores.topk(top, 1).indices.cpu().numpy()
        progress(last - first)
    return Ranking(ranks, best)


def _rank_in_tiles(
    model: TrainedModel,
    targets: Targets,
    max_length: int,
    filter_seen: bool,
    top: int,
    progress: Callable[[int], None],
    at_hand: Tensor | None,
) -> Ranking:
    """The same over a large catalogue, which many users meet at once."""
    table, bias = model.item_table()
    ranks, best = np.empty(len(targets), np.int64), np.empty((len(targets), top), np.int64)
    nothing = np.zeros(0, np.int64)
    for start in range(0, len(targets), _TOGETHER):
        some = targets.part(start, start + _TOGETHER)
        blocks = list(_blocks(some, max_length, len(some)))
        parts = [histories(some, *block, max_length, "cpu") for block in blocks]
        if at_hand is None:
            vectors = [model.last(part) for part in parts]
        else:
            vectors = [at_hand[start + a : start + b] for a, b in blocks]
        hidden = torch.cat(vectors)
        barred = seen_by(some, 0, len(some), max_length) if filter_seen else (nothing, nothing)
        span = slice(start, start + len(some))
        answers = some.answers().astype(np.int64)
        added = _remembered(model, parts, vectors)
        ranks[span], best[span] = rank_in_tiles(hidden, table, bias, answers, barred, top, added)
        progress(len(some))
    return Ranking(ranks, best)


def _remembered(model: TrainedModel, parts: list[Batch], vectors: list[Tensor]) -> Added | None:
    """What a memory adds to the scores of some users in a row."""
    if model.memory is None:
        return None
    found, first = [], 0
    for part, hidden in zip(parts, vectors, strict=True):
        rows, items, more = (t.numpy() for t in model.remembered(part, hidden) or ())
        found.append((rows + first, items, more))
        first += len(hidden)
    rows, items, more = (np.concatenate(c) for c in zip(*found, strict=True))
    return rows, items, more


def ranks_of(scores: Tensor, answers: Tensor) -> Tensor:
    """How many other items do not score below each answer; what is no number is above all."""
    own = scores.gather(1, answers[:, None])
    if scores.device.type != "cpu":
        return (~(scores < own)).sum(1) - 1
    all_, each, counts = scores.numpy(), own[:, 0].numpy(), np.empty(len(scores), np.int64)
    at_once(lambda rows: at_least(all_[rows], each[rows], counts[rows]), shares(len(scores), 8))
    return torch.from_numpy(counts) - 1


def _rank_among(
    model: Model,
    targets: Targets,
    max_length: int,
    candidates: Candidates,
    filter_seen: bool,
    device: str,
    progress: Callable[[int], None],
    vectors: Tensor | None,
) -> NDArray[np.int64]:
    """How many candidates score at least as high as each target; only their rows of the table are read."""
    items = model.sizes.items
    seen = np.zeros(items, np.bool_)
    ranks = np.zeros(len(targets), np.int64)
    for first, last in _blocks(targets, max_length, 1024):
        batch = histories(targets, first, last, max_length, device)
        score = _scorer(model, batch, None if vectors is None else vectors[first:last])
        for k in range(first, last):
            history, answer = targets.history(k)[-max_length:], targets.answer(k)
            rivals = candidates.beside(k, answer, items)
            seen[history] = filter_seen
            for start in range(0, len(rivals), _RIVALS):
                # The answer goes through the same product as its rivals: equal rows give equal scores.
                among = np.append(rivals[start : start + _RIVALS], answer)
                chosen, masked = torch.from_numpy(among).to(device), torch.from_numpy(seen[among]).to(device)
                scores = score(k - first, chosen)
                scores[masked] = float("-inf")
                ranks[k] += int((scores[:-1] >= scores[-1]).sum())
            seen[history] = False
        progress(last - first)
    return ranks


def _scorer(model: Model, batch: Batch, at_hand: Tensor | None) -> Callable[[int, Tensor], Tensor]:
    """(sequence, items) to scores; where a model has a table, only the rows of those items are read."""
    if not isinstance(model, TrainedModel):
        scores = model.scores(batch)
        return lambda row, chosen: scores[row, chosen]
    table, bias = model.item_table()
    hidden = model.last(batch) if at_hand is None else at_hand
    remembered = model.remembered(batch, hidden)
    if remembered is None:
        return lambda row, chosen: table.index_select(0, chosen) @ hidden[row] + bias[chosen]
    rows, items, more = remembered
    ends = torch.searchsorted(rows, torch.arange(len(hidden) + 1, device=rows.device)).tolist()
    extra = torch.zeros(len(table), device=hidden.device)

    def score(row: int, chosen: Tensor) -> Tensor:
        span = slice(ends[row], ends[row + 1])
        extra[items[span]] = more[span]
        scores = table.index_select(0, chosen) @ hidden[row] + bias[chosen] + extra[chosen]
        extra[items[span]] = 0.0
        return scores

    return score


@contextmanager
def alone(model: TrainedModel) -> Iterator[None]:
    """Meanwhile it has no memory."""
    memory, model.memory = model.memory, None
    try:
        yield
    finally:
        model.memory = memory


@torch.no_grad()
def vectors_of(
    model: TrainedModel,
    targets: Targets,
    max_length: int,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """[T, d]: what the items are scored with behind the history of each target."""
    found = []
    for first, last in _blocks(targets, max_length, 1024):
        found.append(model.last(histories(targets, first, last, max_length, device)))
        progress(last - first)
    return torch.cat([*found, torch.zeros(0, model.item_table()[0].shape[1], device=device)])


def histories(targets: Targets, first: int, last: int, max_length: int, device: str) -> Batch:
    """The histories of some targets."""
    span = slice(first, last)
    packed = pack_histories(
        targets.items, targets.starts[span], targets.positions[span], max_length, targets.users[span], targets.gaps
    )
    inputs, users = (torch.from_numpy(a).to(device) for a in (packed.inputs, packed.users))
    gaps = None if packed.gaps is None else torch.from_numpy(packed.gaps).to(device)
    return Batch(inputs, torch.from_numpy(packed.offsets), users, gaps=gaps)


def _blocks(targets: Targets, max_length: int, rows: int) -> Iterator[tuple[int, int]]:
    """Runs of targets: at most `rows`, and not many more events than _EVENTS."""
    lengths = np.minimum(targets.positions - targets.starts, max_length)
    ends = np.cumsum(lengths)
    first = 0
    while first < len(targets):
        before = ends[first - 1] if first else 0
        last = int(np.searchsorted(ends, before + _EVENTS, side="right"))
        last = min(max(last, first + 1), first + rows, len(targets))
        yield first, last
        first = last


def seen_by(targets: Targets, first: int, last: int, max_length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, item) of everything inside the inputs of some targets."""
    stops = targets.positions[first:last]
    starts = np.maximum(targets.starts[first:last], stops - max_length)
    lengths = stops - starts
    positions = spans(starts, lengths)
    return np.repeat(np.arange(last - first), lengths), targets.items[positions].astype(np.int64)
