"""The table of configurations with the columns in which they differ, and their differences as `craft-sweeps compare` has them.

The page's script sorts, filters and copies the table as CSV. Each column therefore says whether it is text or a number, which
way is better, and has the texts of its cells. A file has no server to ask, so all pairs of the LIMIT best are in its data.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from craft.methods import METHODS
from dashboards.frames import Row
from dashboards.panels import base
from dashboards.panels.base import Plain, View
from orchestrator.results.metrics import COLUMNS, SIZE, Column, amount, heading
from orchestrator.results.probabilities import spreads
from orchestrator.review.comparing import compare_summaries
from orchestrator.review.front_tables import describe_intervals, describe_trials, describe_tuning, has_tuning, task_title

COMPARE = "craft-sweeps compare {first} {second} --configuration-a {a} --configuration-b {b}"
"""The page fills its fields from the sides of a pair. It runs no command: a reader copies them."""
LIMIT = 40
"""With more configurations the members of the front and the best scores have pairs; the command compares any two."""
RANKS = ("r1", "r2", "r3")
IN_LABEL = ("ranks", "rank", "projections", "cut_to")
"""Parameters that a label says."""


def draw(view: View) -> Plain:
    """Returns columns with their values over all configurations, best score first; and what all configurations share."""
    if not view.configurations and view.trials:
        return {"empty": "The trials so far only tune: a configuration appears when its first reported trial starts."}
    if not view.configurations:
        return {"empty": "This sweep has no configurations yet: the first appear when its first trial starts."}
    rows = base.best_first(view.configurations)
    differ = [name for name in base.parameters_that_differ(rows) if name not in RANKS]
    differ += ["ranks"] if "ranks" not in differ and len({*base.parameter(rows, "ranks")} - {None}) > 1 else []
    table = {
        "columns": _columns(view, rows, differ),
        "id": [row.id for row in rows],
        "label": [row.label for row in rows],
        "front": [row.id for row in rows if row.summary.on_front],
        "enough": [row.id for row in rows if row.summary.enough],
        "possible": [row.id for row in rows if row.summary.possible],
        "legend": _legend(view, rows),
        "folder": [row.sweep.folder for row in rows],
        "commands": [commands_of(view, row) for row in rows],
        "link": [view.link(row.sweep.experiment_id, row.summary.configuration) for row in rows],
        "shared": _shared(rows, differ),
    }
    return {"table": table}


def _legend(view: View, rows: Sequence[Row]) -> str:
    text = f"configurations. ● is on the front of {view.objectives}"
    if any(row.summary.possible for row in rows):
        text += ", ○ may be"
    if answer := next((row.sweep.answer for row in rows if row.summary.enough), None):
        sure = f"with a probability of at least {answer.sure:g}"
        text += f"; ✓ is enough: the smallest that is within {answer.within:g} of the best {sure}"
    return "; ".join(filter(None, [text, describe_intervals([row.summary for row in rows])])) + "."


def _columns(view: View, rows: Sequence[Row], differ: Sequence[str]) -> list[Plain]:
    """Returns the columns: label and the metrics that the page always shows, then parameters, columns that a reader may add,
    and states."""
    objectives = {name for sweep in view.sweeps for name in sweep.objectives}
    worth = [metric for metric in base.metrics_of(view) if _worth_showing(metric, view, objectives)]
    metrics = [metric for metric in worth if metric.place in ("front", "page") or metric.name in objectives]
    summaries = [row.summary for row in rows]
    columns: list[Plain] = [_text("label", "Configuration", [row.label for row in rows])]
    columns += [_text("sweep", "Sweep", [row.sweep.name for row in rows])] if len(view.sweeps) > 1 else []
    columns += [_metric(metric, rows) for metric in metrics]
    protocols, states = [row.protocol for row in summaries], [row.state for row in rows]
    columns += [_text("protocol", "Protocol", protocols)] if len({*protocols}) > 1 else []
    columns += [_parameter(name, base.parameter(rows, name)) for name in differ if name not in ("method", *IN_LABEL)]
    hidden = [name for name in _names(rows) if name not in (*differ, *RANKS, "protocol", "warm_start", "cut_from")]
    lacking = [name for name in hidden if len({*base.parameter(rows, name)}) > 1]  # one value, which some rows lack
    names = [*(name for name in IN_LABEL if name in differ), *lacking]
    more = [_parameter(name, base.parameter(rows, name)) for name in names]
    more += [_metric(metric, rows) for metric in worth if metric not in metrics]
    columns += [extra | {"more": True} for extra in more]
    columns += [_text("tuning", "Tuning", map(describe_tuning, summaries))] if has_tuning(summaries) else []
    columns += [_text("state", "State", states)] if len({*states}) > 1 else []
    several = len({trial.entry.trial.task for trial in view.trials}) > 1
    trials = _text("trials", "Trials" if several else "Seeds", map(describe_trials, summaries))
    return columns + ([trials] if len({*trials["values"]}) > 1 else [])


def _text(key: str, label: str, values: Iterable[str]) -> Plain:
    return {"key": key, "label": label, "kind": "text", "values": [*values]}


def _parameter(name: str, values: list[Any]) -> Plain:
    is_number = all(value is None or isinstance(value, (int, float)) for value in values)
    return {"key": f"p.{name}", "label": name, "kind": "number" if is_number else "text", "values": values}


def _metric(metric: Column, rows: Sequence[Row]) -> Plain:
    """Returns a column with its cells as numbers and as text; score and tasks have labels of the page's own."""
    summaries, task = [row.summary for row in rows], metric.name.removeprefix("score/")
    label = task_title(task) if task != metric.name else "# Params" if metric.name == SIZE else heading(metric.label)
    shown = replace(metric, interval=metric.interval and task == metric.name)
    values, texts = base.numbers(map(shown.value, summaries)), [shown.text(summary).strip("–") for summary in summaries]
    plain: Plain = {"key": f"m.{shown.name}", "label": label, "kind": shown.kind, "better": shown.best, "about": shown.about}
    plain |= {"values": values, "texts": texts, "best": _best(shown, rows, values)}
    if not shown.interval:
        return plain
    ends = [summary.bounds(shown.name) for summary in summaries]
    return plain | {"low": base.numbers(end.low for end in ends), "high": base.numbers(end.high for end in ends)}


def _best(metric: Column, rows: Sequence[Row], values: Sequence[float | None]) -> list[int]:
    """Returns the places of the best value among the complete configurations; others are over fewer tasks or seeds."""
    done = {place: value for place, value in enumerate(values) if value is not None and rows[place].summary.complete}
    if metric.best is None or len(done) < 2:
        return []
    best = (max if metric.best == "maximize" else min)(done.values())
    return [place for place, value in done.items() if value == best]


def _worth_showing(metric: Column, view: View, objectives: Collection[str]) -> bool:
    if metric.name.startswith("tuning_"):  # they have a column in words
        return False
    if metric.name.startswith("score/"):  # with a single task its score is the score
        return len(view.tasks) > 1
    always = metric.name in ("score", SIZE, *objectives) or metric.kind == "probability"
    return always or len(base.values_of(view.configurations, metric.name)) > 1


def _shared(rows: Sequence[Row], differ: Sequence[str]) -> list[list[Any]]:
    lines: list[list[Any]] = []
    for name in ("method", "protocol"):
        if len(values := {getattr(row.summary, name) for row in rows} - {""}) == 1:
            lines.append([name, *values])
    for name in ("examples", "random_guessing"):
        if len(numbers := base.values_of(rows, name)) == 1:
            lines.append([COLUMNS[name].label, amount(name, *numbers)])
    for name in _names(rows):
        if name not in (*differ, "method", "protocol") and len(same := {*base.parameter(rows, name)}) == 1:
            lines += [[name, value] for value in same if value is not None]
    return lines


def _names(rows: Sequence[Row]) -> list[str]:
    return [*dict.fromkeys(name for row in rows for name in row.parameters)]


def commands_of(view: View, row: Row) -> list[tuple[str, str]]:
    """Returns the commands for a configuration, each with its purpose; none while it has no adapter, or if it never has one, as
    in somebody's table of trainings."""
    if not row.summary.finished or not row.sweep.state.sweep_id:
        return []
    size, name, method = row.value("trainable_parameters"), row.summary.configuration, METHODS.get(row.method)
    sweep, folder = shlex.quote(row.sweep.name), shlex.quote(f"adapters/{name}") if name.isalnum() else "adapter"
    picked, store = f"{sweep} --pick {shlex.quote(name)}", store_of(view)
    commands = [("Take its adapter", f"craft-sweeps take {picked} --to {folder}{store}")]
    if size >= 2 and method is not None and method.cutting is not None:
        half = f"craft-sweeps cut {picked} --size parameters:{size / 2:.0f} --to {folder}-cut{store}"
        commands.append(("Cut it to half its parameters", half))
    started = row.sweep.state.started  # `more` looks into runs/ alone for a name
    place = shlex.quote(started.folder) if started is not None and started.folder else sweep
    return [*commands, ("Run what would settle it", f"craft-sweeps more {place}")]


def store_of(view: View) -> str:
    """Returns the option that names the tracking store; empty for the default one, and for one with a password."""
    return f" --tracking-uri {shlex.quote(view.uri)}" if view.uri else ""


def draw_pairs(view: View) -> Plain:
    """Returns the ids of the configurations that have pairs, and for each one the sentences with all that follow it."""
    ready = base.done(view.configurations)
    if len(ready) < 2:
        return {"empty": "Two configurations can be compared when both are complete.", "hidden": True}
    rows = sorted(base.best_first(ready), key=lambda row: not row.summary.on_front)[:LIMIT]
    spread_of = {sweep.name: cache(partial(spreads, [*sweep.summaries.values()])) for sweep in view.sweeps}

    def sentence(first: Row, second: Row) -> str:
        names = [row.sweep.name for row in (first, second)]
        if names[0] != names[1]:
            return f"They are of {names[0]} and {names[1]}. The command compares them if their scores mean the same."
        both = compare_summaries(first.summary, second.summary, [spread_of[names[0]]])
        return both.sentence(first.label, second.label)

    pairs = {
        "id": [row.id for row in rows],
        "said": [[sentence(first, second) for second in rows[place + 1 :]] for place, first in enumerate(rows)],
        "beyond": f"The page has the differences of {len(rows)} configurations; this command compares any two.",
        "incomplete": "They can be compared when both are complete.",
        "command": COMPARE + store_of(view),
        "sides": {row.id: [shlex.quote(row.sweep.name), shlex.quote(row.summary.configuration)] for row in ready},
    }
    return {"pairs": pairs}
