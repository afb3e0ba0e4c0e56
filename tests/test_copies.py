"""Models side by side against the same models apart."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lrurec
from conftest import Run
from lrurec.export import export
from lrurec.models.base import Sizes, TrainingBatch
from lrurec.models.lrurec import LRURec, LRURecConfig
from lrurec.nn.dropout import Keys
from lrurec.serving.artifact import Artifact
from lrurec.serving.service import Live
from lrurec.training.config import TrainingConfig
from lrurec.training.run import Run as RunFolder
from lrurec.training.steps import RowSteps, WholeSteps, steps_for

ITEMS, WIDTH = 20, 8


def together(copies: int, mixer: str = "lru", gaps: bool = False) -> LRURec:
    config = LRURecConfig(width=WIDTH, dropout=0.0, copies=copies, mixer=mixer, gaps=gaps)
    model = LRURec(Sizes(ITEMS), config, torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g))
    return model


@torch.no_grad()
def apart(model: LRURec) -> list[LRURec]:
    """Each copy as a model of its own."""
    found = []
    for c, (norm, blocks) in enumerate(model.stacks()):
        config = LRURecConfig(width=WIDTH, dropout=0.0, mixer=model.config.mixer, gaps=model.config.gaps)
        alone = LRURec(Sizes(ITEMS), config, torch.Generator())
        alone.embedding.copy_(model.embedding[:, c * WIDTH : (c + 1) * WIDTH])
        alone.bias.copy_(model.bias)
        alone.norm.load_state_dict(norm.state_dict())
        alone.blocks.load_state_dict(blocks.state_dict())
        if config.gaps:
            alone.gaps.copy_(model.gaps[:, c * WIDTH : (c + 1) * WIDTH])
        found.append(alone)
    return found


def batch(look_ahead: float = 0.0, seed: int = 0) -> TrainingBatch:
    rng = np.random.default_rng(seed)
    inputs = np.concatenate([[0], rng.integers(1, ITEMS + 1, 11)])
    offsets = torch.tensor([0, 1, 6, 7, 12])
    windows = torch.tensor([0, 6, 12])
    return TrainingBatch(
        torch.from_numpy(inputs),
        offsets,
        targets=torch.from_numpy(rng.integers(0, ITEMS, 12)),
        windows=windows,
        look_ahead=look_ahead,
        gaps=torch.from_numpy(rng.integers(0, 5, 12)),
    )


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("mixer", ["lru", "s4", "rwkv"])
@pytest.mark.parametrize("gaps", [False, True])
def test_scores_are_averaged(copies: int, mixer: str, gaps: bool) -> None:
    model = together(copies, mixer, gaps)
    with torch.no_grad():
        alone = torch.stack([one.scores(batch()) for one in apart(model)])
        assert torch.allclose(model.scores(batch()), alone.mean(0), atol=1e-5)
        assert model.encode(batch()).shape == (12, copies * WIDTH)


def test_it_goes_on_from_states() -> None:
    model, packed = together(2), batch()
    with torch.no_grad():
        begin = 0.3 * torch.ones(4, 4, 2, model.config.channels)
        hidden, ends = model.encode_from(packed, begin)
        for c, one in enumerate(apart(model)):
            own, own_ends = one.encode_from(packed, begin[:, 2 * c : 2 * c + 2])
            assert torch.allclose(2 * hidden[:, c * WIDTH : (c + 1) * WIDTH], own, atol=1e-5)
            assert torch.allclose(ends[:, 2 * c : 2 * c + 2], own_ends, atol=1e-5)


@pytest.mark.parametrize(("loss", "updates"), [("full", "dense"), ("sampled", "dense"), ("sampled", "rows")])
def test_each_learns_as_if_alone(loss: str, updates: str) -> None:
    """The gradients of a copy are those that it has alone, over the number of copies."""
    config = TrainingConfig(loss=loss, negatives=6, shared_negatives=True, updates=updates, clip=1e9, weight_decay=0.0)
    drawn = None if loss == "full" else np.array([1, 5, 7, 11, 13, 17])
    log_q = None if loss == "full" else torch.zeros(ITEMS)
    model = together(2)
    alone, bias = [], torch.zeros(ITEMS)
    for one in apart(model):
        value, found = gradients(steps_for(one, config, log_q), drawn)
        bias += found.pop("bias")
        alone.append((value, found))
    value, mine = gradients(steps_for(model, config, log_q), drawn)
    assert value == pytest.approx(np.mean([v for v, _ in alone]), rel=1e-5)
    assert torch.allclose(mine["bias"], bias / 2, atol=1e-6)
    for c, (_, found) in enumerate(alone):
        own = mine["embedding"][:, c * WIDTH : (c + 1) * WIDTH]
        assert torch.allclose(own, found.pop("embedding") / 2, atol=1e-6)
        for name, gradient in found.items():
            assert torch.allclose(mine[name if c == 0 else f"others.0.{name}"], gradient / 2, atol=1e-6), name


def gradients(steps: WholeSteps | RowSteps, drawn: np.ndarray | None) -> tuple[float, dict[str, Tensor]]:
    value, _ = steps.loss(batch(), Keys(1), drawn)
    found = {name: p.grad.clone() for name, p in steps.model.named_parameters() if p.grad is not None}
    if isinstance(steps, RowSteps):
        for name, (rows, taken) in steps._taken.items():
            whole = torch.zeros_like(steps.model.get_parameter(name))
            assert taken.grad is not None
            whole[torch.from_numpy(rows)] = taken.grad.view(len(rows), *whole.shape[1:])
            found[name] = whole
    return float(value), found


def test_trained_exported_and_served(sample: Path, tmp_path: Path, run: Run) -> None:
    """What the server says is what the run says, with the table in 32 bits and in 16."""
    dataset = lrurec.Dataset.open(RunFolder.open(sample.parent / "run").manifest["dataset"]["path"])
    settings = ["model.copies=2", "model.width=16", "model.channels=8", "training.steps=12", "memory.use=true"]
    words = [w for s in settings for w in ("--set", s)]
    assert run("train", dataset.path, "--out", tmp_path / "run", *words).code == 0
    made = RunFolder.open(tmp_path / "run")
    for half in (False, True):
        export(made, dataset, tmp_path / f"a{half}", index="exact", half=half)
        opened = Artifact.open(tmp_path / f"a{half}")
        assert opened.engine.table.shape == (dataset.n_items, 32) and opened.engine.shape.copies == 2
        with Live(tmp_path / f"a{half}", tmp_path / f"s{half}") as live:
            history = [dataset.item_ids[int(i)] for i in dataset.items[:7]]
            for item in history:
                live.observe("ann", item)
            found = [r.item for r in live.recommend("ann", 10)]
        told = run("recommend", tmp_path / "run", "--history", ",".join(map(str, history)), "--json", "-k", "10")
        mine = [line["item"] for line in json.loads(told.out)]
        assert mine == found if not half else len(set(mine) & set(found)) >= 9


def test_a_wrong_number(tmp_path: Path, run: Run, sample: Path) -> None:
    path = RunFolder.open(sample.parent / "run").manifest["dataset"]["path"]
    said = run("train", path, "--out", tmp_path / "r", "--set", "model.copies=0")
    assert said.code == 2 and "model.copies must be 1 or more" in said.err
