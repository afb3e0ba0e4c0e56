"""Next-item recommendations from an event log, with a linear recurrent model."""

from typing import TYPE_CHECKING, Any

from lrurec.errors import LrurecError

if TYPE_CHECKING:
    from lrurec.data.dataset import Dataset
    from lrurec.data.events import load_events
    from lrurec.data.split import by_time, leave_last_out
    from lrurec.recommender import Recommender
    from lrurec.serving.service import Live

__version__ = "0.1.0"
__all__ = ["Dataset", "Live", "LrurecError", "Recommender", "by_time", "leave_last_out", "load_events"]

_HOME = {
    "Dataset": "lrurec.data.dataset",
    "load_events": "lrurec.data.events",
    "Live": "lrurec.serving.service",
    "Recommender": "lrurec.recommender",
    "by_time": "lrurec.data.split",
    "leave_last_out": "lrurec.data.split",
}


def __dir__() -> list[str]:
    return [*globals(), *_HOME]


def __getattr__(name: str) -> Any:
    # Loaded on first use: serving must not import the data room, nor preparing the training room.
    if name in _HOME:
        import importlib

        try:
            return getattr(importlib.import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            part = {"Recommender": "train", "Live": "serve"}.get(name)
            if part is None or (error.name or "").startswith("lrurec"):
                raise
            from lrurec.errors import MissingPartError

            raise MissingPartError(f"lrurec.{name} needs {error.name}; run: pip install 'lrurec[{part}]'") from None
    raise AttributeError(f"module 'lrurec' has no attribute '{name}'")
