"""BERT4Rec: sequential recommendation with bidirectional encoders (Sun et al., CIKM 2019).

    x   = LayerNorm(Dropout(E[item] + P[place]))
    block:  z = LayerNorm(Dropout(Attention(x)) + x)        (every position sees all of its sequence)
            x = LayerNorm(PFFN(z) + z)
    scores  = E GELU(W_P x + b_P) + bias                    (E is the embedding: the prediction layer is tied)

With `model.head=none` the last line is E x + bias, as in widely used implementations. With `model.begin=copies` attention begins
as an average of what it looks at (its values and its output begin as identities), so that items reach the prediction from
the first step on: there is no residual from an item to the mask behind it, and sparse logs teach that path slowly.

Trained as a cloze: some items of a window are replaced by a learned mask, and predicted from what is left, before and
behind. In a share of the windows only the newest item is masked, as it is when the model is asked: then the mask is
appended to the newest `max_length` - 1 items. Which items are masked is a function of the keys of the step.

Input 0, the start of a history, is the mask: somebody without a history is a mask alone, as is a window of one item.
Only the masked positions are needed behind the last block, and only they are computed there.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrurec.config import unknown
from lrurec.errors import SettingsError
from lrurec.models.base import Batch, Card, Sizes, TrainedModel, TrainingBatch
from lrurec.nn.attention import AttentionConfig, Encoder, projection
from lrurec.nn.dropout import Keys, hashes, limit_of
from lrurec.nn.init import truncated_normal_

MASK = 0
_PREFIXES = 256  # encoded together


@dataclass(frozen=True)
class BERT4RecConfig(AttentionConfig):
    """The paper's model at the width that all are compared at."""

    mask_share: float = 0.2  # of the items of a window; the paper's is 0.2 on ML-1M and 0.6 on Beauty
    last_share: float = 0.1  # of the windows: only their newest item is masked
    head: str = "gelu"  # or none: vectors of positions meet the items as they are
    begin: str = "random"  # or copies: attention begins as an average of what it looks at

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("head", ("gelu", "none")), ("begin", ("random", "copies"))):
            if getattr(self, name) not in known:
                raise unknown(f"model.{name}", getattr(self, name), known)
        if not 0 < self.mask_share <= 1:
            raise SettingsError(f"model.mask_share must be above 0 and at most 1, not {self.mask_share}")
        if not 0 <= self.last_share <= 1:
            raise SettingsError(f"model.last_share must lie between 0 and 1, not {self.last_share}")


class BERT4Rec(TrainedModel):
    """The whole model over a catalogue of items."""

    tables: ClassVar = {"embedding": "input", "bias": "item"}
    Config = BERT4RecConfig
    config: BERT4RecConfig
    card = Card("BERT4Rec", 2019, "Sun et al., CIKM", "O(n^2 d + n d^2)", "O(n^2 d + n d^2): the history again")

    def __init__(self, sizes: Sizes, config: BERT4RecConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        width = config.width
        self.embedding = nn.Parameter(truncated_normal_(torch.empty(sizes.items + 1, width), generator))
        self.encoder = Encoder(sizes.max_length, config, generator)
        if config.begin == "copies":
            self.encoder.copy_at_first()
        if config.head == "gelu":
            self.head = projection(width, width, generator)
            self.head_bias = nn.Parameter(torch.zeros(width))
            self.head_norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(truncated_normal_(torch.empty(sizes.items), generator))

    def answers(self) -> tuple[Tensor, Tensor]:
        return self.embedding, self.bias

    @classmethod
    def looks_ahead(cls, config: BERT4RecConfig) -> bool:
        return False

    def examples(self, batch: TrainingBatch, keys: Keys) -> tuple[Tensor, Tensor]:
        """The masked items of the windows."""
        masked = self.masked(batch.windows, batch.targets.device, keys)
        rows = masked.nonzero()[:, 0]
        inputs = (batch.targets + 1).masked_fill(masked, MASK)
        return self._at(rows, Batch(inputs, batch.windows), keys), batch.targets[rows]

    def masked(self, windows: Tensor, device: torch.device, keys: Keys) -> Tensor:
        """[N]: which items of the windows are masked; at least one of each."""
        lengths = windows.diff().to(device)
        whose = torch.repeat_interleave(lengths)
        drawn = hashes(len(whose), keys.next(), device)
        lowest = drawn.new_full((len(lengths),), 1 << 32).scatter_reduce(0, whose, drawn, "amin")
        cloze = (drawn < limit_of(self.config.mask_share)) | (drawn == lowest[whose])
        newest = torch.zeros_like(cloze)
        newest[windows[1:].to(device) - 1] = True
        only_newest = hashes(len(lengths), keys.next(), device) < limit_of(self.config.last_share)
        return torch.where(only_newest[whose], newest, cloze)

    def last(self, batch: Batch) -> Tensor:
        asked = self.asked(batch)
        return self._at(asked.lasts, asked, None)

    def encode(self, batch: Batch, keys: Keys | None = None) -> Tensor:
        """The vector of a position is what `last` gives for the history up to it.

        No position may see what comes after it, so every prefix is a sequence of its own: this costs n times as much as
        `last`, and neither training nor ranking needs it.
        """
        place = batch.positions().cpu()
        found = []
        for rows in torch.split(torch.arange(len(batch)), _PREFIXES):
            lengths = place[rows] + 1
            ends = lengths.cumsum(0)
            inside = torch.arange(int(ends[-1])) + (rows + 1 - ends).repeat_interleave(lengths)
            offsets = torch.cat([ends.new_zeros(1), ends])
            asked = self.asked(Batch(batch.inputs[inside.to(batch.inputs.device)], offsets))
            found.append(self._at(asked.lasts, asked, keys))
        return torch.cat(found)

    def asked(self, batch: Batch) -> Batch:
        """The newest items of every history, and a mask behind them."""
        starts, stops = batch.offsets[:-1], batch.offsets[1:]
        is_empty = batch.inputs[starts.to(batch.inputs.device)].cpu() == MASK
        kept = (stops - starts).clamp(max=self.sizes.max_length - 1).masked_fill(is_empty, 0)
        ends = (kept + 1).cumsum(0)
        rows = torch.arange(int(ends[-1])) + (stops + 1 - ends).repeat_interleave(kept + 1)
        rows[ends - 1] = 0  # anything: the mask comes here
        inputs = batch.inputs[rows.to(batch.inputs.device)]
        inputs[(ends - 1).to(inputs.device)] = MASK
        return Batch(inputs, torch.cat([ends.new_zeros(1), ends]), batch.users)

    def _at(self, rows: Tensor, batch: Batch, keys: Keys | None) -> Tensor:
        """The vectors of some rows, from which their items are predicted."""
        items = F.embedding(batch.inputs, self.embedding)
        newest = (batch.offsets[1:] - 1).repeat_interleave(batch.lengths).to(rows.device)
        places = newest - torch.arange(len(batch), device=rows.device)
        x: Tensor = self.encoder(items, places, batch.offsets, keys, causal=False, rows=rows)
        if self.config.head == "none":
            return x
        result: Tensor = self.head_norm(F.gelu(F.linear(x, self.head, self.head_bias)))
        return result
