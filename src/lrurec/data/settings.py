"""What is kept of a log and in which order: settings, recipes, and the account of what was done. Knows no data."""

from dataclasses import dataclass
from typing import Literal

from lrurec.config import unknown
from lrurec.data.times import UNITS, Unit
from lrurec.errors import SettingsError

Ties = Literal["file", "item", "shuffle"]
TIES: tuple[Ties, ...] = ("file", "item", "shuffle")


@dataclass(frozen=True)
class Settings:
    """What is kept and in which order. The defaults keep every event."""

    min_user: int = 1
    min_item: int = 1
    k_core: bool = False
    drop_repeats: bool = False
    ties: Ties = "file"
    seed: int = 0
    min_rating: float | None = None
    time_unit: Unit | None = None
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("min_user", "min_item", "seed"):
            if type(getattr(self, name)) is not int:
                raise SettingsError(f"{name} must be a whole number, not {getattr(self, name)!r}")
        if self.ties not in TIES:
            raise unknown("rule for ties", self.ties, TIES)
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise unknown("time unit", self.time_unit, UNITS)
        if self.min_user < 1 or self.min_item < 1:
            raise SettingsError("--min-user and --min-item must be 1 or more")


@dataclass
class Log:
    """What happened on the way; goes into the manifest."""

    rows: int = 0
    bad_rows: int = 0
    below_min_rating: int = 0
    repeats_dropped: int = 0
    events_filtered: int = 0
    users_filtered: int = 0
    items_filtered: int = 0
    items_named: int = 0
