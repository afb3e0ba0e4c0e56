"""The approximate index of a catalogue, built and measured. Knows vectors, not runs or requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lrurec.serving.engine import Floats
from lrurec.serving.retrieval import INDEX, Approximate, Exact, faiss

LARGE = 200_000  # items from which on `auto` looks approximately
GOAL = 0.99  # of the best 20, how many are to be found
_K = 20


def build_index(
    folder: Path, table: Floats, bias: Floats, queries: Floats, watch: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Write the index; gives what was measured: recall@20 against exact, over vectors of real histories.

    As many lists are probed as the goal needs, or all that help.
    """
    library = faiss()
    lists = max(1, min(int(4 * np.sqrt(len(table))), len(table) // 39))
    vectors = np.concatenate([table, bias[:, None]], 1)
    watch(f"index     {lists:,} lists over {len(table):,} items")
    quantizer = library.IndexFlatIP(vectors.shape[1])
    index = library.IndexIVFFlat(quantizer, vectors.shape[1], lists, library.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.seed = 10, 0
    index.train(vectors)
    index.add(vectors)
    truth = [set(items.tolist()) for items, _ in Exact(table, bias).search(queries, _K)]
    probes, recall = 1, 0.0
    while True:
        found = Approximate(index, probes, table, bias).search(queries, _K)
        recall = float(np.mean([len(t & set(i.tolist())) / len(t) for t, (i, _) in zip(truth, found, strict=True)]))
        watch(f"index     probing {probes:,} lists finds {recall:.3f} of the best {_K}")
        if recall >= GOAL or probes == lists:
            break
        probes = min(2 * probes, lists)
    library.write_index(index, str(folder / INDEX))
    return {"kind": Approximate.kind, "lists": lists, "probes": probes, f"recall@{_K}": recall, "queries": len(queries)}
