"""Models side by side against the same models apart."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import lrurec
from conftest import Run
from lrurec.export import export
from lrurec.models.base import Sizes, TrainingBatch
from lrurec.models.lrurec import LRURec, LRURecConfig
from lrurec.serving.artifact import Artifact
from lrurec.serving.service import Live
from lrurec.training.checkpoint import load_checkpoint
from lrurec.training.config import config_for
from lrurec.training.run import Run as RunFolder
from lrurec.training.together import Together, learner_for
from lrurec.training.trainer import LAST, Progress, Trainer

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


@pytest.mark.parametrize("gaps", [False, True])
def test_joined_and_parted(gaps: bool) -> None:
    one, other = together(2, gaps=gaps), together(2, gaps=gaps)
    copies = apart(one)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.join(copies)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    for copy in copies:
        with torch.no_grad():
            for p in copy.parameters():
                p.zero_()
    other.part(copies)
    for copy, expected in zip(copies, apart(one), strict=True):
        named = dict(expected.named_parameters())
        assert all(torch.equal(p, named[name]) for name, p in copy.named_parameters() if name != "bias")


SETTINGS = [
    "model.copies=2", "model.width=16", "model.channels=8", "training.steps=12", "training.validate_every=5", "training.batch=8",
]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("loss", ["full", "sampled"])
def test_each_learns_as_if_alone(sample: Path, loss: str, threads: int) -> None:
    """The same bits as a model that is trained alone with a copy's share of the threads."""
    dataset = data_of(sample)
    settings = [*SETTINGS, f"training.loss={loss}", "training.negatives=50", "training.shared_negatives=true"]
    config = config_for("fast", None, settings)
    train = lrurec.leave_last_out(dataset).train
    both = learner_for(dataset.n_items, dataset.n_users, train, config)
    assert isinstance(both, Together)
    seeds = [part.config.training.seed for part in both.parts]
    assert len(set(seeds)) == 2 and seeds[0] == config.training.seed
    own = [*settings, "model.copies=1"]
    alone = [
        learner_for(dataset.n_items, dataset.n_users, train, config_for("fast", None, [*own, f"training.seed={seed}"]))
        for seed in seeds
    ]
    before = torch.get_num_threads()
    try:
        for step in range(4):
            torch.set_num_threads(max(1, threads // 2))
            losses = [one.step(step)[0] for one in alone]
            torch.set_num_threads(threads)
            assert both.step(step)[0] == pytest.approx(np.mean(losses))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    both.settle()
    for c, one in enumerate(alone):
        one.settle()
        assert isinstance(one.model, LRURec)
        assert torch.equal(both.model.embedding[:, 16 * c : 16 * c + 16], one.model.embedding)
    named = dict(both.model.named_parameters())
    assert isinstance(alone[1].model, LRURec)
    for name, p in alone[1].model.blocks.named_parameters():
        assert torch.equal(named[f"others.0.blocks.{name}"], p) and not torch.equal(named[f"blocks.{name}"], p)


@pytest.mark.parametrize("loss", ["full", "sampled"])
def test_it_goes_on_exactly(sample: Path, tmp_path: Path, loss: str) -> None:
    """Stopped between two validations, where rows may not be up to date, and gone on with: the same bits."""
    dataset = data_of(sample)
    settings = [*SETTINGS, f"training.loss={loss}", "training.negatives=50", "training.shared_negatives=true"]
    config, split = config_for("fast", None, settings), lrurec.leave_last_out(dataset)
    _, whole = RunFolder.start(tmp_path / "whole", dataset, split, config)
    whole.train()
    _, stopped = RunFolder.start(tmp_path / "stopped", dataset, split, config)

    def stop(progress: Progress) -> None:
        stopped.interrupted = progress.step == 7

    stopped.train(stop)
    assert stopped.interrupted and stopped.step == 7
    again = Trainer(dataset, split, config, tmp_path / "stopped")
    again.resume()
    again.train()
    found, wanted = (load_checkpoint(tmp_path / name / LAST)[0] for name in ("stopped", "whole"))
    assert found.keys() == wanted.keys() and all(torch.equal(found[k], wanted[k]) for k in wanted)


def data_of(sample: Path) -> lrurec.Dataset:
    return lrurec.Dataset.open(RunFolder.open(sample.parent / "run").manifest["dataset"]["path"])


def test_trained_exported_and_served(sample: Path, tmp_path: Path, run: Run) -> None:
    """What the server says is what the run says, with the table in 32 bits and in 16."""
    dataset = data_of(sample)
    words = [w for s in [*SETTINGS, "memory.use=true", "training.finish=3"] for w in ("--set", s)]
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
    said = run("train", data_of(sample).path, "--out", tmp_path / "r", "--set", "model.copies=0")
    assert said.code == 2 and "model.copies must be 1 or more" in said.err
