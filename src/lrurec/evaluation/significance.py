"""Whether one model is better than another, or only luckier with these users. Pure: knows values per user.

Two models answer for the same users, so the difference is taken user by user. How far its mean may be off: the bootstrap
interval. How often chance alone would give a mean as far from zero, if it did not matter which model is which: the
randomisation test, which swaps the two for a random half of the users, many times (Smucker, Allan and Carterette,
CIKM 2007, compare it with others).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lrurec.evaluation.metrics import interval

Values = NDArray[np.float64]
_AT_ONCE = 1 << 22  # random numbers in memory


@dataclass(frozen=True)
class Difference:
    """`first` minus `second`, per user."""

    first: float
    second: float
    mean: float
    low: float  # of the 95% interval of the mean
    high: float
    p: float  # of the randomisation test, two-sided
    better: int  # users for whom the first is better
    worse: int


def compare(first: Values, second: Values, seed: int = 0, draws: int = 10_000) -> Difference:
    """The difference of two metrics over the same users in the same order."""
    difference = first - second
    return Difference(
        float(first.mean()),
        float(second.mean()),
        float(difference.mean()),
        *interval(difference, seed),
        chance(difference, seed, draws),
        int((difference > 0).sum()),
        int((difference < 0).sum()),
    )


def chance(difference: Values, seed: int = 0, draws: int = 10_000) -> float:
    """The share of random swaps that give a mean at least as far from zero; never 0, as the swap seen is one of them.

    Users with the same size of difference are swapped together: how many of n change sign is binomial.
    """
    sizes, counts = np.unique(np.abs(difference), return_counts=True)
    random, seen = np.random.default_rng(seed), abs(float(difference.sum()))
    slack = 1e-9 * max(1.0, seen)  # equal sums differ by the order of adding
    some, as_far = max(1, _AT_ONCE // max(1, len(counts))), 0
    for start in range(0, draws, some):
        flipped = random.binomial(counts, 0.5, size=(min(some, draws - start), len(counts)))
        totals = np.abs((counts - 2 * flipped) @ sizes)
        as_far += int(np.count_nonzero(totals >= seen - slack))
    return float((1 + as_far) / (draws + 1))


def chance_reference(difference: Values) -> float:
    """The obvious twin: every way to swap, counted. For a handful of users."""
    n = len(difference)
    signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    totals = np.abs(signs @ difference)
    return float(np.mean(totals >= abs(difference.sum()) - 1e-9))
