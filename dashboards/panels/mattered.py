"""Which settings mattered: how much the score depends on each of them, and every configuration as a line over all of them.

Importance is fANOVA's share of the score's variance, by optuna's evaluator with a seeded forest on an in-memory study of the
finished configurations. It looks at one method at a time, because a parameter of one method means nothing for those of another.
Parameters that always change together are one.

Parallel coordinates end at the score. They are plain lines, a trace for each fifth of the ranking, because plotly's own kind
needs WebGL, cannot be selected point by point, and compiles code at run time, which the page's content security policy forbids.
"""

from __future__ import annotations

import math
import random
import warnings
from itertools import pairwise
from typing import Any

from dashboards.frames import Row
from dashboards.panels import base
from dashboards.panels.base import Plain, View
from orchestrator.results.metrics import BLUE, label_of

LEAST, EACH = 12, 5
"""Configurations of a method, and for each of its parameters: with fewer, luck decides what seems to explain the score."""
FANOVA_UP_TO = 150  # configurations: the forest's cost grows with their number, so it gets a sample of more


def draw_importance(view: View) -> Plain:
    """Draws the shares of the parameters of a method, which add up to one."""
    values: Plain = {}
    methods: list[str] = []
    ready = base.trained(view.configurations)
    for method in sorted({row.method for row in ready}):
        rows = [row for row in ready if row.method == method]
        names = base.moving_together(rows)
        if not names or len(rows) < max(LEAST, EACH * len(names)):
            continue
        sample = rows if len(rows) <= FANOVA_UP_TO else random.Random(0).sample(rows, FANOVA_UP_TO)
        if shares := _shares(sample, [*names]):
            methods.append(method)
            ascending = sorted(shares, key=shares.__getitem__)
            values[f"share/{method}"] = [shares[name] for name in ascending]
            values[f"name/{method}"] = base.texts([names[name] for name in ascending], 24)
    if not methods:
        least = f"{LEAST} finished configurations of one method, and {EACH} for each parameter that varies"
        return {"empty": f"Needs {least}; fewer would show only noise."}
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": {"$": "share/{method}"},
        "y": {"$": "name/{method}"},
        "marker": {"color": BLUE},
        "texttemplate": "%{x:.0%}",
        "textposition": "outside",
        "textangle": 0,
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "share of the score's variance"}, "range": [0, 1.08], "tickformat": ".0%"},
        "yaxis": {"type": "category"},
    }
    return {
        "choices": [base.choice("method", "Method", methods)],
        "values": values,
        "figure": {"data": [bar], "layout": layout},
        "help": "fANOVA: what explains the score's variance over the values tried here. Other ranges may say otherwise.",
    }


def _shares(rows: list[Row], names: list[str]) -> dict[str, float] | None:
    """Returns each parameter's share; None if the scores cannot be explained, because all are equal."""
    import optuna
    from optuna.distributions import BaseDistribution, IntDistribution
    from optuna.importance import FanovaImportanceEvaluator

    def order(value: Any) -> tuple[bool, Any]:  # none comes first, then numbers, then texts
        return isinstance(value, str), -math.inf if value is None else value

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    # trees split by order alone, so a value is its place among those that were tried
    tried = {name: sorted({*base.parameter(rows, name)}, key=order) for name in names}
    distributions: dict[str, BaseDistribution] = {name: IntDistribution(0, len(values) - 1) for name, values in tried.items()}
    for row, *values in zip(rows, *(base.parameter(rows, name) for name in names), strict=True):
        params = {name: tried[name].index(value) for name, value in zip(names, values, strict=True)}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=row.value("score")))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental notices, nothing about the data
            shares = optuna.importance.get_param_importances(study, evaluator=FanovaImportanceEvaluator(n_trees=32, seed=0))
    except (ValueError, RuntimeError):
        return None
    return {name: round(float(share), 4) for name, share in shares.items()}


LINES_UP_TO = 400
BANDS = 5
RAMP = "The stronger a line, the higher its score"
CUTS = "Whole adapters only: what was cut from them says nothing about how settings train"


def draw_parallel(view: View) -> Plain:
    """Draws each configuration as a line over its parameters and its score; positions are between 0 and 1 on every axis."""
    ready = base.best_first(base.trained(view.configurations))
    rows = ready[:LINES_UP_TO][::-1]
    if len(rows) < 2:
        return {"empty": f"Parallel coordinates need two finished configurations; there {'is one' if rows else 'are none'}."}
    axes = [_positions(label, base.parameter(rows, name)) for name, label in base.moving_together(rows).items()]
    if len({row.method for row in rows}) > 1:
        axes.insert(0, _positions("method", [row.method for row in rows]))
    axes.append(_positions(label_of("score", base.score_metric(view)), base.numbers(base.column(rows, "score"))))
    style = {"showarrow": False, "xanchor": "left", "xshift": 6, "font": {"size": 10}, "bgcolor": "panel"}
    marks = [
        {"x": position, "y": at, "text": base.text(label, 18), **style}
        for position, axis in enumerate(axes)
        for at, label in axis["ticks"]
    ]
    columns = {"tickvals": list(range(len(axes))), "ticktext": [base.text(axis["name"], 18) for axis in axes], "side": "top"}
    left_out = len(ready) - len(rows)
    note = f"{RAMP}; the {left_out} lowest are left out." if left_out else f"{RAMP}."
    note += f" {CUTS}." if any("cut_to" in row.parameters for row in view.configurations) else ""
    layout = {
        "xaxis": columns | {"range": [-0.15, len(axes) - 0.85], "showgrid": True, "zeroline": False},
        "yaxis": {"visible": False, "range": [-0.05, 1.05]},
        "annotations": marks,
        "dragmode": "select",
    }
    traces = [*(_band(rows, axes, band) for band in range(BANDS)), base.focus_trace("accent")]
    return {"values": {}, "choices": [], "figure": {"data": traces, "layout": layout}, "note": note}


def _positions(name: str, values: list[Any]) -> Plain:
    present, labels = {value for value in values if value is not None}, list[str]()
    if len(present) < 2 or any(isinstance(value, str) for value in present):  # between texts all distances are equal
        labels = sorted(map(str, present))
        values = [None if value is None else labels.index(str(value)) for value in values]
        present = {*range(len(labels))}
    low, high = min(present, default=0), max(present, default=0)
    log = not labels and low > 0 and high / low >= 20

    def place(value: float) -> float:
        return math.log(value / low) / math.log(high / low) if log else (value - low) / ((high - low) or 1)

    middle = math.sqrt(low * high) if log else (low + high) / 2
    ticks = sorted(present)[:12] if labels or len(present) <= 6 else [low, middle, high]
    at = [place(tick) for tick in ticks]
    close = {below for below, above in pairwise(at) if above - below < 0.06 and below > 0}
    names = [labels[int(tick)] if labels else f"{tick:.4g}" for tick in ticks]
    return {
        "name": name,
        "at": base.numbers(None if value is None else place(value) for value in values),
        "ticks": [[position, label] for position, label in zip(at, names, strict=True) if position not in close],
    }


def _band(rows: list[Row], axes: list[Plain], band: int) -> Plain:
    """Returns a trace with a fifth of the lines, each ended by a gap."""
    points: list[tuple[Any, Any, Any]] = []
    for line in range(len(rows) * band // BANDS, len(rows) * (band + 1) // BANDS):
        on_axes = [(position, axis["at"][line], rows[line].id) for position, axis in enumerate(axes)]
        # a parameter of another method: the line passes it by
        points += [*(point for point in on_axes if point[1] is not None), (None, None, None)]
    x, y, ids = zip(*points, strict=True) if points else ((), (), ())
    trace: Plain = {"type": "scatter", "mode": "lines+markers", "x": x, "y": y, "customdata": ids, "connectgaps": False}
    # no colour: on this page colours are methods
    style = {"line": {"color": "ink", "width": 0.8 + 0.4 * band}, "marker": {"color": "ink", "size": 5}}
    return trace | style | {"opacity": 0.15 + 0.2 * band, "showlegend": False}
