"""Does the decomposition predict the result? The energy that a configuration's ranks keep of the weights, beside its score.

Energy kept is the share of the stacked weights' squared norm that the truncated decomposition reproduces; a Tucker method's
trials log it as `energy_kept`. Spearman's rank correlation says in one number how well it orders the scores.
"""

from __future__ import annotations

import pandas as pd

from dashboards.panels.base import Panel, Plain, View, colours, column, done, number, numbers, text


def data(view: View) -> Plain:
    """Points (energy kept, score) of the finished configurations that logged it, and their rank correlation."""
    frame = done(view.configurations)
    frame = frame.assign(_energy=column(frame, "m.energy_kept"), _score=column(frame, "m.score"))
    frame = frame[frame["_energy"].notna()]
    if frame.empty:
        return {"empty": "No configuration has logged energy_kept: only methods that decompose the weights (craft) have it."}
    return {
        "energy": numbers(frame["_energy"]),
        "score": numbers(frame["_score"]),
        "id": frame["id"].tolist(),
        "method": frame["method"].astype(str).tolist(),
        "correlation": number(rank_correlation(frame["_energy"], frame["_score"])),
    }


def rank_correlation(first: pd.Series[float], second: pd.Series[float]) -> float:
    """Spearman's: Pearson's of the ranks, ties sharing their mean rank; NaN where either does not vary."""
    if len(first) < 3 or first.nunique() < 2 or second.nunique() < 2:
        return float("nan")
    return float(first.rank().corr(second.rank()))


def draw(plain: Plain) -> Plain:
    by_method = colours(plain["method"])
    traces: list[Plain] = []
    for method, colour in by_method.items():
        pick = [index for index, one in enumerate(plain["method"]) if one == method]
        trace: Plain = {
            "type": "scatter",
            "mode": "markers",
            "name": text(method, 30),
            "marker": {"color": colour, "size": 8, "opacity": 0.85},
        }
        trace |= {"x": [plain["energy"][index] for index in pick], "y": [plain["score"][index] for index in pick]}
        traces.append(trace | {"customdata": [plain["id"][index] for index in pick]})
    known = plain["correlation"] is not None
    note = (
        f"Spearman's rank correlation {plain['correlation']:+.2f} over {len(plain['id'])} configurations."
        if known
        else "Too few points for a correlation."
    )
    layout = {
        "xaxis": {"title": {"text": "energy kept"}},
        "yaxis": {"title": {"text": "score"}},
        "hovermode": "closest",
        "dragmode": "select",
    }
    return {"choices": [], "values": {}, "figure": {"data": traces, "layout": layout}, "note": note}


PANEL = Panel(
    "energy",
    "Energy kept and score",
    "mattered",
    "Does keeping more of the weights' energy go with a better score?",
    data,
    draw,
)
