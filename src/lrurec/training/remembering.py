"""How much to believe a memory: learned from the ends of some training histories. Knows a model, counts and targets.

The ends are held back: neither the model nor the counts that g is learned with have seen them, so both say of them what
they will say of new events. No item of validation or test takes part. Afterwards all of the training data is counted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.arrays import spans
from lrurec.config import differs
from lrurec.data.split import Sequences, Targets
from lrurec.errors import FolderError
from lrurec.evaluation.ranking import histories, seen_by
from lrurec.evaluation.tiles import rank_in_tiles
from lrurec.kernels.recall import INPUTS
from lrurec.memory.memory import Memory, Weights, described
from lrurec.memory.transitions import MemoryConfig, Transitions
from lrurec.models.base import TrainedModel
from lrurec.nn.threads import at_once
from lrurec.training.checkpoint import load_checkpoint, save_tensors
from lrurec.training.config import RunConfig
from lrurec.training.memory import give_back

_MOST = 20_000  # events that are held back
_TAIL = 10  # one in so many of a history's events
_SPREAD = 20  # and one in so many of all that are held back: they come from many histories, if there are many
_BEST, _RECALLED, _RANDOM = 128, 200, 64  # rivals of an answer: the model's best, the memory's best, any the memory has
_NETWORKS = 2  # that g is the mean of: from few examples, each learns some chance of its own
_HIDDEN, _STEPS, _BATCH, _RATE, _DECAY = 32, 800, 256, 1e-2, 1e-2  # of each
_EPOCHS, _FEWEST = 400, 100  # of a few hundred examples each is looked at so often; steps that it takes at least
_TRIED = 20  # steps of a trial that is timed
_FIXED = 1e-2  # inputs of g (logarithms, scores, cosines) that vary by less do not count
_EVENTS = 256  # targets looked at together: their histories are encoded at once
_COUNTED, _SHOWN, _LEARNED = 0.1, 0.5, 0.9  # shares of the work that are about done behind counting, examples, learning


def hold_back(train: Sequences, share: float, seed: int) -> tuple[Sequences, Targets]:
    """Training sequences without the ends of some of them, and those ends as targets."""
    lengths = train.stops - train.starts
    order = np.random.default_rng([seed, 0x6D656D]).permutation(np.flatnonzero(lengths >= 3))
    wanted = _wanted(int(lengths.sum()), share)
    tails = np.clip(lengths[order] // _TAIL, 1, max(1, wanted // _SPREAD))
    many = int(np.searchsorted(np.cumsum(tails), wanted, side="right"))
    chosen, tails = order[:many], tails[:many]
    stops = train.stops.copy()
    stops[chosen] -= tails
    whose = np.repeat(chosen, tails)
    held = Targets(train.items, train.users[whose], train.starts[whose], spans(stops[chosen], tails), train.gaps)
    return replace(train, stops=stops), held


def held_back(events: int, config: MemoryConfig) -> int:
    """How many of so many training events are held back, at most."""
    return _wanted(events, config.held_back)


def _wanted(events: int, share: float) -> int:
    return min(_MOST, max(1, int(share * events)))


def timed(
    model: TrainedModel, train: Sequences, config: MemoryConfig, max_length: int, most: int
) -> tuple[float, float, float]:
    """Seconds that it takes to count an event, to make an example, and for a step of learning, as a small trial has it."""
    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return clock[-1] - clock[-2]

    kept, held = hold_back(train, config.held_back, 0)
    Transitions.count(kept.items, kept.starts[:1], kept.stops[:1], model.sizes.items, config)  # compiles
    lap()
    counted = Transitions.count(kept.items, kept.starts, kept.stops, model.sizes.items, config, at_once)
    counting = lap() / max(1, kept.n_events)
    _examples(model, counted, held.part(0, 1), max_length, 0, "cpu", config)
    lap()
    examples = _examples(model, counted, held.part(0, most), max_length, 0, "cpu", config)
    making = lap() / max(1, min(most, len(held)))
    _learned(examples, 0, _TRIED)
    return counting, making, lap() / _TRIED * _BATCH / max(1, min(_BATCH, len(examples.answers)))


def learning_steps(examples: int) -> int:
    """How many steps each network of g takes."""
    return min(_STEPS, max(_FEWEST, _EPOCHS * examples // _BATCH))


def learning_bytes(events: int, config: MemoryConfig) -> int:
    """What learning g takes, at most, of so many training events: the examples, and what a step makes of some of them."""
    rivals = _BEST + _RECALLED + _RANDOM
    return 4 * rivals * (held_back(events, config) * (INPUTS + 2) + 6 * _BATCH * _HIDDEN)


def remember(
    model: TrainedModel,
    train: Sequences,
    config: MemoryConfig,
    max_length: int,
    seed: int,
    device: str = "cpu",
    watch: Callable[[str], None] = lambda line: None,
    progress: Callable[[float], None] = lambda share: None,
) -> Memory:
    """The memory of a model that was trained on what `hold_back` leaves of `train`."""
    kept, held = hold_back(train, config.held_back, seed)
    return remembered(model, kept, held, train, config, max_length, seed, device, watch, progress)


def remembered(
    model: TrainedModel,
    kept: Sequences,
    held: Targets,
    whole: Sequences,
    config: MemoryConfig,
    max_length: int,
    seed: int,
    device: str = "cpu",
    watch: Callable[[str], None] = lambda line: None,
    progress: Callable[[float], None] = lambda share: None,
) -> Memory:
    """A memory of `whole`, believed as much as one of `kept` was right about the targets held back from it."""
    items = model.sizes.items
    watch("counting what came near what")
    counted = Transitions.count(kept.items, kept.starts, kept.stops, items, config, at_once)
    watch(f"learning how much to believe it, from {len(held):,} events held back")
    progress(_COUNTED)
    examples = _examples(model, counted, held, max_length, seed, device, config, _within(progress, _COUNTED, _SHOWN))
    if not len(held):
        watch("it will add nothing: no training history has the three events that it takes to hold one back")
    elif not bool(examples.recalled.any()):
        watch("it will add nothing: it knew no item that was new to any of those users")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the steps are small: threads would wait for each other most of the time
    try:
        weights = _learned(examples, seed, progress=_within(progress, _SHOWN, _LEARNED))
    finally:
        torch.set_num_threads(threads)
    del counted, examples  # before there is another of the first
    give_back()
    if weights.w2.any():
        watch("counting once more, with what was held back")
    memory = Memory(Transitions.count(whole.items, whole.starts, whole.stops, items, config, at_once), weights)
    progress(1.0)
    return memory


def _within(progress: Callable[[float], None], begin: float, end: float) -> Callable[[float], None]:
    """Progress of a part of the work, from one share of the whole to another."""
    return lambda share: progress(begin + (end - begin) * share)


def save_memory(path: Path, memory: Memory, config: RunConfig, content_id: str) -> None:
    """Into the folder of a run with this config, on the dataset with this content."""
    arrays = {name: torch.from_numpy(array) for name, array in memory.arrays().items()}
    save_tensors(path, arrays, {"dataset": content_id, "config": config.values()})


def load_memory(path: Path, n_items: int, config: RunConfig, content_id: str) -> Memory:
    """The memory of a run; one that was learned beside another model, or from another log, is refused."""
    tensors, of = load_checkpoint(path)
    own = {"dataset": content_id, "config": config.values()}
    if of and (other := differs(of, own)):  # files of before say nothing
        raise FolderError(
            f"{path} is of another run (its {other} is different); put its own back from a copy, or train again with another --out"
        )
    try:
        return Memory.of({name: tensor.numpy() for name, tensor in tensors.items()}, n_items)
    except FolderError as error:
        raise FolderError(f"{path}: {error}") from None


@dataclass(frozen=True)
class _Examples:
    """Answers among rivals, each row one: inputs of g [n, k, INPUTS], scores [n, k], which are brought to mind, the answer."""

    inputs: Tensor
    scores: Tensor  # minus infinity where there is no rival
    recalled: Tensor
    answers: Tensor
    weights: Tensor  # how much each counts: 1 on average


def weights_of(counts: NDArray[np.int64], config: MemoryConfig) -> NDArray[np.float64]:
    """How much answers count in learning g, by how often each occurred: the rarer the more, up to where all weigh alike.

    >>> weights_of(np.array([0, 3, 8, 8, 99]), MemoryConfig(rare=0.5, rare_below=0.5)).round(2).tolist()
    [1.0, 0.5, 0.33, 0.33, 0.33]
    >>> weights_of(np.array([0, 3, 8, 8, 99]), MemoryConfig(rare=0.5)).round(2).tolist()
    [1.0, 0.5, 0.33, 0.33, 0.1]
    """
    most = np.quantile(counts, config.rare_below) if len(counts) else 0.0
    found: NDArray[np.float64] = (np.minimum(counts, most) + 1.0) ** -config.rare
    return found


@torch.no_grad()
def _examples(
    model: TrainedModel,
    counted: Transitions,
    held: Targets,
    max_length: int,
    seed: int,
    device: str,
    config: MemoryConfig,
    progress: Callable[[float], None] = lambda share: None,
) -> _Examples:
    width = _BEST + _RECALLED + _RANDOM
    rng = np.random.default_rng([seed, 0x657861])
    all_items, all_biases = (t.detach().cpu() for t in model.item_table())
    table, bias = all_items.numpy(), all_biases.numpy()
    inputs, scores = np.zeros((len(held), width, INPUTS), np.float32), np.full((len(held), width), -np.inf, np.float32)
    recalled, answers = np.zeros((len(held), width), np.bool_), np.zeros(len(held), np.int64)
    weights = np.zeros(len(held), np.float32)
    heavy = weights_of(counted.counts[held.answers()], config)
    n = 0
    for first in range(0, len(held), _EVENTS):
        progress(first / len(held))
        some = held.part(first, first + _EVENTS)
        vectors = model.last(histories(some, 0, len(some), max_length, device)).cpu()
        gone, wanted = seen_by(some, 0, len(some), max_length), some.answers().astype(np.int64)
        _, best = rank_in_tiles(vectors, all_items, all_biases, wanted, gone, min(_BEST, len(bias)), None)
        hidden = vectors.numpy()
        for k in range(len(some)):
            history, answer = some.history(k)[-max_length:], some.answer(k)
            brought, own, known = described(counted, history, hidden[k], table, bias)
            new = ~np.isin(brought, history)
            brought, own, known = brought[new], own[new], known[new]
            chosen = _rivals(brought, known, best[k], rng)
            at = np.flatnonzero(chosen == answer)
            if not len(at):
                continue
            x, s, is_recalled, answers[n] = inputs[n], scores[n], recalled[n], at[0]
            weights[n] = heavy[first + k]
            n += 1
            s[: len(chosen)] = table[chosen] @ hidden[k] + bias[chosen]
            if len(brought):
                order = np.argsort(brought)
                place = order[np.minimum(np.searchsorted(brought[order], chosen), len(brought) - 1)]
                here = np.flatnonzero(brought[place] == chosen)
                is_recalled[here], x[here], s[here] = True, known[place[here]], own[place[here]]
    weights /= max(float(weights[:n].mean()), 1e-30) if n else 1.0
    return _Examples(*(torch.from_numpy(array[:n]) for array in (inputs, scores, recalled, answers, weights)))


def _rivals(
    brought: NDArray[np.int32], known: NDArray[np.float32], best: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Items that could be shown: the model's best, the memory's best, and some that it hardly remembers."""
    after, before = np.exp(known[:, :2]).T
    order = np.argsort(-(after + 0.3 * before), kind="stable")
    rest = order[_RECALLED:]
    some = rng.permutation(rest)[:_RANDOM]
    return np.unique(np.concatenate([best, brought[order[:_RECALLED]], brought[some]]).astype(np.int64))


def _learned(
    examples: _Examples, seed: int, most: int = _STEPS, progress: Callable[[float], None] = lambda share: None
) -> Weights:
    """g, by the cross entropy of answers among their rivals; zero where there is nothing to learn from. Uses up the examples."""
    count = len(examples.answers)
    if not bool(examples.recalled.any()):
        return Weights(*(np.zeros(shape, np.float32) for shape in ((INPUTS, 1), (1,), (1,), (1,))))
    real = examples.scores > -torch.inf
    scores = examples.scores.masked_fill(~real, 0.0)
    rows = examples.inputs[examples.recalled]
    mean, spread = rows.mean(0), rows.std(0)
    spread[spread < _FIXED] = torch.inf  # what was always the same here teaches nothing of when it is not
    del rows
    x = examples.inputs.sub_(mean).div_(spread)  # in place: there may be half a gigabyte of them
    steps = min(most, learning_steps(count))
    generator = torch.Generator().manual_seed(seed)
    parts = [_within(progress, k / _NETWORKS, (k + 1) / _NETWORKS) for k in range(_NETWORKS)]
    found = [_network(x, scores, real, examples, steps, generator, part) for part in parts]
    w1, b1, w2, b2 = (torch.cat(some) for some in zip(*found, strict=True))
    scaled = w1 / spread  # on inputs as they are; the mean of the networks is one of all their units
    whole = scaled.T.contiguous(), b1 - scaled @ mean, w2 / _NETWORKS, b2.mean()[None]
    return Weights(*(t.numpy().copy() for t in whole))


def _network(
    x: Tensor,
    scores: Tensor,
    real: Tensor,
    examples: _Examples,
    steps: int,
    generator: torch.Generator,
    progress: Callable[[float], None],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """w1 [H, INPUTS], b1 [H], w2 [H], b2 [1] of one network on inputs x, with examples drawn by the generator."""
    count = len(examples.answers)
    w1 = nn.Parameter(torch.randn(_HIDDEN, INPUTS, generator=generator) * INPUTS**-0.5)
    b1 = nn.Parameter(torch.zeros(_HIDDEN))
    w2 = nn.Parameter(torch.randn(_HIDDEN, generator=generator) * 0.1)
    b2 = nn.Parameter(torch.zeros(()))
    heat = nn.Parameter(torch.zeros(()))  # the model may be too sure, or not sure enough: no matter for the order
    parameters = [w1, b1, w2, b2, heat]
    optimiser = torch.optim.AdamW(parameters, lr=_RATE, weight_decay=_DECAY)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps)
    for number in range(steps):
        progress(number / steps)
        chosen = torch.randint(0, count, (min(count, _BATCH),), generator=generator)
        recalled = examples.recalled[chosen]
        more = F.linear(F.relu(F.linear(x[chosen][recalled], w1, b1)), w2[None])[:, 0] + b2
        total = (scores[chosen] + torch.zeros(recalled.shape).masked_scatter(recalled, more)) * heat.exp()
        each = F.cross_entropy(total.masked_fill(~real[chosen], -torch.inf), examples.answers[chosen], reduction="none")
        loss = (each * examples.weights[chosen]).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        rates.step()
    return w1.detach(), b1.detach(), w2.detach(), b2.detach()[None]
