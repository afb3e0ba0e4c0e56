"""Whether an imported checkpoint scores as it did: the authors' code and ours on the same histories.

    pip install -c constraints.txt -e '.[train]'
    LRUREC_DATA=DIR python bench/import_checkpoint.py --peer PATH   PATH: a checkout of the authors' repository

Their model at the paper's size, every weight random (biases and LayerNorm too), is saved as their trainer saves it, with items
numbered in an order of its own, and brought in by `lrurec import-checkpoint`. Every item is scored after the last items of the
test histories, padded for their code. Prints the largest difference; one above 1e-4 is a failure.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import torch

import lrurec
from lrurec.cli.main import main as command
from lrurec.evaluation.ranking import histories
from lrurec.training.run import Run
from peer import peer_model

DATASETS = {"ml-1m": ("ml-1m/ml-1m.txt.gz", 200), "beauty": ("beauty/beauty.txt.gz", 50)}
USERS, ROWS, LIMIT = 512, 16, 1e-4


@torch.no_grad()
def difference(data: Path, length: int, peer: str, folder: Path) -> tuple[float, float]:
    """The largest difference of two scores, and the largest score."""
    dataset = lrurec.Dataset.open(data)
    torch.manual_seed(0)
    theirs = peer_model(peer, dataset.n_items, 0.2).eval()
    for parameter in theirs.parameters():
        parameter += 0.2 * torch.randn_like(parameter)
    torch.save({"model_state_dict": theirs.state_dict(), "optimizer_state_dict": {}, "epoch": 1}, folder / "model.pth")
    numbers = np.random.default_rng(0).permutation(dataset.n_items) + 1
    smap = {str(dataset.item_ids[k]): int(n) for k, n in enumerate(numbers)}
    (folder / "smap.json").write_text(json.dumps(smap))
    options = ["--dataset", str(data), "--items", str(folder / "smap.json"), "--out", str(folder / "run")]
    options += ["--set", f"training.max_length={length}"]
    if command(["import-checkpoint", str(folder / "model.pth"), *options]):
        raise SystemExit("the import failed")
    ours = Run.open(folder / "run").model()
    test = lrurec.leave_last_out(dataset).test
    worst = largest = 0.0
    for first in range(0, min(USERS, len(test)), ROWS):
        last = min(first + ROWS, USERS, len(test))
        padded = np.zeros((last - first, length), np.int64)
        for row, (start, stop) in enumerate(zip(test.starts[first:last], test.positions[first:last], strict=True)):
            history = test.items[max(start, stop - length) : stop]
            padded[row, length - len(history) :] = numbers[history]
        expected = theirs(torch.from_numpy(padded))[0][:, -1, torch.from_numpy(numbers)]
        found = ours.scores(histories(test, first, last, length, "cpu"))
        worst = max(worst, float((found - expected).abs().max()))
        largest = max(largest, float(expected.abs().max()))
    return worst, largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="a checkout of the authors' repository")
    options = parser.parse_args()
    if "LRUREC_DATA" not in os.environ:
        raise SystemExit("set LRUREC_DATA to the folder with ml-1m/ and beauty/")
    for name, (file, length) in DATASETS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            lrurec.load_events(Path(os.environ["LRUREC_DATA"]) / file, out=folder / "data", recipe="paper")
            worst, largest = difference(folder / "data", length, options.peer, folder)
        print(f"{name}: largest difference {worst:.1e}, largest score {largest:.1f}", flush=True)
        if not worst <= LIMIT:
            raise SystemExit(f"above {LIMIT}")


if __name__ == "__main__":
    main()
