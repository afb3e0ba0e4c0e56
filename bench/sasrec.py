"""How fast a training step of SASRec is, beside RecTools' SASRec.

    pip install -c constraints.txt -e '.[train]'
    LRUREC_DATA=DIR python bench/sasrec.py [--peer PYTHON]

PYTHON is the interpreter of a virtualenv of its own: pip install torch==2.13.0, then 'rectools[torch]'. Both sides train the
same windows of ML-1M with the same size of model, cross entropy over all items and one thread, each in a process of its
own, taking turns. Tables go to results/sasrec.md and results/sasrec.json.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lrurec
from lrurec.arrays import spans
from lrurec.data.batches import Sampler, Windows
from lrurec.models.base import TrainedModel, TrainingBatch
from lrurec.nn.dropout import Keys
from lrurec.nn.loss import cross_entropy
from lrurec.training.config import config_for
from lrurec.training.learner import build
from lrurec.training.steps import optimizer_for
from measure import machine

ROOT = Path(__file__).parents[1]
LENGTH, BATCH, THREADS, DROPOUT = 200, 128, 1, 0.2
STEPS, PEER_STEPS = 12, 5


class Ours:
    """A step of lrurec, taken apart for the clock."""

    def __init__(self, windows: Windows, items: int, half: bool) -> None:
        config = config_for("paper", None, [f"training.max_length={LENGTH}", f"model.dropout={DROPOUT}"], "sasrec")
        model = build(items, 0, config)
        assert isinstance(model, TrainedModel)
        self.model, self.config, self.half = model, config, half
        self.windows, self.sampler = windows, Sampler(len(windows), BATCH, 0)
        self.optimizer = optimizer_for(model, config.training)
        self.parts: dict[str, list[float]] = {}
        self.positions: list[int] = []

    def step(self, t: int) -> None:
        clock = [time.perf_counter()]

        def lap(name: str) -> None:
            now = time.perf_counter()
            self.parts.setdefault(name, []).append(now - clock[0])
            clock[0] = now

        packed = self.windows.pack(self.sampler.chosen(t))
        batch = TrainingBatch(
            torch.from_numpy(packed.inputs),
            torch.from_numpy(packed.offsets),
            targets=torch.from_numpy(packed.targets),
            windows=torch.from_numpy(packed.windows),
        )
        lap("packing the batch")
        hidden, targets = self.model.examples(batch, Keys(t))
        lap("encoder, forward")
        loss = cross_entropy(hidden, *self.model.answers(), targets, half=self.half)
        lap("loss and its gradients")
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        lap("encoder, backward")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        lap("clipping and AdamW")
        self.positions.append(len(batch))


def windows_of(data: Path) -> tuple[Windows, int]:
    dataset = lrurec.Dataset.open(data)
    return Windows.of(lrurec.leave_last_out(dataset).train, LENGTH), dataset.n_items


def child(data: Path, half: bool) -> None:
    """Our side, in its own process."""
    torch.set_num_threads(THREADS)
    side = Ours(*windows_of(data), half)
    seconds = []
    for t in range(STEPS):
        started = time.perf_counter()
        side.step(t)
        seconds.append(time.perf_counter() - started)
    config = side.config.model
    found = {
        "seconds": statistics.median(seconds[1:]),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "parameters": sum(p.numel() for p in side.model.parameters()),
        "positions": statistics.median(side.positions[1:]),
        "parts": {name: statistics.median(times[1:]) for name, times in side.parts.items()},
        "size": {"width": config.width, "blocks": config.blocks, "heads": config.heads, "inner": config.inner},
    }
    print(json.dumps(found))


def ask(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def save_windows(data: Path, path: Path) -> None:
    """For the peer: the targets of every window and the item before them, from which the first is predicted."""
    windows, _ = windows_of(data)
    starts = windows.starts - ~windows.opens
    lengths = windows.stops - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    np.savez(path, items=windows.items[spans(starts, lengths)], offsets=offsets)


def compare(data: Path, peer: str | None, rounds: int) -> dict[str, Any]:
    ours: list[dict[str, Any]] = []
    halves: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    file = data / "windows.npz"
    save_windows(data, file)
    for _ in range(rounds):
        ours.append(ask([sys.executable, __file__, "--child", "float32", "--data", str(data)]))
        halves.append(ask([sys.executable, __file__, "--child", "bfloat16", "--data", str(data)]))
        if peer:
            settings = {**ours[-1]["size"], "threads": THREADS, "dropout": DROPOUT, "length": LENGTH, "batch": BATCH}
            script = str(Path(__file__).with_name("sasrec_peer.py"))
            theirs.append(ask([peer, script, str(file), json.dumps({**settings, "steps": PEER_STEPS})]))
        print(*(f"{side[-1]['seconds']:.3f}" for side in (ours, halves, theirs) if side), flush=True)
    middle = {name: _middle(rows) for name, rows in (("ours", ours), ("half", halves), ("peer", theirs)) if rows}
    return {"rounds": {"ours": ours, "half": halves, "peer": theirs}, **middle}


def _middle(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {**sorted(rows, key=lambda r: r["seconds"])[len(rows) // 2], "peak": max(r["peak"] for r in rows)}


def write(found: dict[str, Any], command: str) -> None:
    results = ROOT / "results"
    facts = {"command": command, "machine": machine(), **found}
    (results / "sasrec.json").write_text(json.dumps(facts, indent=1) + "\n")
    ours, half, peer = found["ours"], found["half"], found.get("peer")
    size = ours["size"]
    lines = [
        "# A training step of SASRec",
        "",
        f"`{command}` on {machine()}; {THREADS} thread. ML-1M in windows of at most {LENGTH} items, {BATCH} of them in a step;",
        f"{size['blocks']} blocks, {size['width']} wide ({size['inner']} inside the feed-forward networks), {size['heads']} heads; forward + cross entropy over all items + backward +",
        "AdamW (with clipping here, Adam without there). Both sides get the same windows; RecTools pads them. Each round is a",
        f"process, turn by turn: the median of {STEPS - 1} warm steps of ours and of {PEER_STEPS - 1} of theirs; shown is the median round, and the largest peak.",
        "",
        "| | s/step | faster | peak | parameters |",
        "|---|---:|---:|---:|---:|",
    ]
    sides = [("lrurec", ours), ("lrurec, products of the loss in bfloat16", half)]
    if peer:
        sides.append((f"RecTools {peer['version']}", peer))
    for name, side in sides:
        ratio = f"{peer['seconds'] / side['seconds']:.1f}x" if peer and side is not peer else "-"
        peak = f"{side['peak'] / 1e9:.2f} GB"
        lines.append(f"| {name} | {side['seconds']:.3f} | {ratio} | {peak} | {side['parameters']:,} |")
    lines += [
        "",
        f"Where the time goes (ms; {ours['positions']:,.0f} positions):",
        "",
        "| | float32 | bfloat16 |",
        "|---|---:|---:|",
    ]
    lines += [f"| {n} | {t * 1e3:.0f} | {half['parts'][n] * 1e3:.0f} |" for n, t in ours["parts"].items()]
    (results / "sasrec.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the interpreter of a virtualenv with rectools[torch]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=("float32", "bfloat16"), help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Path(options.data), options.child == "bfloat16")
        return
    if "LRUREC_DATA" not in os.environ:
        raise SystemExit("set LRUREC_DATA to the folder with ml-1m/")
    command = "python bench/sasrec.py" + (" --peer PYTHON" if options.peer else "")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "ml-1m"
        source = Path(os.environ["LRUREC_DATA"]) / "ml-1m" / "ml-1m.txt.gz"
        lrurec.load_events(source, out=data, recipe="paper")
        write(compare(data, options.peer, options.rounds), command)


if __name__ == "__main__":
    main()
