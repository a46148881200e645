"""The front for people: a table on the terminal, CSV, LaTeX in the paper's style, Markdown for the tracking store, a picture.

All of them show the same rows in the same order: configurations by their cost, smallest first. `●` marks the front. Incomplete
configurations stand last and are not ranked.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.record.folder import FRONT_CSV
from orchestrator.results.chances import P_FRONT, P_WITHIN
from orchestrator.results.intervals import Interval
from orchestrator.results.summary import Summary
from orchestrator.review.front_words import (
    TITLES,
    caption,
    columns_of,
    format_amount,
    full_label,
    has_tuning,
    number,
    ranked,
    short_task,
    shown,
    size,
    tasks_of,
    trials,
    tuning,
    why_screened,
)
from orchestrator.sweepfile.objectives import Direction, Objectives
from orchestrator.tools.escaping import plain

if TYPE_CHECKING:
    from rich.table import Table


def terminal_table(summaries: Sequence[Summary], objectives: Objectives, title: str = "", tasks_shown: int = 8) -> Table:
    """A rich table: front rows marked and bright, dominated ones dimmed; per-task columns where there are few enough."""
    from rich.markup import escape
    from rich.table import Table

    tasks = tasks_of(summaries) if 1 < len(tasks_of(summaries)) <= tasks_shown else []
    table = Table(title=escape(title) or None, title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("", width=1)
    table.add_column("configuration", overflow="fold", min_width=16)
    names = columns_of(summaries, objectives)
    for name in names:
        table.add_column(TITLES.get(name, name), justify="right", no_wrap=True)
    for task in tasks:
        table.add_column(escape(short_task(task)), justify="right")
    table.add_column("trials", justify="right", no_wrap=True)
    tuned = has_tuning(summaries)
    if tuned:
        table.add_column("tuning", justify="right")
    for summary in ranked(summaries, objectives):
        row = [_mark(summary), escape(full_label(summary)), *(shown(summary, name) for name in names)]
        row += [number(summary.tasks[task].mean if task in summary.tasks else math.nan) for task in tasks]
        row += [escape(trials(summary)), *([tuning(summary)] if tuned else [])]
        table.add_row(*row, style="bold" if summary.on_front else "red" if summary.failed else "" if _open(summary) else "dim")
    return table


def markdown(summaries: Sequence[Summary], objectives: Objectives, limit: int = 40) -> str:
    """The front as a Markdown table, for the description of the sweep's run: front rows first, at most `limit` rows."""
    tasks = tasks_of(summaries) if len(tasks_of(summaries)) > 1 else []
    names = columns_of(summaries, objectives)
    heads = ["", "configuration", *(TITLES.get(name, name) for name in names), *map(short_task, tasks), "trials"]
    tuned = has_tuning(summaries)
    heads += ["tuning"] if tuned else []
    lines = ["| " + " | ".join(map(plain, heads)) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    rows = sorted(ranked(summaries, objectives), key=lambda summary: not summary.on_front)
    for summary in rows[:limit]:
        values = [number(summary.tasks[task].mean if task in summary.tasks else math.nan) for task in tasks]
        row = [_mark(summary), full_label(summary), *(shown(summary, name) for name in names), *values, trials(summary)]
        row += [tuning(summary)] if tuned else []
        lines.append("| " + " | ".join(map(plain, row)) + " |")
    if len(rows) > limit:
        lines.append(f"\n{len(rows) - limit} more configurations are in `{FRONT_CSV}`.")
    return "\n".join(lines) + f"\n\n{plain(caption(summaries, objectives))}\n"


def write_csv(summaries: Sequence[Summary], objectives: Objectives, path: Path) -> None:
    """Every configuration with every number: parameters, metrics and tasks with interval ends, counts, trials, reasons."""
    rows = [_csv_row(summary) for summary in ranked(summaries, objectives)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)


def latex(summaries: Sequence[Summary], objectives: Objectives) -> str:
    """A booktabs table in the style of the paper's: method, number of parameters, a column a task, their average.

    Front rows are shaded, the best of every column among complete configurations is bold. Needs booktabs and
    `\\usepackage[table]{xcolor}`.
    """
    rows = [summary for summary in ranked(summaries, objectives) if summary.finished]
    tasks = tasks_of(rows)
    columns: list[tuple[str, str, Direction]] = [(f"score/{task}", _title(task), "maximize") for task in tasks]
    columns.append(("score", "Avg." if len(tasks) > 1 else "Score", "maximize"))
    columns += [
        (name, TITLES.get(name, name), objectives.get(name, "maximize"))
        for name in columns_of(rows, objectives)
        if name not in _IN_LATEX
    ]
    plain_columns = ("examples", P_FRONT, P_WITHIN)
    best = {
        name: _best([row.value(name) for row in rows if row.complete and name not in plain_columns], way)
        for name, _, way in columns
    }
    tuned = has_tuning(rows)
    heads = ["Method", "\\# Params", *(_escape(title) for _, title, _ in columns), *(["Tuning"] if tuned else [])]
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage[table]{xcolor}",
        f"\\begin{{tabular}}{{@{{}}l r {' '.join('c' for _ in columns)}{' r' if tuned else ''}@{{}}}}",
        "\\toprule",
        " & ".join(f"\\textbf{{{head}}}" for head in heads) + " \\\\",
        "\\midrule",
    ]
    for row in rows:
        shade = "\\cellcolor{blue!8} " if row.on_front else ""
        why = why_screened(row) if row.screened else f"{row.finished}/{row.planned} trials"
        note = "" if row.complete else f" ({why})"
        cells = [_escape(full_label(row) + note), size(row.value("trainable_parameters"))]
        for name, _, _ in columns:
            value = row.bounds(name)
            plain = number(value.mean) if name.startswith("score") else _escape(format_amount(name, value.mean))
            text = f"\\textbf{{{plain}}}" if row.complete and value.mean == best.get(name) else plain
            half = f"$_{{\\pm{value.half:.1f}}}$" if name == "score" and math.isfinite(value.half) and value.n > 1 else ""
            cells.append("--" if math.isnan(value.mean) else text + half)
        cells += [_escape(tuning(row).replace("–", "--"))] if tuned else []
        lines.append(" & ".join(shade + cell for cell in cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


_IN_LATEX = ("score", "trainable_parameters")
_LATEX = {"\\": "\\textbackslash{}", "·": "$\\cdot$", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def _open(summary: Summary) -> bool:
    return summary.may_be_on_front or not (summary.complete or summary.screened)


def _mark(summary: Summary) -> str:
    return "●" if summary.on_front else ""


def _best(values: Sequence[float], direction: Direction) -> float:
    known = [value for value in values if not math.isnan(value)]
    return (max(known) if direction == "maximize" else min(known)) if known else math.nan


def _title(task: str) -> str:
    from craft.tasks import TASKS

    # Titles read "CoLA: is the sentence acceptable English?"; a column has room for the name.
    return TASKS[task].title.partition(":")[0] if task in TASKS else short_task(task)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _csv_row(summary: Summary) -> dict[str, Any]:
    row: dict[str, Any] = {"configuration": summary.configuration, "label": summary.label, "method": summary.method}
    row |= {"nested_in": summary.nested_in} if summary.nested_in else {}
    row |= {"on_front": summary.on_front, "may_be_on_front": summary.may_be_on_front, "complete": summary.complete}
    measured: Mapping[str, Interval] = summary.metrics | {f"score/{task}": value for task, value in summary.tasks.items()}
    for name, value in measured.items():
        row |= {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
    row |= summary.counts
    row |= {name: value for name, value in summary.parameters.items() if name not in row}
    row |= {"planned": summary.planned, "finished": summary.finished, "failed": summary.failed, "stopped": summary.stopped}
    if (spent := summary.tuning) is not None:
        row |= {
            "tuned": spent.tuned,
            "tuning_trials": spent.trials,
            "tuning_failed": spent.failed,
            "tuning_seconds": spent.seconds,
            "tuning_at_end": "; ".join(spent.at_end),
        }
        row |= {f"{name}/{task}": value for name, by_task in spent.values.items() for task, value in by_task.items()}
    row |= {"seeds": summary.seeds, "reasons": "; ".join(summary.reasons), "notes": "; ".join(summary.notes)}
    return {name: _csv_value(value) for name, value in row.items()}


def _csv_value(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        # A spreadsheet would run a cell that begins so as a formula.
        return f"'{value}"
    return value
