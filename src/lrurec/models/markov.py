"""A Markov chain over the last few items: counts of what came after what. Nothing is trained.

    C[a, b]  = sum over every b that came g = 1..window items after an a of decay^(g-1)
    score(b) = sum over the last items l_1 (the newest), l_2, ..., l_window of
               decay^(k-1) C[l_k, b] / count(l_k)^from_power / count(b)^to_power

Between equals popularity decides; so it does for items that never came after any of them, below all others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, CountingModel, Sizes

_PAIRS = 1 << 24  # pairs counted at a time
_TIE = 1e-6


@dataclass(frozen=True)
class MarkovConfig:
    """How far back it looks, and how counts become scores."""

    window: int = 5
    decay: float = 0.6
    from_power: float = 0.5  # 1: chances, 0: plain counts
    to_power: float = 0.0  # more than 0: popular items count less

    def __post_init__(self) -> None:
        if self.window < 1:
            raise SettingsError("model.window must be 1 or more")
        if not 0 < self.decay <= 1:
            raise SettingsError(f"model.decay must lie above 0 and not above 1, not {self.decay}")


class Markov(CountingModel):
    """Rows of a sparse matrix: item a to the items that followed it, and how much."""

    Config = MarkovConfig
    config: MarkovConfig
    card = Card("Markov chain", 0, "what came after the last few items", "O(n)", "O(1): a look at a few rows")

    def __init__(self, sizes: Sizes, config: MarkovConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        self.counts = nn.Parameter(torch.zeros(sizes.items), requires_grad=False)
        self.starts = nn.Parameter(torch.zeros(sizes.items + 1, dtype=torch.int64), requires_grad=False)
        self.followers = nn.Parameter(torch.zeros(0, dtype=torch.int64), requires_grad=False)
        self.weights = nn.Parameter(torch.zeros(0), requires_grad=False)

    def count(self, sequences: Batch) -> None:
        c, items = self.config, len(self.counts)
        flat, place = sequences.inputs - 1, sequences.positions()
        counts = torch.bincount(flat, minlength=items).double()
        keys, weights = flat.new_zeros(0), counts.new_zeros(0)
        for gap in range(1, min(c.window, max(len(flat) - 1, 0)) + 1):
            apart = torch.nonzero(place[gap:] >= gap)[:, 0]  # both of one sequence
            for part in torch.split(apart, _PAIRS):
                found = flat[part] * items + flat[part + gap]
                keys, which = torch.unique(torch.cat([keys, found]), return_inverse=True)
                more = torch.cat([weights, weights.new_full((len(found),), c.decay ** (gap - 1))])
                weights = weights.new_zeros(len(keys)).index_add_(0, which, more)
        before, after = keys // items, keys % items
        scaled = weights / counts[before] ** c.from_power / counts[after] ** c.to_power
        self.keep("counts", counts.float())
        self.keep("starts", torch.searchsorted(before, torch.arange(items + 1, device=before.device)))
        self.keep("followers", after)
        self.keep("weights", scaled.float())

    def scores(self, batch: Batch) -> Tensor:
        c, items = self.config, len(self.counts)
        lengths = batch.lengths.to(batch.inputs.device)
        found = torch.zeros(len(lengths), items, device=batch.inputs.device)
        for back in range(min(c.window, int(lengths.max()) if len(lengths) else 0)):
            who = torch.nonzero(lengths > back)[:, 0]
            item = batch.inputs[batch.lasts[who] - back] - 1
            who, item = who[item >= 0], item[item >= 0]  # the start is no item
            first, many = self.starts[item], self.starts[item + 1] - self.starts[item]
            ends = many.cumsum(0)
            at = torch.arange(int(ends[-1]) if len(ends) else 0, device=who.device)
            at = at + (first - ends + many).repeat_interleave(many)
            cells = who.repeat_interleave(many) * items + self.followers[at]
            found.view(-1).index_add_(0, cells, c.decay**back * self.weights[at])
        popular = self.counts / (self.counts.max() + 1)  # below 1
        return torch.where(found > 0, found + _TIE * popular, popular - 1)
