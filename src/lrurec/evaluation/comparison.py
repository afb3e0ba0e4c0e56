"""One side against another, user by user: how much better, whether that may be luck, and for whom. Knows ranks, not models."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrurec.data.split import Targets
from lrurec.evaluation.metrics import METRICS, Ranks
from lrurec.evaluation.report import doubling, halves
from lrurec.evaluation.significance import Values, compare

HALVES = ("short histories", "long histories", "rare targets", "popular targets")


def against(
    first: Sequence[Ranks],
    second: Sequence[Ranks],
    targets: Targets,
    counts: NDArray[np.int64],
    ks: Sequence[int],
    seed: int = 0,
) -> dict[str, Any]:
    """What the runs of two sides come to on the same targets, on average over the runs of a side.

    `counts` says how often each item occurs in training. The slices are of NDCG at the first cut-off.
    """
    found = {f"{n}@{k}": (_mean(v, first, k), _mean(v, second, k)) for k in ks for n, v in METRICS.items()}
    sliced = found[f"ndcg@{ks[0]}"]
    lengths, popularity = targets.positions - targets.starts, counts[targets.answers()]
    return {
        "metrics": {name: asdict(compare(*both, seed)) for name, both in found.items()},
        "sliced": f"ndcg@{ks[0]}",
        "halves": [
            {"half": name, **half}
            for values, names in ((lengths, HALVES[:2]), (popularity, HALVES[2:]))
            for name, half in zip(names, _by(*sliced, halves(values), seed), strict=False)
        ],
        "by_history_length": _by(*sliced, doubling(lengths), seed),
        "by_target_popularity": _by(*sliced, doubling(popularity), seed),
    }


def _mean(metric: Callable[[Ranks, int], Values], ranks: Sequence[Ranks], k: int) -> Values:
    """What each user gets, on average over the runs of a side."""
    first, *others = (metric(own, k) for own in ranks)
    values: Values = sum(others, start=first) / len(ranks)
    return values


def _by(
    first: Values, second: Values, groups: list[tuple[int, int, NDArray[np.bool_]]], seed: int
) -> list[dict[str, Any]]:
    """The difference within each group of users: those from one value to another."""
    return [
        {"from": low, "to": high, "users": int(who.sum()), **asdict(compare(first[who], second[who], seed))}
        for low, high, who in groups
    ]
