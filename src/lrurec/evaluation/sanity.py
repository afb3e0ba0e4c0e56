"""Two lines that any table needs: popularity, and a first-order Markov chain. They count; nothing is trained.

A model that does not beat them has not learned to use a history.
"""

import numpy as np
from numpy.typing import NDArray

from lrurec.arrays import spans
from lrurec.data.split import Split, Targets
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.metrics import Ranks


def sanity_ranks(
    split: Split, targets: Targets, items: int, max_length: int, candidates: Candidates | None = None
) -> dict[str, Ranks]:
    """The ranks of all targets by popularity, and by how often an item followed the last one (then popularity).

    With candidates, among the same items that a model is ranked among.
    """
    positions = spans(split.train.starts, split.train.stops - split.train.starts)
    popular = np.bincount(split.train.items[positions], minlength=items).astype(np.float64)
    popular /= popular.max() + 1.0  # below 1, so that it only decides between equal counts
    after = popular.copy()
    follows = _transitions(split, positions, items)
    among: slice | NDArray[np.int64] = slice(None)
    ranks = {name: np.empty(len(targets), np.int64) for name in ("popularity", "markov")}
    for k in range(len(targets)):
        history, answer = targets.history(k)[-max_length:], targets.answer(k)
        if candidates is not None:
            among = np.append(candidates.beside(k, answer, items), answer)
        what, how_often = follows(int(history[-1]))
        after[what] += how_often
        for name, scores in (("popularity", popular), ("markov", after)):
            before = scores[history]
            scores[history] = -np.inf
            ranks[name][k] = int((scores[among] >= scores[answer]).sum()) - 1
            scores[history] = before
        after[what] = popular[what]
    return ranks


class _Follows:
    """Item a to the items that followed it and how often: rows of a sparse matrix."""

    def __init__(self, pairs: NDArray[np.int64], items: int) -> None:
        distinct, self.counts = np.unique(pairs, return_counts=True)
        self.items = distinct % items
        self.starts = np.searchsorted(distinct // items, np.arange(items + 1))

    def __call__(self, item: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        span = slice(self.starts[item], self.starts[item + 1])
        return self.items[span], self.counts[span]


def _transitions(split: Split, positions: NDArray[np.int64], items: int) -> _Follows:
    before = positions[~np.isin(positions, split.train.stops - 1)]
    flat = split.train.items
    return _Follows(flat[before].astype(np.int64) * items + flat[before + 1], items)
