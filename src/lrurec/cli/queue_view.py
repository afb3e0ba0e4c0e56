"""A queue of cells as a person sees it: a line for each cell, and on a terminal one that lives."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from lrurec.experiments.cells import Cell
    from lrurec.experiments.queue import Queue


@contextmanager
def view(cells: int, write: Callable[[], object]) -> Iterator["Watch"]:
    """A line per cell, and on a terminal one that lives below them; `write` is called whenever a cell has ended."""
    console = Console(stderr=True)
    columns = (
        TextColumn("cells"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task("cells", total=cells, now="")

        def say(text: str) -> None:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

        def show(done: int, now: str) -> None:
            bars.update(task, completed=done, now=now)

        yield Watch(say, show if console.is_terminal else None, write)


class Watch:
    """Tells what happens to the cells."""

    def __init__(
        self, say: Callable[[str], None], show: Callable[[int, str], None] | None, write: Callable[[], object]
    ) -> None:
        self.say, self.show, self.write = say, show, write
        self.stopping = False

    def started(self, cell: "Cell", resumed: bool) -> None:
        self.say(f"{'goes on' if resumed else 'started'}   {cell.name}")

    def ended(self, cell: "Cell", record: dict[str, Any]) -> None:
        if record["state"] == "done":
            test = record["test"]
            numbers = f"NDCG@10 {test['ndcg@10']:.5f}  Recall@10 {test['recall@10']:.5f}  {record['seconds']:,.0f} s"
            self.say(f"done      {cell.name}  {numbers}")
        else:
            self.say(f"failed    {cell.name}: {record['error'][-1]}")
        self.write()

    def tick(self, queue: "Queue") -> None:
        if queue.stops and queue.running and not self.stopping:
            self.stopping = True
            self.say("stopping: the running cells save what they have (once more: they do not)")
        if self.show is not None:
            running = ", ".join(_progress(one.cell) for one in queue.running)
            self.show(len(queue.done) + len(queue.failed), f"running {running or '-'}; left {len(queue.waiting)}")


def _progress(cell: "Cell") -> str:
    """A running cell with its last validation."""
    try:
        last = json.loads((cell.run / "metrics.jsonl").read_text().splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return cell.name
    steps = cell.chosen.config.training.steps
    return f"{cell.name} (step {last['step']:,}{f'/{steps:,}' if steps else ''})"
