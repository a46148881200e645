"""Where the time of a sweep went, and what failed and why. The page's first line says how far each sweep is."""

from __future__ import annotations

from collections import Counter

from craft.words import format_duration, list_some
from dashboards.panels.base import Plain, View, numbers, plain_table, text, texts
from orchestrator.results.metrics import MORE_COLOURS, OKABE_ITO, PHASES, unit_of


def draw_time(view: View) -> Plain:
    """Draws the time of each phase of the finished trainings, by method: where the hours went."""
    spent: dict[str, Counter[str]] = {}
    trainings: Counter[str] = Counter()
    for trial in view.trials:
        if phases := trial.facts.get("phases"):
            spent.setdefault(trial.entry.trial.method, Counter()).update(phases)
            trainings[trial.entry.trial.method] += 1
    if not spent:
        return {"empty": "No training has ended yet whose phases are on record.", "hidden": True}
    methods = sorted(spent)
    totals = {method: sum(spent[method].values()) for method in methods}
    factor, unit = unit_of("seconds", totals.values())
    bars: list[Plain] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": PHASES[phase],
            "y": texts(methods, 24),
            "x": numbers(spent[method][phase] / factor for method in methods),
            "marker": {"color": colour},
            "hovertext": [
                f"{PHASES[phase]}: {format_duration(spent[method][phase])}, {spent[method][phase] / totals[method]:.0%}"
                for method in methods
            ],
            "hoverinfo": "text",
        }
        for phase, colour in zip(PHASES, (*OKABE_ITO, *MORE_COLOURS), strict=False)
        if any(spent[method][phase] for method in methods)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": f"time of the trainings ({unit})"}},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "height": 150 + 46 * len(methods),
    }
    means = [f"{text(method, 24)} {format_duration(totals[method] / trainings[method])}" for method in methods]
    note = f"Mean of a training: {', '.join(means)}."
    return {"choices": [], "values": {}, "figure": {"data": bars, "layout": layout}, "note": note}


def draw_failures(view: View) -> Plain:
    """Returns failed trials and configurations with their reasons, equal reasons together."""
    labels: dict[tuple[str, str], list[str]] = {}
    for sweep in view.sweeps:
        for trial in sweep.progress().failed:
            labels.setdefault(("trial", trial.reason or "no reason was recorded"), []).append(trial.label)
    for row in view.configurations:
        if row.state == "infeasible":
            reason = "; ".join(row.summary.reasons) or "a constraint of the sweep"
            labels.setdefault(("dropped before training", reason), []).append(row.label)
    if not labels:
        return {"empty": "Nothing failed." if view.trials else "No trial has started yet, so nothing has failed."}
    rows = [
        [len(names), "trials" if noun == "trial" and len(names) > 1 else noun, reason, list_some([*dict.fromkeys(names)], 5)]
        for (noun, reason), names in labels.items()
    ]
    heads = [("How many", "number"), ("What", "text"), ("Reason", "text"), ("Where", "text")]
    return plain_table(heads, sorted(rows, key=lambda row: -row[0]))
