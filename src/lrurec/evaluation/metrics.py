"""Ranks to values. Pure: knows numbers, not models.

A rank counts from 0: the number of other items that score at least as high as the target. With one relevant item,

    Recall@k = 1 if rank < k else 0
    NDCG@k   = 1 / log2(rank + 2) if rank < k else 0
    MRR@k    = 1 / (rank + 1) if rank < k else 0

and the value of a model is the mean over users.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int64]


def recall(ranks: Ranks, k: int) -> NDArray[np.float64]:
    return (ranks < k).astype(np.float64)


def ndcg(ranks: Ranks, k: int) -> NDArray[np.float64]:
    return np.where(ranks < k, 1.0 / np.log2(ranks + 2.0), 0.0)


def mrr(ranks: Ranks, k: int) -> NDArray[np.float64]:
    return np.where(ranks < k, 1.0 / (ranks + 1.0), 0.0)


METRICS = {"recall": recall, "ndcg": ndcg, "mrr": mrr}


def summary(ranks: Ranks, ks: Sequence[int] = (10, 20)) -> dict[str, float]:
    """Means over users: {"recall@10": ..., "ndcg@10": ..., ...}."""
    if len(ranks) == 0:
        return {f"{name}@{k}": float("nan") for k in ks for name in METRICS}
    return {f"{name}@{k}": float(values(ranks, k).mean()) for k in ks for name, values in METRICS.items()}


def interval(values: NDArray[np.float64], seed: int = 0, draws: int = 1000, level: float = 0.95) -> tuple[float, float]:
    """A bootstrap confidence interval of the mean over users.

    Resampling n users with replacement gives each a Poisson-like count; the multinomial counts over the distinct
    values say the same and cost far less.
    """
    if len(values) == 0:
        return float("nan"), float("nan")
    distinct, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=draws)
    means = drawn @ distinct / len(values)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
