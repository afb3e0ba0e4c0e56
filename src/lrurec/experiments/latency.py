"""The paper's Figure 1, right: the time of 2,048 predictions while the histories grow by one item after each.

Models that step (LRURec, GRU4Rec) go on from their states; SASRec, which cannot, encodes the whole history each time. All
three then score every item. Their weights are as drawn: time does not depend on what they learned.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lrurec.experiments.figures import COLOURS, Line, lines
from lrurec.experiments.machine import machine
from lrurec.experiments.made import Made, grid
from lrurec.experiments.published import published
from lrurec.models.base import Batch, RecurrentModel, Sizes, TrainedModel
from lrurec.models.registry import MODELS, model_class
from lrurec.training.run import write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("lrurec", "gru4rec", "sasrec")
STEPS, USERS, ITEMS = 2048, 4, 3416  # the catalogue of ML-1M
LENGTH, EXAMPLES, ROUNDS = 50, 256, 7  # for examples per second
MEASURED = "latency/measured.json"


def measure(out: Path, again: bool, say: Callable[[str], None], steps: int = STEPS) -> None:
    """Time everything, in turn, unless it is there."""
    path = out / MEASURED
    if path.exists() and not again:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    models = {name: _model(name, max(steps, LENGTH)) for name in NAMES}
    found: dict[str, Any] = {"machine": machine(), "threads": torch.get_num_threads(), "users": USERS, "items": ITEMS}
    with torch.no_grad():
        for name, model in models.items():
            say(f"timing    {MODELS[name].card.title}, {steps:,} predictions")
            found[name] = {"steps": isinstance(model, RecurrentModel), "cumulative": _cumulative(model, steps)}
        for name, rates in _rates(models).items():
            found[name]["examples_per_second"] = rates
    write_json(path, found)


def made(out: Path) -> Made:
    paper = published("latency")
    path = out / MEASURED
    whole: dict[str, Any] = {"target": "latency", "paper": paper.paper, "table": paper.table, "measured": None}
    head = [
        f"# {paper.table}: predictions while histories grow",
        "",
        f"The figure that it stands beside: {paper.table} of {paper.paper}.",
        "",
    ]
    if not path.exists():
        return Made(whole, "\n".join([*head, "Not measured yet.", ""]))
    found = json.loads(path.read_text(encoding="utf-8"))
    rates = {name: found[name]["examples_per_second"] for name in NAMES}
    ratio = rates["lrurec"] / rates["sasrec"]
    printed = paper.of("ml-1m", "lrurec")
    whole |= {"measured": found, "ratio": ratio, "published": printed, "machines": [found["machine"]]}
    count = len(found["lrurec"]["cumulative"])
    marks = sorted({count // 16, count // 4, count} - {0})
    rows = [
        [
            MODELS[name].card.title,
            "steps" if found[name]["steps"] else "encodes again",
            *(f"{found[name]['cumulative'][k - 1]:.3f} s" for k in marks),
            f"{rates[name]:,.0f}",
        ]
        for name in NAMES
    ]
    text = [
        *head,
        "![latency](latency.png)",
        "",
        *grid(["model", "how", *(f"first {k:,}" for k in marks), f"examples/s at length {LENGTH}"], rows, left=2),
        "",
        f"{found['users']} users at once over {found['items']:,} items, every item scored after each event. Examples per second: {EXAMPLES} users with {LENGTH}",
        f"items each, one more event (LRURec, GRU4Rec) or the whole history (SASRec). LRURec takes {ratio:.1f} times as many as SASRec; the paper: 7.3 times.",
        "",
        "    lrurec reproduce latency",
        "",
        f"Made on {found['machine']}, {found['threads']} threads.",
        "",
    ]
    return Made(whole, "\n".join(text), {"latency": _draw(found)})


def _model(name: str, longest: int) -> TrainedModel:
    cls = model_class(name)
    model = cls(Sizes(ITEMS, 0, longest), cls.Config(), torch.Generator().manual_seed(0)).eval()
    assert isinstance(model, TrainedModel)
    return model


def _history(users: int, length: int) -> Tensor:
    return torch.randint(1, ITEMS + 1, (users, length), generator=torch.Generator().manual_seed(1))


def _predictions(model: TrainedModel, history: Tensor) -> Iterator[Tensor]:
    """The scores of all items after each event of [users, length] histories."""
    table, bias = model.item_table()
    if isinstance(model, RecurrentModel):
        state = model.initial_state(len(history))
        for k in range(history.shape[1]):
            state, hidden = model.step(state, history[:, k])
            yield torch.addmm(bias, hidden, table.T)
    else:
        for k in range(history.shape[1]):
            yield model.scores(_batch(history[:, : k + 1]))


def _batch(history: Tensor) -> Batch:
    users, length = history.shape
    return Batch(history.reshape(-1), torch.arange(users + 1) * length)


def _cumulative(model: TrainedModel, steps: int) -> list[float]:
    history = _history(USERS, steps)
    for _ in _predictions(model, history[:, :3]):  # what is compiled and allocated at first
        pass
    found, started = [], time.perf_counter()
    for _ in _predictions(model, history):
        found.append(round(time.perf_counter() - started, 6))
    return found


def _rates(models: dict[str, TrainedModel]) -> dict[str, float]:
    """Examples per second: the best of some rounds, the models taking turns."""
    history = _history(EXAMPLES, LENGTH)
    best = dict.fromkeys(models, 0.0)
    states = {
        name: model.initial_state(EXAMPLES) for name, model in models.items() if isinstance(model, RecurrentModel)
    }
    for _ in range(ROUNDS):
        for name, model in models.items():
            started = time.perf_counter()
            if isinstance(model, RecurrentModel):
                _, hidden = model.step(states[name], history[:, -1])
                table, bias = model.item_table()
                torch.addmm(bias, hidden, table.T)
            else:
                model.scores(_batch(history))
            best[name] = max(best[name], EXAMPLES / (time.perf_counter() - started))
    return best


def _draw(found: dict[str, Any]) -> Any:
    def draw(figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        for axes, scale in ((left, "linear"), (right, "log")):
            drawn = [
                Line(
                    MODELS[n].card.title,
                    list(range(1, len(found[n]["cumulative"]) + 1)),
                    found[n]["cumulative"],
                    COLOURS[n],
                )
                for n in NAMES
            ]
            lines(axes, drawn, "predictions", "seconds so far" if axes is left else "", "", xscale=scale, yscale=scale)

    return draw
