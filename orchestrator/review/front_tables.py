"""The table of a sweep's configurations: its columns, and its forms for the terminal, as CSV, Markdown and LaTeX in the paper's
style, with the sentences above and below it.

All of them have the same order: configurations by their cost, smallest first. `●` marks the front. Incomplete configurations
come last and are not ranked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from craft.methods import METHODS
from craft.words import format_duration, list_some, plural, points
from orchestrator.record.folder import FRONT_CSV, FRONT_PNG, FRONT_TEX
from orchestrator.results.answer import Answer
from orchestrator.results.front import knee, not_shown_to_beat_head
from orchestrator.results.metrics import (
    ALWAYS,
    COLUMNS,
    LUCK,
    NORMALIZED,
    P_FRONT,
    SIZE,
    Column,
    column_of,
    flat_cells,
    full_label,
    heading,
    label_of,
    number,
)
from orchestrator.results.summary import Summary, metric_among
from orchestrator.sweepfile.settings import Enough, Objectives
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.filling import write_table
from orchestrator.tools.markup import plain

WITHIN, TASKS, ROWS = Enough().within, 8, 40


def terminal_table(summaries: Sequence[Summary], objectives: Objectives, title: str = "", within: float = WITHIN) -> Table:
    """Returns a rich table under its legend: front rows marked and bright, dominated ones dimmed; a column for each task if
    there are at most TASKS."""
    tasks = tasks_of(summaries) if 1 < len(tasks_of(summaries)) <= TASKS else []
    above = "\n".join(filter(None, (title, legend(summaries, objectives, within))))
    table = Table(
        title=Text(above, "table.title") if above else None, title_justify="left", header_style="bold", pad_edge=False
    )
    columns = front_columns(summaries, objectives, tasks)
    for column in columns:
        if column.name == "mark":
            table.add_column("", width=2 if any(summary.enough for summary in summaries) else 1)
        elif column.name == "configuration":
            table.add_column(column.label, overflow="fold", min_width=16)
        else:
            label = Text("\n".join(wrap(column.label, 14)))
            table.add_column(label, justify="right", no_wrap=column.name != "tuning")
    for summary in ranked(summaries, objectives):
        unranked = not (summary.complete or summary.tunes)
        style = "bold" if summary.on_front else "red" if summary.failed else "" if summary.possible or unranked else "dim"
        table.add_row(*(Text(column.text(summary)) for column in columns), style=style)
    return table


def show_front(summaries: Sequence[Summary], sweep: Sweep, answer: Answer, title: str, console: Console) -> None:
    if any(summary.finished or summary.failed for summary in summaries):
        console.print(terminal_table(summaries, sweep.objectives, title, sweep.enough.within))
        console.print(caption(summaries, sweep.objectives), markup=False)
    console.print(answer.text, markup=False, soft_wrap=True, style="bold")


def markdown(summaries: Sequence[Summary], objectives: Objectives, within: float = WITHIN) -> str:
    """Returns a Markdown table for the description of the sweep's run: front rows first, at most ROWS rows."""
    tasks = tasks_of(summaries) if len(tasks_of(summaries)) > 1 else []
    columns = front_columns(summaries, objectives, tasks)
    rows = sorted(ranked(summaries, objectives), key=lambda summary: not summary.on_front)
    cells = [[column.label for column in columns], *([column.text(row) for column in columns] for row in rows[:ROWS])]
    lines = ["| " + " | ".join(map(plain, row)) + " |" for row in cells]
    lines.insert(1, "| " + " | ".join("---" for _ in columns) + " |")
    if len(rows) > ROWS:
        lines.append(f"\n{len(rows) - ROWS} more configurations are in `{FRONT_CSV}`.")
    above = f"{plain(says)}\n\n" if (says := legend(summaries, objectives, within)) else ""
    return above + "\n".join(lines) + f"\n\n{plain(caption(summaries, objectives))}\n"


def latex(summaries: Sequence[Summary], objectives: Objectives) -> str:
    """Returns a booktabs table for a paper: method, size, modules, parameters, tasks where there are several, the score.

    It has the complete configurations. Front rows are shaded, the best score of every column is bold. Needs booktabs and
    `\\usepackage[table]{xcolor}`.
    """
    rows = [summary for summary in ranked(summaries, objectives) if summary.complete]
    columns = _paper_columns(rows, objectives)
    best = {column.name: max(map(column.value, rows), default=math.nan) for column in columns if column.kind == "score"}
    align = "".join("l " if column.kind == "text" else "c " if column.kind == "score" else "r " for column in columns)
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage[table]{xcolor}",
        f"\\begin{{tabular}}{{@{{}}{align}@{{}}}}",
        "\\toprule",
        " & ".join(f"\\textbf{{{_escape(column.label)}}}" for column in columns) + " \\\\",
        "\\midrule",
    ]
    for row in rows:
        cells = []
        for column in columns:
            value, ends = map(_escape, column.parts(row))
            if column.kind == "score" and column.value(row) == best[column.name]:
                value = f"\\textbf{{{value}}}"
            cells.append(f"{value} {ends}".strip())
        lines.append(("\\rowcolor{blue!8} " if row.on_front else "") + " & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {' '.join(line.split())}" for line in _paper_notes(rows))]
    return "\n".join([*lines, ""])


def _paper_notes(rows: Sequence[Summary]) -> Iterator[str]:
    if not rows:
        return
    yield from filter(None, [scored_on(rows), describe_intervals(rows)])
    if len(tasks_of(rows)) > 1:
        several = max(interval.n for row in rows for interval in row.tasks.values()) > 1
        yield f"of each task: {'the 95 % interval over its seeds alone' if several else 'no interval, because it has one seed'}"
    seeds = sorted({seed for row in rows for _, seed in row.scores})
    yield f"{plural(len(seeds), 'seed')} {', '.join(map(str, seeds))}"
    for protocol in sorted({row.protocol for row in rows}):
        what = "nothing" if protocol == "honest" else "epochs and settings"
        yield f"protocol {protocol}: the rows that are reported chose {what}"
    yield _budgets(rows) or "settings are those of the sweep file, not tuned"


def _paper_columns(rows: Sequence[Summary], objectives: Objectives) -> list[Column]:
    tasks = tasks_of(rows) if len(tasks_of(rows)) > 1 else []
    score = metric_column("score", "Average" if tasks else "", metric_among(rows))
    columns = [metric_column(name, ends=False) for name in objectives if name not in ("score", SIZE)]
    return [
        _text_column("Method", "Method", lambda row: _parts(row)[0]),
        _text_column("Size", "Size", lambda row: _parts(row)[1]),
        _text_column("Modules", "Modules", lambda row: _parts(row)[2]),
        metric_column(SIZE, "Parameters"),
        *(metric_column(f"score/{task}", task_title(task)) for task in tasks),
        *(replace(column, label=heading(column.label)) for column in (score, *columns)),
    ]


def _parts(summary: Summary) -> tuple[str, str, str]:
    title = METHODS[summary.method].title if summary.method in METHODS else summary.method
    parts = full_label(summary).removeprefix(title).strip().split(", ")
    modules = str(summary.parameters.get("projections", "")).replace(",", " ")
    if modules not in parts:
        return full_label(summary), "", ""
    size, *settings = [part for part in parts if part != modules] or [""]
    return ", ".join([title, *settings]), size, modules


def task_title(task: str) -> str:
    """Returns the name of a task as papers have it: titles read "CoLA: is the sentence acceptable English?"."""
    from craft.tasks import TASKS

    title, colon, _ = TASKS[task].title.partition(":") if task in TASKS else ("", "", "")
    return title if colon else short_task(task)


_LATEX = {"\\": "\\textbackslash{}", "·": "$\\cdot$", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def write_csv(summaries: Sequence[Summary], objectives: Objectives, path: Path) -> None:
    """Writes every number of every configuration: parameters, metrics with interval ends, counts, trials, reasons."""

    def written(value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value

    rows = (record_of(summary) for summary in ranked(summaries, objectives))
    write_table(path, ({name: written(value) for name, value in row.items()} for row in rows), ALWAYS)


def record_of(summary: Summary) -> dict[str, Any]:
    """Returns the parameters and cells of a configuration by the names of their columns in front.csv."""
    return summary.parameters | flat_cells(summary)


def write_front(summaries: Sequence[Summary], objectives: Objectives, folder: Path, title: str) -> list[Path]:
    """Writes `front.csv`, `front.tex` and `front.png` into `folder`; returns their paths."""
    from orchestrator.review.front_picture import write_png

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in (FRONT_CSV, FRONT_TEX, FRONT_PNG)]
    write_csv(summaries, objectives, paths[0])
    paths[1].write_text(latex(summaries, objectives), encoding="utf-8")
    write_png(summaries, objectives, paths[2], title)
    return paths


NAMED = 3
"""The number of configurations that the caption names in a list."""


def caption(summaries: Sequence[Summary], objectives: Objectives) -> str:
    """Returns one line for under the table: the numbers of configurations, of those on the front and of incomplete ones; the
    knee; the meaning of the interval. The answer (`orchestrator.results.answer`) follows it."""
    front, chosen = [summary for summary in summaries if summary.on_front], knee(summaries, objectives)
    incomplete = sum(not summary.complete and not summary.tunes for summary in summaries)
    parts = [f"● {len(front)} of {len(summaries)} {plural(len(summaries), 'configuration')} on the front"]
    if incomplete:
        parts.append(f"{incomplete} incomplete, not ranked")
    if tuning := sum(summary.tunes is not None for summary in summaries):
        parts.append(f"{tuning} only for tuning, not ranked")
    if budgets := _budgets(summaries):
        parts.append(budgets)
    if at_end := sum(summary.complete and bool(summary.tuning.at_end) for summary in summaries):
        parts.append(f"for {at_end} the best value is the lowest or highest tried")
    if idle := not_shown_to_beat_head(summaries):
        parts.append(f"not shown to be better than the head alone: {list_some([*map(full_label, idle)], NAMED)}")
    if chosen:
        parts.append(f"knee: {full_label(chosen)}")
    if NORMALIZED in front_metrics(summaries, objectives):
        parts.append("normalized: 0 is no adapter, 100 full fine-tuning, on each task")
    parts += filter(None, [describe_intervals(summaries), scored_on(summaries)])
    return "; ".join(parts)


def scored_on(summaries: Sequence[Summary]) -> str:
    """Returns on how many examples all were scored, and what random guessing has there; empty if the numbers differ."""
    examples = {summary.value("examples") for summary in summaries if "examples" in summary.counts}
    levels = {number(summary.value("random_guessing"), 1) for summary in summaries if "random_guessing" in summary.counts}
    least, of, mean = ("at least ", " a task", " in the mean") if len(tasks_of(summaries)) > 1 else ("", "", "")
    guessing = f", where random guessing has {levels.pop()}{mean}" if len(levels) == 1 else ""
    return f"scored on {least}{examples.pop():,.0f} examples{of}{guessing}" if len(examples) == 1 else ""


def legend(summaries: Sequence[Summary], objectives: Objectives, within: float) -> str:
    """Returns the meaning of the probabilities in the table, to be read before it; empty if it shows none."""
    if P_FRONT not in front_metrics(summaries, objectives):
        return ""
    where = "new" if all(LUCK in summary.counts for summary in summaries if P_FRONT in summary.counts) else "these"
    rivals = "of this size or smaller" if {*objectives} == {"score", SIZE} else "that costs no more"
    return (
        f"P(front): the probability that no configuration {rivals} does better on {where} examples. P(enough): the probability "
        f"that no configuration at all is better by more than {points(within)}."
    )


def describe_intervals(summaries: Sequence[Summary]) -> str:
    """Returns what the intervals are over; empty before a configuration is complete."""
    complete = [summary for summary in summaries if summary.complete]
    if not complete:
        return ""
    tuned = ", tuning included" if any(summary.tuning.luck for summary in complete) else ""
    if max(summary.score.n for summary in complete) < 2:
        sampled = any(sum(summary.sampling) for summary in complete)
        return f"one seed: the interval is over examples alone{tuned}" if sampled else "one seed: no interval"
    rows = [bool(sum(summary.sampling) or summary.credits) for summary in complete if summary.score.n > 1]
    over = "seeds and examples" if all(rows) else "seeds, and examples where their number is known" if any(rows) else "seeds"
    alone = any(row.score.n == 1 and sum(row.sampling) for row in complete)
    return f"± is the 95 % interval over {over}" + (", of one seed over examples alone" if alone else "") + tuned


def _budgets(summaries: Sequence[Summary]) -> str:
    """Returns the number of trials that tuned each complete configuration, and the configurations that were not tuned; empty if
    none was."""
    tuned = [summary for summary in summaries if summary.complete and summary.tuning.candidates]
    trials = sorted({summary.tuning.trials for summary in tuned if summary.tuning.trials})
    if not trials:
        return ""
    fixed = [full_label(summary) for summary in tuned if not summary.tuning.tuned]
    spent = " to ".join(map(str, dict.fromkeys((trials[0], trials[-1]))))
    seeds = sorted({seed for summary in tuned for seed in summary.tuning.seeds})
    of = f" of seed {', '.join(map(str, seeds))}, which is in no score" if seeds else ""
    transferred = sum(summary.tuning.transferred is not None for summary in tuned)
    text = f"each tuned by {spent} trials{of}" + (f", but {transferred} by those of another rank" if transferred else "")
    return text + (f", but not {', '.join(fixed)}" if fixed else "")


def metric_column(name: str, label: str = "", metric: str = "", ends: bool = True) -> Column:
    """Returns the column of a metric, of a count or of a task's score (`score/TASK`); with `ends` it has intervals."""
    column = column_of(name)
    return replace(column, label=label or label_of(name, metric), interval=column.interval and ends)


def _text_column(name: str, label: str, read: Callable[[Summary], str]) -> Column:
    return Column(name, label, kind="text", read=read)


def front_columns(summaries: Sequence[Summary], objectives: Objectives, tasks: Sequence[str] = ()) -> list[Column]:
    """Returns the columns of the tables for people; those of `tasks` have no intervals."""
    metric, unit = metric_among(summaries), next((summary.unit for summary in summaries), "")
    return [
        _text_column("mark", "", lambda summary: ("●" if summary.on_front else "") + ("✓" if summary.enough else "")),
        _text_column("configuration", "configuration", full_label),
        *(metric_column(name, unit if name == SIZE else "", metric) for name in front_metrics(summaries, objectives)),
        *(metric_column(f"score/{task}", short_task(task), ends=False) for task in tasks),
        _text_column("trials", "trials" if len(tasks_of(summaries)) > 1 else "seeds", describe_trials),
        *([_text_column("tuning", "tuning", describe_tuning)] if has_tuning(summaries) else []),
    ]


def front_metrics(summaries: Sequence[Summary], objectives: Objectives) -> list[str]:
    """Returns the metrics that tables show: the objectives, and next to the score those with the place `front` that have a
    value. The number of examples is left out where it is the same for all."""
    available = {name for summary in summaries for name in flat_cells(summary)} - {*objectives}
    if len({summary.value("examples") for summary in summaries if summary.complete}) == 1:
        available.discard("examples")
    more = [name for name, column in COLUMNS.items() if column.place == "front" and name in available]
    return [name for objective in objectives for name in (objective, *(more if objective == "score" else ()))]


def ranked(summaries: Sequence[Summary], objectives: Objectives) -> list[Summary]:
    """Sorts the rows: complete before incomplete; then by the last objective (the cost), better first; then by the first."""
    names = list(objectives.items())[::-1]

    def place(summary: Summary) -> tuple[Any, ...]:
        costs = (-summary.value(name) if direction == "maximize" else summary.value(name) for name, direction in names)
        return (not summary.complete, *(math.inf if math.isnan(cost) else cost for cost in costs), summary.label)

    return sorted(summaries, key=place)


def describe_trials(summary: Summary) -> str:
    """Counts the trials by which it is judged, and those that do not count: `3/3`, `1/1, 1 to come`, or `2/3, 1 failed` with
    the first reason; `1/1, only tunes` for a candidate."""
    parts = [f"{summary.finished}/{summary.planned}", *(["only tunes"] if summary.tunes else [])]
    counts = ((summary.failed, "failed"), (summary.stopped, "stopped"), (summary.to_come, "to come"))
    parts += [f"{count} {word}" for count, word in counts if count]
    text = ", ".join(parts)
    if summary.reasons:
        reason = summary.reasons[0].splitlines()[0]
        text += f": {reason[:57]}…" if len(reason) > 58 else f": {reason}"
    return text


def has_tuning(summaries: Sequence[Summary]) -> bool:
    """Returns whether the sweep tuned anything, so that each configuration shows the cost of its tuning."""
    return any(summary.tuning.tuned for summary in summaries)


def describe_tuning(summary: Summary) -> str:
    """Says what a configuration's tuning chose and took, and which of its numbers are the ends of those tried: `learning_rate
    0.1/0.01, 9 trials, 12 min 03 s, highest learning_rate on rte`; `not tuned`; a dash for one that was cut from another."""
    spent = summary.tuning
    if not spent.candidates:
        return "–"
    if not spent.tuned:
        return "not tuned"
    failed = f" ({spent.failed} failed)" if spent.failed else ""
    took = [f"{spent.trials} trials{failed}", format_duration(spent.seconds), *spent.at_end] if spent.trials else []
    return ", ".join([spent.choice, *took] if spent.choice else took)


def tasks_of(summaries: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(task for summary in summaries for task in summary.tasks))


def short_task(task: str) -> str:
    return task.rsplit("/", 1)[-1]
