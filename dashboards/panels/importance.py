"""How much the score depends on each hyper-parameter.

Importance is fANOVA's share of the score's variance, by optuna's evaluator with a seeded forest on an in-memory study of the
finished configurations. It looks at one method at a time, because a parameter of one method means nothing for those of another.
Parameters that always change together are one.
"""

from __future__ import annotations

import math
import random
import warnings
from typing import Any

from dashboards.frames import Row
from dashboards.panels.base import Plain, View, choice, moving_together, parameter, texts, trained
from orchestrator.results.metrics import BLUE

LEAST, EACH = 12, 5
"""Configurations of a method, and for each of its parameters: with fewer, luck decides what seems to explain the score."""
FANOVA_UP_TO = 150  # configurations: the forest's cost grows with their number, so it gets a sample of more


def data(view: View) -> Plain:
    """Returns shares that add up to one: {method: {parameter: share}}."""
    by_method: dict[str, dict[str, float]] = {}
    ready = trained(view.configurations)
    for method in sorted({row.method for row in ready}):
        rows = [row for row in ready if row.method == method]
        names = moving_together(rows)
        if names and len(rows) >= max(LEAST, EACH * len(names)):
            sample = rows if len(rows) <= FANOVA_UP_TO else random.Random(0).sample(rows, FANOVA_UP_TO)
            if shares := _shares(sample, [*names]):
                by_method[method] = {names[name]: share for name, share in shares.items()}
    least = f"{LEAST} finished configurations of one method, and {EACH} for each parameter that varies"
    return {"shares": by_method} if by_method else {"empty": f"Needs {least}; fewer would show only noise."}


def _shares(rows: list[Row], names: list[str]) -> dict[str, float] | None:
    """Returns each parameter's share; None if the scores cannot be explained, because all are equal."""
    import optuna
    from optuna.distributions import BaseDistribution, IntDistribution
    from optuna.importance import FanovaImportanceEvaluator

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    # trees split by order alone, so a value is its place among those that were tried
    tried = {name: sorted({*parameter(rows, name)}, key=_order) for name in names}
    distributions: dict[str, BaseDistribution] = {name: IntDistribution(0, len(values) - 1) for name, values in tried.items()}
    for row, *values in zip(rows, *(parameter(rows, name) for name in names), strict=True):
        params = {name: tried[name].index(value) for name, value in zip(names, values, strict=True)}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=row.value("score")))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental notices, nothing about the data
            shares = optuna.importance.get_param_importances(study, evaluator=FanovaImportanceEvaluator(n_trees=32, seed=0))
    except (ValueError, RuntimeError):
        return None
    return {name: round(float(share), 4) for name, share in shares.items()}


def _order(value: Any) -> tuple[bool, Any]:
    """Returns the place of a value: none comes first, then numbers, then texts."""
    return isinstance(value, str), -math.inf if value is None else value


def draw(plain: Plain) -> Plain:
    values: Plain = {}
    for method, shares in plain["shares"].items():
        ordered = sorted(shares.items(), key=lambda item: item[1])
        values[f"share/{method}"] = [share for _, share in ordered]
        values[f"name/{method}"] = texts([name for name, _ in ordered], 24)
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
        "choices": [choice("method", "Method", list(plain["shares"]))],
        "values": values,
        "figure": {"data": [bar], "layout": layout},
        "help": "fANOVA: what explains the score's variance over the values tried here. Other ranges may say otherwise.",
    }
