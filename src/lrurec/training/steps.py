"""One step of training: loss, gradients, clipping, AdamW. Knows a model and its optimisers, not where batches come from.

WholeSteps   every parameter has a gradient of its own size
RowSteps     of tables, only the rows that a batch touches (lrurec.training.rows): for the sampled loss, which
             looks at few of a large catalogue
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lrurec.models.base import CarryingModel, TrainedModel, TrainingBatch
from lrurec.nn.dropout import Keys
from lrurec.nn.loss import cross_entropy
from lrurec.nn.mixer import recurrences
from lrurec.nn.sampled import sampled_softmax
from lrurec.training.config import TrainingConfig
from lrurec.training.rows import BETA1, BETA2, EPS, Tables
from lrurec.training.schedule import learning_rate

Drawn = NDArray[np.int64] | None  # negatives of a step: [K] for all positions, or [N, K]


def decay_of(model: nn.Module, config: TrainingConfig) -> dict[str, float]:
    """The weight decay of every parameter, in the paper's groups: none on biases and LayerNorm."""
    recurrent, found = recurrences(model), {}
    for name, _ in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        is_bias = "bias" in leaf or leaf in ("b1", "b2") or "norm" in name
        is_recurrence = name in recurrent and not config.decay_recurrence
        found[name] = 0.0 if is_bias or is_recurrence else config.weight_decay
    return found


def optimizer_for(model: nn.Module, config: TrainingConfig, without: Iterable[str] = ()) -> torch.optim.AdamW:
    """AdamW with the paper's groups."""
    decays, left_out = decay_of(model, config), set(without)
    groups = []
    for decayed in (True, False):
        mine = [p for n, p in model.named_parameters() if n not in left_out and bool(decays[n]) == decayed]
        if mine:
            groups.append({"params": mine, "weight_decay": config.weight_decay if decayed else 0.0})
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(BETA1, BETA2), eps=EPS, fused=True)


def clip_gradients(parameters: Iterable[Tensor], most: float) -> None:
    """As `clip_grad_norm_` does it, but gradients that are short enough are not multiplied by 1."""
    given = [p for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in given if p.grad is not None])
    if not float(most / (norm + 1e-6)) >= 1.0:  # nor is what is not a number
        nn.utils.clip_grads_with_norm_(given, most, norm)


class WholeSteps:
    """Dense gradients of everything."""

    def __init__(self, model: TrainedModel, config: TrainingConfig, log_q: Tensor | None) -> None:
        self.model, self.config, self.log_q = model, config, log_q
        self.optimizer = optimizer_for(model, config)

    def loss(self, batch: TrainingBatch, keys: Keys, drawn: Drawn) -> tuple[Tensor, Tensor | None]:
        """The loss of a batch, and the states behind its windows; the gradients of all that is learned are set."""
        hidden, targets, ends = _examples(self.model, batch, keys)
        table, bias = self.model.answers()
        if drawn is None:
            loss: Tensor = cross_entropy(hidden, table, bias, targets, half=batch.half)
        else:
            negatives = torch.from_numpy(_for(drawn, len(targets))).to(hidden.device)
            loss = sampled_softmax(hidden, table, bias, targets, negatives, self.log_q, batch.half)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), ends

    def update(self, step: int) -> None:
        """Step 0, 1, ...: clip, and move the weights."""
        _set_rate(self.optimizer, learning_rate(step, self.config))
        clip_gradients(self.model.parameters(), self.config.clip)
        self.optimizer.step()

    def settle(self) -> None:
        """Bring all weights up to date."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside the weights, by names in which those of the parameters come last."""
        return _moments(self.model, self.optimizer)

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        _put_moments(self.model, self.optimizer, tensors, step)


class RowSteps:
    """The rows of tables that a batch touches, as small tables of their own, and dense gradients of the rest."""

    def __init__(self, model: TrainedModel, config: TrainingConfig, log_q: Tensor | None) -> None:
        self.model, self.config, self.log_q = model, config, log_q
        decays, parameters = decay_of(model, config), dict(model.named_parameters())
        self.others = [p for name, p in parameters.items() if name not in model.tables]
        self.optimizer = optimizer_for(model, config, without=model.tables) if self.others else None
        self.tables = Tables(
            {name: (parameters[name], decays[name]) for name in model.tables}, lambda step: learning_rate(step, config)
        )
        self._examples = _Examples(model)
        self._place = np.zeros(model.sizes.items, np.int64)  # of an item among those touched; valid for those alone
        self._taken: dict[str, tuple[NDArray[np.int64], Tensor]] = {}

    def loss(self, batch: TrainingBatch, keys: Keys, drawn: Drawn) -> tuple[Tensor, Tensor | None]:
        assert drawn is not None
        inputs, targets = batch.inputs.cpu().numpy(), batch.targets.cpu().numpy()
        items = self._touched(np.concatenate([inputs[inputs > 0] - 1, targets, drawn.ravel()]))
        known = np.zeros(0, np.int64) if batch.users is None else batch.users.cpu().numpy()
        users, whose = np.unique(np.concatenate([[0], known]), return_inverse=True)
        rows = {"item": items, "input": np.concatenate([[0], items + 1]), "user": users}
        self._taken = {
            name: (rows[kind], self.tables.tables[name].take(rows[kind])) for name, kind in self.model.tables.items()
        }
        device = batch.inputs.device

        def moved(array: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(array).to(device)

        small = TrainingBatch(
            moved(np.where(inputs > 0, self._place[inputs - 1] + 1, 0)),
            batch.offsets,
            None if batch.users is None else moved(whose[1:]),
            batch.half,
            targets=moved(self._place[targets]),
            windows=batch.windows,
            carried=batch.carried,
            look_ahead=batch.look_ahead,
            gaps=batch.gaps,
        )
        taken = {f"model.{name}": tensor for name, (_, tensor) in self._taken.items()}
        hidden, answers, ends, table, bias = torch.func.functional_call(self._examples, taken, (small, keys))
        log_q = None if self.log_q is None else self.log_q[moved(items)]
        negatives = moved(self._place[_for(drawn, len(answers))])
        loss: Tensor = sampled_softmax(hidden, table, bias, answers, negatives, log_q, batch.half)
        for parameter in self.others:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), ends

    def _touched(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every item once; `_place` says where."""
        numbers = np.arange(len(items))
        self._place[items] = numbers  # of an item that comes again, the last one stays
        found: NDArray[np.int64] = items[self._place[items] == numbers]
        self._place[found] = np.arange(len(found))
        return found

    def update(self, step: int) -> None:
        clip_gradients([*self.others, *(tensor for _, tensor in self._taken.values())], self.config.clip)
        if self.optimizer is not None:
            _set_rate(self.optimizer, learning_rate(step, self.config))
            self.optimizer.step()
        self.tables.update({n: (rows, t.grad) for n, (rows, t) in self._taken.items() if t.grad is not None})
        self._taken = {}

    def settle(self) -> None:
        self.tables.catch_up_all()

    def tensors(self) -> dict[str, Tensor]:
        found = _moments(self.model, self.optimizer)
        for name, table in self.tables.tables.items():
            found |= {f"first.{name}": table.first, f"second.{name}": table.second}
            found[f"last.{name}"] = torch.from_numpy(table.last)
        return found

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        _put_moments(self.model, self.optimizer, tensors, step)
        self.tables.forward_to(step)
        for name, table in self.tables.tables.items():
            table.first.copy_(tensors[f"first.{name}"])
            table.second.copy_(tensors[f"second.{name}"])
            last = tensors.get(f"last.{name}")  # a run with dense updates has none: every row is up to date
            table.last[:] = step if last is None else last.numpy()


class _Examples(nn.Module):
    """What the loss is taken from, as one call, for which parameters can be lent."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: TrainingBatch, keys: Keys) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        return *_examples(self.model, batch, keys), *self.model.answers()


def _examples(model: TrainedModel, batch: TrainingBatch, keys: Keys) -> tuple[Tensor, Tensor, Tensor | None]:
    """Hidden vectors, their answers, and the states behind the windows, where they are carried."""
    if batch.carried is None or not isinstance(model, CarryingModel):
        return *model.examples(batch, keys), None
    hidden, states = model.encode_from(batch, batch.begin(batch.carried), keys)
    return hidden, batch.answers(keys), batch.end(states.detach())


def _for(drawn: NDArray[np.int64], positions: int) -> NDArray[np.int64]:
    return drawn if drawn.ndim == 1 else drawn[:positions]


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        moments: Any = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        if moments:
            found |= {f"first.{name}": moments["exp_avg"], f"second.{name}": moments["exp_avg_sq"]}
    return found


def _put_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, tensors: dict[str, Tensor], step: int
) -> None:
    groups = [] if optimizer is None else optimizer.param_groups
    mine = {id(p) for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        if f"first.{name}" in tensors and id(parameter) in mine and optimizer is not None:
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step), dtype=torch.float32),
                "exp_avg": tensors[f"first.{name}"].to(parameter.device),
                "exp_avg_sq": tensors[f"second.{name}"].to(parameter.device),
            }


def steps_for(model: TrainedModel, config: TrainingConfig, log_q: Tensor | None) -> WholeSteps | RowSteps:
    return (RowSteps if config.updates == "rows" else WholeSteps)(model, config, log_q)
