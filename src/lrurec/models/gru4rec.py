"""GRU4Rec: a gated recurrent unit over the items of a history (Hidasi et al., ICLR 2016).

    x_t = Dropout(Embedding(item_t))
    h_t = GRU(x_t, h_{t-1})                     (lrurec.nn.gru; further layers read the states of the one before)
    scores = E (P h_t) + bias                   (E is the embedding; P only where the hidden size is another)

Where it departs from the paper:

- An embedding as input, and scores tied to it: the paper feeds one-hot items and learns a separate output matrix.
- Cross entropy over the catalogue at every position of whole histories: the paper samples its negatives from the other
  sessions of a batch and ranks them pairwise (BPR, TOP1), one step through time at a time.
- The reset gate acts on U_n h + c_n, not on h itself: the form of cuDNN and torch, one product per step.
- Dropout only on the embedding and between layers.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, RecurrentModel, Sizes
from lrurec.nn.dropout import Keys, dropout
from lrurec.nn.gru import GRU
from lrurec.nn.init import truncated_normal_


@dataclass(frozen=True)
class GRU4RecConfig:
    """Sizes and dropout."""

    width: int = 64  # of the embedding
    hidden: int = 128  # of the state
    layers: int = 1
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"model.dropout must lie between 0 and 1, not {self.dropout}")
        if min(self.width, self.hidden, self.layers) < 1:
            raise SettingsError("model.width, model.hidden and model.layers must be 1 or more")


class GRU4Rec(RecurrentModel):
    """The whole model over a catalogue of items."""

    tables: ClassVar = {"embedding": "input", "bias": "item"}
    Config = GRU4RecConfig
    config: GRU4RecConfig
    card = Card(
        "GRU4Rec", 2016, "Hidasi et al., ICLR", "O(n d^2), one item after the other", "O(d^2): one step of a GRU"
    )

    def __init__(self, sizes: Sizes, config: GRU4RecConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        c = config
        # Larger than elsewhere: the gates hardly see inputs of 0.02, and learn hundreds of steps later.
        self.embedding = nn.Parameter(truncated_normal_(torch.empty(sizes.items + 1, c.width), generator, 0.1))
        self.layers = nn.ModuleList(GRU(c.width if k == 0 else c.hidden, c.hidden, generator) for k in range(c.layers))
        self.project: nn.Parameter | None = None
        if c.hidden != c.width:
            self.project = nn.Parameter(nn.init.xavier_uniform_(torch.empty(c.width, c.hidden), generator=generator))
        self.bias = nn.Parameter(truncated_normal_(torch.empty(sizes.items), generator))

    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        return self._projected(self._states(batch, keys))

    def last(self, batch: Batch) -> Tensor:
        return self._projected(self._states(batch, None)[batch.lasts])

    def _states(self, batch: Batch, keys: Keys | None) -> Tensor:
        """The states of the last layer: [N, hidden]."""
        x = F.embedding(batch.inputs, self.embedding)
        for layer in self.layers:
            x = layer(dropout(x, self.config.dropout, keys), batch.offsets)
        return x

    def _projected(self, h: Tensor) -> Tensor:
        return h if self.project is None else F.linear(h, self.project)

    def answers(self) -> tuple[Tensor, Tensor]:
        return self.embedding, self.bias

    def initial_state(self, batch: int = 1) -> Tensor:
        """[B, layers, hidden]: 512 bytes per user at the usual size."""
        return self.embedding.new_zeros(batch, self.config.layers, self.config.hidden)

    def step(self, state: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        x = F.embedding(inputs, self.embedding)
        states = []
        for k, layer in enumerate(self.layers):
            x = layer.step(state[:, k], x)  # type: ignore[operator]
            states.append(x)
        return torch.stack(states, 1), self._projected(x)
