"""The learning rate of a step. Knows numbers."""

import math

from lrurec.training.config import TrainingConfig


def learning_rate(step: int, config: TrainingConfig) -> float:
    """One-cycle: a cosine up over the first 30% of the steps, a cosine down to nothing over the rest; then that of `finish`."""
    if config.schedule == "constant":
        return config.learning_rate
    if config.finish and step >= config.steps:
        return _one_cycle(step - config.steps, config.finish, config.finish_rate)
    return _one_cycle(step, config.steps, config.learning_rate)


def _one_cycle(step: int, steps: int, highest: float) -> float:
    peak = max(1, round(0.3 * steps))
    if step < peak:
        share = 0.5 - 0.5 * math.cos(math.pi * step / peak)
        return highest * (0.04 + 0.96 * share)
    share = (step - peak) / max(1, steps - peak)
    return highest * max(1e-5, 0.5 + 0.5 * math.cos(math.pi * min(share, 1.0)))
