"""The other side of bench/sasrec.py: training steps of RecTools' SASRec. Knows no lrurec; runs in a virtualenv of its own.

    python bench/sasrec_peer.py WINDOWS.npz SETTINGS

WINDOWS.npz holds `items` and `offsets` [W + 1]: each window is a user to RecTools. SETTINGS is a JSON object; prints another.
"""

import json
import resource
import statistics
import sys
import time
import warnings
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import Callback, Trainer  # type: ignore[import-not-found]
from rectools import Columns, __version__  # type: ignore[import-not-found]
from rectools.dataset import Dataset  # type: ignore[import-not-found]
from rectools.models import SASRecModel  # type: ignore[import-not-found]


class Clock(Callback):  # type: ignore[misc]
    """The time from the end of one step to the end of the next: the batch is part of it."""

    ends: ClassVar[list[float]] = []  # of the class: RecTools trains with a copy of the trainer

    def on_train_batch_end(self, *args: Any) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    warnings.simplefilter("ignore")
    windows, settings = np.load(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(settings["threads"])
    items, offsets = windows["items"], windows["offsets"]
    order = np.arange(len(items))
    frame = pd.DataFrame(
        {
            Columns.User: np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)),
            Columns.Item: items,
            Columns.Weight: 1.0,
            Columns.Datetime: pd.to_datetime(order, unit="s"),
        }
    )
    model = SASRecModel(
        n_blocks=settings["blocks"],
        n_heads=settings["heads"],
        n_factors=settings["width"],
        dropout_rate=settings["dropout"],
        session_max_len=settings["length"],
        batch_size=settings["batch"],
        loss="softmax",
        get_trainer_func=lambda: Trainer(
            max_steps=settings["steps"],
            accelerator="cpu",
            callbacks=[Clock()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ),
    )
    model.fit(Dataset.construct(frame))
    found = {
        "seconds": statistics.median(np.diff(Clock.ends)),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "parameters": sum(p.numel() for p in model.torch_model.parameters()),
        "version": __version__,
        "torch": torch.__version__,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
