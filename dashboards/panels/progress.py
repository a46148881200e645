"""How far a sweep is, where its time went, and what failed and why."""

from __future__ import annotations

from collections import Counter

from craft.words import format_duration, list_some
from dashboards.panels.base import Plain, View, numbers, text, texts
from orchestrator.results.metrics import MORE_COLOURS, OKABE_ITO, PHASES, unit_of

STATES = ("finished", "running", "stopped", "failed")


def progress_data(view: View) -> Plain:
    """Returns a row for each sweep: its trainings by state, those to come too, what they do and the time that is left."""
    reports = [sweep.progress() for sweep in view.sweeps]
    if not any(now.trainings.total + now.to_come for now in reports):
        return {"empty": "No trial has started yet."}
    if all(now.phase == "finished" and not now.failed for now in reports):
        return {"empty": f"All {sum(now.trainings.total for now in reports)} trainings have ended; none failed."}
    heads = [("Sweep", "text"), ("State", "text"), *((state.capitalize(), "count") for state in STATES)]
    heads += [("To come", "count"), ("Now", "text"), ("Left", "seconds")]
    counts = [[getattr(now.trainings, state) for state in STATES] for now in reports]
    rows = [
        [name, now.phase, *count, now.to_come, now.doing, now.seconds_left]
        for name, now, count in zip(view.names, reports, counts, strict=True)
    ]
    return {"heads": heads, "rows": rows}


def time_data(view: View) -> Plain:
    """Returns the seconds of each phase of the finished trainings, by method: where the hours went."""
    spent: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for trial in view.trials:
        if phases := trial.facts.get("phases"):
            spent.setdefault(trial.entry.trial.method, Counter()).update(phases)
            counts[trial.entry.trial.method] += 1
    if not spent:
        return {"empty": "No training has ended yet whose phases are on record.", "hidden": True}
    return {
        "methods": [{"method": method, "trainings": counts[method], "seconds": dict(spent[method])} for method in sorted(spent)]
    }


def time_draw(plain: Plain) -> Plain:
    rows = plain["methods"]
    factor, unit = unit_of("seconds", [sum(row["seconds"].values()) for row in rows])
    bars: list[Plain] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": PHASES[phase],
            "y": texts([row["method"] for row in rows], 24),
            "x": numbers(row["seconds"].get(phase, 0.0) / factor for row in rows),
            "marker": {"color": colour},
            "hovertext": [
                f"{PHASES[phase]}: {format_duration(row['seconds'].get(phase, 0.0))}, "
                f"{row['seconds'].get(phase, 0.0) / sum(row['seconds'].values()):.0%}"
                for row in rows
            ],
            "hoverinfo": "text",
        }
        for phase, colour in zip(PHASES, (*OKABE_ITO, *MORE_COLOURS), strict=False)
        if any(row["seconds"].get(phase) for row in rows)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": f"time of the trainings ({unit})"}},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "height": 150 + 46 * len(rows),
    }
    means = [f"{text(row['method'], 24)} {format_duration(sum(row['seconds'].values()) / row['trainings'])}" for row in rows]
    note = f"Mean of a training: {', '.join(means)}."
    return {"choices": [], "values": {}, "figure": {"data": bars, "layout": layout}, "note": note}


def failures_data(view: View) -> Plain:
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
    return {"heads": heads, "rows": sorted(rows, key=lambda row: -row[0])}
