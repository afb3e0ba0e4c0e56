"""What is trained for each table: its rows. Knows names and settings, not folders."""

from collections.abc import Sequence
from dataclasses import dataclass

from lrurec.models.registry import MODELS


@dataclass(frozen=True)
class Row:
    """One row of a table, or one point of a figure: a model with settings of its own."""

    name: str  # of its folder
    title: str
    model: str
    settings: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()  # settings that --set may change


def _lrurec(name: str, title: str, *settings: str) -> Row:
    return Row(name, title, "lrurec", settings)


def main(kind: str) -> list[Row]:
    """Every model."""
    return [Row(name, model.card.title, name) for name, model in MODELS.items()]


# A queue with a budget may not come to all of them.
TELLING = ("lrurec", "sasrec", "bert4rec", "gru4rec", "fmlprec", "narm", "fpmc", "fism", "mf", "markov", "popularity")


def telling_first(rows: Sequence[Row]) -> list[Row]:
    """In the order in which they are worth the time."""
    return sorted(rows, key=lambda row: TELLING.index(row.name) if row.name in TELLING else len(TELLING))


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


def xlong(kind: str) -> list[Row]:
    """The three models that the paper trains on long histories."""
    return [Row(name, MODELS[name].card.title, name) for name in ("lrurec", "sasrec", "bert4rec")]
