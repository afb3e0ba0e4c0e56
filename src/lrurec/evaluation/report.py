"""Everything worth knowing about a ranking: metrics with intervals, slices, what is recommended. Knows ranks, not models."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrurec.data.split import Targets
from lrurec.evaluation.metrics import METRICS, Ranks, interval
from lrurec.evaluation.ranking import Ranking


def full_report(ranking: Ranking, targets: Targets, counts: NDArray[np.int64], ks: Sequence[int]) -> dict[str, Any]:
    """Metrics with 95% bootstrap intervals, by history length, by popularity of the target, and what is recommended (if known)."""
    lengths = targets.positions - targets.starts
    popularity = counts[targets.answers()]
    report = {
        "users": len(ranking.ranks),
        "metrics": _metrics(ranking.ranks, ks),
        "by_history_length": _slices(ranking.ranks, lengths, ks),
        "by_target_popularity": _slices(ranking.ranks, popularity, ks),
    }
    if ranking.recommended.size:
        report["recommended"] = _recommended(ranking.recommended, counts)
    return report


def _metrics(ranks: Ranks, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    found = {}
    for k in ks:
        for name, values in METRICS.items():
            each = values(ranks, k)
            low, high = interval(each)
            found[f"{name}@{k}"] = {"value": float(each.mean()), "low": low, "high": high}
    return found


def _slices(ranks: Ranks, values: NDArray[np.int64], ks: Sequence[int]) -> list[dict[str, Any]]:
    """The same metrics for users whose value lies in ranges that double: 0, 1, 2-3, 4-7, ..."""
    slices = []
    for low, high, chosen in doubling(values):
        means = {f"{n}@{k}": float(v(ranks[chosen], k).mean()) for k in ks for n, v in METRICS.items()}
        slices.append({"from": low, "to": high, "users": int(chosen.sum()), **means})
    return slices


def doubling(values: NDArray[np.int64]) -> list[tuple[int, int, NDArray[np.bool_]]]:
    """Ranges that double, of those that occur: from, to, and who lies in it."""
    exponents = np.where(values > 0, np.floor(np.log2(np.maximum(values, 1))).astype(np.int64), -1)
    return [(*((0, 0) if e < 0 else (1 << int(e), (2 << int(e)) - 1)), exponents == e) for e in np.unique(exponents)]


def halves(values: NDArray[np.int64]) -> list[tuple[int, int, NDArray[np.bool_]]]:
    """Those with small values and those with large ones, as even as equal values allow: from, to, and who lies in it.

    >>> [(low, high, int(who.sum())) for low, high, who in halves(np.array([1, 1, 1, 2, 7]))]
    [(1, 1, 3), (2, 7, 2)]
    """
    ordered = np.sort(values)
    cuts = [int(v) for v in np.unique(values)[:-1]]
    if not cuts:
        return []
    cut = min(cuts, key=lambda v: abs(2 * int(np.searchsorted(ordered, v, side="right")) - len(ordered)))
    return [(int(values[who].min()), int(values[who].max()), who) for who in (values <= cut, values > cut)]


def _recommended(recommended: NDArray[np.int64], counts: NDArray[np.int64]) -> dict[str, float]:
    """How much of the catalogue is ever recommended, and how popular what is recommended is."""
    ordered = np.argsort(np.argsort(counts))  # 0: the rarest item
    return {
        "top": recommended.shape[1],
        "coverage": len(np.unique(recommended)) / len(counts),
        "mean_popularity_percentile": float(ordered[recommended].mean() / max(len(counts) - 1, 1)),
        "mean_training_count": float(counts[recommended].mean()),
    }
