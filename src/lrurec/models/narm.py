"""NARM: neural attentive recommendation (Li et al., CIKM 2017).

    h_t       = GRU(Dropout(Embedding(item_t)), h_{t-1})
    global_t  = h_t                                                  what the whole history comes to
    local_t   = sum over j <= t of alpha_tj h_j                      what it was about
    alpha_tj  = v . sigma(A1 h_t + A2 h_j)                           without a softmax, as published
    score(i)  = E_i . B Dropout([global_t; local_t]) + bias_i        (E is the embedding)

The answer of every position is learned at once, each from its own sums over what came before it.

Where it departs from the paper: items have biases; both encoders read the states of one GRU, where the paper writes h^g
and h^l; every position of a history is trained, not a list of its beginnings. A new event changes the weights of
everything before it, so there is no state of fixed size to step: the history is read again.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, Sizes, TrainedModel
from lrurec.nn.additive import additive, additive_last
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.gru import GRU
from lrurec.nn.init import truncated_normal_


@dataclass(frozen=True)
class NARMConfig:
    """Sizes and dropout; the paper's rates."""

    width: int = 64  # of the embedding
    hidden: int = 128  # of the states
    layers: int = 1
    dropout: float = 0.25  # behind the embedding, and between layers
    context_dropout: float = 0.5  # before the decoder

    def __post_init__(self) -> None:
        for name in ("dropout", "context_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingsError(f"model.{name} must lie between 0 and 1, not {getattr(self, name)}")
        if min(self.width, self.hidden, self.layers) < 1:
            raise SettingsError("model.width, model.hidden and model.layers must be 1 or more")


class NARM(TrainedModel):
    """The whole model over a catalogue of items."""

    tables: ClassVar = {"embedding": "input", "bias": "item"}
    Config = NARMConfig
    config: NARMConfig
    card = Card("NARM", 2017, "Li et al., CIKM", "O(n d^2 + n^2 d)", "O(n d): the attention meets the whole history")

    def __init__(self, sizes: Sizes, config: NARMConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        c = config

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(nn.init.xavier_uniform_(torch.empty(*shape), generator=generator))

        # Larger than elsewhere: the gates hardly see inputs of 0.02, and learn hundreds of steps later.
        self.embedding = nn.Parameter(truncated_normal_(torch.empty(sizes.items + 1, c.width), generator, 0.1))
        self.layers = nn.ModuleList(GRU(c.width if k == 0 else c.hidden, c.hidden, generator) for k in range(c.layers))
        self.query, self.key = drawn(c.hidden, c.hidden), drawn(c.hidden, c.hidden)  # A1, A2
        self.v = drawn(1, c.hidden)
        self.decoder = drawn(c.width, 2 * c.hidden)  # B
        self.bias = nn.Parameter(truncated_normal_(torch.empty(sizes.items), generator))

    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        h = self._states(batch, keys)
        local = additive(F.linear(h, self.query), F.linear(h, self.key), self.v[0], h, batch.offsets)
        return self._decoded(h, local, keys)

    def last(self, batch: Batch) -> Tensor:
        h = self._states(batch, None)
        newest = h[batch.lasts]
        local = additive_last(F.linear(newest, self.query), F.linear(h, self.key), self.v[0], h, batch.offsets)
        return self._decoded(newest, local, None)

    def _states(self, batch: Batch, keys: Keys | None) -> Tensor:
        """The states of the last layer: [N, hidden]."""
        x = F.embedding(batch.inputs, self.embedding)
        for layer in self.layers:
            x = layer(dropout(x, self.config.dropout, keys), batch.offsets)
        return x

    def _decoded(self, whole: Tensor, local: Tensor, keys: Keys | None) -> Tensor:
        c = dropout(torch.cat([whole, local], 1), self.config.context_dropout, keys)
        return F.linear(c, self.decoder)

    def answers(self) -> tuple[Tensor, Tensor]:
        return self.embedding, self.bias
