"""`lrurec import-checkpoint`: a checkpoint of the authors' repository to a run."""

import argparse
from pathlib import Path

from lrurec.cli.arguments import Commands
from lrurec.cli.parts import need
from lrurec.errors import InputError

EXAMPLES = """\
item numbers:
  The checkpoint knows items by number only. --items says which number is which item: a JSON object of item id
  to number, two columns item,number (CSV or TSV), or a list of ids whose line n is number n. The authors' code
  keeps it as 'smap' in its dataset.pkl. lrurec opens no pickle, as it can run any code; of one that you made yourself,
  this writes it as JSON:

    import json, pickle
    json.dump({str(k): v for k, v in pickle.load(open("dataset.pkl", "rb"))["smap"].items()}, open("smap.json", "w"))

examples:
  lrurec import-checkpoint best_acc_model.pth --dataset data/ml-1m --items smap.json --out runs/theirs \\
    --set training.max_length=200
  lrurec import-checkpoint best_acc_model.pth --dataset data/beauty --out runs/theirs    where items are 1, 2, 3, ...
  lrurec evaluate runs/theirs
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "import-checkpoint",
        help="a checkpoint of the authors' repository to a run",
        description="Make a run folder of a checkpoint that was trained with the authors' repository. Its scores stay"
        " what they were; evaluate, recommend and report work on it.",
        epilog=EXAMPLES,
    )
    p.add_argument("file", metavar="FILE", help="the checkpoint, such as best_acc_model.pth")
    p.add_argument("--dataset", required=True, metavar="DIR", help="the same data, made by lrurec prepare")
    p.add_argument("--out", required=True, metavar="RUN", help="the run folder to make")
    p.add_argument("--items", metavar="FILE", help="which item has which number in the checkpoint (see below)")
    p.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that the checkpoint does not hold; training.max_length (default: 50) matters to evaluate",
    )
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    import lrurec
    from lrurec.data.numbers import own_numbers, read_numbers
    from lrurec.folder import sha256
    from lrurec.training.imported import config_of, read_checkpoint, to_model, write_run

    file, out = Path(options.file), Path(options.out)
    dataset = lrurec.Dataset.open(options.dataset)
    found = read_checkpoint(file)
    config = config_of(found, options.settings)
    if found.items != dataset.n_items:
        raise InputError(
            f"{file} has {found.items:,} items, {options.dataset} has {dataset.n_items:,};"
            " prepare the dataset with the same input and filters"
        )
    numbers = read_numbers(Path(options.items), dataset.item_ids) if options.items else own_numbers(dataset.item_ids)
    if numbers is None:
        raise InputError(
            f"the items of {options.dataset} are not the numbers 1 to {found.items}, so pass --items FILE: the 'smap' of"
            " the authors' dataset.pkl as JSON (lrurec import-checkpoint --help shows how to write it)"
        )
    source = {"name": Path(options.items).name, "sha256": sha256(Path(options.items))} if options.items else None
    origin = {"file": {"name": file.name, "sha256": sha256(file)}, "items": source}
    write_run(out, dataset, config, to_model(found, numbers, config), origin)
    shape = f"width {found.width}, {found.channels} channels, {found.blocks} blocks"
    print(f"read      {file}: {found.items:,} items, {shape}")
    if source is None:
        print(f"note      without --items, number n of the checkpoint is taken to be item n, 1 to {found.items:,}")
    print(f"made      {out}: sees the last {config.training.max_length} items (--set training.max_length=N for others)")
    print(f"next      lrurec evaluate {out}")
    return 0
