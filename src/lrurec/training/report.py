"""A run on one self-contained page: curves, metrics with intervals, for whom it works, lambda. Knows numbers and SVG.

No script, no external asset; follows the reader's light or dark setting.
"""

import html
import math
from collections.abc import Sequence
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #656d76; --line: #d0d7de; --a: #1a7f5a; --b: #b35900; --back: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4af; --line: #3d444d; --a: #4cc38a; --b: #f0a04b; --back: #0d1117 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem } p, td, th { color: var(--ink) } .soft { color: var(--soft) }
table { border-collapse: collapse } td, th { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right }
td:first-child, th:first-child { text-align: left } .row { display: flex; flex-wrap: wrap; gap: 1.5rem }
svg { max-width: 100%; height: auto } svg text { fill: var(--soft); font: 12px system-ui, sans-serif }
.axis { stroke: var(--line); fill: none } .a { stroke: var(--a); fill: none; stroke-width: 2 } .fa { fill: var(--a) } .fb { fill: var(--b) }
"""
_WIDTH, _HEIGHT, _EDGE = 420, 240, 44


def page(
    title: str,
    config: str,
    validations: Sequence[dict[str, Any]],
    report: dict[str, Any],
    eigenvalues: Sequence[Sequence[tuple[float, float]]],
) -> str:
    """The whole page as HTML."""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p class=soft>{report['users']:,} users, {report['split']} split, all items ranked</p>",
    ]
    parts.append(_metrics(report["metrics"], report.get("without_memory")))
    if validations:
        steps = [float(v["step"]) for v in validations]
        parts.append("<h2>Training</h2><div class=row>")
        parts.append(_curve("validation Recall@10", steps, [v["recall@10"] for v in validations]))
        parts.append(_curve("validation NDCG@10", steps, [v["ndcg@10"] for v in validations]))
        parts.append(_curve("training loss", steps, [v["loss"] for v in validations]))
        parts.append("</div>")
    parts.append("<h2>For whom it works</h2><div class=row>")
    for name, key in (
        ("Recall@10 by length of history", "by_history_length"),
        ("Recall@10 by training count of the target", "by_target_popularity"),
    ):
        first = next(k for k in report[key][0] if k.startswith("recall@"))
        parts.append(_bars(name, [(f"{s['from']}-{s['to']}", s[first], f"{s['users']:,} users") for s in report[key]]))
    parts.append("</div>")
    if eigenvalues:
        parts.append(
            "<h2>Lambda</h2><p class=soft>Each dot is a channel. Near the rim it remembers long, near the centre it forgets at once; the angle is how fast it turns.</p><div class=row>"
        )
        for block, values in enumerate(eigenvalues, 1):
            parts.append(_disc(f"block {block}", values))
            parts.append(_histogram(f"|lambda| of block {block}", [math.hypot(*v) for v in values]))
        parts.append("</div>")
    parts.append(f"<h2>Settings</h2><pre>{html.escape(config)}</pre>")
    body = "\n".join(parts)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><body>{body}</body></html>\n"
    )


def _metrics(metrics: dict[str, dict[str, float]], without_memory: dict[str, float] | None) -> str:
    rows = "".join(
        f"<tr><td>{name}</td><td>{m['value']:.5f}</td><td class=soft>{m['low']:.5f} to {m['high']:.5f}</td>"
        + (f"<td>{without_memory[name]:.5f}</td></tr>" if without_memory else "</tr>")
        for name, m in metrics.items()
    )
    other = "<th>without its memory</th>" if without_memory else ""
    return f"<table><tr><th>metric</th><th>value</th><th>95% interval</th>{other}</tr>{rows}</table>"


def _svg(title: str, inside: str, width: int = _WIDTH, height: int = _HEIGHT) -> str:
    label = html.escape(title)
    return f"<svg viewBox='0 0 {width} {height}' width={width} role=img aria-label='{label}'><text x=8 y=16>{label}</text>{inside}</svg>"


def _curve(title: str, x: Sequence[float], y: Sequence[float]) -> str:
    low, high = min(y), max(y)
    span, reach = (high - low) or 1.0, (max(x) - min(x)) or 1.0

    def at(a: float, b: float) -> tuple[float, float]:
        across = _EDGE + (_WIDTH - _EDGE - 12) * (a - min(x)) / reach
        return across, _HEIGHT - 28 - (_HEIGHT - 64) * (b - low) / span

    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(a, b) for a, b in zip(x, y, strict=True)))
    dots = "".join(
        f"<circle class=fa r=3 cx={px:.1f} cy={py:.1f} />" for px, py in (at(a, b) for a, b in zip(x, y, strict=True))
    )
    frame = f"<path class=axis d='M{_EDGE} 32 V{_HEIGHT - 28} H{_WIDTH - 12}'/>"
    marks = f"<text x=2 y={at(x[0], high)[1] + 4:.0f}>{high:.3f}</text><text x=2 y={at(x[0], low)[1] + 4:.0f}>{low:.3f}</text>"
    ends = f"<text x={_EDGE} y={_HEIGHT - 10}>step {x[0]:,.0f}</text><text x={_WIDTH - 12} y={_HEIGHT - 10} text-anchor=end>{x[-1]:,.0f}</text>"
    return _svg(title, f"{frame}<polyline class=a points='{points}'/>{dots}{marks}{ends}")


def _bars(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    largest = max((value for _, value, _ in bars), default=0.0) or 1.0
    lines = []
    for k, (name, value, note) in enumerate(bars):
        y = 34 + 22 * k
        width = (_WIDTH - 230) * value / largest
        lines.append(
            f"<text x=84 y={y + 12} text-anchor=end>{name}</text><rect class=fa x=90 y={y} width={width:.1f} height=15 rx=2 />"
        )
        lines.append(f"<text x={96 + width:.1f} y={y + 12}>{value:.4f} ({note})</text>")
    return _svg(title, "".join(lines), height=44 + 22 * len(bars))


def _disc(title: str, values: Sequence[tuple[float, float]]) -> str:
    centre, radius = 130, 100
    dots = "".join(
        f"<circle class=fb r=2.5 cx={centre + radius * re:.1f} cy={centre + 10 - radius * im:.1f} />"
        for re, im in values
    )
    rim = f"<circle class=axis r={radius} cx={centre} cy={centre + 10} /><path class=axis d='M{centre - radius} {centre + 10} h{2 * radius} M{centre} {centre + 10 - radius} v{2 * radius}'/>"
    return _svg(f"{title}: the unit disc", rim + dots, width=260, height=250)


def _histogram(title: str, values: Sequence[float]) -> str:
    bins = [0] * 20
    for value in values:
        bins[min(19, int(value * 20))] += 1
    largest = max(bins) or 1
    bars = "".join(
        f"<rect class=fb x={_EDGE + 17 * k} y={_HEIGHT - 28 - 160 * n / largest:.1f} width=15 height={160 * n / largest:.1f} />"
        for k, n in enumerate(bins)
    )
    mean = sum(values) / max(len(values), 1)
    ends = f"<text x={_EDGE} y={_HEIGHT - 10}>0</text><text x={_EDGE + 340} y={_HEIGHT - 10} text-anchor=end>1 (mean {mean:.3f})</text>"
    return _svg(title, f"<path class=axis d='M{_EDGE} {_HEIGHT - 28} h340'/>{bars}{ends}")
