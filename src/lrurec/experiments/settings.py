"""With which settings a cell is trained: the kind of its dataset, and what settings.toml says of the model."""

import dataclasses
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from lrurec.config import unknown
from lrurec.errors import SettingsError
from lrurec.models.base import CountingModel
from lrurec.models.lrurec import SIZES
from lrurec.models.registry import model_class
from lrurec.training.config import RunConfig, TrainingConfig, config_for

KINDS = ("dense", "sparse", "long")


@cache
def table() -> dict[str, Any]:
    """settings.toml."""
    return tomllib.loads(resources.files("lrurec.experiments").joinpath("settings.toml").read_text(encoding="utf-8"))


def kind_of(mean_length: float) -> str:
    """`sparse` where histories are short on average, `long` where they are long, else `dense`.

    >>> kind_of(7.6), kind_of(165.5), kind_of(958.8)
    ('sparse', 'dense', 'long')
    """
    if mean_length < table()["sparse_below"]:
        return "sparse"
    return "dense" if mean_length < table()["long_from"] else "long"


@dataclass(frozen=True)
class Chosen:
    """The settings of a cell as `lrurec train` takes them, and what they come to."""

    recipe: str
    assignments: tuple[str, ...]  # for --set, in order
    config: RunConfig

    def options(self, model: str) -> list[str]:
        """For the command line of `lrurec train`."""
        return ["--model", model, "--recipe", self.recipe, *(o for a in self.assignments for o in ("--set", a))]


def settings_for(
    kind: str, model: str, seed: int, given: Sequence[str] = (), row: Sequence[str] = (), usual: Sequence[str] = ()
) -> Chosen:
    """The settings of the kind, of the model, a row's usual ones, those given, and the row's own: in that order.

    Of the kind's and the given ones, those that mean nothing to the model are left out.
    """
    base, own = table()[kind], table().get("models", {}).get(model, {}).get(kind, {})
    lines: dict[str, str] = {}
    for part in ("model", "training"):
        shared = {name: v for name, v in base.get(part, {}).items() if _means(model, part, name)}
        for name, value in (shared | own.get(part, {})).items():
            lines[f"{part}.{name}"] = f"{part}.{name}={_text(value)}"
    for assignment in usual:
        lines[assignment.partition("=")[0]] = assignment
    for assignment in given:
        key = assignment.partition("=")[0]
        part, _, name = key.partition(".")
        if _means(model, part, name):
            lines.pop(key, None)  # it stands last, where it was given
            lines[key] = assignment
    for assignment in row:
        key = assignment.partition("=")[0]
        lines.pop(key, None)
        lines[key] = assignment
    mixer = lines.get("model.mixer", "=lru").partition("=")[2]
    for name, owner in SIZES.items():
        if mixer != owner:  # one for all rows means nothing to this one
            lines.pop(f"model.{name}", None)
    assignments = (*lines.values(), f"training.seed={seed}")
    recipe = own.get("recipe", base["recipe"])
    return Chosen(recipe, assignments, config_for(recipe, None, list(assignments), model))


def refuse_useless(given: Sequence[str], models: Sequence[str]) -> None:
    """Refuse a given setting that is said elsewhere, or that means nothing to any of the models."""
    for assignment in given:
        key, equals, _ = assignment.partition("=")
        part, dot, name = key.partition(".")
        if not equals or not dot:
            raise SettingsError(f"--set wants part.name=value, not '{assignment}' (as in model.dropout=0.6)")
        if part not in ("model", "training"):
            raise unknown("part", part, ["model", "training"])
        for said, option in (("training.seed", "--seeds"), ("model.name", "--models")):
            if key == said:
                raise SettingsError(f"{said} is what {option} says; leave it out of --set")
        known = [name for model in models for name in _names(model, part)]
        if name not in known:
            raise unknown(f"{part} setting", name, dict.fromkeys(known))


def _means(model: str, part: str, name: str) -> bool:
    """Whether a setting makes a difference to a model: to one that only counts, most of the training do not."""
    if part == "training" and issubclass(model_class(model), CountingModel):
        return name in ("max_length", "device")
    return name in _names(model, part)


def _names(model: str, part: str) -> list[str]:
    config = model_class(model).Config if part == "model" else TrainingConfig
    return [f.name for f in dataclasses.fields(config)]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
