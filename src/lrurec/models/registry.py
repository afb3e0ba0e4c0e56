"""Every model by its name. A new one is a file and a line here."""

from lrurec.config import unknown
from lrurec.models.base import Model
from lrurec.models.bert4rec import BERT4Rec
from lrurec.models.fism import FISM
from lrurec.models.fmlprec import FMLPRec
from lrurec.models.fpmc import FPMC
from lrurec.models.gru4rec import GRU4Rec
from lrurec.models.lrurec import LRURec
from lrurec.models.markov import Markov
from lrurec.models.mf import MF
from lrurec.models.narm import NARM
from lrurec.models.popularity import Popularity
from lrurec.models.sasrec import SASRec

MODELS: dict[str, type[Model]] = {
    "popularity": Popularity,
    "markov": Markov,
    "mf": MF,
    "fism": FISM,
    "fpmc": FPMC,
    "gru4rec": GRU4Rec,
    "narm": NARM,
    "sasrec": SASRec,
    "bert4rec": BERT4Rec,
    "fmlprec": FMLPRec,
    "lrurec": LRURec,
}


def model_class(name: str) -> type[Model]:
    """The class of a name; an unknown one is an error that suggests the right one."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def name_of(config: object) -> str:
    """The name of the model that a config belongs to."""
    return next(name for name, model in MODELS.items() if type(config) is model.Config)
