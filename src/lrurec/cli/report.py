"""`lrurec report`: a run on one page."""

import argparse
from pathlib import Path

from lrurec.cli.arguments import Commands
from lrurec.cli.evaluate import examine, say_if_unfinished
from lrurec.cli.parts import need
from lrurec.errors import FolderError
from lrurec.folder import write_text


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "report",
        help="a run on one HTML page",
        description="One self-contained HTML page: training curves, metrics with intervals, for whom it works, lambda.",
        epilog="examples:\n  lrurec report runs/mine\n  lrurec report runs/mine --out mine.html\n",
    )
    p.add_argument("path", metavar="RUN", help="a run folder made by lrurec train")
    p.add_argument("--out", metavar="FILE", help="where to write it (default: RUN/report.html)")
    p.add_argument("--dataset", metavar="DIR", help="where the dataset is, if it has moved")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    need("train")
    from lrurec.models.lrurec import LRURec
    from lrurec.models.registry import model_class
    from lrurec.training.report import page
    from lrurec.training.run import Run
    from lrurec.training.trainer import validations

    opened = Run.open(Path(options.path))
    dataset, model = opened.dataset(options.dataset), opened.model("best")
    say_if_unfinished(opened)
    _, report = examine(opened, dataset, model, "test", [10, 20])
    name = model_class(opened.config.name).card.title
    text = page(
        f"{opened.folder.resolve().name}: {name} on {dataset.path.resolve().name if dataset.path else 'a dataset'}",
        (opened.folder / "config.toml").read_text(),
        validations(opened.folder),
        report,
        model.eigenvalues() if isinstance(model, LRURec) else [],
    )
    out = Path(options.out) if options.out else opened.folder / "report.html"
    try:
        write_text(out, text)
    except OSError as error:
        raise FolderError(f"{out} cannot be written ({error.strerror}); choose another --out") from error
    print(f"{out}: open it in a browser")
    return 0
