"""How a model is trained: the settings, the recipes, and the way from a command line to a config. Knows no tensors."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from typing import Any

from lrurec.config import from_mapping, unknown
from lrurec.data.dataset import LogSize
from lrurec.errors import SettingsError
from lrurec.memory.transitions import MemoryConfig
from lrurec.models.base import TrainedModel
from lrurec.models.lrurec import LRURecConfig
from lrurec.models.registry import MODELS, model_class, name_of

DEFAULT = "lrurec"  # the model, where none is named
WHOLE = 1 << 40  # more than any history has
MOST_SEEDS = 1 << 31  # a seed and the number of a step go into 64 bits together
CHOICES = {
    "schedule": ("constant", "one-cycle"),
    "loss": ("full", "sampled"),
    "negatives_from": ("uniform", "popularity"),
    "precision": ("float32", "bfloat16", "auto"),
    "updates": ("dense", "rows", "auto"),
}


@dataclass(frozen=True)
class TrainingConfig:
    """The defaults are the paper's protocol (`--recipe paper`)."""

    max_length: int = 50  # 200 for ML-1M, 1000 for XLong in the paper
    batch: int = 128  # windows per step
    learning_rate: float = 1e-3
    schedule: str = "constant"  # or one-cycle: up to the learning rate and down to nothing over `steps`
    steps: int = 0  # 0: until early stopping, at most `epochs`
    epochs: int = 500
    weight_decay: float = 1e-2
    decay_recurrence: bool = True  # whether weight decay acts on nu, theta and gamma, as in the authors' code
    clip: float = 5.0
    loss: str = "full"  # cross entropy over all items; or sampled: over the target and some negatives
    negatives: int = 100  # per target, or per step if they are shared
    negatives_from: str = "uniform"  # or popularity: in proportion to how often an item occurs in training
    shared_negatives: bool = False  # one set of negatives for all positions of a step
    updates: str = "auto"  # dense: all rows of the tables at each step; rows: those it touches; auto: rows if sampled
    finish: int = 0  # steps more, with what a memory held back as well: a second, shorter cycle
    finish_rate: float = 1e-3  # its highest learning rate
    look_ahead: float = 0.0  # the chance that an answer is not the next item but the one behind it, and so on
    validate_every: int = 1000
    patience: int = 10
    candidates: int = 0  # rank among so many sampled items in validation and test, as the paper does for XLong; 0: all
    carry_state: bool = False  # windows of a history follow each other, and go on from the state of the one before
    drop_rest: bool = False  # the authors' windowing, which drops the front of long histories
    refit: bool = False  # train on everything, validation and test included, for production: nothing is measured
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"  # or bfloat16, for products of the blocks and the loss; auto: if the processor has it

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown(f"training.{name}", getattr(self, name), known)
        for name in ("max_length", "batch", "validate_every", "patience", "epochs", "negatives"):
            if getattr(self, name) < 1:
                raise SettingsError(f"training.{name} must be 1 or more")
        for name in ("learning_rate", "weight_decay", "finish_rate"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise SettingsError(f"training.{name} must be a number of 0 or more, not {getattr(self, name)}")
        if not self.clip > 0:
            raise SettingsError(f"training.clip must be a number above 0, not {self.clip}")
        if not 0 <= self.seed < MOST_SEEDS:
            raise SettingsError(f"training.seed must be a whole number from 0 to {MOST_SEEDS - 1}, not {self.seed}")
        if self.steps < 0:
            raise SettingsError("training.steps must be 0 (until validation stops getting better) or more")
        if self.updates == "rows" and self.loss != "sampled":
            raise SettingsError("training.updates=rows needs training.loss=sampled: the full loss touches every row")
        if self.refit and self.steps < 1:
            raise SettingsError("without validation nobody knows when to stop: training.refit needs training.steps")
        if not 0 <= self.look_ahead < 1:
            raise SettingsError(f"training.look_ahead must be 0 or more and less than 1, not {self.look_ahead}")
        if self.candidates < 0:
            raise SettingsError("training.candidates must be 0 (all items) or more")
        if self.schedule == "one-cycle" and self.steps < 1:
            raise SettingsError("training.schedule=one-cycle needs training.steps of 1 or more")
        if self.finish < 0:
            raise SettingsError(f"training.finish is a number of steps, 0 or more, not {self.finish}")
        if self.finish and self.schedule != "one-cycle":
            raise SettingsError(
                "training.finish is a second cycle behind that of training.schedule=one-cycle (recipes fast and best);"
                f" leave it out with {self.schedule}"
            )

    @property
    def seen(self) -> int:
        """How many of the newest items of a history the model is shown."""
        return WHOLE if self.carry_state else self.max_length


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the outcome of a run."""

    model: Any = field(default_factory=LRURecConfig)  # the config of one of lrurec.models.registry
    training: TrainingConfig = field(default_factory=TrainingConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    @property
    def name(self) -> str:
        """The model's name."""
        return name_of(self.model)

    def values(self) -> dict[str, dict[str, Any]]:
        """Nested mappings that `from_values` takes."""
        return {
            "model": {"name": self.name, **dataclasses.asdict(self.model)},
            "training": dataclasses.asdict(self.training),
            "memory": dataclasses.asdict(self.memory),
        }


PARTS = ("model", "training", "memory")
_ONE_CYCLE = {"schedule": "one-cycle", "validate_every": 500, "patience": 1000, "precision": "auto"}
_SAMPLED = {"loss": "sampled", "negatives": 4096, "shared_negatives": True}
_REMEMBERS = {"use": True}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"model": {}, "training": {}},
    "fast": {"model": {}, "training": {**_ONE_CYCLE, "learning_rate": 4e-3, "steps": 3500}},
    "best": {},  # by the kind of the log: BEST
    "best-small": {},  # the same with one model, where that has two side by side
}
MANY_ITEMS = 50_000  # from which on `best` samples negatives, whatever the length of histories
FEW_ITEMS = 8_192  # below which it does not: all of them are as quick
FEWEST_STEPS = 500  # that it makes, however small the log is
# Of `best`, by how many events a user has on average: from so many on, how often it looks at the whole log at most, ...
PASSES: dict[float, int] = {0: 30, 30: 75, 500: 75}
# ... and these settings.
BEST: dict[float, dict[str, dict[str, Any]]] = {
    0: {
        "model": {"pffn": False, "dropout": 0.4, "copies": 2, "temperature": 0.1},
        "training": {
            **_ONE_CYCLE, **_SAMPLED, "learning_rate": 6e-3, "steps": 6000, "finish": 2000, "validate_every": 2000,
            "look_ahead": 0.4,
        },
        "memory": {**_REMEMBERS, "held_back": 0.06, "rare": 0.85, "rare_below": 0.5},
    },
    30: {
        "model": {"mixer": "rwkv"},
        "training": {**_ONE_CYCLE, "learning_rate": 4e-3, "steps": 3500, "finish": 1000, "max_length": 200},
        "memory": _REMEMBERS,
    },
    500: {
        "training": {
            **_ONE_CYCLE, **_SAMPLED, "learning_rate": 4e-3, "steps": 10000, "max_length": 1000, "batch": 32,
            "candidates": 10000, "validate_every": 2000,
        },
        "memory": _REMEMBERS,
    },
}  # fmt: skip


def _recipe(name: str, size: LogSize, model: str) -> dict[str, dict[str, Any]]:
    """The settings of a recipe; those that a model does not have are left out."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    if name not in ("best", "best-small"):
        return {part: dict(settings) for part, settings in RECIPES[name].items()}
    asked = model_class(model)
    if not issubclass(asked, TrainedModel):
        return {}
    kind = max(least for least in BEST if least <= size.per_user)
    values = {part: dict(settings) for part, settings in BEST[kind].items()}
    if size.items >= MANY_ITEMS:
        values["training"] |= _SAMPLED
    if 0 < size.items < FEW_ITEMS:
        values["training"] = {k: v for k, v in values["training"].items() if k not in _SAMPLED}
    if size.users:
        values["training"] |= _steps(values["training"], size, PASSES[kind])
    own = {f.name for f in dataclasses.fields(asked.Config)}
    values["model"] = {k: v for k, v in values.get("model", {}).items() if k in own}
    if not asked.looks_ahead(asked.Config(**values["model"])):
        values["training"].pop("look_ahead", None)
    if name == "best-small":
        values["model"].pop("copies", None)
    return values


def _steps(training: dict[str, Any], size: LogSize, passes: int) -> dict[str, int]:
    """Fewer steps where these would look at the whole log more often than `passes` times: a small log is soon known by heart.

    >>> _steps({"steps": 3500, "schedule": "one-cycle", "finish": 1000}, LogSize(600, 900, 60_000), 50)
    {'steps': 500, 'finish': 143}
    """
    t = TrainingConfig(**training)
    windows = size.events / min(size.per_user, t.max_length)
    share = max(FEWEST_STEPS, int(passes * windows / t.batch)) / t.steps
    return {"steps": round(t.steps * share), "finish": round(t.finish * share)} if share < 1 else {}


def config_for(
    recipe: str,
    file: str | None,
    assignments: list[str],
    model: str | None = None,
    size: LogSize | None = None,
) -> RunConfig:
    """Defaults, recipe, file, command line: in that order. `model` stands for the assignment model.name=...

    The recipe `best` goes by the size of the log, if that is known.
    """
    values = _recipe(recipe, size or LogSize(), model or DEFAULT)
    if file is not None:
        _merge(values, _read(file))
    for assignment in [*([f"model.name={model}"] if model else []), *assignments]:
        key, equals, text = assignment.partition("=")
        part, dot, name = key.partition(".")
        if not equals or not dot:
            raise SettingsError(f"--set wants part.name=value, not '{assignment}' (as in model.dropout=0.6)")
        _merge(values, {part: {name: _value(text)}})
    made = from_values(values)
    for assignment in assignments:
        if assignment.startswith("memory.") and not assignment.startswith("memory.use=") and not made.memory.use:
            off = "memory.use=false" in assignments
            todo = "leave out memory.use=false" if off else "add --set memory.use=true, or take --recipe best"
            raise SettingsError(f"{assignment} does nothing without a memory; {todo}")
    return made


def from_values(values: dict[str, dict[str, Any]]) -> RunConfig:
    """A config from nested mappings; unknown keys and wrong types are errors."""
    for part in values:
        if part not in PARTS:
            raise unknown("part", part, PARTS)
    model, training = dict(values.get("model", {})), values.get("training", {})
    name = model.pop("name", DEFAULT)
    if not isinstance(name, str):
        raise SettingsError(f"model.name must be text, not {name!r}")
    config = model_class(name).Config
    _refuse_foreign(name, model)
    try:
        chosen: Any = from_mapping(config, _typed(config, model, "model"), "setting of model")
    except SettingsError as error:
        raise (error if name == DEFAULT else SettingsError(f"{error} (model {name})")) from None
    memory = from_mapping(MemoryConfig, _typed(MemoryConfig, values.get("memory", {}), "memory"), "setting of memory")
    if memory.use and not issubclass(model_class(name), TrainedModel):
        raise SettingsError(f"{name} only counts, and takes no memory beside it; leave out memory.use")
    made = RunConfig(
        chosen,
        from_mapping(TrainingConfig, _typed(TrainingConfig, training, "training"), "setting of training"),
        memory,
    )
    if made.training.finish and made.training.carry_state:
        raise SettingsError("training.finish cannot go on from carried states; leave out one of the two")
    return made


def _refuse_foreign(name: str, settings: dict[str, Any]) -> None:
    """A setting that only other models have."""
    own = [f.name for f in dataclasses.fields(model_class(name).Config)]
    for key in settings:
        whose = [n for n, m in MODELS.items() if key in {f.name for f in dataclasses.fields(m.Config)}]
        if key not in own and whose:
            raise SettingsError(
                f"model.{key} is a setting of {', '.join(whose)}, not of {name}; {name} has {', '.join(own)}"
            )


def _merge(values: dict[str, dict[str, Any]], more: dict[str, Any]) -> None:
    for part, settings in more.items():
        if not isinstance(settings, dict):
            raise SettingsError(f"'{part}' must be a table of settings, such as [training]")
        values.setdefault(part, {}).update(settings)


def _read(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as handle:  # noqa: PTH123
            return tomllib.load(handle)
    except FileNotFoundError:
        raise SettingsError(f"{file} does not exist; check the path after --config") from None
    except UnicodeDecodeError:
        raise SettingsError(
            f"{file} is not text in UTF-8; --config takes a TOML file such as RUN/config.toml"
        ) from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            f"{file} cannot be read ({error}); --config takes a TOML file such as RUN/config.toml"
        ) from None


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _typed(cls: type, values: dict[str, Any], part: str) -> dict[str, Any]:
    """Values with the types of the dataclass; an integer may stand for a float, and 1e6 for an integer."""
    kinds = {f.name: f.type for f in dataclasses.fields(cls)}
    done = {}
    for name, value in values.items():
        kind = kinds.get(name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e6
        if kind is not None and type(value) is not kind:
            wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]  # type: ignore[index]
            raise SettingsError(f"{part}.{name} must be {wanted}, not {value!r}")
        done[name] = value
    return done


def to_toml(config: RunConfig) -> str:
    """The config as TOML that `--config` takes."""
    lines = []
    for part, settings in config.values().items():
        lines.append(f"[{part}]")
        for name, value in settings.items():
            text = (
                str(value).lower()
                if isinstance(value, bool)
                else repr(value)
                if not isinstance(value, str)
                else f'"{value}"'
            )
            lines.append(f"{name} = {text}")
        lines.append("")
    return "\n".join(lines)
