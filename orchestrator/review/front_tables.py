"""The front for people: a table on the terminal, CSV, LaTeX in the paper's style, Markdown for the tracking store, a picture.

All of them show the same rows in the same order: configurations by their cost, smallest first. `●` marks the front. Incomplete
configurations stand last and are not ranked.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from craft.methods import METHODS
from craft.words import plain
from orchestrator.record.folder import FRONT_CSV, FRONT_PNG, FRONT_TEX
from orchestrator.results.intervals import Interval
from orchestrator.results.presentation import amount, heading, label_of, metric_of, spread
from orchestrator.results.summary import Summary
from orchestrator.review.front_words import (
    caption,
    columns_of,
    full_label,
    has_tuning,
    legend,
    metric_among,
    number,
    ranked,
    short_task,
    shown,
    tasks_of,
    trials,
    tuning,
)
from orchestrator.sweepfile.objectives import Objectives

if TYPE_CHECKING:
    from rich.table import Table


def terminal_table(summaries: Sequence[Summary], objectives: Objectives, title: str = "", tasks_shown: int = 8) -> Table:
    """A rich table under what its chances mean: front rows marked and bright, dominated ones dimmed; per-task columns where
    there are few enough."""
    from rich.markup import escape
    from rich.table import Table

    tasks = tasks_of(summaries) if 1 < len(tasks_of(summaries)) <= tasks_shown else []
    above = "\n".join(filter(None, (title, legend(summaries, objectives))))
    table = Table(title=escape(above) or None, title_justify="left", header_style="bold", pad_edge=False)
    heads, cells = _columns(summaries, objectives, tasks)
    table.add_column("", width=2 if any(summary.enough for summary in summaries) else 1)
    table.add_column("configuration", overflow="fold", min_width=16)
    for head in heads[2:]:
        table.add_column(escape("\n".join(wrap(head, 14))), justify="right", no_wrap=head != "tuning")
    for summary in ranked(summaries, objectives):
        style = "bold" if summary.on_front else "red" if summary.failed else "" if _open(summary) else "dim"
        table.add_row(*map(escape, cells(summary)), style=style)
    return table


def markdown(summaries: Sequence[Summary], objectives: Objectives, limit: int = 40) -> str:
    """The front as a Markdown table, for the description of the sweep's run: front rows first, at most `limit` rows."""
    tasks = tasks_of(summaries) if len(tasks_of(summaries)) > 1 else []
    heads, cells = _columns(summaries, objectives, tasks)
    rows = sorted(ranked(summaries, objectives), key=lambda summary: not summary.on_front)
    lines = ["| " + " | ".join(map(plain, row)) + " |" for row in (heads, *map(cells, rows[:limit]))]
    lines.insert(1, "| " + " | ".join("---" for _ in heads) + " |")
    if len(rows) > limit:
        lines.append(f"\n{len(rows) - limit} more configurations are in `{FRONT_CSV}`.")
    above = f"{plain(says)}\n\n" if (says := legend(summaries, objectives)) else ""
    return above + "\n".join(lines) + f"\n\n{plain(caption(summaries, objectives))}\n"


def _columns(
    summaries: Sequence[Summary], objectives: Objectives, tasks: Sequence[str]
) -> tuple[list[str], Callable[[Summary], list[str]]]:
    """The heads of a table for people, and what gives a configuration's cells under them."""
    names, tuned = columns_of(summaries, objectives), has_tuning(summaries)
    labels = [label_of(name, metric_among(summaries)) for name in names]
    heads = ["", "configuration", *labels, *map(short_task, tasks), "trials" if len(tasks_of(summaries)) > 1 else "seeds"]

    def cells(one: Summary) -> list[str]:
        values = [*(shown(one, name) for name in names), *(number(one.value(f"score/{task}")) for task in tasks)]
        mark = ("●" if one.on_front else "") + ("✓" if one.enough else "")
        return [mark, full_label(one), *values, trials(one), *([tuning(one)] if tuned else [])]

    return [*heads, *(["tuning"] if tuned else [])], cells


def write_csv(summaries: Sequence[Summary], objectives: Objectives, path: Path) -> None:
    """Every configuration with every number: parameters, metrics and tasks with interval ends, counts, trials, reasons."""
    rows = [_csv_row(summary) for summary in ranked(summaries, objectives)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)


def latex(summaries: Sequence[Summary], objectives: Objectives) -> str:
    """A booktabs table for a paper: method, size, modules, parameters, a column a task where there are several, the score.

    It has the complete configurations. Front rows are shaded, the best score of every column is bold. Needs booktabs and
    `\\usepackage[table]{xcolor}`.
    """
    rows = [summary for summary in ranked(summaries, objectives) if summary.complete]
    tasks = tasks_of(rows) if len(tasks_of(rows)) > 1 else []
    others = [name for name in objectives if name not in ("score", "trainable_parameters")]
    scores = [*(f"score/{task}" for task in tasks), "score"]
    best = {name: max((row.value(name) for row in rows), default=math.nan) for name in scores}
    heads = [
        "Method",
        "Size",
        "Modules",
        "Parameters",
        *map(_title, tasks),
        "Average" if tasks else heading(label_of("score", metric_among(rows))),
    ]
    heads += [heading(metric_of(name).label) for name in others]
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage[table]{xcolor}",
        f"\\begin{{tabular}}{{@{{}}l l l r {'c ' * len(scores)}{'r ' * len(others)}@{{}}}}",
        "\\toprule",
        " & ".join(f"\\textbf{{{_escape(head)}}}" for head in heads) + " \\\\",
        "\\midrule",
    ]
    for row in rows:
        cells = [*map(_escape, _parts(row)), amount("trainable_parameters", row.value("trainable_parameters"))]
        for name in scores:
            value = row.bounds(name)
            text = f"\\textbf{{{number(value.mean)}}}" if value.mean == best[name] else number(value.mean)
            cells.append(f"{text} {_escape(spread(value))}".strip() if name == "score" else text)
        cells += [_escape(amount(name, row.value(name))) for name in others]
        shade = "\\rowcolor{blue!8} " if row.on_front else ""
        lines.append(shade + " & ".join(cells) + " \\\\")
    examples = {row.value("examples") for row in rows if "examples" in row.counts}
    scored = (
        [f"% scored on {examples.pop():,.0f} examples; ± is the 95 % interval over seeds and examples"]
        if len(examples) == 1
        else []
    )
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *scored, ""])


def _parts(summary: Summary) -> tuple[str, str, str]:
    """Method, size and modules; what else tells the configuration from others stands behind the method."""
    title = METHODS[summary.method].title if summary.method in METHODS else summary.method
    parts = full_label(summary).removeprefix(title).strip().split(", ")
    modules = str(summary.parameters.get("projections", "")).replace(",", " ")
    if modules not in parts:
        return full_label(summary), "", ""
    size, *settings = [part for part in parts if part != modules] or [""]
    return ", ".join([title, *settings]), size, modules


_LATEX = {"\\": "\\textbackslash{}", "·": "$\\cdot$", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def _open(summary: Summary) -> bool:
    return summary.may_be_on_front or not (summary.complete or summary.tunes)


def _title(task: str) -> str:
    from craft.tasks import TASKS

    # Titles read "CoLA: is the sentence acceptable English?"; a column has room for the name.
    return TASKS[task].title.partition(":")[0] if task in TASKS else short_task(task)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _csv_row(summary: Summary) -> dict[str, Any]:
    row: dict[str, Any] = {"configuration": summary.configuration, "label": summary.label, "method": summary.method}
    row |= {"metric": summary.metric} if summary.metric else {}
    row |= {
        "on_front": summary.on_front,
        "may_be_on_front": summary.may_be_on_front,
        "enough": summary.enough,
        "complete": summary.complete,
    }
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


def write_front(summaries: Sequence[Summary], objectives: Objectives, folder: Path, title: str) -> list[Path]:
    """`front.csv`, `front.tex` and `front.png` in `folder`; returns their paths."""
    from orchestrator.review.front_picture import write_png

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in (FRONT_CSV, FRONT_TEX, FRONT_PNG)]
    write_csv(summaries, objectives, paths[0])
    paths[1].write_text(latex(summaries, objectives), encoding="utf-8")
    write_png(summaries, objectives, paths[2], title)
    return paths
