"""What every model promises. A new model adds one line to CASES."""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

import lrurec
from lrurec.data.batches import Windows, pack_histories
from lrurec.errors import SettingsError
from lrurec.evaluation.ranking import rank
from lrurec.export import servable
from lrurec.models.base import Batch, CountingModel, Model, RecurrentModel, Sizes, TrainedModel, TrainingBatch
from lrurec.models.lrurec import LRURec
from lrurec.models.registry import MODELS, model_class
from lrurec.nn.dropout import Keys
from lrurec.nn.loss import cross_entropy
from lrurec.nn.mixer import recurrences
from lrurec.training.config import config_for, from_values
from lrurec.training.run import Run
from lrurec.training.steps import RowSteps, WholeSteps
from lrurec.training.trainer import Trainer

ITEMS, USERS, LONGEST = 12, 40, 20


@dataclass(frozen=True)
class Case:
    """A model, its settings in these tests, and which of the two logs its kind can express.

    cycle   the next item is always the last one + 1
    home    user k always returns to item k
    """

    model: str
    settings: tuple[str, ...] = ()
    expresses: tuple[str, ...] = ("cycle", "home")
    causal: bool = True  # its vectors depend on the history
    larger: float = 8  # how much larger than at the beginning its weights are where errors should show
    kind: str = ""  # what tells it from another case of the same model

    def __str__(self) -> str:
        return f"{self.model}-{self.kind}" if self.kind else self.model


CASES = [
    Case("popularity", (), (), causal=False),
    Case("markov"),
    Case("mf", ("model.width=16",), ("home",), causal=False),
    Case("fism", ("model.width=16",), ()),
    Case("fism", ("model.width=16", "model.context=before"), ("home",), kind="before"),
    Case("fpmc", ("model.width=16", "training.learning_rate=0.01")),
    Case("gru4rec", ("model.width=16", "model.hidden=24", "model.layers=2", "model.dropout=0.1"), larger=2),
    Case(  # with less dropout it learns the histories by heart, of which none is as long as those of the test
        "narm", ("model.width=16", "model.hidden=24", "model.dropout=0.3", "model.context_dropout=0.3"), larger=2
    ),
    Case("fmlprec", ("model.width=16", "model.dropout=0.1")),
    Case("fmlprec", ("model.width=16", "model.dropout=0.1", "model.filter=circular"), kind="circular"),
    Case("sasrec", ("model.width=16", "model.dropout=0.1", "training.learning_rate=0.01")),
    Case(
        "bert4rec",  # a cloze has fewer examples in a step; no place of a window may be new in the test
        (
            "model.width=32",
            "model.dropout=0.1",
            "training.batch=40",
            "training.max_length=7",
            "training.learning_rate=0.01",
        ),
    ),
    Case(
        "bert4rec",
        (
            "model.width=32",
            "model.dropout=0.1",
            "model.head=none",
            "model.begin=copies",
            "training.batch=40",
            "training.max_length=7",
            "training.learning_rate=0.01",
        ),
        kind="copies",
    ),
    Case("lrurec", ("model.width=16", "model.channels=16", "model.dropout=0.1")),
    Case("lrurec", ("model.mixer=s4", "model.width=16", "model.state=8", "model.dropout=0.1"), kind="s4"),
    Case("lrurec", ("model.mixer=rwkv", "model.width=16", "model.dropout=0.1"), kind="rwkv"),
    Case("lrurec", ("model.copies=2", "model.width=16", "model.channels=16", "model.dropout=0.1"), kind="copies"),
    Case(
        "lrurec", ("model.temperature=0.1", "model.width=16", "model.channels=16", "model.dropout=0.1"), kind="cosine"
    ),
]
TRAINED = [c for c in CASES if issubclass(model_class(c.model), TrainedModel)]
NEXT_ITEM = [
    c for c in TRAINED if str(c) not in ("bert4rec", "bert4rec-copies", "mf", "fism", "fmlprec-circular")
]  # learn from every one
RECURRENT = [c for c in CASES if issubclass(model_class(c.model), RecurrentModel)]
every = pytest.mark.parametrize("case", CASES, ids=str)
every_trained = pytest.mark.parametrize("case", TRAINED, ids=str)

TRAINING = ("training.steps=300", "training.validate_every=300", "training.batch=16", "training.learning_rate=0.02")


@pytest.fixture(scope="module")
def logs() -> dict[str, lrurec.Dataset]:
    cycle = [(u, (u + k) % ITEMS) for u in range(USERS) for k in range(9)]
    home = [(u, u % ITEMS) for u in range(USERS) for k in range(9)]
    # Everybody's first item is another's home, so that all items are in the log and a start tells nothing.
    home = [(u, (7 * u + 5) % ITEMS) if k % 9 == 0 else (u, i) for k, (u, i) in enumerate(home)]
    return {
        name: lrurec.load_events(pl.DataFrame(rows, schema=["user", "item"], orient="row"))
        for name, rows in (("cycle", cycle), ("home", home))
    }


def trained(case: Case, dataset: lrurec.Dataset, folder: Path, *more: str) -> Trainer:
    config = config_for("fast", None, [*TRAINING, *case.settings, *more], case.model)
    run = Run.create(folder, dataset, config)
    trainer = Trainer(dataset, lrurec.leave_last_out(dataset), run.config, folder)
    trainer.train()
    return trainer


def fresh(case: Case, seed: int = 1) -> Model:
    """A model with larger weights than at the beginning, so that errors would show."""
    config = config_for("paper", None, [*case.settings, f"training.max_length={LONGEST}"], case.model)
    sizes = Sizes(ITEMS, USERS, LONGEST)
    model = model_class(case.model)(sizes, config.model, torch.Generator().manual_seed(seed))
    if isinstance(model, CountingModel):
        model.count(some_histories([9] * 30, 5))
        return model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and name not in recurrences(model) and parameter.abs().max() < 1:
                parameter.mul_(case.larger)
    return model


def some_histories(lengths: list[int], seed: int) -> Batch:
    g = torch.Generator().manual_seed(seed)
    inputs = torch.randint(1, ITEMS + 1, (sum(lengths),), generator=g)
    users = torch.randint(0, USERS + 1, (len(lengths),), generator=g)
    return Batch(inputs, torch.tensor([0, *lengths]).cumsum(0), users)


def training_batch(lengths: list[int]) -> TrainingBatch:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    items = np.random.default_rng(0).integers(0, ITEMS, offsets[-1]).astype(np.int32)
    from lrurec.data.split import Sequences

    whole = Sequences(items, np.arange(len(lengths), dtype=np.int32), offsets[:-1], offsets[1:])
    windows = Windows.of(whole, LONGEST)
    packed = windows.pack(np.arange(len(windows)))
    return TrainingBatch(
        torch.from_numpy(packed.inputs),
        torch.from_numpy(packed.offsets),
        torch.from_numpy(packed.users),
        targets=torch.from_numpy(packed.targets),
        windows=torch.from_numpy(packed.windows),
    )


def test_every_model_is_tested() -> None:
    assert {case.model for case in CASES} == set(MODELS)
    for name, model in MODELS.items():
        assert model.card.title and model.card.paper and model.card.training and model.card.update, name


@pytest.mark.parametrize(("case", "log"), [(c, log) for c in CASES for log in c.expresses], ids=str)
def test_it_learns_what_its_kind_can_express(
    case: Case, log: str, logs: dict[str, lrurec.Dataset], tmp_path: Path
) -> None:
    trainer = trained(case, logs[log], tmp_path / "run")
    ranks = rank(trainer.model, trainer.split.test, 50, filter_seen=False).ranks
    assert (ranks == 0).mean() > 0.95  # Recall@1


@every_trained
def test_looking_ahead(case: Case, tmp_path: Path, logs: dict[str, lrurec.Dataset]) -> None:
    """A later item of the same window stands for the next one as often as asked; the others refuse."""
    batch = replace(training_batch([30, 1, 2, 9, 30] * (USERS // 5)), look_ahead=0.4)
    model = fresh(case)
    assert isinstance(model, TrainedModel)
    if case not in NEXT_ITEM:
        with pytest.raises(SettingsError, match="look_ahead needs a model"):
            trained(case, logs["cycle"], tmp_path / "run", "training.look_ahead=0.4")
        return
    _, answers = model.examples(batch, Keys(3))
    _, again = model.examples(batch, Keys(3))
    _, plain = model.examples(replace(batch, look_ahead=0.0), Keys(3))
    assert torch.equal(answers, again)
    drawn = batch.answers(Keys(3))
    window = torch.repeat_interleave(batch.windows.diff())
    for w in range(len(batch.windows) - 1):
        targets = batch.targets[window == w].tolist()
        assert all(a in targets[k:] for k, a in enumerate(drawn[window == w].tolist()))
    assert torch.equal(drawn[batch.inputs == 0], batch.targets[batch.inputs == 0])
    changed = float((answers != plain).float().mean())
    assert 0.25 < changed < 0.4  # not at the ends of windows, nor where a later item is the same


@every_trained
def test_the_past_does_not_see_the_future(case: Case) -> None:
    """Changing an item changes nothing before it and nothing in other sequences, but something behind it."""
    if not case.causal:
        pytest.skip("it looks at no history")
    model = fresh(case)
    assert isinstance(model, TrainedModel)
    batch = some_histories([5, 1, 12, 20], 3)
    with torch.no_grad():
        before = model.encode(batch)
        for s in range(4):
            start, stop = int(batch.offsets[s]), int(batch.offsets[s + 1])
            for at in {start, (start + stop) // 2, stop - 1}:
                changed = batch.inputs.clone()
                changed[at] = changed[at] % ITEMS + 1
                after = model.encode(Batch(changed, batch.offsets, batch.users))
                untouched = torch.ones(len(batch), dtype=torch.bool)
                untouched[at:stop] = False
                assert torch.allclose(before[untouched], after[untouched], atol=1e-6)
                assert not torch.allclose(before[at:stop], after[at:stop], atol=1e-6)


@every
def test_a_history_alone_scores_as_it_does_among_others(case: Case) -> None:
    """Whoever shares a batch, in whichever order, changes nothing: no padding shows."""
    model = fresh(case)
    batch = some_histories([7, 20, 1, 3, 19, 2], 4)
    pieces = [batch.inputs[a:b] for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]
    assert batch.users is not None
    with torch.no_grad():
        together = model.scores(batch)
        order = [4, 2, 0, 5, 1, 3]
        lengths = torch.tensor([0, *[len(pieces[k]) for k in order]])
        shuffled = model.scores(Batch(torch.cat([pieces[k] for k in order]), lengths.cumsum(0), batch.users[order]))
        assert torch.allclose(shuffled, together[order], atol=1e-5)
        for k, piece in enumerate(pieces):
            alone = model.scores(Batch(piece, torch.tensor([0, len(piece)]), batch.users[k : k + 1]))
            assert torch.allclose(alone[0], together[k], atol=1e-5)


@every
def test_somebody_without_a_history_and_somebody_unknown(case: Case) -> None:
    model = fresh(case)
    with torch.no_grad():
        nobody = model.scores(Batch(torch.tensor([0]), torch.tensor([0, 1])))
        unknown = model.scores(Batch(torch.tensor([3, 4]), torch.tensor([0, 2]), torch.tensor([0])))
    assert nobody.shape == unknown.shape == (1, ITEMS)
    assert torch.isfinite(nobody).all() and torch.isfinite(unknown).all()


@every_trained
def test_gradients_reach_every_parameter(case: Case) -> None:
    model = fresh(case)
    assert isinstance(model, TrainedModel)
    hidden, targets = model.examples(training_batch([30, 45, 1, 7, 2]), Keys(0))
    assert len(hidden) == len(targets) > 0
    cross_entropy(hidden, *model.answers(), targets).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), name


@pytest.mark.parametrize("case", NEXT_ITEM, ids=str)
@pytest.mark.parametrize("lengths", [[3, 2, 1, 4, 1], [1], [1, 1, 1], [60]], ids=str)
def test_one_start_for_all_is_a_start_for_each(case: Case, lengths: list[int]) -> None:
    """Without dropout: the same loss and the same gradients, whether a start is shared (many) or not (few)."""
    model = fresh(replace(case, settings=(*(s for s in case.settings if "dropout" not in s), *no_dropout(case))))
    assert isinstance(model, TrainedModel)
    batch = training_batch(lengths)
    losses = [
        cross_entropy(hidden, *model.answers(), targets)
        for hidden, targets in (model.examples(batch, Keys(0)), (model.encode(batch, Keys(0)), batch.targets))
    ]
    parameters = list(model.parameters())
    one, each = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in losses)
    assert torch.allclose(losses[0], losses[1], rtol=1e-5)
    for a, b in zip(one, each, strict=True):
        assert (a is None and b is None) or torch.allclose(a, b, atol=1e-5)


def no_dropout(case: Case) -> list[str]:
    return [f"model.{field.name}=0" for field in fields(model_class(case.model).Config) if "dropout" in field.name]


@every_trained
@pytest.mark.parametrize("shared", ["true", "false"])
def test_updating_the_rows_of_a_batch_is_updating_all(
    case: Case, shared: str, logs: dict[str, lrurec.Dataset], tmp_path: Path
) -> None:
    """Twenty steps: the weights are the same to rounding, and so are the moments."""
    more = ("training.steps=20", "training.validate_every=20", "training.batch=3", "training.precision=float32")
    sampled = ("training.loss=sampled", "training.negatives=2", f"training.shared_negatives={shared}")
    dense, rows = (
        trained(case, logs["cycle"], tmp_path / kind, *more, *sampled, f"training.updates={kind}")
        for kind in ("dense", "rows")
    )
    both = list(zip(dense.learner.parts, rows.learner.parts, strict=True))
    assert all(isinstance(a.updates, WholeSteps) and isinstance(b.updates, RowSteps) for a, b in both)
    weights = [dict(t.model.named_parameters()) for t in (dense, rows)]
    for name, parameter in weights[0].items():
        assert torch.allclose(parameter, weights[1][name], atol=2e-3), name
        assert float((parameter - weights[1][name]).detach().abs().mean()) < 1e-5, name
    moments = [learner.tensors() for learner in (dense.learner, rows.learner)]
    assert moments[0].keys() == {name for name in moments[1] if not re.match(r"(copy\d\.)?last\.", name)}
    for name, moment in moments[0].items():
        assert float((moment - moments[1][name]).abs().mean()) < 1e-5, name


@every_trained
def test_dropout_comes_from_the_keys_alone(case: Case) -> None:
    model = fresh(case)
    assert isinstance(model, TrainedModel)
    batch = training_batch([30, 8])
    first, again, other = (model.examples(batch, Keys(seed)) for seed in (5, 5, 6))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    if case.causal:
        assert first[0].shape != other[0].shape or not torch.equal(first[0], other[0])


@every
def test_saved_and_opened_it_scores_the_same(case: Case, logs: dict[str, lrurec.Dataset], tmp_path: Path) -> None:
    trainer = trained(case, logs["cycle"], tmp_path / "run", "training.steps=20", "training.validate_every=20")
    batch = some_histories([4, 9, 1], 0)
    opened = Run.open(tmp_path / "run").model("best")
    with torch.no_grad():
        assert torch.equal(trainer.model.scores(batch), opened.scores(batch))


@every
def test_same_seed_same_result(case: Case, logs: dict[str, lrurec.Dataset], tmp_path: Path) -> None:
    found = [
        trained(case, logs["cycle"], tmp_path / str(k), "training.steps=20", "training.validate_every=20").model
        for k in range(2)
    ]
    for (name, a), (_, b) in zip(found[0].named_parameters(), found[1].named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("case", RECURRENT, ids=str)
def test_stepping_equals_encoding(case: Case) -> None:
    model = fresh(case)
    assert isinstance(model, RecurrentModel)
    batch = some_histories([20, 1, 6], 2)
    with torch.no_grad():
        whole = model.encode(batch)
        for s in range(3):
            state = model.initial_state()
            for k in range(int(batch.offsets[s]), int(batch.offsets[s + 1])):
                state, hidden = model.step(state, batch.inputs[k : k + 1])
                assert torch.allclose(hidden[0], whole[k], atol=1e-5, rtol=1e-5)
        together = model.step(model.initial_state(3), batch.inputs[:3])[1]
        alone = torch.cat([model.step(model.initial_state(), i[None])[1] for i in batch.inputs[:3]])
        assert torch.allclose(together, alone, atol=1e-5)


@every
def test_what_cannot_be_served_is_refused_with_a_reason(case: Case) -> None:
    model = fresh(case)
    if isinstance(model, LRURec) and model.config.mixer != "s4":
        assert servable(model, case.model) is model
        return
    if isinstance(model, LRURec):
        with pytest.raises(
            SettingsError, match=f"mixer={model.config.mixer} steps in Python.*knows the mixers lru and rwkv only"
        ):
            servable(model, case.model)
        return
    with pytest.raises(SettingsError, match=f"{type(model).card.title}.*train with --model lrurec"):
        servable(model, case.model)


@every
def test_its_settings_are_recorded_with_its_name(case: Case) -> None:
    config = config_for("fast", None, list(case.settings), case.model)
    assert config.name == case.model and from_values(config.values()) == config


@every
def test_in_python(case: Case, logs: dict[str, lrurec.Dataset]) -> None:
    rows = [(u, f"i{(u + k) % ITEMS}") for u in range(12) for k in range(6)]
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    settings = {
        s.partition("=")[0].replace("training.", "").replace(".", "_"): s.partition("=")[2] for s in case.settings
    }
    rec = lrurec.Recommender(model=case.model, steps=5, validate_every=5, on_unknown="popular", **settings).fit(frame)
    found = rec.recommend([0, 5, "nobody"], k=3)
    assert found["user"].to_list() == ["0"] * 3 + ["5"] * 3 + ["nobody"] * 3 or len(found) == 9
    assert len(rec.recommend(histories=[["i1", "i2"], []], k=4)) == 8


def test_unknown_models_are_refused() -> None:
    with pytest.raises(SettingsError, match="unknown model 'sasrek'|unknown model 'lrurek'; did you mean 'lrurec'"):
        config_for("fast", None, [], "lrurek")
    with pytest.raises(SettingsError, match=r"model.channels is a setting of lrurec, not of markov"):
        config_for("fast", None, ["model.channels=3"], "markov")


def packed_users(users: NDArray[np.int64]) -> list[int]:
    items = np.arange(6, dtype=np.int32)
    return list(pack_histories(items, np.array([0, 2, 2]), np.array([2, 2, 6]), 3, users).users)


def test_users_come_along() -> None:
    assert packed_users(np.array([4, -1, 0])) == [5, 0, 1]
    batch = training_batch([25, 1, 3])  # two windows, one, one; a start token for each history
    assert batch.users is not None
    assert batch.users.tolist() == [1, 1, 1, 2, 3, 3]
    assert batch.windows.tolist() == [0, 20, 25, 26, 29]
    assert batch.user_rows().tolist() == [1] * 25 + [2] + [3] * 3
    assert batch.positions().tolist() == [*range(20), 0, *range(4), 0, 0, 0, 1]
