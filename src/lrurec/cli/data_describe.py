"""`lrurec data describe`: what is in a dataset."""

import argparse
import dataclasses
import json
from datetime import UTC, datetime

from lrurec.cli.arguments import Commands
from lrurec.cli.console import plot, progress_bar, table
from lrurec.data.dataset import Dataset
from lrurec.data.statistics import Statistics, statistics
from lrurec.errors import FolderError


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "describe",
        help="what is in a dataset",
        description="What is in a dataset: the paper's statistics row, distributions, repeats, ties, cold items.",
        epilog="examples:\n  lrurec data describe data/mine\n  lrurec data describe data/mine --json\n",
    )
    p.add_argument("path", metavar="DIR", help="a dataset folder")
    p.add_argument("--verify", action="store_true", help="first compare every file with its hash")
    p.add_argument("--json", action="store_true", help="print the numbers as JSON")
    p.set_defaults(run=run, parser=p)


def run(options: argparse.Namespace) -> int:
    dataset = Dataset.open(options.path)
    with progress_bar() as progress:
        if options.verify:
            dataset.verify(progress)
        try:
            stats = statistics(dataset, progress)
        except (ValueError, IndexError):  # numbers that no dataset of ours can hold
            raise FolderError(f"{options.path} is damaged; prepare it again with --force") from None
    if options.json:
        print(json.dumps(dataclasses.asdict(stats), indent=1))
    else:
        print(_told(dataset, stats))
    return 0


def _told(dataset: Dataset, s: Statistics) -> str:
    row = [f"{s.users:,}", f"{s.items:,}", f"{s.interactions:,}", f"{s.mean_length:.1f}", f"{s.density:.0e}"]
    parts = [table([["users", "items", "interactions", "mean length", "density"], row])]
    if s.first_time is not None and s.last_time is not None:
        parts.append(f"from {_day(s.first_time)} to {_day(s.last_time)}")
    for title, histogram in (
        ("users by length of history", s.length_histogram),
        ("items by number of events", s.popularity_histogram),
    ):
        parts.append(plot(title, [(f"{a:,}" if a == b else f"{a:,}-{b:,}", n) for a, b, n in histogram]))
    facts = [
        f"the most popular tenth of the items takes {s.top_tenth_share:.0%} of the events",
        f"repeated items: {s.repeat_share:.1%} of the events ({s.immediate_repeat_share:.1%} repeat the one just before)",
        "time ties: the log has no times"
        if s.tie_share is None
        else f"time ties: {s.tie_share:.1%} of the events have the time of the user's event before",
        f"leave-last-out: {s.test_users:,} users are tested, {s.train_only_users:,} with fewer than three events only train",
        f"cold test items: {s.cold_test_items:,} of {s.test_users:,} targets ({s.cold_test_share:.1%})"
        " never occur in training",
    ]
    parts.append("\n".join(facts))
    if dataset.item_names is not None:
        first = [dataset.name(int(i)) for i in dataset.items[: min(5, int(dataset.offsets[1]))]]
        parts.append(f"user {dataset.user_ids[0]} began with: {', '.join(first)}")
    return "\n\n".join(parts)


def _day(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{microseconds} us"
