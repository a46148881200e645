"""The configurations of a recorded sweep as a Markdown table, smallest first, with ● on the front.

    python -m tests.benchmarks.recorded_front docs/measurements/records/fair-sst2.csv

Of several records, each of one task, the table has a column for each: the mean score, P(enough) in parentheses and the marks.
Configurations that ran with fewer seeds than others, only to choose a learning rate, are left out. A record without the fact
`metric` has the first metric of each task. Under the table of a tuned sweep is by how much the luck of choosing a rate moves a
configuration in the mean, which `orchestrator.results.tuning` has in every interval and probability.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

from craft.results import METRIC
from craft.settings import DataSettings
from craft.tasks import find_task
from orchestrator.results.front import mark_front
from orchestrator.results.metrics import NORMALIZED, P_ENOUGH, P_FRONT, SIZE, full_label
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.review.front_tables import front_columns, ranked, short_task
from orchestrator.review.past_sweep import read_folder
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES
from orchestrator.tools.markup import plain
from tests.benchmarks.trials import read_trials

LEFT_OUT = (NORMALIZED, P_FRONT, "trials", "tuning")
"""Columns that the table leaves out."""


@cache
def summaries_of(record: Path) -> tuple[Summary, ...]:
    """The configurations that ran with all seeds, with their marks."""
    read = read_trials(record) if record.suffix == ".csv" else read_folder(record).state.requested
    entries = [
        replace(entry, result=replace(entry.result, facts={METRIC: _metric(entry.trial.task)} | entry.result.facts))
        for entry in read
        if entry.result is not None and entry.result.status == "finished"
    ]
    marked = mark_front(summarize_entries(entries), DEFAULT_OBJECTIVES)
    return tuple(entry for entry in marked if entry.complete)


def _metric(task: str) -> str:
    """Returns the first metric of a task; empty for a task of one's own, whose record has it."""
    return "" if task.startswith("custom/") else find_task(task, DataSettings()).primary


def front(summaries: Sequence[Summary]) -> str:
    """Returns the table: score, P(enough) and parameters."""
    columns = [column for column in front_columns(summaries, DEFAULT_OBJECTIVES) if column.name not in LEFT_OUT]
    cells = [[column.label for column in columns], ["---" for _ in columns]]
    cells += [[column.text(row) for column in columns] for row in ranked(summaries, DEFAULT_OBJECTIVES)]
    return "\n".join("| " + " | ".join(map(plain, row)) + " |" for row in cells)


def side_by_side(fronts: Sequence[Sequence[Summary]]) -> str:
    """Returns the table of several tasks, in the order of the first; sizes, also those of cuts, are the first one's."""
    by_label = [{row.label: row for row in front} for front in fronts]
    lines = [["configuration", *(short_task(*front[0].tasks) for front in fronts), "parameters"], ["---"] * (len(fronts) + 2)]
    for row in ranked(fronts[0], DEFAULT_OBJECTIVES):
        cells = (_cell(rows[row.label]) for rows in by_label)
        lines.append([plain(full_label(row)), *cells, f"{row.value(SIZE):,.0f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(row: Summary) -> str:
    marks = ("●" if row.on_front else "") + ("✓" if row.enough else "")
    return f"{row.score.mean:.2f} ({row.counts[P_ENOUGH]:.2f}) {marks}".strip()


def mean_luck(summaries: Sequence[Summary]) -> float:
    """Returns the mean of the luck of the choices, in points; 0 if nothing was tuned."""
    return fmean([row.tuning.luck**0.5 for row in summaries if row.tuning.tuned] or [0.0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="a sweep's folder, or a CSV file of its trials")
    fronts = [summaries_of(record) for record in parser.parse_args().records]
    print(side_by_side(fronts) if fronts[1:] else front(fronts[0]))
    for luck in filter(None, map(mean_luck, fronts)):
        print(f"\nluck of the choice: {luck:.2f} points in the mean")


if __name__ == "__main__":
    main()
