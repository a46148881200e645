"""What trials answered wrong, where their time went, and what failed and why.

The answers of a model are artifacts of its trial. A few configurations are read, with the lowest seed that has finished: the
recommended one, and members of the front, which show how many others make the same mistake. Of several sweeps the first with
answers is read: another may have other rows. The page's first line says how far each sweep is.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

from craft.scoring.predictions import Prediction, worst
from craft.words import format_duration, list_some
from dashboards.panels.base import Plain, View, numbers, plain_table, text, texts
from orchestrator.results.metrics import MORE_COLOURS, OKABE_ITO, PHASES, unit_of
from orchestrator.review.comparing import confusions

CONFIGURATIONS = 6
"""So many are read."""
Answers = tuple[str, str, str, list[Prediction]]


def _answers(view: View) -> list[Answers]:
    """Returns the configuration's id, its label, the task with its split, and the answers."""
    best, every = {row.id for row, _ in view.recommended()}, list[Answers]()
    for sweep in view.sweeps:
        members = [row for row in view.configurations if row.sweep is sweep and (row.summary.on_front or row.id in best)]
        for row in islice(sorted(members, key=lambda row: (row.id not in best, row.id)), CONFIGURATIONS):
            finished = [trial for trial in view.trials if trial.configuration == row.id and trial.entry.status == "finished"]
            trials = [trial for trial in finished if trial.entry.trial.serves is None]
            first = {trial.entry.trial.task: trial for trial in sorted(trials, key=lambda trial: -trial.entry.trial.seed)}
            for task in dict.fromkeys(trial.entry.trial.task for trial in trials):
                for split, lines in view.predictions(first[task]).items():
                    if all("answer" in line and "label" in line for line in lines):
                        every.append((row.id, row.label, f"{task}{'' if split == 'reported' else f' ({split})'}", lines))
        if every:
            break
    return every


def draw_confusions(view: View) -> Plain:
    """Returns a row for each label of the recommended configuration: rows, the share of right ones, the wrong answers."""
    every = _answers(view)
    rows = []
    for identity, _, task, lines in every:
        if identity == every[0][0] and "right" in lines[0]:
            names, counts = confusions(lines)
            for name, row in zip(names, counts, strict=True):
                wrong = sorted(((count, other) for count, other in zip(row, names, strict=True) if count and other != name))
                said = ", ".join(f"{other or 'none'} {count}" for count, other in reversed(wrong))
                rows.append([task, name, sum(row), row[names.index(name)] / sum(row) if sum(row) else None, said])
    if not rows:
        return {"empty": "No classes are on record.", "hidden": True}
    heads = [("task", "text"), ("label", "text"), ("rows", "count"), ("right", "share"), (f"{every[0][1]} answers", "text")]
    return plain_table(heads, rows)


def draw_surest(view: View) -> Plain:
    """Returns the worst mistakes of the recommended configuration, with the number of configurations that are wrong there."""
    every, rows = _answers(view), []
    classes = any("right" in lines[0] for *_, lines in every)
    for identity, _, task, lines in every:
        if identity == every[0][0]:
            same = [other for _, _, name, other in every if name == task and len(other) == len(lines)]
            for place in worst(lines):
                line = lines[place]
                wrong = [sum(not other[place]["right"] for other in same) if "right" in line else None] if classes else []
                read = " | ".join(line[name] for name in ("text", "text_pair", "prompt") if name in line)
                rows.append([task, line["row"], line["label"], line["answer"], line.get("probability"), *wrong, read])
    if not rows:
        return {"empty": f"{every[0][1]} makes no mistake." if every else "No answers of the front's members are on record."}
    heads = [("task", "text"), ("row", "count"), ("label", "text"), (f"{every[0][1]} answers", "text")]
    wrongs = [(f"wrong of {len({row[0] for row in every})}", "count")] if classes else []
    return plain_table([*heads, ("probability", "probability"), *wrongs, ("text", "text")], rows)


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
