"""The approximate index of a catalogue, built and measured. Knows vectors, not runs or requests."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lrurec.serving.engine import Floats
from lrurec.serving.retrieval import INDEX, Approximate, Exact, faiss, with_bias

LARGE = 50_000  # items from which on `auto` looks approximately
MILLIONS = 1_000_000  # items from which on two numbers share a code: half of the bytes, for more candidates
PARTS = 2  # that such a catalogue is scanned in, so that a question may have two threads
FEWEST = 1000  # items below which there is nothing to approximate
GOAL = 0.99  # of the best 20, how many are to be found
_K = 20
_TRAINED = 100_000  # items that the quantisation is fitted to
_BITS = 4


def build_index(
    folder: Path, table: Floats, bias: Floats, queries: Floats, watch: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Write the index; gives what was measured: recall@20 against exact, over vectors of real histories.

    As many candidates are scored exactly as the goal needs.
    """
    library = faiss()
    together = 2 if len(table) >= MILLIONS else 1
    codes = -(-(table.shape[1] + 1) // together)
    vectors = with_bias(table, bias, codes * together)
    watch(f"index     {len(table):,} items in {_BITS} bits per {'number' if together == 1 else 'two numbers'}")
    empty = library.IndexPQFastScan(codes * together, codes, _BITS, library.METRIC_INNER_PRODUCT)
    chosen = np.random.default_rng(0).permutation(len(vectors))[:_TRAINED]
    empty.train(vectors[chosen])
    count = PARTS if len(table) >= MILLIONS else 1
    parts = []
    for first, last in pairwise(len(table) * k // count for k in range(count + 1)):
        parts.append(library.clone_index(empty))
        parts[-1].add(vectors[first:last])
    truth = [set(items.tolist()) for items, _ in Exact(table, bias).search(queries, _K)]
    candidates, recall = 5 * _K, 0.0
    while recall < GOAL and candidates < len(table):
        found = Approximate(parts, candidates, table, bias).search(queries, _K)
        recall = float(np.mean([len(t & set(i.tolist())) / len(t) for t, (i, _) in zip(truth, found, strict=True)]))
        watch(f"index     the best of {candidates:,} candidates: {recall:.3f} of the exact top {_K}")
        if recall < GOAL:
            candidates = candidates * 5 // 4
    for k, index in enumerate(parts):
        library.write_index(index, str(folder / INDEX.replace("*", str(k))))
    return {"kind": Approximate.kind, "candidates": candidates, f"recall@{_K}": recall, "queries": len(queries)}
