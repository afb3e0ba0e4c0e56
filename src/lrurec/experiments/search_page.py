"""A search on one page: how it went, what each setting did, what mattered. Knows trials, not how they are trained."""

import html
import io
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from matplotlib.figure import Figure
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
_STYLE = "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}svg{max-width:100%;height:auto}"


def page(study: "optuna.Study", about: dict[str, Any]) -> str:
    """HTML that needs nothing else."""
    trials = [t for t in study.get_trials(deepcopy=False) if t.state in _ENDED and t.intermediate_values]
    names = sorted({name for t in trials for name in t.params})
    weights = importances(study, names)
    shown = {key: ", ".join(value) if isinstance(value, list) else str(value) for key, value in about.items() if value}
    said = [f"{html.escape(key)}: {html.escape(value)}" for key, value in shown.items()]
    done = sum(t.state == TrialState.COMPLETE for t in trials)
    best = study.best_trial
    chosen = ", ".join(f"{name} = {best.params[name]}" for name in names)
    parts = [
        "<!doctype html><meta charset='utf-8'><title>lrurec search</title>",
        f"<style>{_STYLE}</style><h1>Search</h1><p>{'<br>'.join(said)}</p>",
        f"<p>{len(trials)} trials, {len(trials) - done} of them ended early. Best: trial {best.number}, valid Recall@10"
        f" {best.value:.5f}, with {html.escape(chosen)}.</p>",
        "<h2>How it went</h2>", _svg(lambda f: _history(f, trials)),
        "<h2>What mattered</h2>",
        _svg(lambda f: _bars(f, weights)) if weights else "<p>Too few trials to tell.</p>",
        "<h2>What each setting did</h2>", _svg(lambda f: _slices(f, trials, names), (9, 3.2)),
        "<h2>All trials</h2>", _table(trials, names),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def importances(study: "optuna.Study", names: Sequence[str]) -> dict[str, float]:
    """The share of each setting in being among the better half (PED-ANOVA); nothing where there are too few trials."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < 4 or len({t.value for t in done}) < 2:
        return {}
    evaluator = PedAnovaImportanceEvaluator(target_quantile=0.5)
    return dict(get_param_importances(study, evaluator=evaluator, params=list(names)))


def _value(trial: FrozenTrial) -> float:
    return max(trial.intermediate_values.values())


def _history(figure: Figure, trials: Sequence[FrozenTrial]) -> None:
    axes = figure.subplots()
    best, tops = 0.0, []
    for state, label, colour in (
        (TrialState.COMPLETE, "to the end", "#c0392b"),
        (TrialState.PRUNED, "ended early", "#bbbbbb"),
    ):
        some = [t for t in trials if t.state == state]
        axes.scatter([t.number for t in some], [_value(t) for t in some], color=colour, label=label, s=18)
    for t in trials:
        best = max(best, _value(t))
        tops.append(best)
    axes.plot([t.number for t in trials], tops, color="#c0392b", linewidth=1)
    axes.set(xlabel="trial", ylabel="valid Recall@10")
    axes.legend(frameon=False)


def _bars(figure: Figure, weights: dict[str, float]) -> None:
    axes = figure.subplots()
    names = sorted(weights, key=lambda name: weights[name])
    axes.barh(names, [weights[name] for name in names], color="#2c6fbb")
    axes.set(xlabel="share")


def _slices(figure: Figure, trials: Sequence[FrozenTrial], names: Sequence[str]) -> None:
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        some = [t for t in trials if name in t.params]
        values = [t.params[name] for t in some]
        colours = ["#c0392b" if t.state == TrialState.COMPLETE else "#bbbbbb" for t in some]
        spread = max(values) / max(min(values), 1e-12) if values and isinstance(values[0], float) else 1
        if len(set(values)) <= 6:
            places = sorted(set(values))
            axes.scatter([places.index(v) for v in values], [_value(t) for t in some], color=colours, s=14)
            axes.set_xticks(range(len(places)), [f"{v:g}" for v in places])
        else:
            axes.scatter(values, [_value(t) for t in some], color=colours, s=14)
            axes.set_xscale("log" if spread > 50 else "linear")
        axes.set(xlabel=name, ylabel="valid Recall@10" if axes is panels[0] else "")


def _svg(draw: Callable[[Figure], None], size: tuple[float, float] = (9, 3)) -> str:
    figure = Figure(figsize=size, layout="constrained")
    draw(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _table(trials: Sequence[FrozenTrial], names: Sequence[str]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("trial", *names, "step", "valid Recall@10", ""))
    rows = []
    for t in sorted(trials, key=lambda t: -_value(t)):
        cells = [str(t.number), *(_short(t.params.get(name)) for name in names), f"{max(t.intermediate_values):,}"]
        cells += [f"{_value(t):.5f}", "ended early" if t.state == TrialState.PRUNED else ""]
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
