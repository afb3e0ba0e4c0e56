"""Real data, where it is at hand: the paper's counts, and an independent count of a raw log."""

import csv
from collections import Counter
from pathlib import Path

import lrurec
from lrurec.data.statistics import statistics


def test_ml_1m(real_data: Path) -> None:
    folder = real_data / "ml-1m"
    d = lrurec.load_events(folder / "ml-1m.txt.gz", recipe="paper", item_names=folder / "movies.dat")
    assert (d.n_users, d.n_items, d.n_events) == (6_040, 3_416, 999_611)
    s = statistics(d)
    assert round(s.mean_length, 1) == 165.5
    assert f"{s.density:.0e}" == "5e-02"
    assert d.manifest["log"]["items_named"] == 3_416
    assert d.name(0) == "Toy Story (1995)"
    # The filter would change nothing either: the file arrives filtered.
    again = lrurec.load_events(folder / "ml-1m.txt.gz", recipe="paper", min_user=5, min_item=5)
    assert again.n_events == 999_611


def test_beauty(real_data: Path) -> None:
    d = lrurec.load_events(real_data / "beauty" / "beauty.txt.gz", recipe="paper")
    assert (d.n_users, d.n_items, d.n_events) == (52_204, 57_289, 394_908)
    s = statistics(d)
    assert round(s.mean_length, 1) == 7.6
    assert s.train_only_users == 1_706
    assert round(s.cold_test_share, 3) == 0.096


def test_ml_100k_against_a_few_lines(real_data: Path) -> None:
    path = real_data / "ml-100k" / "ml-100k.inter"
    with path.open() as file:
        rows = [(r[0], r[1], int(r[3])) for r in list(csv.reader(file, delimiter="\t"))[1:]]
    popular = Counter(item for _, item, _ in rows)
    kept = [r for r in rows if popular[r[1]] >= 5]
    active = Counter(user for user, _, _ in kept)
    kept = [r for r in kept if active[r[0]] >= 5]

    d = lrurec.load_events(path, min_user=5, min_item=5, item_names=real_data / "ml-100k" / "ml-100k.item")
    assert d.n_events == len(kept)
    assert (d.n_users, d.n_items) == (len({u for u, _, _ in kept}), len({i for _, i, _ in kept}))
    histories: dict[str, list[tuple[int, int, str]]] = {}
    for at, (user, item, time) in enumerate(kept):
        histories.setdefault(user, []).append((time, at, item))
    for user, history in histories.items():
        assert [str(i) for i in d.history(user)] == [item for _, _, item in sorted(history)]
    whole = lrurec.load_events(path)
    assert (whole.n_users, whole.n_items, whole.n_events) == (943, 1_682, 100_000)
    raw = statistics(whole)
    assert raw.tie_share is not None and raw.tie_share > 0.3
