"""AdamW for tables of which a step touches few rows: the numbers of torch's AdamW without a pass over the rest.

AdamW moves every row at every step, also one without a gradient: its weights decay, and its first moment carries it on.
Of a row that had no gradient since step t, all of that up to step T is known in advance:

    m_T = beta1^(T-t) m_t            v_T = beta2^(T-t) v_t
    p_T = shrink p_t - ahead m_t / (sqrt(v_t) + eps')

    shrink = product over j = t+1..T of (1 - lr_j decay)
    ahead  = sum over j of lr_j sqrt(1 - beta2^j) / (1 - beta1^j) (beta1 / sqrt(beta2))^(j-t) (the shrink from j to T)

So a row is brought up to date when it is needed, in one go. The `eps` of AdamW belongs beside sqrt(v_t), times the root of
1 - beta2^j, for which that of the first of these steps stands: nothing that float32 shows (tests/test_rows.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lrurec.kernels import rows as kernels
from lrurec.nn.threads import at_once, shares

BETA1, BETA2, EPS = 0.9, 0.999, 1e-9
_FADED = 512  # steps after which beta1 / sqrt(beta2) to that power is nothing
_LEAST = 1024  # rows that are worth a thread
_ALL = 1 << 16  # rows at a time where all are brought up to date


class Past:
    """What steps 1 to T do to a row without gradients, by the step that it was last touched in."""

    def __init__(self, decay: float) -> None:
        self.decay, self.step = decay, 0
        self._shrunk = np.ones(1024)  # [t]: the shrink from 0 to t
        self._ahead = np.zeros(1024)  # [t]: `ahead` from t to T, over the shrink from 0 to T
        self._powers = (BETA1 / BETA2**0.5) ** np.arange(_FADED, 0, -1.0)

    def advance(self, rate: float) -> None:
        self.step += 1
        step, first = self.step, max(0, self.step - _FADED)
        if step == len(self._shrunk):
            self._shrunk = np.concatenate([self._shrunk, np.ones(step)])
            self._ahead = np.concatenate([self._ahead, np.zeros(step)])
        self._shrunk[step] = self._shrunk[step - 1] * (1.0 - rate * self.decay)
        moved = rate * (1.0 - BETA2**step) ** 0.5 / (1.0 - BETA1**step) / self._shrunk[step]
        self._ahead[first:step] += moved * self._powers[first - step :]

    def since(self, last: NDArray[np.int64]) -> tuple[NDArray[np.float32], ...]:
        """(shrink, ahead, eps', and how far both moments have faded) of rows that were last touched in these steps."""
        gone, shrunk = (self.step - last).astype(np.float64), self._shrunk[self.step]
        eps = EPS * np.sqrt(1.0 - BETA2 ** (last + 1.0))
        found = shrunk / self._shrunk[last], self._ahead[last] * shrunk, eps, BETA1**gone, BETA2**gone
        return tuple(f.astype(np.float32) for f in found)


@dataclass
class Table:
    """A parameter, its moments, and the step that each of its rows is up to date with."""

    parameter: nn.Parameter
    past: Past
    first: Tensor = field(init=False)
    second: Tensor = field(init=False)
    last: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.first, self.second = torch.zeros_like(self.parameter), torch.zeros_like(self.parameter)
        self.last = np.zeros(len(self.parameter), np.int64)

    def _parts(self) -> list[Any]:
        """Values and both moments as [V, D]; a vector has rows of one number."""
        rows = len(self.parameter)
        return [t.detach().view(rows, -1) for t in (self.parameter, self.first, self.second)]

    def catch_up(self, rows: NDArray[np.int64]) -> None:
        """Bring rows, each given once, up to date."""
        rows = rows[self.last[rows] < self.past.step]
        if len(rows) == 0:
            return
        numbers = self.past.since(self.last[rows])
        parts = self._parts()
        if parts[0].device.type == "cpu":
            arrays = [p.numpy() for p in parts]
            at_once(
                lambda part: kernels.catch_up(rows[part], *(n[part] for n in numbers), *arrays),
                shares(len(rows), _LEAST),
            )
        else:
            catch_up_reference(torch.from_numpy(rows), *(torch.from_numpy(n) for n in numbers), *parts)
        self.last[rows] = self.past.step

    def catch_up_all(self) -> None:
        for start in range(0, len(self.last), _ALL):
            self.catch_up(np.arange(start, min(start + _ALL, len(self.last))))

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """The rows as a tensor of its own that wants gradients."""
        self.catch_up(rows)
        index = torch.from_numpy(rows).to(self.parameter.device)
        return self.parameter.detach().index_select(0, index).requires_grad_()

    def update(self, rows: NDArray[np.int64], gradients: Tensor, rate: float) -> None:
        """The step behind the last of `past`, for rows that are up to date with it."""
        step, shrink = self.past.step + 1, 1.0 - rate * self.past.decay
        numbers = shrink, BETA1, BETA2, rate / (1.0 - BETA1**step), (1.0 - BETA2**step) ** 0.5, EPS
        parts = self._parts()
        g = gradients.reshape(len(rows), parts[0].shape[1])
        if g.device.type == "cpu":
            arrays, floats, given = [p.numpy() for p in parts], [np.float32(n) for n in numbers], g.numpy()
            at_once(lambda part: kernels.update(rows[part], given[part], *floats, *arrays), shares(len(rows), _LEAST))
        else:
            update_reference(torch.from_numpy(rows), g, *numbers, *parts)
        self.last[rows] = step


def catch_up_reference(
    rows: Tensor, shrink: Tensor, ahead: Tensor, eps: Tensor, fade1: Tensor, fade2: Tensor,
    values: Tensor, first: Tensor, second: Tensor,
) -> None:  # fmt: skip
    """The obvious twin, on any device."""
    rows = rows.to(values.device)
    shrink, ahead, eps, fade1, fade2 = (n.to(values)[:, None] for n in (shrink, ahead, eps, fade1, fade2))
    m, v = first[rows], second[rows]
    values[rows] = values[rows] * shrink - ahead * m / (v.sqrt() + eps)
    first[rows], second[rows] = m * fade1, v * fade2


def update_reference(
    rows: Tensor, gradients: Tensor, shrink: float, keep1: float, keep2: float, rate: float, root: float, eps: float,
    values: Tensor, first: Tensor, second: Tensor,
) -> None:  # fmt: skip
    """The obvious twin, on any device."""
    rows = rows.to(values.device)
    first[rows] = m = torch.lerp(first[rows], gradients, 1.0 - keep1)
    second[rows] = v = second[rows] * keep2 + gradients.square() * (1.0 - keep2)
    values[rows] = values[rows] * shrink - rate * m / (v.sqrt() / root + eps)


class Tables:
    """All tables of a model, stepping together; `rate` gives the learning rate of step 0, 1, ..."""

    def __init__(self, decays: dict[str, tuple[nn.Parameter, float]], rate: Callable[[int], float]) -> None:
        self.rate = rate
        self.pasts = {decay: Past(decay) for _, decay in decays.values()}
        self.tables = {name: Table(parameter, self.pasts[decay]) for name, (parameter, decay) in decays.items()}

    @property
    def step(self) -> int:
        return next(iter(self.pasts.values())).step

    def forward_to(self, step: int) -> None:
        """Count steps that a checkpoint has behind it."""
        for past in self.pasts.values():
            while past.step < step:
                past.advance(self.rate(past.step))

    def update(self, gradients: dict[str, tuple[NDArray[np.int64], Tensor]]) -> None:
        """One step: the rows of some tables and their gradients."""
        rate = self.rate(self.step)
        for name, (rows, given) in gradients.items():
            self.tables[name].update(rows, given, rate)
        self.forward_to(self.step + 1)

    def catch_up_all(self) -> None:
        for table in self.tables.values():
            table.catch_up_all()
