"""How much the score depends on each hyper-parameter.

Importance comes from optuna's evaluators on an in-memory study made of the finished configurations: PED-ANOVA (which parameters
tell the best configurations from the rest) and fANOVA (which explain the score's variance) with a seeded forest. Both look at
one method at a time, because a parameter of one method means nothing for the configurations of another.
"""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd

from dashboards.panels.base import BLUE, Panel, Plain, View, choice, column, parameters_that_differ, scalar, text, trained

LEAST = 4  # configurations; with fewer, every parameter seems to explain everything
FANOVA_UP_TO = 150  # configurations: the forest's cost grows with their number, so it gets a sample of more
EVALUATORS = {"ped_anova": "PED-ANOVA: best or not", "fanova": "fANOVA: variance"}


def data(view: View) -> Plain:
    """Shares that add up to one: {method: {evaluator: {parameter: share}}}."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    why: list[str] = []
    for method, frame in trained(view.configurations).groupby("method"):
        names = parameters_that_differ(frame)
        if len(frame) < LEAST or not names:
            reason = f"only {len(frame)} finished configurations" if len(frame) < LEAST else "no parameter differs"
            why.append(f"{method}: {reason}")
            continue
        distributions = {name: _distribution(frame[f"p.{name}"]) for name in names}
        sample = frame if len(frame) <= FANOVA_UP_TO else frame.sample(FANOVA_UP_TO, random_state=0)
        asked = {"ped_anova": _shares("ped_anova", frame, distributions), "fanova": _shares("fanova", sample, distributions)}
        found[str(method)] = {name: shares for name, shares in asked.items() if shares is not None}
    if not found:
        listed = "; ".join(why) if why else "no configuration is finished"
        return {"empty": f"Importance needs at least {LEAST} finished configurations of one method that differ ({listed})."}
    return {"shares": found, "why": why}


def _shares(evaluator: str, frame: pd.DataFrame, distributions: dict[str, Any]) -> dict[str, float] | None:
    """A parameter's share by one evaluator; None where it cannot judge these scores (all equal)."""
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    for row, score in zip(frame.to_dict("records"), column(frame, "m.score"), strict=True):
        params = {}
        for name, distribution in distributions.items():
            value = scalar(row[f"p.{name}"])
            is_choice = isinstance(distribution, optuna.distributions.CategoricalDistribution)
            params[name] = str(value) if is_choice else value
        study.add_trial(optuna.trial.create_trial(params=params, distributions=dict(distributions), value=float(score)))
    made = PedAnovaImportanceEvaluator() if evaluator == "ped_anova" else FanovaImportanceEvaluator(n_trees=32, seed=0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental notices, nothing about the data
            shares = optuna.importance.get_param_importances(study, evaluator=made)
    except (ValueError, RuntimeError):
        return None
    return {name: round(float(share), 4) for name, share in shares.items()}


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


def draw(plain: Plain) -> Plain:
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
        "marker": {"color": BLUE},
        "texttemplate": "%{x:.2f}",
        "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
    }
    note = (
        "PED-ANOVA asks what sets the best apart, fANOVA what explains the score's variance; shares add up to one. They say "
        "what varied with the score here, not what would under other ranges."
    )
    return {
        "choices": [
            choice("method", "Method", methods),
            choice("evaluator", "Measure", EVALUATORS),
        ],
        "values": values,
        "figure": {
            "data": [bar],
            "layout": {"xaxis": {"title": {"text": "importance"}, "range": [0, 1.08]}, "yaxis": {"type": "category"}},
        },
        "note": " ".join([note, *[f"Not shown: {one}." for one in plain["why"]]]),
    }


PANEL = Panel("importance", "Importance", "mattered", "How much the score depends on each hyper-parameter.", data, draw)
