"""Which rows does the answer of a sweep get wrong? Its confusions by label, and its most confident mistakes.

The answers of a model are artifacts of its trial. A few configurations are read, with the lowest seed that has finished: the
recommended one, and members of the front, which show how many others make the same mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from craft.scoring.predictions import Prediction, worst
from dashboards.panels.base import Panel, Plain, View, table
from dashboards.panels.verdicts import fronts
from orchestrator.review.mistakes import confusions

CONFIGURATIONS = 6
"""So many of each sweep are read."""
Answers = tuple[str, str, str, list[Prediction]]


def _answers(view: View) -> Iterator[Answers]:
    """Yields the configuration's id, its label, the task with its split, and the answers."""
    labels = {row.id: row.label for row in view.configurations}
    for front in fronts(view):
        members = front.members | ({front.answer} if front.answer else set())
        ordered = sorted(members, key=lambda identity: (identity != front.answer, identity))
        for identity in islice(ordered, CONFIGURATIONS):
            rows = [row for row in view.trials if row.configuration == identity and row.state == "finished"]
            first = {row.entry.trial.task: row for row in sorted(rows, key=lambda row: -row.entry.trial.seed)}
            for task in dict.fromkeys(row.entry.trial.task for row in rows):
                for split, lines in view.predictions(first[task].run).items():
                    if all("answer" in line and "label" in line for line in lines):
                        yield identity, labels[identity], f"{task}{'' if split == 'reported' else f' ({split})'}", lines


def confused(view: View) -> Plain:
    """Returns a row for each label of the recommended configuration: rows, the share of right ones, the wrong answers."""
    every = list(_answers(view))
    rows = []
    for identity, _, task, lines in every:
        if identity == every[0][0] and "right" in lines[0]:
            names, counts = confusions(lines)
            for name, row in zip(names, counts, strict=True):
                wrong = sorted(((count, other) for count, other in zip(row, names, strict=True) if count and other != name))
                said = ", ".join(f"{other or 'none'} {count}" for count, other in reversed(wrong))
                rows.append([task, name, sum(row), row[names.index(name)] / sum(row) if sum(row) else None, said])
    return {"label": every[0][1], "rows": rows} if rows else {"empty": "No classes are on record.", "hidden": True}


def surest(view: View) -> Plain:
    """Returns the worst mistakes of the recommended configuration, with the number of configurations that are wrong there."""
    every = list(_answers(view))
    rows = []
    for identity, _, task, lines in every:
        if identity == every[0][0]:
            same = [other for _, _, name, other in every if name == task and len(other) == len(lines)]
            for place in worst(lines):
                line, wrong = lines[place], sum(not other[place].get("right", False) for other in same)
                text = " | ".join(line[name] for name in ("text", "text_pair", "prompt") if name in line)
                rows.append([task, line["row"], line["label"], line["answer"], line.get("probability"), wrong, text])
    if not rows:
        return {"empty": f"{every[0][1]} makes no mistake." if every else "No answers of the front's members are on record."}
    return {"label": every[0][1], "of": len({row[0] for row in every}), "rows": rows}


def draw_confused(plain: Plain) -> Plain:
    heads = [("task", "text"), ("label", "text"), ("rows", "count"), ("right", "share"), (f"{plain['label']} answers", "text")]
    return table(heads, plain["rows"], [f"{row[0]}/{row[1]}" for row in plain["rows"]])


def draw_surest(plain: Plain) -> Plain:
    heads = [("task", "text"), ("row", "count"), ("label", "text"), (f"{plain['label']} answers", "text")]
    heads += [("probability", "probability"), (f"wrong of {plain['of']}", "count"), ("text", "text")]
    return table(heads, plain["rows"], [f"{row[0]}/{row[1]}" for row in plain["rows"]])


CONFUSIONS = Panel(
    "confusions",
    "Confusions",
    "mistakes",
    "How often the recommended configuration answers each label right, and what else.",
    confused,
    draw_confused,
)
SUREST = Panel(
    "mistakes",
    "Most confident mistakes",
    "mistakes",
    "Reported rows that the recommended configuration answers wrong, by their line or number; for values, the largest errors.",
    surest,
    draw_surest,
    wide=True,
)
