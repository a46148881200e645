"""Renders the front's table (`orchestrator.results.table`) for the terminal, as CSV, Markdown and LaTeX in the paper's style.

All of them have the same order: configurations by their cost, smallest first. `●` marks the front. Incomplete configurations
come last and are not ranked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from craft.methods import METHODS
from craft.words import plain
from orchestrator.judging.answer import Answer
from orchestrator.record.folder import FRONT_CSV, FRONT_PNG, FRONT_TEX
from orchestrator.results.metrics import ALWAYS, SIZE, Column, flat_cells, heading
from orchestrator.results.summary import Summary
from orchestrator.results.table import (
    front_columns,
    full_label,
    metric_among,
    metric_column,
    ranked,
    short_task,
    tasks_of,
)
from orchestrator.review.front_words import caption, legend
from orchestrator.sweepfile.objectives import Objectives
from orchestrator.sweepfile.settings import Enough
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.cells import write_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WITHIN = Enough().within


def terminal_table(
    summaries: Sequence[Summary], objectives: Objectives, title: str = "", within: float = WITHIN, tasks_shown: int = 8
) -> Table:
    """Returns a rich table under its legend: front rows marked and bright, dominated ones dimmed; a column for each task if
    there are at most `tasks_shown`."""
    from rich.markup import escape
    from rich.table import Table

    tasks = tasks_of(summaries) if 1 < len(tasks_of(summaries)) <= tasks_shown else []
    above = "\n".join(filter(None, (title, legend(summaries, objectives, within))))
    table = Table(title=escape(above) or None, title_justify="left", header_style="bold", pad_edge=False)
    columns = front_columns(summaries, objectives, tasks)
    for column in columns:
        if column.name == "mark":
            table.add_column("", width=2 if any(summary.enough for summary in summaries) else 1)
        elif column.name == "configuration":
            table.add_column(column.label, overflow="fold", min_width=16)
        else:
            label = escape("\n".join(wrap(column.label, 14)))
            table.add_column(label, justify="right", no_wrap=column.name != "tuning")
    for summary in ranked(summaries, objectives):
        unranked = not (summary.complete or summary.tunes)
        style = "bold" if summary.on_front else "red" if summary.failed else "" if summary.possible or unranked else "dim"
        table.add_row(*(escape(column.text(summary)) for column in columns), style=style)
    return table


def show_front(summaries: Sequence[Summary], sweep: Sweep, answer: Answer | None, title: str, console: Console) -> None:
    """Prints the table, the line under it and the answer."""
    if any(summary.finished or summary.failed for summary in summaries):
        console.print(terminal_table(summaries, sweep.objectives, title, sweep.enough.within))
        console.print(caption(summaries, sweep.objectives), markup=False)
    if answer is not None:
        console.print(answer.text, markup=False, soft_wrap=True, style="bold")


def markdown(summaries: Sequence[Summary], objectives: Objectives, within: float = WITHIN, limit: int = 40) -> str:
    """Returns a Markdown table for the description of the sweep's run: front rows first, at most `limit` rows."""
    tasks = tasks_of(summaries) if len(tasks_of(summaries)) > 1 else []
    columns = front_columns(summaries, objectives, tasks)
    rows = sorted(ranked(summaries, objectives), key=lambda summary: not summary.on_front)
    cells = [[column.label for column in columns], *([column.text(row) for column in columns] for row in rows[:limit])]
    lines = ["| " + " | ".join(map(plain, row)) + " |" for row in cells]
    lines.insert(1, "| " + " | ".join("---" for _ in columns) + " |")
    if len(rows) > limit:
        lines.append(f"\n{len(rows) - limit} more configurations are in `{FRONT_CSV}`.")
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
    lines += ["\\bottomrule", "\\end{tabular}"]
    examples = {row.value("examples") for row in rows if "examples" in row.counts}
    if len(examples) == 1:
        lines.append(f"% scored on {examples.pop():,.0f} examples; ± is the 95 % interval over seeds and examples")
    return "\n".join([*lines, ""])


def _paper_columns(rows: Sequence[Summary], objectives: Objectives) -> list[Column]:
    tasks = tasks_of(rows) if len(tasks_of(rows)) > 1 else []
    score = metric_column("score", "Average" if tasks else "", metric_among(rows))
    columns = [metric_column(name, ends=False) for name in objectives if name not in ("score", SIZE)]
    return [
        *(Column(head, head, kind="text", read=_part(place)) for place, head in enumerate(("Method", "Size", "Modules"))),
        metric_column(SIZE, "Parameters"),
        *(metric_column(f"score/{task}", _title(task), ends=False) for task in tasks),
        *(replace(column, label=heading(column.label)) for column in (score, *columns)),
    ]


def _part(place: int) -> Any:
    return lambda summary: _parts(summary)[place]


def _parts(summary: Summary) -> tuple[str, str, str]:
    """Returns method, size and modules; other settings that tell the configuration from others follow the method."""
    title = METHODS[summary.method].title if summary.method in METHODS else summary.method
    parts = full_label(summary).removeprefix(title).strip().split(", ")
    modules = str(summary.parameters.get("projections", "")).replace(",", " ")
    if modules not in parts:
        return full_label(summary), "", ""
    size, *settings = [part for part in parts if part != modules] or [""]
    return ", ".join([title, *settings]), size, modules


def _title(task: str) -> str:
    from craft.tasks import TASKS

    # Titles read "CoLA: is the sentence acceptable English?"; a column has room for the name.
    return TASKS[task].title.partition(":")[0] if task in TASKS else short_task(task)


_LATEX = {"\\": "\\textbackslash{}", "·": "$\\cdot$", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def write_csv(summaries: Sequence[Summary], objectives: Objectives, path: Path) -> None:
    """Writes every number of every configuration: parameters, metrics with interval ends, counts, trials, reasons."""
    rows = (row_of(summary) for summary in ranked(summaries, objectives))
    write_table(path, ({name: _csv_value(value) for name, value in row.items()} for row in rows), ALWAYS)


def row_of(summary: Summary) -> dict[str, Any]:
    """Returns the parameters and cells of a configuration by the names of their columns in front.csv."""
    return summary.parameters | flat_cells(summary)


def _csv_value(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value


def write_front(summaries: Sequence[Summary], objectives: Objectives, folder: Path, title: str) -> list[Path]:
    """Writes `front.csv`, `front.tex` and `front.png` into `folder`; returns their paths."""
    from orchestrator.review.front_picture import write_png

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in (FRONT_CSV, FRONT_TEX, FRONT_PNG)]
    write_csv(summaries, objectives, paths[0])
    paths[1].write_text(latex(summaries, objectives), encoding="utf-8")
    write_png(summaries, objectives, paths[2], title)
    return paths
