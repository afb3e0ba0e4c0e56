"""What is trained for each table: its rows. Knows names and settings, not folders."""

from collections.abc import Sequence
from dataclasses import dataclass

from lrurec.experiments.settings import settings_for
from lrurec.models.base import CountingModel
from lrurec.models.registry import MODELS


@dataclass(frozen=True)
class Row:
    """One row of a table, or one point of a figure: a model with settings of its own."""

    name: str  # of its folder
    title: str
    model: str
    settings: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()  # settings that --set may change
    group: str = ""  # a name for it and its like
    folder: str = ""  # where that is not its name


def _lrurec(name: str, title: str, *settings: str) -> Row:
    return Row(name, title, "lrurec", settings)


def main(kind: str) -> list[Row]:
    """Every model."""
    return [Row(name, model.card.title, name) for name, model in MODELS.items()]


# A queue with a budget may not come to all of them.
TELLING = ("lrurec", "sasrec", "bert4rec", "gru4rec", "fmlprec", "narm", "fpmc", "fism", "mf", "markov", "popularity")


def telling_first(rows: Sequence[Row]) -> list[Row]:
    """In the order in which they are worth the time."""
    names = [row.group or row.name for row in rows]
    places = [TELLING.index(name) if name in TELLING else len(TELLING) for name in names]
    return [row for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]


def ablation(kind: str) -> list[Row]:
    """The paper's seven variants."""
    return [
        _lrurec("lrurec", "LRURec"),
        _lrurec("no-layer-norm", "without LayerNorm", "model.layer_norm=false"),
        _lrurec("no-residual", "without residual", "model.residual=false"),
        _lrurec("no-pffn", "without PFFN", "model.pffn=false"),
        _lrurec("one-block", "one block", "model.blocks=1"),
        _lrurec("rwkv", "RWKV for LRU", "model.mixer=rwkv"),
        _lrurec("s4", "S4 for LRU", "model.mixer=s4"),
    ]


def eigenvalues(kind: str) -> list[Row]:
    """With weight decay on the recurrence, as the paper trains, and without."""
    return [
        _lrurec("lrurec", "with decay"),
        _lrurec("no-decay", "without decay", "training.decay_recurrence=false"),
    ]


def curves(kind: str) -> list[Row]:
    """The three models of the figure, looked at more often than a table needs."""
    often = f"training.validate_every={100 if kind == 'dense' else 500}"
    return [Row(name, MODELS[name].card.title, name, usual=(often,)) for name in ("lrurec", "sasrec", "gru4rec")]


DROPOUTS = ("0.0", "0.2", "0.4", "0.6", "0.8")
DECAYS = ("0.0", "1e-06", "0.0001", "0.01", "0.1")  # as Python prints them: the paper's, and one beyond


def sensitivity(kind: str) -> list[Row]:
    """One setting changed at a time; the dropouts first, which matter more."""
    return [
        *(_lrurec(f"dropout-{v}", f"dropout {v}", f"model.dropout={v}") for v in DROPOUTS),
        *(_lrurec(f"weight-decay-{v}", f"weight decay {v}", f"training.weight_decay={v}") for v in DECAYS),
    ]


def tuning(kind: str) -> list[Row]:
    """Every model that trains, as the main table has it and with one of two settings a step to either side."""
    return [
        row for name, model in MODELS.items() if not issubclass(model, CountingModel) for row in _around(kind, name)
    ]


def _around(kind: str, model: str) -> list[Row]:
    values = settings_for(kind, model, seed=0).config.values()
    dropout, rate = values["model"]["dropout"], values["training"]["learning_rate"]
    title = MODELS[model].card.title
    return [
        _trial(model, "as-it-is", title, dropout, rate),
        _trial(model, "less-dropout", f"{title}, less dropout", max(0.0, dropout - 0.1), rate),
        _trial(model, "more-dropout", f"{title}, more dropout", min(0.9, dropout + 0.1), rate),
        _trial(model, "half-rate", f"{title}, half the rate", dropout, rate / 2),
        _trial(model, "double-rate", f"{title}, twice the rate", dropout, rate * 2),
    ]


def _trial(model: str, name: str, title: str, dropout: float, rate: float) -> Row:
    """Its folder has the values, so that it stays what it is when the settings of the main table move."""
    settings = (f"model.dropout={dropout:.4g}", f"training.learning_rate={rate:.4g}")
    return Row(f"{model}-{name}", title, model, settings, group=model, folder=f"{model}-{dropout:.4g}-{rate:.4g}")


def xlong(kind: str) -> list[Row]:
    """The three models that the paper trains on long histories."""
    return [Row(name, MODELS[name].card.title, name) for name in ("lrurec", "sasrec", "bert4rec")]
