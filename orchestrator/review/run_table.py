"""Somebody's table of trainings as a sweep that has run, so that what judges sweeps judges it.

    rows  -->  Columns (guessed)  -->  Entry for each row  -->  State  -->  PastSweep

Rows of `trials.csv` are read back as what they were. A share is shown in points, and a score of which less is better with its
sign turned.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from craft.results import METRIC
from craft.scoring.credits import credits_of
from craft.tasks.files import DataError, Rows, is_number, read_rows
from orchestrator.judging.front import SEEDS
from orchestrator.plan.parameters import flatten, text
from orchestrator.results.metrics import SIZE
from orchestrator.results.summary import RANGE, UNIT
from orchestrator.results.tuning import EXAMPLES
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.run_columns import PARAMETERS, Columns, guess, has_value, plain_name
from orchestrator.review.trials_file import is_trials_file, read_trials
from orchestrator.state.entry import Entry, TrialResult
from orchestrator.state.events import SessionEnded, SessionStarted
from orchestrator.state.state import State
from orchestrator.state.trial import Trial

UNNAMED = "task"
MISFIT = 0.51
"""By so many points a score that was rounded may differ from the mean of its answers."""
ENDED = ("finished", "complete", "completed", "success", "succeeded", "done")


@dataclass(frozen=True)
class RunTable:
    """A table of trainings as a sweep that has run, `record`; sentences on how its columns were read, and on what it lacks and
    what that would add."""

    record: PastSweep
    read: list[str]
    lacks: list[str]


def read_table(
    source: Path | Rows,
    score: str | None = None,
    size: str | None = None,
    seed: str | None = None,
    minimize: bool | None = None,
    within: float | None = None,
) -> RunTable:
    """Reads a table of trainings, one in a row.

    Args:
        score, size, seed: names of columns, where they should not be guessed.
        minimize: whether less of the score is better; guessed by its name if None.
        within: the points that may be lost, `enough.within`; 1 if None.

    Raises:
        DataError: a row or a column cannot be read; the message says which.
    """
    rows, columns, objectives = _flat(read_rows(source) if isinstance(source, Path) else source), None, {"score": "maximize"}
    if is_trials_file(rows.columns) and (score, size, seed, minimize) == (None,) * 4:
        entries, read, objectives[SIZE] = read_trials(rows), ["trials of craft-sweeps export"], "minimize"
    else:
        columns = guess(rows, score, size, seed, minimize)
        scores = [float(cell) for cell in rows.column(columns.score) if has_value(cell) and is_number(str(cell))]
        factor = 100.0 if max(map(abs, scores), default=0.0) <= (10 if columns.minimize else 1) else 1.0
        folder = source.parent if isinstance(source, Path) else Path()
        entries = _entries(rows, columns, scores, -factor if columns.minimize else factor, folder)
        objectives |= {SIZE: "minimize"} if columns.size else {}
        read = columns.sentences + ([f"1 point is 0.01 of {columns.score}"] if factor > 1 else [])
    if not any(entry.finished for entry in entries):
        raise DataError(f"{rows.source}: no row has a score")
    record = _record(rows.source, [*entries, *_missing(entries)], objectives).with_within(within)
    return RunTable(record, read, [*_lacks(record, columns)])


def rows_of(frame: Any) -> Rows:
    """Returns the rows of a DataFrame, or of a list of mappings."""
    records = frame.to_dict("records") if hasattr(frame, "to_dict") else list(frame)
    names = dict.fromkeys(name for record in records for name in record)
    return Rows("the table", {str(name): [record.get(name) for record in records] for name in names})


def _flat(rows: Rows) -> Rows:
    """Returns the rows with columns for what is in objects, under dotted names, and without runs that hold other runs."""
    columns = rows.columns
    if any(isinstance(cell, Mapping) for cells in columns.values() for cell in cells):
        records = [flatten(dict(zip(columns, cells, strict=True))) for cells in zip(*columns.values(), strict=True)]
        columns = {name: [record.get(name) for record in records] for record in records for name in record}
    parents, run_ids = {*columns.get("tags.mlflow.parentRunId", ())}, columns.get("run_id", [None] * len(rows))
    places = [place for place, run in enumerate(run_ids) if run is None or run not in parents]
    cells = {name: [column[place] for place in places] for name, column in columns.items() if name}  # an index has none
    return Rows(rows.source, cells, [rows.number(place) for place in places])


def _entries(rows: Rows, columns: Columns, scores: Sequence[float], factor: float, folder: Path) -> list[Entry]:
    """Returns a trial that has ended for each row; `folder` has the files of answers."""
    facts, repeats = _facts(columns, [factor * score for score in scores], factor), Counter[tuple[Any, ...]]()
    entries, places = list[Entry](), dict[tuple[Any, ...], int]()
    for place in range(len(rows)):
        cells = {name: column[place] for name, column in rows.columns.items() if has_value(column[place])}
        settings = {plain_name(name): cells[name] for name in columns.configuration if name in cells}
        if not settings and columns.score not in cells:
            continue  # a run that only holds others
        task, id_ = str(cells.get(columns.task or "", UNNAMED)), hashlib.sha256(repr(settings).encode()).hexdigest()[:10]
        result = _result(rows.place(place), cells, columns, factor)
        seed = int(_number(rows.place(place), cells, columns.seed)) if columns.seed else repeats[id_, task]
        repeats[id_, task] += 1
        if (first := places.setdefault((id_, task, seed), place)) != place:
            equal = ", ".join(filter(None, (*columns.configuration, columns.task, columns.seed)))
            hint = "a column called configuration would distinguish them"
            raise DataError(f"{rows.place(place)}: it repeats line {rows.number(first)}, with equal {equal}; {hint}")
        label = cells[columns.label] if columns.label else ", ".join(
            f"{name.replace('_', ' ')} {text(cell)}" if is_number(str(cell)) else str(cell) for name, cell in settings.items()
        )  # fmt: skip
        if result.status == "finished" and columns.answers and columns.answers in cells:
            file = folder / str(cells[columns.answers])
            result = result.with_facts(**_answers(rows.place(place), file, columns.minimize, factor, result.metrics["score"]))
        result = replace(result, key=f"row{place}", facts=facts | result.facts)
        entries.append(Entry(Trial(result.key, id_, str(label), "", task, seed, "", settings), result, "ended", begun=True))
    # Probabilities come from draws, which follow the order of configurations, and that of the rows means nothing.
    return sorted(entries, key=lambda entry: (entry.result.counts.get(SIZE, 0.0) if entry.result else 0.0, entry.trial.label))


def _result(place: str, cells: Mapping[str, Any], columns: Columns, factor: float) -> TrialResult:
    state = str(cells.get(columns.status or "", ENDED[0])).lower()
    if state not in ENDED:
        counts = {SIZE: _number(place, cells, columns.size)} if columns.size and columns.size in cells else {}
        return TrialResult("", "stopped" if state in ("pruned", "stopped") else "failed", {}, counts, error=state)
    score, size = _number(place, cells, columns.score), _number(place, cells, columns.size) if columns.size else 0.0
    seconds = _number(place, cells, columns.seconds) if columns.seconds and columns.seconds in cells else 0.0
    scored = columns.examples and columns.examples in cells and not columns.minimize
    examples = {EXAMPLES: _number(place, cells, columns.examples)} if scored and columns.examples else {}
    return TrialResult("", "finished", {"score": factor * score}, {SIZE: size}, seconds=seconds, facts=examples)


def _answers(place: str, file: Path, minimize: bool, factor: float, score: float) -> dict[str, Any]:
    """Returns what a file with the score of each example says of the luck of `score` with the examples."""
    rows = read_rows(file)
    name = next(iter(rows.columns)) if len(rows.columns) == 1 else "correct"
    if not all(is_number(str(cell)) for cell in rows.column(name)):
        raise DataError(f"{file}: {name}: numbers, 1 for a right answer and 0 for a wrong one, or a loss")
    values = np.array([float(cell) for cell in rows.column(name)])
    values *= factor if minimize else 100.0 if np.abs(values).max() <= 1 else 1.0
    if abs(values.mean() - score) > MISFIT:
        raise DataError(
            f"{place}: the mean of {file} is {values.mean():.2f}, its score {score:.2f}: is it of another training?"
        )
    return {EXAMPLES: float(len(values)), **credits_of(lambda drawn: float(values[drawn].mean()), len(values))}


def _number(place: str, cells: Mapping[str, Any], name: str) -> float:
    if name not in cells or not is_number(str(cells[name])):
        trouble = f"got {cells[name]!r}" if name in cells else "it is empty"
        raise DataError(f"{place}: {name}: {trouble}; a number, or `failed` in a column called status")
    return float(cells[name])


def _facts(columns: Columns, scores: Sequence[float], factor: float) -> dict[str, Any]:
    """Returns what is known of all results: the score's name and the ends of its range, and what the size counts."""
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    bounded = factor > 0 and high <= 100 and (low >= 0 or (factor == 100 and low >= -100))
    sign = "" if factor > 0 else "-" if factor == -1 else f"{factor:g} × "
    ends = (0.0 if low >= 0 else -100.0, 100.0) if bounded else (-math.inf, math.inf)
    return {METRIC: sign + plain_name(columns.score), RANGE: ends, UNIT: columns.unit}


def _missing(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yields a failed trial for each task on which a configuration has no row with one of its seeds."""
    tasks, by_trial = dict[str, None](), dict[tuple[str, int], dict[str, Trial]]()
    for trial in (entry.trial for entry in entries if entry.trial.is_reported):
        tasks[trial.task] = None
        by_trial.setdefault((trial.configuration, trial.seed), {})[trial.task] = trial
    for rows in by_trial.values():
        for task in tasks.keys() - rows.keys():
            trial = next(iter(rows.values()))
            key = f"{trial.key}, {task}"
            result = TrialResult(key, "failed", error=f"no row for {task}")
            yield Entry(replace(trial, key=key, task=task), result, "ended")


def _record(source: str, entries: Sequence[Entry], objectives: Mapping[str, str]) -> PastSweep:
    sweep = {"name": "table", "model": "unknown", "tasks": [UNNAMED], "space": [{}], "objectives": objectives}
    by_key = {entry.key: entry for entry in entries}
    trainings = sum(not entry.trial.is_cut for entry in entries)
    started = SessionStarted(sweep=sweep, configurations=len(entries), trainings=trainings)
    state = State(Path(source).name, entries=by_key, wanted=dict.fromkeys(by_key), started=started)
    state = replace(state, ended=SessionEnded(status="finished", seconds=0.0))

    def fetch(key: str, _scratch: Path) -> Path:
        raise ValueError(f"{source} has numbers of {key}, and no adapter")

    return PastSweep(state, source, None, fetch)


def _lacks(record: PastSweep, columns: Columns | None) -> Iterator[str]:
    seeds = [summary.score.n for summary in record.summaries if summary.complete]
    if single := seeds.count(1):
        few = "No seeds" if single == len(seeds) else f"No further seeds of {single} of {len(seeds)} configurations"
        yield f"{few}: with one number a configuration no probability can be given; two more seeds of each would give them"
    elif min(seeds, default=SEEDS) < SEEDS:
        yield f"{min(seeds)} seeds: a configuration is called enough from {SEEDS} on"
    if columns is not None and columns.seed is None and not single:
        yield "No column of seeds: rows of a configuration are paired in their order; seeds would pair what saw the same data"
    if columns is not None and columns.size is None:
        yield f"No size: a column such as {PARAMETERS[0]} would say which of those that are enough is the smallest"
    if columns is not None and not (columns.examples or columns.answers or columns.minimize):
        yield f"No number of scored examples: a column {EXAMPLES} would put the luck of the examples into the intervals"
