"""Stepping through a long history: what an event costs at the beginning and at the end.

    python bench/step.py

One user, a catalogue of 3,416 items, the paper's size: `step` updates the state with one event, or the whole history is
encoded again, which is what a model without a state has to do. Writes results/step.md.
"""

import json
import statistics
import time
from pathlib import Path

import torch

from lrurec.models.base import Batch, Sizes
from lrurec.models.lrurec import LRURec, LRURecConfig
from measure import machine

ROOT = Path(__file__).parents[1]
EVENTS, ROUNDS, SHOWN = 2048, 5, (1, 64, 256, 1024, 2048)
AROUND = 32  # events whose median is shown for a place


def main() -> None:
    torch.set_num_threads(1)
    model = LRURec(Sizes(3416), LRURecConfig(), torch.Generator().manual_seed(0))
    inputs = torch.randint(1, 3417, (EVENTS,), generator=torch.Generator().manual_seed(0))
    stepped: list[list[float]] = [[] for _ in range(EVENTS)]
    encoded: dict[int, list[float]] = {k: [] for k in SHOWN}
    with torch.no_grad():
        for _ in range(ROUNDS):
            state = model.initial_state()
            for k in range(EVENTS):
                started = time.perf_counter()
                state, _ = model.step(state, inputs[k : k + 1])
                stepped[k].append(time.perf_counter() - started)
            for k in SHOWN:
                started = time.perf_counter()
                model.encode(Batch(inputs[:k], torch.tensor([0, k])))
                encoded[k].append(time.perf_counter() - started)
    each = [statistics.median(times) for times in stepped]
    rows = []
    for k in SHOWN:
        near = each[max(0, min(k - AROUND // 2, EVENTS - AROUND)) :][:AROUND]
        rows.append({"event": k, "step": statistics.median(near), "encode": statistics.median(encoded[k])})
    first, last = statistics.median(each[:AROUND]), statistics.median(each[-AROUND:])
    facts = {"machine": machine(), "rows": rows, "last_to_first": last / first}
    (ROOT / "results" / "step.json").write_text(json.dumps(facts, indent=1) + "\n")
    lines = [
        "# A step",
        "",
        f"`python bench/step.py` on {machine()}; 1 thread, plain torch, one user, two blocks of width 64. Medians of {ROUNDS} rounds",
        f"(of {AROUND} events around each place).",
        "",
        "| event | step, us | encoding the history again, us |",
        "|---:|---:|---:|",
        *[f"| {r['event']:,} | {r['step'] * 1e6:.0f} | {r['encode'] * 1e6:,.0f} |" for r in rows],
        "",
        f"The last {AROUND} of {EVENTS:,} steps cost {last / first:.2f} times what the first {AROUND} cost.",
    ]
    (ROOT / "results" / "step.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
