"""The front of a recorded sweep as a Markdown table, and as a picture.

    python -m tests.benchmarks.recorded_front docs/measurements/records/glue-fair.csv [--front] [--picture docs/front.png]

A row for each configuration that ran with all seeds, smallest first, marked as the terminal marks it: ● on the front, ○ may be.
`--front` leaves out the others. Scores are of the reported split: the mean over tasks and seeds with the half width of its 95 %
interval over seeds, and each task's mean. Below the table stand the caption and the AURAC that the terminal shows.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from orchestrator.results.aurac import areas_of, in_words
from orchestrator.results.front import mark_front
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.review.front_picture import write_png
from orchestrator.review.front_words import caption, full_label, possible, ranked, short_task, tasks_of
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES
from tests.benchmarks.recorded import finished_trials


def summaries_of(records: Sequence[Path]) -> list[Summary]:
    """The configurations with their marks; those that ran with fewer seeds than others are `screened`."""
    entries = [one for trials in finished_trials(records).values() for one in trials]
    return mark_front(summarize_entries(entries), DEFAULT_OBJECTIVES, deciding={one.seed for one in entries})


def table(summaries: Sequence[Summary], *, only_front: bool = False) -> str:
    tasks = tasks_of(summaries)
    lines = [
        f"| | configuration | parameters | {' | '.join(map(short_task, tasks))} | mean |",
        f"| --- | --- | ---: | {'---: | ' * len(tasks)}---: |",
    ]
    for one in ranked(summaries, DEFAULT_OBJECTIVES):
        if not one.complete or (only_front and not one.may_be_on_front):
            continue
        mark = "●" if one.on_front else "○" if possible(one) else ""
        each = " | ".join(f"{one.tasks[task].mean:.1f}" for task in tasks)
        half = "" if math.isnan(one.score.half) else f" ± {one.score.half:.1f}"
        size = f"{one.counts['trainable_parameters']:,.0f}"
        lines.append(f"| {mark} | {full_label(one)} | {size} | {each} | {one.score.mean:.1f}{half} |")
    return "\n".join(lines)


def below(summaries: Sequence[Summary]) -> str:
    return f"{caption(summaries, DEFAULT_OBJECTIVES)}.\n\n{in_words(areas_of(summaries))}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="a sweep's folder, or a CSV file of its trials")
    parser.add_argument("--front", action="store_true", help="only what is on the front or may be")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draws the front")
    parser.add_argument("--title", default="", help="the picture's title")
    arguments = parser.parse_args()
    summaries = summaries_of(arguments.records)
    print(f"{table(summaries, only_front=arguments.front)}\n\n{below(summaries)}")
    if arguments.picture:
        write_png(summaries, DEFAULT_OBJECTIVES, arguments.picture, arguments.title)


if __name__ == "__main__":
    main()
