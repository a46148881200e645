"""What mattered: which hyper-parameter the score hangs on, and how.

Importance comes from optuna's evaluators on an in-memory study made of the finished configurations: PED-ANOVA (which parameters
tell the best configurations from the rest) and fANOVA (which explain the score's variance) with a seeded forest. Both look at
one method at a time, because a parameter that only some configurations have has no share in the others.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from dashboards.panels.base import (
    SCALE,
    Panel,
    Plain,
    View,
    colours,
    column,
    done,
    number,
    numbers,
    parameters_that_differ,
    scalar,
    text,
)

LEAST = 4  # configurations; below it every parameter explains everything
FANOVA_UP_TO = 400  # configurations: the forest's cost grows with their number
LINES_UP_TO = 400
EVALUATORS = {"ped_anova": "PED-ANOVA: what sets the best apart", "fanova": "fANOVA: share of the score's variance"}


def importance_data(view: View) -> Plain:
    """Shares that add up to one: {method: {evaluator: {parameter: share}}}."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    why: list[str] = []
    for method, frame in done(view.configurations).groupby("method"):
        names = parameters_that_differ(frame)
        if len(frame) < LEAST or not names:
            reason = f"only {len(frame)} finished configurations" if len(frame) < LEAST else "no parameter differs"
            why.append(f"{method}: {reason}")
            continue
        found[str(method)] = _importances(frame, names)
    if not found:
        listed = "; ".join(why) if why else "no configuration is finished"
        return {
            "empty": f"Importance needs at least {LEAST} finished configurations of one method that differ in a parameter ({listed})."
        }
    return {"shares": found, "why": why}


def _importances(frame: pd.DataFrame, names: list[str]) -> dict[str, dict[str, float]]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    distributions = {name: _distribution(frame[f"p.{name}"]) for name in names}
    for row, score in zip(frame.to_dict("records"), column(frame, "m.score"), strict=True):
        params = {}
        for name, distribution in distributions.items():
            value = scalar(row[f"p.{name}"])
            is_choice = isinstance(distribution, optuna.distributions.CategoricalDistribution)
            params[name] = str(value) if is_choice else value
        study.add_trial(optuna.trial.create_trial(params=params, distributions=dict(distributions), value=float(score)))
    evaluators: dict[str, Any] = {"ped_anova": PedAnovaImportanceEvaluator()}
    if len(frame) <= FANOVA_UP_TO:
        evaluators["fanova"] = FanovaImportanceEvaluator(n_trees=32, seed=0)
    shares = {}
    for name, evaluator in evaluators.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # experimental notices, nothing about the data
                shares[name] = {
                    key: round(float(value), 4)
                    for key, value in optuna.importance.get_param_importances(study, evaluator=evaluator).items()
                }
        except (ValueError, RuntimeError):
            continue  # an evaluator that cannot judge these scores (all equal) says nothing; the other one may
    return shares


def _distribution(series: pd.Series[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values = [scalar(value) for value in series]
    if not all(isinstance(value, (int, float)) for value in values):
        return CategoricalDistribution(sorted({str(value) for value in values}))
    low, high = min(values), max(values)
    log = low > 0 and high / low >= 20
    if all(isinstance(value, int) for value in values):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def importance_draw(plain: Plain) -> Plain:
    values: Plain = {}
    for method, by_evaluator in plain["shares"].items():
        for evaluator in EVALUATORS:
            shares = by_evaluator.get(evaluator, {})
            ordered = sorted(shares.items(), key=lambda item: item[1])
            values[f"share/{method}/{evaluator}"] = [share for _, share in ordered]
            values[f"name/{method}/{evaluator}"] = [text(name, 24) for name, _ in ordered]
    methods = list(plain["shares"])
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": {"$": "share/{method}/{evaluator}"},
        "y": {"$": "name/{method}/{evaluator}"},
        "marker": {"color": "#0072B2"},
        "texttemplate": "%{x:.2f}",
        "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
    }
    note = "Shares add up to one within a method. They say what varied with the score here, not what would under other ranges."
    return {
        "choices": [
            _choice("method", "Method", methods),
            {
                "name": "evaluator",
                "label": "Measure",
                "value": "ped_anova",
                "options": [{"value": key, "label": label} for key, label in EVALUATORS.items()],
            },
        ],
        "values": values,
        "figure": {
            "data": [bar],
            "layout": {"xaxis": {"title": {"text": "importance"}, "range": [0, 1.08]}, "yaxis": {"type": "category"}},
        },
        "note": " ".join([note, *[f"Not shown: {one}." for one in plain["why"]]]),
    }


def _choice(name: str, label: str, options: list[str], value: str | None = None) -> Plain:
    shown = [{"value": option, "label": option} for option in options]
    return {"name": name, "label": label, "value": value if value is not None else options[0], "options": shown}


def parallel_data(view: View) -> Plain:
    """Each configuration as a line over its parameters and its score; positions between 0 and 1 on every axis."""
    frame = done(view.configurations)
    if len(frame) < 2:
        return {
            "empty": f"Parallel coordinates need two finished configurations; there {'is one' if len(frame) else 'are none'}."
        }
    frame = frame.assign(_score=column(frame, "m.score")).sort_values("_score")
    dropped = max(0, len(frame) - LINES_UP_TO)
    frame = frame.iloc[dropped:]
    names = parameters_that_differ(frame)
    axes = [_positions(name, frame[f"p.{name}"]) for name in names if name != "method"]
    if frame["method"].nunique() > 1:
        axes.insert(0, _positions("method", frame["method"]))
    axes.append(_positions("score", frame["_score"]))
    return {"axes": axes, "id": frame["id"].tolist(), "dropped": dropped}


def _positions(name: str, series: pd.Series[Any]) -> Plain:
    values = [scalar(value) for value in series]
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, (int, float)) for value in present) and len(set(present)) > 1:
        low, high = min(present), max(present)
        log = low > 0 and high / low >= 20
        scale = np.log if log else np.asarray
        ends = scale(np.array([low, high], dtype=float))
        where = [
            None if value is None else float((scale(np.array(float(value))) - ends[0]) / (ends[1] - ends[0]))
            for value in values
        ]
        middle = float(np.sqrt(low * high)) if log else (low + high) / 2
        ticks = sorted(set(present)) if len(set(present)) <= 6 else [low, middle, high]
        at = [float((scale(np.array(float(tick))) - ends[0]) / (ends[1] - ends[0])) for tick in ticks]
        return {
            "name": name,
            "at": numbers(where),
            "ticks": [[position, f"{tick:.4g}"] for position, tick in zip(at, ticks, strict=True)],
        }
    words = sorted({str(value) for value in present})
    step = {word: number_ / max(1, len(words) - 1) for number_, word in enumerate(words)}
    where = [None if value is None else step[str(value)] for value in values]
    return {"name": name, "at": numbers(where), "ticks": [[step[word], word] for word in words[:12]]}


def parallel_draw(plain: Plain) -> Plain:
    axes = plain["axes"]
    lines = len(plain["id"])
    bands = 5
    traces: list[Plain] = []
    for band in range(bands):
        x: list[Any] = []
        y: list[Any] = []
        ids: list[Any] = []
        for line in range(lines * band // bands, lines * (band + 1) // bands):
            for position, one in enumerate(axes):
                x.append(position)
                y.append(one["at"][line])
                ids.append(plain["id"][line])
            x.append(None)
            y.append(None)
            ids.append(None)
        colour = SCALE[band][1]
        name = ("lowest fifth", "", "middle", "", "best fifth")[band]
        trace = {
            "type": "scatter",
            "mode": "lines+markers",
            "x": x,
            "y": y,
            "customdata": ids,
            "connectgaps": False,
            "name": name,
        }
        style = {"line": {"color": colour, "width": 1.2 + 0.3 * band}, "marker": {"color": colour, "size": 5}, "opacity": 0.75}
        traces.append(trace | style | {"showlegend": bool(name) and lines >= bands})
    marks = [
        {
            "x": position,
            "y": at,
            "text": text(label, 18),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 6,
            "font": {"size": 10},
            "bgcolor": "panel",
        }
        for position, one in enumerate(axes)
        for at, label in one["ticks"]
    ]
    columns = {"tickvals": list(range(len(axes))), "ticktext": [text(one["name"], 18) for one in axes], "side": "top"}
    note = (
        f"Colour is the rank by score; the {plain['dropped']} lowest are left out."
        if plain["dropped"]
        else "Colour is the rank by score."
    )
    layout = {
        "xaxis": columns | {"range": [-0.1, len(axes) - 0.5], "showgrid": True, "zeroline": False},
        "yaxis": {"visible": False, "range": [-0.08, 1.08]},
        "annotations": marks,
        "hovermode": "closest",
    }
    return {"values": {}, "choices": [], "figure": {"data": traces, "layout": layout}, "note": note}


def slices_data(view: View) -> Plain:
    """Score against each parameter that differs, over the finished configurations."""
    frame = done(view.configurations)
    names = [name for name in parameters_that_differ(frame) if name != "method"] if len(frame) > 1 else []
    if not names:
        return {"empty": "A slice needs finished configurations that differ in a parameter; there are none yet."}
    columns = {name: [scalar(value) for value in frame[f"p.{name}"]] for name in names}
    return {
        "columns": columns,
        "score": numbers(column(frame, "m.score")),
        "id": frame["id"].tolist(),
        "method": frame["method"].tolist(),
    }


def slices_draw(plain: Plain) -> Plain:
    by_method = colours(plain["method"])
    values: Plain = {"score": plain["score"], "id": plain["id"]}
    for name, column_ in plain["columns"].items():
        present = [value for value in column_ if value is not None]
        is_number = all(isinstance(value, (int, float)) for value in present)
        log = is_number and min(present) > 0 and max(present) / min(present) >= 20
        values[f"x/{name}"] = column_ if is_number else [None if value is None else text(value, 28) for value in column_]
        values[f"axis/{name}"] = {
            "title": {"text": text(name)},
            "type": "log" if log else "linear" if is_number else "category",
        }
    traces = []
    for number_, method in enumerate(sorted(set(plain["method"]))):
        pick = f"of/{number_}"
        values[pick] = [index for index, one in enumerate(plain["method"]) if one == method]
        trace: Plain = {
            "type": "scatter",
            "mode": "markers",
            "name": text(method, 30),
            "marker": {"color": by_method[method], "size": 7, "opacity": 0.6},
        }
        traces.append(
            trace
            | {
                "x": {"$": "x/{parameter}", "pick": pick},
                "y": {"$": "score", "pick": pick},
                "customdata": {"$": "id", "pick": pick},
            }
        )
    layout = {
        "xaxis": {"$": "axis/{parameter}"},
        "yaxis": {"title": {"text": "score"}},
        "hovermode": "closest",
        "dragmode": "select",
    }
    return {
        "choices": [_choice("parameter", "Parameter", list(plain["columns"]))],
        "values": values,
        "figure": {"data": traces, "layout": layout},
    }


def heat_data(view: View) -> Plain:
    """The best score of each pair of ranks r2 and r3, for each set of projections."""
    frame = done(view.configurations)
    if "p.r2" not in frame or "p.r3" not in frame or frame.empty:
        return {"empty": "No finished configuration has the ranks r2 and r3 (only Tucker methods such as craft do)."}
    frame = frame[frame["p.r2"].notna() & frame["p.r3"].notna()]
    maps: Plain = {}
    sets = frame["p.projections"].astype(str) if "p.projections" in frame else pd.Series("all", index=frame.index)
    for name, group in frame.groupby(sets):
        table = group.assign(s=column(group, "m.score")).pivot_table(
            index="p.r3", columns="p.r2", values="s", aggfunc=["max", "count"]
        )
        best, count = table["max"], table["count"]
        cells = [numbers(row) for row in best.to_numpy()]
        tallies = [numbers(row) for row in count.to_numpy()]
        maps[str(name)] = {
            "r2": [str(scalar(one)) for one in best.columns],
            "r3": [str(scalar(one)) for one in best.index],
            "best": cells,
            "count": tallies,
        }
    return {"maps": maps} if maps else {"empty": "No finished configuration has the ranks r2 and r3 yet."}


def heat_draw(plain: Plain) -> Plain:
    values: Plain = {}
    for name, one in plain["maps"].items():
        values |= {f"{key}/{name}": one[key] for key in ("r2", "r3", "best", "count")}
    scores = [cell for one in plain["maps"].values() for row in one["best"] for cell in row if cell is not None]
    trace = {
        "type": "heatmap",
        "x": {"$": "r2/{set}"},
        "y": {"$": "r3/{set}"},
        "z": {"$": "best/{set}"},
        "customdata": {"$": "count/{set}"},
        "colorscale": SCALE,
        "zmin": min(scores),
        "zmax": max(scores) if max(scores) > min(scores) else min(scores) + 1,
        "texttemplate": "%{z:.1f}",
        "colorbar": {"title": {"text": "score"}, "thickness": 12},
        "hovertemplate": "r2 %{x}, r3 %{y}: best %{z:.2f} of %{customdata}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
    }
    axes = {"xaxis": {"title": {"text": "r2"}, "type": "category"}, "yaxis": {"title": {"text": "r3"}, "type": "category"}}
    note = "Each cell is the best score over everything else that varied; all sets share one colour scale."
    return {
        "choices": [_choice("set", "Projections", list(plain["maps"]))],
        "values": values,
        "figure": {"data": [trace], "layout": axes},
        "note": note,
    }


IMPORTANCE = Panel(
    "importance", "Importance", "mattered", "Which hyper-parameter the score hangs on.", importance_data, importance_draw
)
PARALLEL = Panel(
    "parallel",
    "Parallel coordinates",
    "mattered",
    "Each line is a configuration: which values go with a high score?",
    parallel_data,
    parallel_draw,
    wide=True,
)
SLICES = Panel("slices", "Slices", "mattered", "The score against one parameter at a time.", slices_data, slices_draw)
HEAT = Panel("heat", "Rank heat map", "mattered", "The best score of each pair of ranks r2 and r3.", heat_data, heat_draw)
