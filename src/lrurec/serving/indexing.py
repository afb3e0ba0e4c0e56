"""The approximate index of a catalogue, built and measured. Knows vectors, not runs or requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lrurec.serving.approximate import Approximate
from lrurec.serving.engine import Floats
from lrurec.serving.retrieval import Exact

LARGE = 50_000  # items from which on `auto` looks approximately
MILLIONS = 1_000_000  # items from which on two numbers share a code: half of the bytes, for more candidates
FEWEST = 1000  # items below which there is nothing to approximate
GOAL = 0.99  # of the best 20, how many are to be found
_K = 20


def build_index(
    folder: Path, table: Floats, bias: Floats, queries: Floats, watch: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Write the index; gives what was measured: recall@20 against exact, over vectors of real histories.

    As many candidates are scored exactly as the goal needs.
    """
    together = 2 if len(table) >= MILLIONS else 1
    watch(f"index     {len(table):,} items in 4 bits per {'number' if together == 1 else 'two numbers'}")
    index = Approximate.build(folder, table, bias, together, 5 * _K)
    truth = [set(items.tolist()) for items, _ in Exact(table, bias).search(queries, _K)]
    while True:
        found = index.search(queries, _K)
        recall = float(np.mean([len(t & set(i.tolist())) / len(t) for t, (i, _) in zip(truth, found, strict=True)]))
        watch(f"index     the best of {index.candidates:,} candidates: {recall:.3f} of the exact top {_K}")
        if recall >= GOAL or index.candidates >= len(table):
            break
        index.candidates = index.candidates * 5 // 4
    return {"kind": index.kind, "candidates": index.candidates, f"recall@{_K}": recall, "queries": len(queries)}
