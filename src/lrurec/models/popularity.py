"""Popularity: the same list for everybody. The line that any model must beat.

score(v) = how often v occurs in training
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lrurec.models.base import Batch, Card, CountingModel, Sizes


@dataclass(frozen=True)
class PopularityConfig:
    """There is nothing to choose."""


class Popularity(CountingModel):
    """Counts."""

    Config = PopularityConfig
    reads_histories = False
    card = Card("Popularity", 0, "what most people took", "O(n)", "none")

    def __init__(self, sizes: Sizes, config: PopularityConfig, generator: torch.Generator) -> None:
        super().__init__(sizes, config, generator)
        self.counts = nn.Parameter(torch.zeros(sizes.items), requires_grad=False)

    def count(self, sequences: Batch) -> None:
        self.keep("counts", torch.bincount(sequences.inputs - 1, minlength=len(self.counts)).float())

    def scores(self, batch: Batch) -> Tensor:
        return self.counts.repeat(len(batch.offsets) - 1, 1)
