"""Large catalogues and long histories: what an item costs in training, and how long it takes to rank everything.

    pip install -c constraints.txt -e '.[train,serve,reproduce,bench]'
    python bench/large.py [--users 10000] [--only PART]

Made-up histories at the size of XLong (69,691 users, 2,122,932 items, 958 events each), width 64, two threads. Every
measurement runs in a process of its own, so that its peak memory is its own. Tables go to results/large.md and
results/large.json, the figure to results/large.png and results/large.svg.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrurec.data.split import Targets
from lrurec.evaluation.ranking import rank
from lrurec.planning.log import Log
from lrurec.planning.plan import probe
from lrurec.serving.approximate import Approximate, with_bias
from lrurec.serving.indexing import build_index
from lrurec.serving.retrieval import Exact
from lrurec.serving.scanned import Scanned
from lrurec.training.config import config_for
from lrurec.training.learner import build
from measure import machine

ROOT = Path(__file__).parents[1]
USERS, ITEMS, LENGTH, EVENTS = 69_691, 2_122_932, 958, 66_800_000
CATALOGUES = (10_000, 100_000, 1_000_000, ITEMS)
LENGTHS = (50, 200, 1000, 5000)
THREADS, POSITIONS = 2, 32_000  # in a step, whatever the length of its windows
PAPER = ["training.loss=sampled", "training.negatives=100"]
SHARED = ["training.loss=sampled", "training.negatives=4096", "training.shared_negatives=true"]


def cost(items: int, length: int, settings: list[str], model: str = "lrurec") -> dict[str, Any]:
    """Of a step: microseconds per item, and the memory of the process."""
    batch = max(1, POSITIONS // length)
    log = Log.made_up(max(USERS // 100, 8 * batch), items, None, length + 2)
    assignments = [f"training.max_length={length}", f"training.batch={batch}", "training.candidates=100", *settings]
    found = probe(log, config_for("fast", None, assignments, model), 1.0, THREADS)
    row = {"items": items, "length": length, "model": model, "us_per_item": 1e6 * found.step / found.positions}
    print(f"{model} {items:>9,} items, length {length:>5,}: {row['us_per_item']:.1f} us per item", file=sys.stderr)
    return {**row, "items_per_second": found.positions / found.step, "peak": found.peak}


def ranked(users: int) -> dict[str, Any]:
    """The answers of so many users among all items, and the best 20 of each."""
    torch.set_num_threads(THREADS)
    config = config_for("fast", None, ["training.max_length=1000"])
    model = build(ITEMS, 0, config)
    rng = np.random.default_rng(0)
    lengths = np.full(users, LENGTH, np.int64)
    ends = np.cumsum(lengths)
    targets = Targets(
        rng.integers(0, ITEMS, int(ends[-1]), np.int32), np.arange(users, dtype=np.int32), ends - lengths, ends - 1
    )
    rank(model, targets.part(0, 8), 1000, top=20)  # compiles
    started = time.perf_counter()
    rank(model, targets, 1000, top=20)
    taken = time.perf_counter() - started
    return {"users": users, "seconds": taken, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def asked() -> dict[str, Any]:
    """The best 20 of all items for one user at a time, in every way there is."""
    import faiss

    rng = np.random.default_rng(0)
    table, bias = 0.3 * rng.standard_normal((ITEMS, 64), np.float32), 0.5 * rng.standard_normal(ITEMS, np.float32)
    queries = rng.standard_normal((64, 64), np.float32)
    exact = Exact(table, bias)
    truth = [set(items.tolist()) for items, _ in exact.search(queries, 20)]
    faiss.omp_set_num_threads(1)  # two are slower for one question
    flat = faiss.IndexFlatIP(65)
    flat.add(with_bias(table, bias, 65))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        index = build_index(Path(folder), table, bias, queries)
        ways: dict[str, Callable[[Any], Any]] = {
            "exact": lambda q: exact.search(q, 20),
            "faiss flat": lambda q: flat.search(with_bias(q, np.ones(1, np.float32), 65), 20),
        }
        for made in (
            Scanned.build(Path(folder), table, bias),
            Approximate.open(Path(folder), index["candidates"], table, bias),
        ):
            ways[made.kind] = lambda q, made=made: made.search(q, 20)  # type: ignore[misc]
        taken: dict[str, list[float]] = {name: [] for name in ways}
        hits = dict.fromkeys(ways, 0)
        for k, query in enumerate(queries):
            for name, way in ways.items():  # taking turns
                started = time.perf_counter()
                result = way(query[None])
                taken[name].append(time.perf_counter() - started)
                items = result[1][0] if name == "faiss flat" else result[0][0]
                hits[name] += len(truth[k] & set(items.tolist()))
    for name in ways:
        found[name] = {"ms": 1e3 * statistics.median(taken[name][8:]), "recall": hits[name] / (20 * len(queries))}
        print(f"top 20, {name}: {found[name]['ms']:.1f} ms", file=sys.stderr)
    return found


def in_a_process(what: str, users: int, cores: int = THREADS) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, "--users", str(users)]
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1", **os.environ}  # as the command line has it
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(mine)[:cores])  # the process has those of the one that starts it
    try:
        done = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        os.sched_setaffinity(0, mine)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def page(found: dict[str, Any]) -> str:
    lines = [
        "# Large catalogues",
        "",
        f"`{found['command']}` on {found['machine']}; {THREADS} threads, width 64, made-up histories, the median of five steps",
        f"of about {POSITIONS:,} items (forward, backward, clipping, AdamW on the rows that a step touches), each in a process of its own.",
        "",
        "How a step grows with the catalogue (histories of 1,000; 4,096 shared negatives) and with the length of histories (100,000 items):",
        "",
        "| items | length | us per item | items/s | peak memory |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in (*found["catalogue"], *found["length"]):
        lines.append(
            f"| {row['items']:,} | {row['length']:,} | {row['us_per_item']:.1f} | {row['items_per_second']:,.0f} |"
            f" {row['peak'] / 1e9:.2f} GB |"
        )
    paper, (rival, ours) = found["paper"], found["sasrec"]
    ratio = rival["us_per_item"] / ours["us_per_item"]
    lines += [
        "",
        "![us per item](large.svg)",
        "",
        f"With the paper's loss, 100 uniform negatives for each position, at {ITEMS:,} items: {paper['us_per_item']:.1f} us per item"
        f" ({paper['items_per_second']:,.0f} items/s, {paper['peak'] / 1e9:.2f} GB).",
        "",
        f"SASRec with the same loss (shared negatives), histories of 1,000 and 100,000 items: {rival['us_per_item']:.1f} us per item,"
        f" {ratio:.1f} times LRURec's ({ours['us_per_item']:.1f}) right behind it.",
        "",
        f"Ranking {found['ranking']['users']:,} users' answers among all {ITEMS:,} items, with the best 20 of each, their histories of"
        f" {LENGTH} events encoded: {found['ranking']['seconds']:.0f} s, {found['ranking']['peak'] / 1e9:.2f} GB.",
        "",
        f"The best 20 of {ITEMS:,} items for one user, random vectors, the median of 56 (`lrurec export --index`):",
        "",
        f"| way | ms on {THREADS} cores | ms on one | of the exact top 20 |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {row['ms']:.1f} | {found['top20 on one core'][name]['ms']:.1f} | {row['recall']:.3f} |"
            for name, row in found["top20"].items()
        ),
        "",
    ]
    return "\n".join(lines)


def draw(found: dict[str, Any], folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    for axis, name, label in zip(
        axes, ("catalogue", "length"), ("items in the catalogue", "events per history"), strict=True
    ):
        x = [row["items" if name == "catalogue" else "length"] for row in found[name]]
        axis.plot(x, [row["us_per_item"] for row in found[name]], "o-")
        axis.set_xscale("log")
        axis.set_xlabel(label)
    axes[0].set_ylabel("us per item, a training step")
    axes[0].set_ylim(bottom=0)
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(folder / f"large.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10_000, help="whose items are ranked among all")
    parser.add_argument(
        "--only", metavar="PART", help="measure one part again: catalogue, length, paper, sasrec, ranking, top20"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(ranked(options.users) if options.child == "ranked" else asked()))
        return
    torch.set_num_threads(THREADS)
    parts: dict[str, Callable[[], Any]] = {
        "catalogue": lambda: [cost(items, 1000, SHARED) for items in CATALOGUES],
        "length": lambda: [cost(100_000, length, SHARED) for length in LENGTHS],
        "paper": lambda: cost(ITEMS, 1000, PAPER),
        "sasrec": lambda: [cost(100_000, 1000, SHARED, model) for model in ("sasrec", "lrurec")],
        "ranking": lambda: in_a_process("ranked", options.users),
        "top20": lambda: in_a_process("asked", 0),
        "top20 on one core": lambda: in_a_process("asked", 0, cores=1),
    }
    where = options.out / "large.json"
    found: dict[str, Any] = json.loads(where.read_text()) if options.only else {}
    options.out.mkdir(exist_ok=True)
    for name, part in parts.items():
        if options.only in (None, name) or (options.only == "top20" and name.startswith("top20")):
            found |= {"command": "python bench/large.py", "machine": machine(), name: part()}
            where.write_text(json.dumps(found, indent=1) + "\n")  # what is measured is kept, whatever happens next
    (options.out / "large.md").write_text(page(found))
    draw(found, options.out)


if __name__ == "__main__":
    main()
