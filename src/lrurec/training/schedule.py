"""The learning rate of a step. Knows numbers."""

import math

from lrurec.training.config import TrainingConfig


def learning_rate(step: int, config: TrainingConfig) -> float:
    """One-cycle: a cosine up over the first 30% of the steps, a cosine down to nothing over the rest."""
    if config.schedule == "constant":
        return config.learning_rate
    peak = max(1, round(0.3 * config.steps))
    if step < peak:
        share = 0.5 - 0.5 * math.cos(math.pi * step / peak)
        return config.learning_rate * (0.04 + 0.96 * share)
    share = (step - peak) / max(1, config.steps - peak)
    return config.learning_rate * max(1e-5, 0.5 + 0.5 * math.cos(math.pi * min(share, 1.0)))
