"""How fast `lrurec prepare` is and how much memory it takes, next to pandas doing the same filter and sort.

    pip install -c constraints.txt -e '.[bench]'
    python bench/prepare.py                       everything: about half an hour, 6 GB of disk
    python bench/prepare.py --millions 1 10 --repeat 1

Each run is a process of its own, so the peak memory is its own. The table goes to results/prepare.md
and results/prepare.json, after every measurement.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from measure import Cost, machine, run

ROOT = Path(__file__).parents[1]
LRUREC = [sys.executable, "-m", "lrurec.cli.main"]

# The same work as prepare --min-user 5 --min-item 5, the way it is usually written.
PANDAS = """
import sys
import numpy as np
import pandas as pd
path, out = sys.argv[1:]
log = pd.read_parquet(path) if path.endswith(".parquet") else pd.read_csv(path)
log = log[log.groupby("item_id")["item_id"].transform("size") >= 5]
log = log[log.groupby("user_id")["user_id"].transform("size") >= 5]
log = log.sort_values(["user_id", "timestamp"], kind="stable")
items, item_ids = pd.factorize(log["item_id"], sort=True)
lengths = log.groupby("user_id").size()
np.save(out + ".items.npy", items.astype(np.int32))
np.save(out + ".offsets.npy", np.concatenate([[0], lengths.cumsum()]))
np.save(out + ".times.npy", log["timestamp"].to_numpy())
np.save(out + ".users.npy", lengths.index.to_numpy())
np.save(out + ".item_ids.npy", item_ids.to_numpy())
"""


def synth(millions: float, path: Path) -> None:
    events = int(millions * 1e6)
    size = [] if events == 66_800_000 else ["--users", str(events // 958), "--items", str(events // 31)]
    run([*LRUREC, "data", "synth", "--preset", "xlong", *size, "--events", str(events), "--out", str(path)])


def check_same(lrurec_out: Path, pandas_out: Path) -> None:
    """Both must have made the same histories, or the comparison is worth nothing."""
    import numpy as np

    for ours, theirs in (("items.npy", ".items.npy"), ("offsets.npy", ".offsets.npy"), ("user_ids.npy", ".users.npy")):
        a = np.load(lrurec_out / ours, mmap_mode="r")
        b = np.load(f"{pandas_out}{theirs}", mmap_mode="r")
        if not np.array_equal(a, b):
            raise SystemExit(f"lrurec and pandas disagree on {ours}")


def median(costs: list[Cost]) -> Cost:
    return Cost(statistics.median(c.seconds for c in costs), max(c.peak for c in costs))


def write(rows: list[dict[str, object]], command: str) -> None:
    results = ROOT / "results"
    results.mkdir(exist_ok=True)
    facts = {"command": command, "machine": machine(), "rows": rows}
    (results / "prepare.json").write_text(json.dumps(facts, indent=1) + "\n")
    lines = [
        "# Preparing a log",
        "",
        f"`{command}` on {machine()}.",
        "",
        "A made-up log in the shape of XLong, `--min-user 5 --min-item 5`; median of the runs, largest peak.",
        "pandas does the same filter and sort, and the benchmark checks that both give the same histories.",
        "",
        "| events | file | lrurec events/s | lrurec peak | pandas events/s | pandas peak | faster | runs |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        ours, theirs = float(str(r["lrurec_seconds"])), float(str(r["pandas_seconds"]))
        events = int(str(r["events"]))
        lines.append(
            f"| {events:,} | {r['file']} | {events / ours:,.0f} | {int(str(r['lrurec_peak'])) / 1e9:.2f} GB"
            f" | {events / theirs:,.0f} | {int(str(r['pandas_peak'])) / 1e9:.2f} GB | {theirs / ours:.1f}x | {r['runs']} |"
        )
    (results / "prepare.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 10, 66.8])
    parser.add_argument("--files", nargs="+", default=["parquet", "csv"], choices=["parquet", "csv"])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    command = " ".join(["python", "bench/prepare.py", *sys.argv[1:]])
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "with_pandas.py"
        script.write_text(PANDAS)
        for millions in options.millions:
            for kind in options.files:
                log, out = Path(folder) / f"log.{kind}", Path(folder) / "out"
                synth(millions, log)
                ours: list[Cost] = []
                theirs: list[Cost] = []
                filters = ["--min-user", "5", "--min-item", "5"]
                for _ in range(options.repeat):  # taking turns, so that a noisy neighbour disturbs both
                    shutil.rmtree(out, ignore_errors=True)
                    ours.append(run([*LRUREC, "prepare", str(log), "--out", str(out), *filters]))
                    theirs.append(run([sys.executable, str(script), str(log), str(Path(folder) / "pandas")]))
                check_same(out, Path(folder) / "pandas")
                a, b = median(ours), median(theirs)
                row = {
                    "events": int(millions * 1e6),
                    "file": kind,
                    "lrurec_seconds": round(a.seconds, 2),
                    "lrurec_peak": a.peak,
                    "pandas_seconds": round(b.seconds, 2),
                    "pandas_peak": b.peak,
                    "runs": options.repeat,
                }
                print(json.dumps(row), flush=True)
                rows.append(row)
                write(rows, command)
                log.unlink()


if __name__ == "__main__":
    main()
