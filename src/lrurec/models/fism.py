"""FISM: factored item similarity models (Kabbur, Ning and Karypis, KDD 2013). Knows what somebody took, not when.

    score(u, v) = b_v + n^-alpha  sum over the items j != v of the user of  p_j . q_v          n: how many those are

Training leaves the answer out of its own sum, wherever it occurs: in a window of events each is predicted from all the
others (`context="others"`, as published), or from those before it (`context="before"`, which looks at no future and
lets an item be a reason to take it again). The sum is the same for the answer and for its rivals, as in the paper's
FISMauc; the loss is the cross entropy of all models, in which the user's bias cancels.

To predict what comes next, the sum runs over all items of the history. An item of the history is scored with itself
in the sum, which the paper would leave out; rankings mask such items.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.config import unknown
from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, Sizes, TrainedModel, TrainingBatch
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.init import truncated_normal_

CONTEXTS = ("others", "before")


@dataclass(frozen=True)
class FISMConfig:
    """What predicts an item in training, and how much many items count more than few."""

    width: int = 64
    alpha: float = 0.5  # 0: the sum, 1: the mean
    context: str = "others"
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if self.context not in CONTEXTS:
            raise unknown("model.context", self.context, CONTEXTS)
        if not 0 <= self.alpha <= 1:
            raise SettingsError(f"model.alpha must lie between 0 and 1, not {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"model.dropout must lie between 0 and 1, not {self.dropout}")
        if self.width < 1:
            raise SettingsError("model.width must be 1 or more")


class FISM(TrainedModel):
    """Two vectors per item: as a reason (p) and as an answer (q)."""

    tables: ClassVar = {"reasons": "input", "items": "item", "bias": "item"}
    Config = FISMConfig
    config: FISMConfig
    card = Card("FISM", 2013, "Kabbur, Ning and Karypis, KDD", "O(n d)", "O(d): one more term of a sum")

    def __init__(self, sizes: Sizes, config: FISMConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        reasons = truncated_normal_(torch.empty(sizes.items + 1, config.width), generator)
        reasons[0] = 0  # the start of a history, which stands alone: a sum of nothing
        self.reasons = nn.Parameter(reasons)  # P
        self.items = nn.Parameter(truncated_normal_(torch.empty(sizes.items, config.width), generator))  # Q
        self.bias = nn.Parameter(truncated_normal_(torch.empty(sizes.items), generator))

    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        device = batch.inputs.device
        vectors = F.embedding(batch.inputs, self.reasons, padding_idx=0)
        # In double precision, so that taking off what came before the sequence leaves no trace of it.
        sums = F.pad(vectors.double().cumsum(0), (0, 0, 1, 0))
        before = batch.offsets[:-1].repeat_interleave(batch.lengths).to(device)
        return self._hidden((sums[1:] - sums[before]).to(vectors.dtype), batch.positions() + 1, keys)

    def last(self, batch: Batch) -> Tensor:
        return self._hidden(self._sums(batch.inputs, batch.offsets), batch.lengths.to(batch.inputs.device), None)

    @classmethod
    def looks_ahead(cls, config: FISMConfig) -> bool:
        return config.context == "before"

    def examples(self, batch: TrainingBatch, keys: Keys) -> tuple[Tensor, Tensor]:
        if self.config.context == "before":
            return super().examples(batch, keys)
        return self._hidden(*self._others(batch), keys), batch.targets

    def _others(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """For every target, the sum over the items of its window that are others, and how many they are."""
        lengths = batch.windows.diff().to(batch.targets.device)
        window = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        _, which, found = torch.unique(
            window * self.sizes.items + batch.targets, return_inverse=True, return_counts=True
        )
        alike = found[which]  # how often the target itself is in its window
        own = F.embedding(batch.targets + 1, self.reasons)
        return self._sums(batch.targets + 1, batch.windows)[window] - alike[:, None] * own, lengths[window] - alike

    def _sums(self, inputs: Tensor, offsets: Tensor) -> Tensor:
        """[S, d]: the sum of p over each part of a packed run."""
        return F.embedding_bag(inputs, self.reasons, offsets[:-1].to(inputs.device), mode="sum", padding_idx=0)

    def _hidden(self, sums: Tensor, many: Tensor, keys: Keys | None) -> Tensor:
        weights = many.clamp(min=1).to(sums.dtype) ** -self.config.alpha
        hidden: Tensor = dropout(sums * weights[:, None], self.config.dropout, keys)
        return hidden

    def answers(self) -> tuple[Tensor, Tensor]:
        return self.items, self.bias
