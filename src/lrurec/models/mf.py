"""MF: matrix factorisation (Koren, Bell and Volinsky, IEEE Computer 2009). Knows who somebody is, not what came when.

    score(u, v) = p_u . q_v + b_v

The published model fits ratings with a squared error, score = mu + b_u + b_v + p_u . q_v. Here every event is an answer
of a softmax over the catalogue, as for all models: what is the same for every item (mu, b_u) cancels there and is left
out. The paper's penalty on the length of the vectors is the optimiser's weight decay; dropout comes on top, with one
mask for a window, so that all its events share one vector and the loss has to score it only once.

Somebody who did not train has the vector 0: what is left is b_v, popularity.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, Sizes, TrainedModel, TrainingBatch
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.init import truncated_normal_


@dataclass(frozen=True)
class MFConfig:
    """How long the vectors are, and how much of a user's is hidden in training."""

    width: int = 64
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"model.dropout must lie between 0 and 1, not {self.dropout}")
        if self.width < 1:
            raise SettingsError("model.width must be 1 or more")


class MF(TrainedModel):
    """A vector per user, a vector and a bias per item."""

    tables: ClassVar = {"users": "user", "items": "item", "bias": "item"}
    Config = MFConfig
    config: MFConfig
    reads_histories = False
    knows_users = True
    card = Card("MF", 2009, "Koren, Bell and Volinsky, IEEE Computer", "O(d)", "none: it is trained again")

    def __init__(self, sizes: Sizes, config: MFConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        self.users = nn.Parameter(user_table(sizes.users, config.width, generator))
        self.items = nn.Parameter(truncated_normal_(torch.empty(sizes.items, config.width), generator))
        self.bias = nn.Parameter(truncated_normal_(torch.empty(sizes.items), generator))

    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        hidden: Tensor = dropout(of_users(batch, self.users), self.config.dropout, keys)
        return hidden

    @classmethod
    def looks_ahead(cls, config: MFConfig) -> bool:
        return False

    def examples(self, batch: TrainingBatch, keys: Keys) -> tuple[Tensor, Tensor]:
        windows = batch.windows.to(batch.inputs.device)
        vectors = F.embedding(batch.user_rows()[windows[:-1]], self.users, padding_idx=0)
        hidden = dropout(vectors, self.config.dropout, keys).repeat_interleave(windows.diff(), 0)
        return hidden, batch.targets

    def answers(self) -> tuple[Tensor, Tensor]:
        return self.items, self.bias


def user_table(users: int, width: int, generator: torch.Generator) -> Tensor:
    """[users + 1, d]; row 0, for whoever did not train, is 0."""
    table = truncated_normal_(torch.empty(users + 1, width), generator)
    table[0] = 0
    return table


def of_users(batch: Batch, table: Tensor) -> Tensor:
    """[N, d]: at every position the vector of its user. Row 0 of the table gets no gradient, so it stays 0."""
    return F.embedding(batch.user_rows(), table, padding_idx=0)
