"""How fast a training step is: against the authors' code, against the arithmetic floor, and how it grows.

    pip install -c constraints.txt -e '.[train]'
    LRUREC_DATA=DIR python bench/train.py [--peer PATH]   PATH: a checkout of the authors' repository, read and run, never kept

Both sides get the same windows (the authors' windowing), two threads, forward + backward + clipping + AdamW, each in a
process of its own, taking turns. Tables go to results/train.md and results/train.json.
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

import lrurec
from lrurec.data.batches import Sampler, Windows
from lrurec.data.split import Sequences
from lrurec.evaluation.ranking import rank
from lrurec.models.base import TrainedModel, TrainingBatch
from lrurec.nn.dropout import Keys
from lrurec.nn.loss import cross_entropy
from lrurec.training.config import config_for
from lrurec.training.learner import build
from lrurec.training.memory import keep_memory
from lrurec.training.steps import clip_gradients, optimizer_for
from measure import machine
from peer import peer_model

ROOT = Path(__file__).parents[1]
DATASETS = {"ml-1m": ("ml-1m/ml-1m.txt.gz", 200, 0.2), "beauty": ("beauty/beauty.txt.gz", 50, 0.6)}
THREADS = 2
KINDS = {"float32": "parts", "bfloat16": "half_parts"}


class Ours:
    """A step of lrurec, taken apart for the clock."""

    def __init__(self, windows: Windows, items: int, length: int, dropout: float, half: bool = False) -> None:
        settings = [f"training.max_length={length}", f"model.dropout={dropout}"]
        self.half = half
        self.config = config_for("paper", None, settings)
        self.windows, self.sampler = windows, Sampler(len(windows), 128, 0)
        model = build(items, 0, self.config)
        assert isinstance(model, TrainedModel)
        self.model = model
        self.optimizer = optimizer_for(self.model, self.config.training)
        self.parts: dict[str, list[float]] = {}
        self.positions: list[int] = []

    def step(self, t: int) -> None:
        clock = [time.perf_counter()]

        def lap(name: str) -> None:
            now = time.perf_counter()
            self.parts.setdefault(name, []).append(now - clock[0])
            clock[0] = now

        packed = self.windows.pack(self.sampler.chosen(t))
        inputs, targets = torch.from_numpy(packed.inputs), torch.from_numpy(packed.targets)
        offsets = torch.from_numpy(packed.offsets)
        lap("packing the batch")
        windows = torch.from_numpy(packed.windows)
        batch = TrainingBatch(inputs, offsets, targets=targets, windows=windows, half=self.half)
        hidden, targets = self.model.examples(batch, Keys(t))
        lap("encoder, forward")
        table, bias = self.model.answers()
        loss = cross_entropy(hidden, table, bias, targets, half=self.half)
        lap("loss and its gradients")
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        lap("encoder, backward")
        clip_gradients(self.model.parameters(), 5.0)
        self.optimizer.step()
        lap("clipping and AdamW")
        self.positions.append(len(inputs))


class Peer:
    """A step of the authors' code, on the same windows, padded as it wants them."""

    def __init__(self, windows: Windows, items: int, length: int, dropout: float, path: str) -> None:
        self.windows, self.sampler, self.length = windows, Sampler(len(windows), 128, 0), length
        self.model = peer_model(path, items, dropout)
        plain = ("bias", "layer_norm")
        named = list(self.model.named_parameters())
        groups = [
            {"params": [p for n, p in named if not any(w in n for w in plain)], "weight_decay": 0.01},
            {"params": [p for n, p in named if any(w in n for w in plain)], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, eps=1e-9)

    def step(self, t: int) -> None:
        chosen = self.sampler.chosen(t)
        tokens = np.zeros((len(chosen), self.length), np.int64)
        labels = np.zeros((len(chosen), self.length), np.int64)
        for row, w in enumerate(chosen):
            start, stop = self.windows.starts[w], self.windows.stops[w]
            items = self.windows.items[start:stop].astype(np.int64) + 1
            labels[row, self.length - len(items) :] = items
            tokens[row, self.length - len(items) + 1 :] = items[:-1]
        self.model.train()
        self.optimizer.zero_grad()
        scores, _ = self.model(torch.from_numpy(tokens))
        flat = torch.from_numpy(labels).view(-1)
        loss = torch.nn.functional.cross_entropy(scores.view(-1, scores.size(-1)), flat, ignore_index=0)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()


def child(options: argparse.Namespace) -> None:
    """One side, in its own process: seconds per step and peak memory as JSON."""
    torch.set_num_threads(THREADS)
    dataset = lrurec.Dataset.open(options.data)
    _, length, dropout = DATASETS[options.dataset]
    split = lrurec.leave_last_out(dataset)
    windows = Windows.of(split.train, length, drop_rest=True)
    side: Ours | Peer
    if options.child != "peer":
        keep_memory()  # as lrurec train does it
        side = Ours(windows, dataset.n_items, length, dropout, half=options.child == "half")
    else:
        side = Peer(windows, dataset.n_items, length, dropout, options.peer)
    seconds = []
    for t in range(options.steps):
        started = time.perf_counter()
        side.step(t)
        seconds.append(time.perf_counter() - started)
    warm = seconds[1:]
    found: dict[str, Any] = {
        "seconds": statistics.median(warm),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if isinstance(side, Ours):
        found["parts"] = {n: statistics.median(v[1:]) for n, v in side.parts.items()}
        found["positions"] = statistics.median(side.positions[1:])
        found["encoder_weights"] = sum(
            p.numel() for n, p in side.model.named_parameters() if p.ndim == 2 and "blocks" in n
        )
        found["items"] = dataset.n_items
        found["gemm"] = gemm_rate()
        if options.child == "ours":
            found["users"] = len(split.test)
            found["evaluation"] = min(clock(lambda: rank(side.model, split.test, length)) for _ in range(2))
    print(json.dumps(found))


def clock(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def gemm_rate() -> float:
    """FLOP/s of a large float32 product on the threads at hand."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(times)


def ask(side: str, dataset: str, data: Path, steps: int, peer: str | None) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--child",
        side,
        "--dataset",
        dataset,
        "--data",
        str(data),
        "--steps",
        str(steps),
    ]
    # As the command line of lrurec does it; the authors' code runs as its users run it.
    environment = os.environ if side == "peer" else {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    done = subprocess.run(
        [*command, *(["--peer", peer] if peer else [])], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(dataset: str, data: Path, peer: str | None, rounds: int) -> dict[str, Any]:
    ours, halves, theirs = [], [], []
    for _ in range(rounds):
        ours.append(ask("ours", dataset, data, 12, None))
        halves.append(ask("half", dataset, data, 12, None))
        if peer:
            theirs.append(ask("peer", dataset, data, 4, peer))
    middle, half = (sorted(found, key=lambda r: r["seconds"])[len(found) // 2] for found in (ours, halves))
    flops = 6 * middle["positions"] * (middle["items"] * 64 + middle["encoder_weights"])
    row = {
        "dataset": dataset,
        "seconds": middle["seconds"],
        "peak": max(r["peak"] for r in ours),
        "positions": middle["positions"],
        "floor_seconds": flops / middle["gemm"],
        "gemm_gflops": middle["gemm"] / 1e9,
        "parts": middle["parts"],
        "half_seconds": half["seconds"],
        "half_parts": half["parts"],
        "half_peak": max(r["peak"] for r in halves),
        "users": middle["users"],
        "evaluation_seconds": middle["evaluation"],
    }
    if theirs:
        row["peer_seconds"] = statistics.median(r["seconds"] for r in theirs)
        for kind, found in (("ratios", ours), ("half_ratios", halves)):  # of neighbours: they had the same machine
            row[kind] = [t["seconds"] / r["seconds"] for t, r in zip(theirs, found, strict=True)]
        row["peer_peak"] = max(r["peak"] for r in theirs)
    return row


def growth() -> dict[str, list[dict[str, float]]]:
    """Seconds per step as length and catalogue grow, everything else the same. In its own process, like the sides."""
    torch.set_num_threads(THREADS)
    found: dict[str, list[dict[str, float]]] = {"length": [], "catalogue": []}

    def measure(items: int, length: int, sequences: int, steps: int = 4) -> tuple[float, int]:
        flat = np.random.default_rng(0).integers(0, items, sequences * length).astype(np.int32)
        starts = np.arange(sequences, dtype=np.int64) * length
        train = Sequences(flat, np.arange(sequences, dtype=np.int32), starts, starts + length)
        side = Ours(Windows.of(train, length), items, length, 0.2)
        times = []
        for t in range(steps):
            started = time.perf_counter()
            side.step(t)
            times.append(time.perf_counter() - started)
        return min(times[1:]), sequences * length

    for length in (50, 200, 1000, 5000):
        seconds, positions = measure(1000, length, 8)
        found["length"].append({"length": length, "seconds": seconds, "us_per_position": seconds / positions * 1e6})
    for items in (1_000, 10_000, 100_000, 1_000_000):
        seconds, positions = measure(items, 50, 8)
        found["catalogue"].append(
            {"items": items, "seconds": seconds, "ns_per_item": seconds / positions / items * 1e9}
        )
    return found


def faster(ratios: list[float] | None) -> str:
    """How many times, as the median over the rounds, and from where to where."""
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.0f}x ({min(ratios):.0f} to {max(ratios):.0f})"


def write(rows: list[dict[str, Any]], grown: dict[str, Any] | None, command: str) -> None:
    results = ROOT / "results"
    facts = {"command": command, "machine": machine(), "rows": rows, "growth": grown}
    (results / "train.json").write_text(json.dumps(facts, indent=1) + "\n")
    lines = [
        "# A training step",
        "",
        f"`{command}` on {machine()}; {THREADS} threads, batches of 128 windows, forward + backward + clipping + AdamW.",
        "Both sides get the same windows; the authors' code pads them, ours meets their start tokens once where they are a tenth of a batch. Each round is a process: the median of 11 warm steps of",
        "ours and of 3 of theirs; shown is the median round, the median of the rounds' ratios, and the largest peak. The floor is the arithmetic of the products",
        "(6 FLOP per position and weight, catalogue included) at the best of five large products in the same process.",
        "",
        "| dataset | lrurec s/step | authors' s/step | faster | lrurec peak | authors' peak | floor s/step | distance |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        peer = f"{r['peer_seconds']:.2f}" if "peer_seconds" in r else "-"
        ratio = faster(r.get("ratios"))
        peer_peak = f"{r['peer_peak'] / 1e9:.2f} GB" if "peer_peak" in r else "-"
        lines.append(
            f"| {r['dataset']} | {r['seconds']:.3f} | {peer} | {ratio} | {r['peak'] / 1e9:.2f} GB | {peer_peak}"
            f" | {r['floor_seconds']:.3f} | {r['seconds'] / r['floor_seconds']:.2f}x |"
        )
    columns = [(f"{r['dataset']}, {kind}", r[parts]) for kind, parts in KINDS.items() for r in rows]
    lines += ["", "Where the time goes (ms):", "", "| | " + " | ".join(title for title, _ in columns) + " |"]
    lines.append("|---|" + "---:|" * len(columns))
    for name in rows[0]["parts"]:
        lines.append(f"| {name} | " + " | ".join(f"{parts[name] * 1e3:.0f}" for _, parts in columns) + " |")
    lines += [
        "",
        "With products in bfloat16 (`training.precision=bfloat16`, which the recipe `fast` takes on such a processor):",
        "",
        "| dataset | s/step | against the authors' | against float32 | peak |",
        "|---|---:|---:|---:|---:|",
    ]
    for r in rows:
        ratio = faster(r.get("half_ratios"))
        gain = r["seconds"] / r["half_seconds"]
        peak = f"{r['half_peak'] / 1e9:.2f} GB"
        lines.append(f"| {r['dataset']} | {r['half_seconds']:.3f} | {ratio} | {gain:.2f}x | {peak} |")
    lines += [
        "",
        "Ranking the test items of all users against the whole catalogue (better of two in the process of the median round):",
        "",
        "| dataset | users | s | in training steps |",
        "|---|---:|---:|---:|",
    ]
    for r in rows:
        steps = r["evaluation_seconds"] / r["seconds"]
        lines.append(f"| {r['dataset']} | {r['users']:,} | {r['evaluation_seconds']:.2f} | {steps:.1f} |")
    if grown:
        lines += [
            "",
            "How the step grows with the length of histories (8 windows, 1,000 items; best of three steps):",
            "",
            "| length | s/step | us per position |",
            "|---:|---:|---:|",
        ]
        lines += [f"| {g['length']:,} | {g['seconds']:.4f} | {g['us_per_position']:.2f} |" for g in grown["length"]]
        lines += [
            "",
            "And with the catalogue (8 windows of 50; best of three steps):",
            "",
            "| items | s/step | ns per position and item |",
            "|---:|---:|---:|",
        ]
        lines += [f"| {g['items']:,} | {g['seconds']:.4f} | {g['ns_per_item']:.2f} |" for g in grown["catalogue"]]
    (results / "train.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a checkout of the authors' repository")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", choices=("ours", "half", "peer", "growth"), help=argparse.SUPPRESS)
    parser.add_argument("--dataset", help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=12, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "growth":
        print(json.dumps(growth()))
        return
    if options.child:
        child(options)
        return
    if "LRUREC_DATA" not in os.environ:
        raise SystemExit("set LRUREC_DATA to the folder with ml-1m/ and beauty/")
    command = "python bench/train.py" + (" --peer PATH" if options.peer else "")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (file, _, _) in DATASETS.items():
            data = Path(folder) / name
            lrurec.load_events(Path(os.environ["LRUREC_DATA"]) / file, out=data, recipe="paper")
            rows.append(compare(name, data, options.peer, options.rounds))
            write(rows, None, command)
            print(json.dumps(rows[-1]), flush=True)
    write(rows, ask("growth", "", Path(), 0, None), command)


if __name__ == "__main__":
    main()
