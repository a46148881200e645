"""How far a sweep is, where its time went, and what failed and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

from craft.words import format_duration, list_some
from dashboards.panels.base import Panel, Plain, View, numbers, table, text, texts
from orchestrator.results.metrics import unit_of
from orchestrator.results.presentation import MORE_COLOURS, OKABE_ITO, PHASES
from orchestrator.review.status import Progress

STATE_COLOURS = {"finished": "#009E73", "running": "#56B4E9", "stopped": "#E69F00", "failed": "#D55E00", "to come": "#8A8A8A"}


def trial_counts(now: Progress) -> dict[str, int]:
    """Counts trainings by state, those to come too. What has been cut is no training."""
    counts = {state: getattr(now.trainings, state) for state in ("finished", "running", "stopped", "failed")}
    return counts | {"to come": now.to_come}


def progress_data(view: View) -> Plain:
    """Counts trainings by state for each sweep."""
    groups: list[Plain] = []
    for frame in view.sweeps:
        now = frame.progress()
        about = {"status": frame.status, "left_s": now.seconds_left, "doing": now.doing}
        groups.append({"sweep": frame.name, "counts": trial_counts(now), **about})
    if not any(sum(group["counts"].values()) for group in groups):
        return {"empty": "No trial has started yet."}
    if all(group["status"] == "finished" and not group["counts"]["failed"] for group in groups):
        return {"empty": f"All {sum(sum(group['counts'].values()) for group in groups)} trainings have ended; none failed."}
    return {"groups": groups}


def progress_draw(plain: Plain) -> Plain:
    names = texts([group["sweep"] for group in plain["groups"]], 24)
    bars: list[Plain] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": state,
            "y": names,
            "x": [group["counts"][state] for group in plain["groups"]],
            "marker": {"color": colour},
            "text": [str(group["counts"][state] or "") for group in plain["groups"]],
            "textposition": "inside",
            "hovertemplate": state + ": %{x}<extra></extra>",
        }
        for state, colour in STATE_COLOURS.items()
        if any(group["counts"][state] for group in plain["groups"])
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "trainings"}},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "height": 150 + 46 * len(names),
    }
    return {
        "choices": [],
        "values": {},
        "figure": {"data": bars, "layout": layout},
        "note": " ".join(_sentence(group) for group in plain["groups"]),
    }


def _sentence(group: Plain) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in group["counts"].items() if count)
    time_left = f"; about {format_duration(group['left_s'])} left" if group["left_s"] is not None else ""
    doing = f"; {group['doing']}" if group["doing"] else ""
    return f"{group['sweep']} ({group['status']}): {counts or 'nothing yet'}{doing}{time_left}."


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
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for number, sweep in enumerate(view.sweeps):
        for trial in sweep.progress().failed:
            pair = (trial.label, view.prefix(number) + trial.configuration)
            found.setdefault(("trial", trial.reason or "no reason was recorded"), []).append(pair)
    for row in view.configurations:
        if row.state == "infeasible":
            reason = "; ".join(row.summary.reasons) or "a constraint of the sweep"
            found.setdefault(("dropped before training", reason), []).append((row.label, row.id))
    rows: list[list[Any]] = []
    for (noun, reason), named in found.items():
        labels = list_some(list(dict.fromkeys(label for label, _ in named)), 5)
        rows.append([len(named), "trials" if noun == "trial" and len(named) > 1 else noun, reason, labels, named[0][1]])
    if not rows:
        return {"empty": "Nothing failed." if view.trials else "No trial has started yet, so nothing has failed."}
    return {"rows": sorted(rows, key=lambda row: -row[0])}


def failures_draw(plain: Plain) -> Plain:
    heads = [("How many", "number"), ("What", "text"), ("Reason", "text"), ("Where", "text")]
    return table(heads, plain["rows"], [row[4] for row in plain["rows"]])


PROGRESS = Panel(
    "progress", "Progress", "progress", "Trainings done, running, stopped, failed and to come.", progress_data, progress_draw
)
TIME = Panel("time", "Where the time went", "progress", "What the trainings of each method spent.", time_data, time_draw)
FAILURES = Panel("failures", "Failures", "progress", "What failed, with the reason each gave.", failures_data, failures_draw)
