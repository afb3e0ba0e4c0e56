"""MF, FISM and FPMC against their formulas, written out item by item."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Sizes, TrainedModel, TrainingBatch
from lrurec.models.fism import FISM, FISMConfig
from lrurec.models.fpmc import FPMC, FPMCConfig
from lrurec.models.mf import MF, MFConfig
from lrurec.nn.dropout import Keys
from lrurec.nn.loss import cross_entropy
from lrurec.training.config import TrainingConfig
from lrurec.training.steps import optimizer_for

SIZES = Sizes(items=9, users=4)
KINDS: list[tuple[type[TrainedModel], Any]] = [(MF, MFConfig), (FISM, FISMConfig), (FPMC, FPMCConfig)]


def made(kind: type[TrainedModel], config: Any) -> Any:
    model = kind(SIZES, config, torch.Generator().manual_seed(2))
    with torch.no_grad():  # larger than at the beginning, so that errors would show
        for parameter in model.parameters():
            parameter.mul_(50)
    return model


def histories(users: list[int] | None = None) -> Batch:
    """Three items, nothing yet, two of which one comes back."""
    inputs, offsets = torch.tensor([4, 2, 9, 0, 7, 7, 1]), torch.tensor([0, 3, 4, 7])
    return Batch(inputs, offsets, None if users is None else torch.tensor(users))


def windows() -> TrainingBatch:
    """A history of five events with item 3 twice, one of a single event, the second window of another."""
    return TrainingBatch(
        torch.tensor([0, 4, 6, 4, 2, 0, 8, 5, 6]),
        torch.tensor([0, 1, 5, 6, 9]),
        torch.tensor([1, 1, 2, 4]),
        targets=torch.tensor([3, 5, 3, 1, 8, 2, 4, 5, 0]),
        windows=torch.tensor([0, 5, 6, 9]),
    )


def test_mf_is_the_product_of_two_vectors() -> None:
    model = made(MF, MFConfig(width=5))
    with torch.no_grad():
        scores = model.scores(histories([3, 1, 0]))
        for row, user in enumerate([3, 1]):
            expected = [model.users[user] @ model.items[v] + model.bias[v] for v in range(9)]
            assert torch.allclose(scores[row], torch.stack(expected))
        assert torch.equal(scores[2], model.bias)  # whoever did not train gets what is popular
        assert torch.equal(model.scores(histories()), model.bias.expand(3, -1))


def test_mf_trains_with_one_vector_per_window() -> None:
    model = made(MF, MFConfig(width=32, dropout=0.5))
    hidden, targets = model.examples(windows(), Keys(1))
    assert torch.equal(targets, windows().targets)
    for first, last, user in ((0, 5, 1), (5, 6, 2), (6, 9, 4)):
        assert torch.equal(hidden[first:last], hidden[first].expand(last - first, -1))
        left = hidden[first] != 0
        assert 0 < int(left.sum()) < 32
        assert torch.allclose(hidden[first][left], 2 * model.users[user][left])


def test_fpmc_adds_the_user_and_the_newest_item() -> None:
    model = made(FPMC, FPMCConfig(width=5))
    with torch.no_grad():
        scores = model.scores(histories([3, 1, 0]))
        for row, (user, newest) in enumerate([(3, 9), (1, 0), (0, 1)]):
            for v in range(9):
                mine = model.users[user] @ model.items[v, :5] if user else 0.0
                expected = mine + model.newest[newest] @ model.items[v, 5:] + model.bias[v]
                assert torch.allclose(scores[row, v], expected)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_fism_sums_over_the_history(alpha: float) -> None:
    model = made(FISM, FISMConfig(width=5, alpha=alpha))
    batch = histories()
    with torch.no_grad():
        hidden = model.encode(batch)
        for row, items in enumerate([[4], [4, 2], [4, 2, 9], [], [7], [7, 7], [7, 7, 1]]):
            assert torch.allclose(hidden[row], mean(model, items, alpha), atol=1e-6)
        assert torch.allclose(model.last(batch), hidden[batch.lasts], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_fism_leaves_the_answer_out_of_its_window(alpha: float) -> None:
    model = made(FISM, FISMConfig(width=5, alpha=alpha, dropout=0))
    batch = windows()
    hidden, targets = model.examples(batch, Keys(0))
    assert torch.equal(targets, batch.targets)
    for first, last in ((0, 5), (5, 6), (6, 9)):
        for row in range(first, last):
            others = [int(j) + 1 for j in batch.targets[first:last] if j != batch.targets[row]]
            assert torch.allclose(hidden[row], mean(model, others, alpha), atol=1e-6)


def test_fism_from_what_came_before() -> None:
    model = made(FISM, FISMConfig(width=5, context="before", dropout=0))
    hidden, _ = model.examples(windows(), Keys(0))
    for row, items in enumerate([[], [], [4], [4, 6], [4, 6, 4], [4, 6, 4, 2], [8], [8, 5], [8, 5, 6]]):  # starts first
        assert torch.allclose(hidden[row], mean(model, items, 0.5), atol=1e-6)


def mean(model: FISM, items: list[int], alpha: float) -> Tensor:
    """Written out: len(items)^-alpha * sum of p."""
    total = torch.zeros(model.config.width)
    for j in items:
        total = total + model.reasons[j].detach()
    weight: float = max(len(items), 1) ** -alpha
    return total * weight


@pytest.mark.parametrize(("kind", "table"), [(MF, "users"), (FPMC, "users"), (FISM, "reasons")])
def test_the_row_of_nobody_stays_zero(kind: type[TrainedModel], table: str) -> None:
    """Through training with weight decay, and with rows of nobody in the batch."""
    model = kind(SIZES, kind.Config(width=5), torch.Generator().manual_seed(0))
    optimizer = optimizer_for(model, TrainingConfig(learning_rate=0.1))
    batch = windows()
    batch = TrainingBatch(
        batch.inputs, batch.offsets, torch.tensor([1, 1, 0, 4]), targets=batch.targets, windows=batch.windows
    )
    before = getattr(model, table).detach().clone()
    for step in range(3):
        hidden, targets = model.examples(batch, Keys(step))
        optimizer.zero_grad()
        cross_entropy(hidden, *model.answers(), targets).backward()
        optimizer.step()
    after = getattr(model, table).detach()
    assert torch.equal(after[0], torch.zeros(5)) and not torch.equal(after, before)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k[0].__name__)
def test_settings_are_checked(kind: tuple[type[TrainedModel], Any]) -> None:
    for rate in (1.0, -0.1):
        with pytest.raises(SettingsError, match=r"model\.dropout must lie between 0 and 1"):
            kind[1](dropout=rate)
    with pytest.raises(SettingsError, match=r"model\.width must be 1 or more"):
        kind[1](width=0)


def test_settings_of_fism_are_checked() -> None:
    with pytest.raises(SettingsError, match=r"model\.alpha must lie between 0 and 1, not 2"):
        FISMConfig(alpha=2)
    with pytest.raises(SettingsError, match=r"unknown model\.context 'other'; did you mean 'others'"):
        FISMConfig(context="other")
