"""One epoch at the size of XLong: how good the model is behind it, beside popularity and a Markov chain.

    lrurec data synth --preset xlong --out xlong.parquet
    lrurec prepare xlong.parquet --out data/xlong
    python bench/epoch.py --dataset data/xlong --run runs/xlong [--users 2000] [--pairs 32000000,64000000]

The run is a plain `lrurec train` with SETTINGS; one that is there is not trained again. Some users' test items are ranked among 10,000 sampled ones, as the paper does, and among all.
The learning curve: the weights of each validation, with a memory of as large a share of the log as they had seen (histories drawn at random), rank the validation
items of these users; popularity and the Markov chain beside them know the whole log. With --pairs, the same items are ranked with memories of other sizes, too (memory.pairs),
each learned anew. Tables go to results/epoch.md and results/epoch.json, after each line, the figure to results/epoch.png and results/epoch.svg.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from lrurec.data.split import Sequences, Targets, leave_last_out
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.metrics import summary
from lrurec.evaluation.ranking import rank
from lrurec.models.base import Model, TrainedModel
from lrurec.models.markov import Markov
from lrurec.models.popularity import Popularity
from lrurec.training.checkpoint import load_checkpoint, restore_model, save_tensors
from lrurec.training.config import config_for
from lrurec.training.learner import build
from lrurec.training.remembering import hold_back, remember, remembered
from lrurec.training.run import Run
from lrurec.training.trainer import BEST, LAST, validations
from measure import machine

ROOT = Path(__file__).parents[1]
SETTINGS = (
    "training.max_length=1000", "training.batch=32", "training.loss=sampled", "training.negatives=4096",
    "training.shared_negatives=true", "training.candidates=10000", "training.steps=2205", "training.validate_every=736",
    "memory.use=true",
)  # fmt: skip
TRAINED = "training.json"  # in the run: what its training took
CURVE = "curve"  # in the run: the checkpoints of its validations


def train(dataset: Path, run: Path) -> None:
    """The run, if it is not there yet, and how much memory its process had at most."""
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "-m", "lrurec.cli.main", "train", str(dataset), "--out", str(run), *options]
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            time.sleep(1)
            keep(run)
    if process.returncode:
        sys.exit(process.returncode)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    (run / TRAINED).write_text(json.dumps({"peak": peak, "threads": torch.get_num_threads()}) + "\n")


def keep(run: Path) -> None:
    """The checkpoint of the last validation stays under the name of its step, when another takes its place."""
    if not (run / LAST).exists():
        return
    aside = run / CURVE / "aside"
    aside.parent.mkdir(exist_ok=True)
    aside.unlink(missing_ok=True)
    os.link(run / LAST, aside)  # it is replaced, never written to
    with safe_open(aside, framework="pt") as file:
        step = json.loads(file.metadata()["state"])["step"]
    aside.replace(aside.with_name(f"{step}.safetensors"))
    aside.unlink(missing_ok=True)  # to move a file onto itself does nothing


def saving(run: Path) -> float:
    """Seconds that both checkpoints of a validation take, written once more."""
    again, total = run / "again.safetensors", 0.0
    for name in (LAST, BEST):
        tensors, state = load_checkpoint(run / name)
        started = time.perf_counter()
        save_tensors(again, tensors, state)
        total += time.perf_counter() - started
        again.unlink()
    return total


def popularity(train: Sequences, items: int) -> Model:
    model = build(items, 0, config_for("paper", None, [], "popularity"))
    assert isinstance(model, Popularity)
    model.keep("counts", torch.from_numpy(train.counts(items)).float())
    return model


def markov(train: Sequences, targets: Targets, items: int) -> Model:
    """The Markov chain with the rows that these targets look up; the others, which nobody asks for, stay empty."""
    model = build(items, 0, config_for("paper", None, [], "markov"))
    assert isinstance(model, Markov)
    c, counts = model.config, train.counts(items)
    wanted = np.zeros(items, np.bool_)
    for k in range(len(targets)):
        wanted[targets.history(k)[-c.window :]] = True
    whose = np.full(len(train.items), -1, np.int32)
    for k in range(len(train)):
        whose[train.starts[k] : train.stops[k]] = k
    keys, weights = [], []
    for gap in range(1, c.window + 1):
        near = np.flatnonzero(wanted[train.items[:-gap]] & (whose[:-gap] == whose[gap:]) & (whose[:-gap] >= 0))
        keys.append(train.items[near].astype(np.int64) * items + train.items[near + gap])
        weights.append(np.full(len(near), c.decay ** (gap - 1)))
    pairs, which = np.unique(np.concatenate(keys), return_inverse=True)
    before, after = pairs // items, pairs % items
    total = np.bincount(which, np.concatenate(weights)) / counts[before] ** c.from_power / counts[after] ** c.to_power
    model.keep("counts", torch.from_numpy(counts).float())
    model.keep("starts", torch.from_numpy(np.searchsorted(before, np.arange(items + 1))))
    model.keep("followers", torch.from_numpy(after))
    model.keep("weights", torch.from_numpy(total).float())
    return model


def some(of: Sequences, which: NDArray[np.int64]) -> Sequences:
    return replace(of, users=of.users[which], starts=of.starts[which], stops=of.stops[which])


def measured(model: Model, targets: Targets, max_length: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, candidates in (("sampled", Candidates(10_000, 0)), ("all", None)):
        started = time.perf_counter()
        found[name] = summary(rank(model, targets, max_length, candidates=candidates).ranks)
        found[f"{name}_seconds"] = time.perf_counter() - started
    return found


def page(found: dict[str, Any]) -> str:
    others = list(found["sizes"])[1:]
    pairs = f" --pairs {','.join(others)}" if others else ""
    lines = [
        "# One epoch at the size of XLong",
        "",
        f"`python bench/epoch.py --dataset data/xlong --run RUN --users {found['users']}{pairs}` on {found['machine']}; its docstring has the commands that make the dataset.",
        f"A made-up log: {found['log']['users']:,} users, {found['log']['items']:,} items, {found['log']['interactions']:,} events. Width 64, length 1,000, batches of 32,",
        f"{found['steps']:,} steps: every event once. {found['training']} Test items of {found['users']:,} users drawn at random.",
        "",
        *grid("", found["models"]),
    ]
    if found["points"]:
        lines += [
            "",
            "The learning curve: the model with its memory after a part of the epoch, the memory having seen as large a share of the histories. Popularity and the chain know",
            f"the whole log. Validation items of the same {found['users']:,} users:",
            "",
            *grid("step", found["points"] | found["lines"]),
            "",
            "![the learning curve](epoch.svg)",
        ]
    if found["sizes"]:
        lines += [
            "",
            f"Validation items of the same {found['users']:,} users, by the size of the memory (`memory.pairs`):",
            "",
            *grid("pairs", found["sizes"]),
        ]
    lines += ["", "The model alone, as it learned (validation, 10,000 sampled items, all users):", ""]
    lines += ["| step | Recall@10 | NDCG@10 |", "|---:|---:|---:|"]
    lines += [f"| {r['step']:,} | {r['recall@10']:.4f} | {r['ndcg@10']:.4f} |" for r in found["curve"]]
    return "\n".join(lines) + "\n"


def grid(head: str, rows: dict[str, Any]) -> list[str]:
    lines = [
        f"| {head} | Recall@10, 10,000 sampled | NDCG@10 | Recall@10, all items | NDCG@10 |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        cells = [f"{row[p][m]:.4f}" for p in ("sampled", "all") for m in ("recall@10", "ndcg@10")]
        lines.append(f"| {f'{int(name):,}' if name.isdigit() else name} | {' | '.join(cells)} |")
    return lines


def draw(found: dict[str, Any], folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2))
    for axis, part, title in zip(
        axes, ("sampled", "all"), ("among 10,000 sampled items", "among all items"), strict=True
    ):
        steps = sorted(map(int, found["points"]))
        axis.plot(steps, [found["points"][str(s)][part]["recall@10"] for s in steps], "o-", label="with its memory")
        for (name, row), look in zip(found["lines"].items(), (":", "--"), strict=True):
            axis.axhline(row[part]["recall@10"], ls=look, color="grey", label=name)
        axis.set(title=title, xlabel="step", ylim=(0, None))
    axes[0].set_ylabel("Recall@10, validation")
    axes[0].legend(loc="center right")
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(folder / f"epoch.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, type=Path)
    parser.add_argument("--dataset", type=Path, help="trains the run on it, if it is not there")
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--pairs", metavar="N,M", help="other sizes of the memory, for validation")
    options = parser.parse_args()
    if options.dataset and not (options.run / "result.json").exists():
        train(options.dataset, options.run)
    opened = Run.open(options.run)
    dataset = opened.dataset()
    split, items = leave_last_out(dataset), dataset.n_items
    drawn = np.sort(np.random.default_rng(0).permutation(len(split.test))[: options.users])
    targets, valid = (
        Targets(t.items, t.users[drawn], t.starts[drawn], t.positions[drawn]) for t in (split.test, split.valid)
    )
    model = opened.model()
    assert isinstance(model, TrainedModel)
    curve = validations(options.run)
    took = json.loads((options.run / TRAINED).read_text())
    rate, share = split.train.n_events / curve[-1]["seconds"], len(curve) * saving(options.run) / curve[-1]["seconds"]
    found: dict[str, Any] = {
        "machine": machine(), "users": len(targets), "log": opened.manifest["dataset"]["counts"], "steps": curve[-1]["step"],
        "curve": curve, "models": {}, "lines": {}, "points": {}, "sizes": {}, "items_per_second": rate, "peak": took["peak"], "saving": share,
        "training": (
            f"Training with {took['threads']} threads, validation included: {rate:,.0f} items/s, {took['peak'] / 1e9:.1f} GB at most (the learning of"
            f" the memory included), {share:.1%} of the time for its {len(curve)} checkpoints."
        ),
    }  # fmt: skip
    memory, final = model.memory, {name: p.detach().clone() for name, p in model.named_parameters()}

    def note(name: str, some: Model, part: str = "models", whose: Targets = targets) -> None:
        found[part][name] = measured(some, whose, opened.config.training.seen)
        print(name, found[part][name], file=sys.stderr)
        (ROOT / "results" / "epoch.json").write_text(json.dumps(found, indent=1) + "\n")
        (ROOT / "results" / "epoch.md").write_text(page(found))

    note("popularity", popularity(split.train, items))
    note("a Markov chain", markov(split.train, targets, items))
    model.memory = None
    note("the model alone", model)
    if memory is not None:
        model.memory = memory
        note("the model with its memory", model)
        own, t = opened.config.memory, opened.config.training
        note("popularity", popularity(split.train, items), "lines", valid)
        note("a Markov chain", markov(split.train, valid, items), "lines", valid)
        kept, held = hold_back(split.train, own.held_back, t.seed)
        order = np.random.default_rng(1).permutation(len(split.train))
        whole = json.loads((options.run / "result.json").read_text())["best_step"]
        for step in sorted(int(path.stem) for path in (options.run / CURVE).glob("*.safetensors")):
            if step == whole == curve[-1]["step"]:  # that is the run itself
                model.restore(final)
                model.memory = memory
            else:
                restore_model(model, load_checkpoint(options.run / CURVE / f"{step}.safetensors")[0])
                seen = np.sort(order[: round(len(order) * min(1, step / curve[-1]["step"]))])
                model.memory = None
                model.memory = remembered(model, some(kept, seen), held, some(split.train, seen), own, t.seen, t.seed)
            note(str(step), model, "points", valid)
        model.restore(final)
        model.memory = memory
        if options.pairs:
            note(str(items * own.of_each(items)), model, "sizes", valid)
        for pairs in map(int, options.pairs.split(",") if options.pairs else ()):
            model.memory = None
            model.memory = remember(model, split.train, replace(own, pairs=pairs), t.seen, t.seed)
            note(str(pairs), model, "sizes", valid)
        draw(found, ROOT / "results")


if __name__ == "__main__":
    main()
