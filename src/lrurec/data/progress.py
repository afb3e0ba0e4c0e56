"""How far something is. Whoever works calls; whoever watches draws."""

from collections.abc import Callable

Progress = Callable[[str, float, float], None]  # stage, done, total


def no_progress(stage: str, done: float, total: float) -> None:
    """For callers who do not watch."""


def counted(progress: Progress, stage: str, total: float) -> Callable[[int], None]:
    """A function that hears of every piece done, and passes the sum on."""
    done = 0

    def piece(count: int) -> None:
        nonlocal done
        done += count
        progress(stage, done, total)

    return piece
