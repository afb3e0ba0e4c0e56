"""FPMC: factorised personalised Markov chains (Rendle, Freudenthaler and Schmidt-Thieme, WWW 2010).

    score(u, l, v) = VU_u . VI_v  +  VL_l . VIL_v  +  b_v          u: the user, l: the newest item

which is matrix factorisation beside a factorised Markov chain of order one: the published model with baskets of one
item. The paper ranks by S-BPR against drawn items and has no b_v; here it is trained with the cross entropy of all
models, and the bias saves the vectors from having to say what is popular. The two products are one, of vectors twice
as wide.

Somebody who did not train has VU = 0: what is left is the Markov chain. The start of a history has a vector VL of its own.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, Sizes, TrainedModel
from lrurec.models.mf import of_users, user_table
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.init import truncated_normal_


@dataclass(frozen=True)
class FPMCConfig:
    """How long each of the two vectors is, and how much of both is hidden in training."""

    width: int = 64
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"model.dropout must lie between 0 and 1, not {self.dropout}")
        if self.width < 1:
            raise SettingsError("model.width must be 1 or more")


class FPMC(TrainedModel):
    """A vector per user, one per item that was just taken, two per item that may come next."""

    knows_users = True
    tables: ClassVar = {"users": "user", "newest": "input", "items": "item", "bias": "item"}
    Config = FPMCConfig
    config: FPMCConfig
    card = Card("FPMC", 2010, "Rendle et al., WWW", "O(n d)", "O(d): a look at one row")

    def __init__(self, sizes: Sizes, config: FPMCConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        self.users = nn.Parameter(user_table(sizes.users, config.width, generator))  # VU
        self.newest = nn.Parameter(truncated_normal_(torch.empty(sizes.items + 1, config.width), generator))  # VL
        self.items = nn.Parameter(truncated_normal_(torch.empty(sizes.items, 2 * config.width), generator))  # VI, VIL
        self.bias = nn.Parameter(truncated_normal_(torch.empty(sizes.items), generator))

    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        both = torch.cat([of_users(batch, self.users), F.embedding(batch.inputs, self.newest)], 1)
        hidden: Tensor = dropout(both, self.config.dropout, keys)
        return hidden

    def answers(self) -> tuple[Tensor, Tensor]:
        return self.items, self.bias
