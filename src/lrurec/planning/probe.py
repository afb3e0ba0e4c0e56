"""A few steps, ranks and requests of some size, measured in a process of its own. Knows a sample, not the whole log.

python -m lrurec.planning.probe FOLDER      with question.json and the arrays of the sample; the answer is JSON on stdout
"""

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrurec.data.split import Sequences, Targets
from lrurec.errors import LrurecError
from lrurec.evaluation.candidates import Candidates
from lrurec.evaluation.ranking import rank
from lrurec.export import shape_of, weights_of
from lrurec.models.base import TrainedModel
from lrurec.models.lrurec import LRURec
from lrurec.serving.approximate import FILES, Approximate
from lrurec.serving.copies import engine_of
from lrurec.serving.engine import Floats
from lrurec.serving.indexing import LARGE, build_index
from lrurec.serving.retrieval import Exact, Retriever
from lrurec.serving.scanned import Scanned
from lrurec.training.checkpoint import load_checkpoint, restore_model, save_checkpoint
from lrurec.training.config import RunConfig, from_values
from lrurec.training.learner import build
from lrurec.training.memory import keep_memory
from lrurec.training.remembering import timed as memory_timed
from lrurec.training.together import learner_for

WARM, TIMED = 2, 5  # steps before the clock and under it
_RANKED, _ASKED, _K = 512, 40, 20  # users that are ranked; requests, and how many items they want
_EXAMPLES = 256  # of events held back
_SERVED = 200_000  # items that are asked for recommendations, at most: building an index takes longer than asking


@dataclass(frozen=True)
class Measured:
    """Of one size: seconds and bytes."""

    step: float  # seconds
    positions: float  # per step
    ranked: float  # seconds per user
    peak: float  # bytes a process holds that trains and validates
    weights: float  # bytes of a checkpoint without what it needs to go on
    resumable: float  # and with it
    observe: float | None  # seconds per event; None: it cannot be served
    exact: float | None  # seconds per top-k of all items
    scanned: float | None  # the same by way of codes; None: too few items
    approximate: float | None  # None: too few items
    index: float  # bytes of the index
    counted: float = 0.0  # seconds per event that a memory counts
    example: float = 0.0  # and per example that it learns from
    learned: float = 0.0  # and per step of that


def measure(config: RunConfig, items: int, users: int, train: Sequences, served: int) -> Measured:
    """Train a little on a sample, rank some users, ask for recommendations from `served` items."""
    learner = learner_for(items, users, train, config)
    seconds, positions = [], []
    for number in range(min(WARM + TIMED, learner.steps)):
        started = time.perf_counter()
        _, count = learner.step(number)
        seconds.append(time.perf_counter() - started)
        positions.append(count)
    learner.settle()
    t = learner.config.training
    some = train.stops - train.starts > 1
    targets = Targets(train.items, train.users[some], train.starts[some], train.stops[some] - 1).part(0, _RANKED)
    drawn = Candidates(t.candidates, 0) if t.candidates else None
    ranked = 0.0
    for _ in range(2):  # the first one compiles
        started = time.perf_counter()
        rank(learner.model, targets, t.seen, candidates=drawn, device=t.device)
        ranked = (time.perf_counter() - started) / max(len(targets), 1)
    with tempfile.TemporaryDirectory() as folder:  # as at the end of a run: a checkpoint is written, the best one read
        save_checkpoint(Path(folder) / "last", learner.model, learner.tensors(), {})
        again = build(items, users, learner.config)
        restore_model(again, load_checkpoint(Path(folder) / "last")[0])
        rank(again, targets.part(0, 1), t.seen, candidates=drawn, device=t.device)
        del again
    remembering = (0.0, 0.0, 0.0)
    if config.memory.use and isinstance(learner.model, TrainedModel):
        remembering = memory_timed(learner.model, train, config.memory, t.seen, _EXAMPLES)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    weights = sum(p.numel() * p.element_size() for p in learner.model.parameters())
    more = sum(x.numel() * x.element_size() for x in learner.tensors().values())
    timed = seconds[WARM:] or seconds
    found = (
        statistics.median(timed),
        float(np.mean(positions)),
        ranked,
        float(peak),
        float(weights),
        float(weights + more),
    )
    return Measured(*found, *_served(learner.model, served), *remembering)


def _served(model: Any, items: int) -> tuple[float | None, float | None, float | None, float | None, float]:
    """Of a catalogue of so many items, whatever the model was built for."""
    if not isinstance(model, LRURec) or model.config.mixer not in ("lru", "rwkv"):
        return None, None, None, None, 0.0
    model, rng = model.cpu(), np.random.default_rng(0)
    engine = engine_of(shape_of(model), weights_of(model), model.item_table()[0].detach().numpy())
    state, width = engine.initial(1), engine.table.shape[1]
    hidden = np.zeros((1, width), np.float32)

    def observe() -> None:
        nonlocal hidden
        hidden = engine.step(state, rng.integers(0, model.sizes.items, 1))

    seconds = _seconds(observe)
    sizes = [max(1, min(items, most)) for most in (_SERVED // 2, _SERVED)]
    ways: list[tuple[float, float, float, float]] = []
    for rows in sizes:
        table = rng.standard_normal((rows, width), np.float32)
        bias = rng.standard_normal(rows, np.float32)
        ways.append(_asked(table, bias, items >= LARGE))
    exact, scanned, approximate, size = (line(sizes, values, items) for values in zip(*ways, strict=True))
    if items < LARGE:
        return seconds, exact, None, None, 0.0
    return seconds, exact, scanned, approximate, size


def _asked(table: Floats, bias: Floats, large: bool) -> tuple[float, float, float, float]:
    """Seconds per request: exact, scanned, approximate; and the bytes of the approximate index."""
    queries = np.random.default_rng(1).standard_normal((64, table.shape[1]), np.float32)

    def asked(retriever: Retriever) -> float:
        return _seconds(lambda: retriever.search(queries[:1], _K))

    exact, scanned, approximate, size = asked(Exact(table, bias)), 0.0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        if large:
            scanned = asked(Scanned.build(Path(folder), table, bias))
            made = build_index(Path(folder), table, bias, queries)
            approximate = asked(Approximate.open(Path(folder), made["candidates"], table, bias))
            size = float(sum((Path(folder) / name).stat().st_size for name in FILES))
    return exact, scanned, approximate, size


def line(at: Sequence[float], values: Sequence[float], there: float) -> float:
    """What lies `there` on the straight line through two points; nothing shrinks behind them."""
    (a, b), (first, second) = at, values
    return second if a == b else second + max(0.0, (second - first) / (b - a)) * (there - b)


def _seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(_ASKED):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[_ASKED // 4 :])


def main(folder: Path) -> None:
    keep_memory()  # as lrurec train does it
    question = json.loads((folder / "question.json").read_text())
    arrays = [np.load(folder / f"{name}.npy") for name in ("items", "users", "starts", "stops")]
    torch.set_num_threads(question["threads"])
    config = from_values(question["config"])
    try:
        found = measure(config, question["items"], question["users"], Sequences(*arrays), question["served"])
    except LrurecError as error:
        raise SystemExit(f"{error}") from None
    except MemoryError:
        raise SystemExit("out of memory; lower training.batch, training.max_length or training.negatives") from None
    print(json.dumps(found.__dict__))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
