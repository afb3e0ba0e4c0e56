"""A memory beside a model: what recent items bring to mind is scored anew. Knows vectors and item numbers, not users.

    score'(b) = score(b) + g(x_b)        for items that are brought to mind
    score'(b) = score(b)                 for all others

x_b: the logarithms of the evidence for b and of its count, its score, how far that is from the best of those brought to
mind, how alike its vector is to those of the last items, and how many and how popular these are (lrurec.kernels.recall).
g is a small network, learned from events that neither the model nor the counts had seen (lrurec.training.remembering). It
needs no sum over the catalogue: the best items are those brought to mind and the model's best among the others.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrurec.errors import FolderError
from lrurec.kernels.recall import ALIKE, INPUTS, describe, merge, weigh
from lrurec.memory.online import Since
from lrurec.memory.transitions import Floats, Indices, Transitions

_WIDE = ("counts", "starts", "items", "values")
_SMALL = ("w1", "b1", "w2", "b2")
ARRAYS = (*_WIDE, *_SMALL, "window", "decay")


@dataclass(frozen=True)
class Weights:
    """g(x) = w2 . max(x w1 + b1, 0) + b2."""

    w1: Floats  # [INPUTS, H]
    b1: Floats  # [H]
    w2: Floats  # [H]
    b2: Floats  # [1]


def described(
    transitions: Transitions | Since, history: NDArray[np.integer], hidden: Floats, table: Any, bias: Floats
) -> tuple[NDArray[np.int32], Floats, Floats]:
    """Items that a history brings to mind, their scores by the model, and what g looks at of each, [m, INPUTS]."""
    last = history[-transitions.window :]
    items, found = transitions.recall(last)
    known = last[last >= 0][-ALIKE:]
    recent, rows = table[known], items
    if not isinstance(table, np.ndarray):  # kept in fewer bits: the rows that are needed
        table, bias, rows = table[items], bias[items], np.arange(len(items), dtype=np.int32)
    scores, x = np.empty(len(items), np.float32), np.empty((len(items), INPUTS), np.float32)
    describe(hidden, recent, table, bias, rows, items, last, found, transitions.popular, scores, x)
    return items, scores, x


@dataclass(frozen=True)
class Memory:
    """Transitions, and what to make of them."""

    transitions: Transitions | Since
    weights: Weights

    def going_on(self) -> "Memory":
        """One that counts further events, too, and leaves this one as it is."""
        assert isinstance(self.transitions, Transitions)
        return replace(self, transitions=Since(self.transitions))

    @property
    def pairs(self) -> int:
        """How many pairs of items it was made of."""
        t = self.transitions
        return len((t.base if isinstance(t, Since) else t).items)

    @property
    def observed(self) -> int | None:
        """How many events were counted since; None if this one does not go on."""
        return self.transitions.observed if isinstance(self.transitions, Since) else None

    def observe(self, history: NDArray[np.integer], item: int) -> None:
        """Somebody with this history met an item; counted if this one goes on."""
        if isinstance(self.transitions, Since):
            self.transitions.observe(history, item)

    def added(
        self, history: NDArray[np.integer], hidden: Floats, table: Any, bias: Floats
    ) -> tuple[NDArray[np.int32], Floats, Floats]:
        """Items that a history brings to mind, their scores by the model, and what the memory adds to them."""
        items, scores, x = described(self.transitions, history, hidden, table, bias)
        more = np.empty(len(items), np.float32)
        w = self.weights
        weigh(x, w.w1, w.b1, w.w2, w.b2, more)
        return items, scores, more

    def best(
        self,
        found: tuple[Indices, Floats],
        recalled: tuple[NDArray[np.int32], Floats, Floats],
        gone: Indices,
        k: int,
    ) -> tuple[Indices, Floats]:
        """The k best of the model's `found`, the best first, and of what `added` gave, but for what is gone."""
        own = self._scratch
        if getattr(own, "marks", None) is None:  # one per thread
            own.marks = np.zeros(len(self.transitions.counts), np.uint8)
        room = min(k, len(found[0]) + len(recalled[0]))
        items, scores = np.empty(room, np.int64), np.empty(room, np.float32)
        n = merge(*found, *recalled, gone, own.marks, room, items, scores)
        return items[:n], scores[:n]

    @cached_property
    def _scratch(self) -> threading.local:
        return threading.local()

    def added_to(
        self, items: NDArray[np.integer], offsets: Indices, hidden: Floats, table: Floats, bias: Floats
    ) -> tuple[Indices, Indices, Floats]:
        """The same for packed histories, one row of `hidden` each: rows, items, what is added."""
        found = [
            self.added(items[a:b], hidden[k], table, bias)
            for k, (a, b) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
        ]
        rows = np.repeat(np.arange(len(found)), [len(i) for i, _, _ in found])
        what = np.concatenate([*(i for i, _, _ in found), np.zeros(0, np.int32)]).astype(np.int64)
        return rows, what, np.concatenate([*(more for _, _, more in found), np.zeros(0, np.float32)])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, by name."""
        t = self.transitions
        assert isinstance(t, Transitions)
        return {
            **{name: getattr(t, name) for name in _WIDE},
            **{name: getattr(self.weights, name) for name in _SMALL},
            "window": np.array([t.window], np.int64),
            "decay": np.array([t.decay], np.float64),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], n_items: int) -> "Memory":
        """From what `arrays` gave; FolderError where it does not fit."""
        if missing := [name for name in ARRAYS if name not in arrays]:
            raise FolderError(f"the memory lacks {', '.join(missing)}; train again")
        a = arrays
        sizes = (
            len(a["counts"]) == n_items and a["starts"].shape == (n_items + 1,) and a["starts"][-1] == len(a["items"])
        )
        if not sizes or a["values"].shape != (len(a["items"]), 3) or a["w1"].shape != (INPUTS, len(a["b1"])):
            raise FolderError("the memory does not fit the model; train again")
        rows = {name: a[name] for name in _WIDE}
        transitions = Transitions(window=int(a["window"][0]), decay=float(a["decay"][0]), **rows)
        return cls(transitions, Weights(*(np.ascontiguousarray(a[name], np.float32) for name in _SMALL)))
