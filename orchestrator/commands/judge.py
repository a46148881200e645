"""`judge`: trainings of anybody, judged as those of a sweep are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from craft.stdout import write_report
from orchestrator.commands.options import AsJson, Within, screen


def judge(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Trainings, one in a row: CSV, TSV, JSON Lines or parquet.")],
    score: Annotated[str | None, typer.Option(metavar="COLUMN", help="The score; guessed by its name if not given.")] = None,
    size: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The size, or any other cost, of which less is better; guessed.")
    ] = None,
    seed: Annotated[str | None, typer.Option(metavar="COLUMN", help="The seed of a training; guessed.")] = None,
    minimize: Annotated[
        bool | None, typer.Option("--minimize/--maximize", help="Whether less of the score is better; guessed by its name.")
    ] = None,
    within: Within = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Also compare two configurations, seed by seed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge trainings that another program ran.

    The file has one training per row: its settings, its score and, if known, its size or another cost, seed, task and number of
    scored examples. Rows that differ only in seed and task are one configuration; a column called configuration overrides this.
    Tables of MLflow, W&B and Optuna, and trials.csv of craft-sweeps export, are read as they are.

    It prints what a sweep gives: the front, intervals, the probabilities of being on the front and of being enough, the answer,
    and what to run next. Below that it says how columns were read and what the file lacks. Scores up to 1 are shown times 100;
    losses have a minus, and losses up to 10 are shown times 100.

    Exit status: 0 judged; 2 a row or a column cannot be read.
    """
    from orchestrator.review.comparing import compare_sweeps, show_comparison
    from orchestrator.review.front_tables import show_front
    from orchestrator.review.run_table import read_table

    table = read_table(file, score, size, seed, minimize, within)
    record = table.record
    sides = None if compare is None else compare_sweeps(record, record, *compare, flags=("--compare", "--compare"))
    if as_json:
        from orchestrator.reports.compare import compare_report
        from orchestrator.reports.front import front_report

        comparison = sides and compare_report(sides)
        write_report(front_report(record, read=table.read, lacks=table.lacks, comparison=comparison).to_json())
        return
    console = screen()
    show_front(record.summaries, record.sweep, record.answer, record.name, console)
    if sides is not None:
        show_comparison(sides, console)
    for line in (f"Read: {'; '.join(table.read)}.", *(f"{line}." for line in table.lacks)):
        console.print(line, markup=False, soft_wrap=True)
