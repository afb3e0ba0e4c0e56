"""How much the recipe `best` gains over `fast`, with and without its memory, on ML-1M and on Beauty.

    LRUREC_DATA=DIR python bench/best.py --runs DIR [--only ml-1m] [--seeds 3]

Every run is a plain `lrurec train`, kept in the folder after --runs as best-NAME-SEED or fast-NAME-SEED; one that is already
there is not trained again (an unfinished one is resumed). The table is written to results/ after each run. `fast` is
trained with seed 0 alone, for the comparison user by user; results/accuracy.md has its three seeds.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lrurec
from accuracy import CASES, arguments, spread
from measure import machine

ROOT = Path(__file__).parents[1]
GOALS = {"ml-1m": (0.205, 0.340), "beauty": (0.040, 0.064)}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "lrurec.cli.main", *(str(a) for a in arguments)]


def train(folder: Path, data: Path, *options: str) -> None:
    if not (folder / "result.json").exists():
        go_on = (folder / "manifest.json").exists()
        subprocess.run(command("train", data, "--out", folder, *(["--resume"] if go_on else options)), check=True)


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def compared(runs: Path, name: str) -> dict[str, Any] | None:
    """`best` and `fast` of seed 0, user by user."""
    both = [runs / f"{recipe}-{name}-0" for recipe in ("best", "fast")]
    if not all((folder / "result.json").exists() for folder in both):
        return None
    done = subprocess.run(command("compare", *both, "-k", 10, "--json"), check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {k: v for k, v in found.items() if k not in ("first", "second")}


def pair(results: list[dict[str, float]]) -> str:
    return " | ".join(spread([r[m] for r in results]) for m in ("ndcg@10", "recall@10"))


def write(runs: Path, names: list[str], seeds: int) -> None:
    found: dict[str, Any] = {}
    for name in names:
        folders = [runs / f"best-{name}-{s}" for s in range(seeds)]
        done = [read(f) for f in folders if (f / "result.json").exists()]
        if done:
            found[name] = {"best": done, "comparison": compared(runs, name)}
    lines = [
        "# The recipe `best`",
        "",
        f"`LRUREC_DATA=DIR python bench/best.py --runs DIR` on {machine()}.",
        "Test split, all items ranked, seen ones masked; nothing of validation or test is trained or counted. Mean and standard deviation over the seeds.",
        "",
        "| dataset | seeds | | NDCG@10 | Recall@10 |",
        "|---|---:|---|---:|---:|",
    ]
    for name, facts in found.items():
        case, done = CASES[name], facts["best"]
        lines += [
            f"| {name} | | the paper | {case.ndcg:.4f} | {case.recall:.4f} |",
            f"| | {len(done)} | `best` | {pair([r['test'] for r in done])} |",
            f"| | {len(done)} | `best`, its model alone | {pair([r['without_memory']['test'] for r in done])} |",
            f"| | | what we aim at | {GOALS[name][0]:.3f} | {GOALS[name][1]:.3f} |",
        ]
    for name, facts in found.items():
        if (c := facts["comparison"]) is None:
            continue
        lines += ["", f"## {name}: `best` against `fast`, seed 0, user by user", ""]
        lines += ["| metric | best | fast | difference | 95% interval | p |", "|---|---:|---:|---:|---:|---:|"]
        for metric, d in c["metrics"].items():
            gain = f"{d['mean'] / d['second']:+.1%}"
            lines.append(
                f"| {metric} | {d['first']:.5f} | {d['second']:.5f} | {gain} | {d['low']:+.5f} to {d['high']:+.5f} | {d['p']:.4f} |"
            )
        for key, title in (("by_history_length", "history"), ("by_target_popularity", "training count of the target")):
            lines += ["", f"| {title} | users | best | fast | NDCG@10 |", "|---|---:|---:|---:|---:|"]
            for s in c[key]:
                gain = f"{s['first'] / s['second'] - 1:+.1%}" if s["second"] else "-"
                lines.append(
                    f"| {s['from']}-{s['to']} | {s['users']:,} | {s['first']:.4f} | {s['second']:.4f} | {gain} |"
                )
    results = ROOT / "results"
    (results / "best.json").write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    (results / "best.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    options = arguments(__doc__)
    names = options.only or list(CASES)
    if not options.table:
        if "LRUREC_DATA" not in os.environ:
            raise SystemExit("set LRUREC_DATA to the folder with ml-1m/ and beauty/")
        for name in names:
            data = options.runs / "data" / name
            lrurec.load_events(Path(os.environ["LRUREC_DATA"]) / CASES[name].file, out=data, recipe="paper")
            settings = [s for s in CASES[name].settings if not s.startswith("training.precision")]
            train(options.runs / f"fast-{name}-0", data, *(o for s in settings for o in ("--set", s)))
            for seed in range(options.seeds):
                folder = options.runs / f"best-{name}-{seed}"
                train(folder, data, "--recipe", "best", "--set", f"training.seed={seed}")
                write(options.runs, names, options.seeds)
    write(options.runs, names, options.seeds)


if __name__ == "__main__":
    main()
