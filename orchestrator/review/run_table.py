"""Somebody's table of trainings as a sweep that has run, so that what judges sweeps judges it.

    rows  -->  RunColumns  -->  a row for each training  -->  Entry  -->  State  -->  PastSweep

Rows of `trials.csv` are read back as what they were. A share is shown in points, and a score of which less is better with its
sign turned.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from craft.results import EXAMPLES, METRIC
from craft.scoring.predictions import credits_of
from craft.tasks.files import DataError, Rows, is_number, read_rows
from craft.words import printable
from orchestrator.plan.configuration import flatten, text
from orchestrator.plan.trial import Status, Trial, TrialResult
from orchestrator.record.events import SessionEnded, SessionStarted
from orchestrator.record.state import Entry, State
from orchestrator.results.metrics import SIZE
from orchestrator.results.summary import RANGE, ROUNDING, UNIT
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.run_columns import Call, RunColumn, RunColumns, Unclear, names_of, read_columns, state_of
from orchestrator.review.terms import HIGHER, PARTS, PROGRESS, RUN, RUN_NAMES, SHARES, STOPPED
from orchestrator.review.trials_file import OF_TRIAL, read_trials

MOST, MOST_TRAININGS = 20_000, 100_000
"""The most configurations, and trainings of all of them."""
UNNAMED = "task"
MISFIT = 0.51
"""By so many points a score that was rounded may differ from the mean of its answers."""
SEED_COLUMN = re.compile(r"(?i)(.*?)[._ /-]?(seed|run|fold|rep|repeat)[._ ]?(\d+)")
SPREAD_COLUMN = re.compile(r"(?i)(.*?)[._ ]?(std|sd|stdev|stddev)")


@dataclass(frozen=True)
class RunTable:
    """A table of trainings as a sweep that has run, `record`; sentences on how its columns were read, and on what it lacks and
    what that would add."""

    record: PastSweep
    read: list[str]
    lacks: list[str]


def read_table(source: Path | Rows, call: Call | None = None, within: float | None = None) -> RunTable:
    """Reads a table of trainings, one in a row.

    Args:
        within: the points that may be lost, `enough.within`; 1 if None.
    """
    call, objectives = call or Call(), {"score": "maximize", SIZE: "minimize"}
    rows = _cleaned(read_rows(source) if isinstance(source, Path) else source)
    if {*OF_TRIAL, "metric.score"} <= rows.columns.keys() and call == Call():
        entries, read, lacks = read_trials(rows), ["trials of craft-sweeps export"], list[str]()
    else:
        _refuse_wide(rows, call)
        columns = read_columns(rows, call)
        factor, facts = _scaled(rows, columns)
        trainings, lacks = _trainings(rows, columns, call)
        folder = source.parent if isinstance(source, Path) else Path()
        entries, read = _entries(rows, columns, trainings, factor, facts, folder), columns.sentences
        read[0] += ", shown times 100" if abs(factor) > 1 else ""
        objectives = {name: side for name, side in objectives.items() if name == "score" or columns.part("size")}
        lacks += _lacks(columns)
    if not any(entry.finished for entry in entries):
        raise DataError(f"{rows.source}: no row has a score")
    record = _record(rows.source, [*entries, *_missing(entries)], objectives).with_within(within)
    return RunTable(record, read, lacks)


def rows_of_frame(frame: Any) -> Rows:
    records = frame.to_dict("records") if hasattr(frame, "to_dict") else list(frame)
    names = dict.fromkeys(name for record in records for name in record)
    return Rows("the table", {str(name): [record.get(name) for record in records] for name in names})


def _cleaned(rows: Rows) -> Rows:
    """Returns the rows with a column for each value of an object, under dotted names, and without runs that hold other runs."""
    columns = {printable(name.strip()): cells for name, cells in rows.columns.items() if name.strip()}  # an index has no name
    kinds = {kind for cells in columns.values() for kind in {*map(type, cells)}}
    if any(issubclass(kind, Mapping | list | tuple) for kind in kinds):
        records = [flatten(dict(zip(columns, cells, strict=True))) for cells in zip(*columns.values(), strict=True)]
        columns = {name: [record.get(name) for record in records] for record in records for name in record}
    parents = {*columns.get("tags.mlflow.parentRunId", ())}
    places = [place for place, run in enumerate(columns.get("run_id", range(len(rows)))) if run not in parents]
    cells = {name: [column[place] for place in places] for name, column in columns.items()} if parents else columns
    return Rows(rows.source, cells, [rows.number(place) for place in places] if parents else rows.lines)


def _refuse_wide(rows: Rows, call: Call) -> None:
    """Refuses tables whose seeds are columns, whose scores are rows, or that have means with their spread."""
    named, question = {name.lower(): name for name in rows.columns}, ""
    numbered = [match for name in rows.columns if (match := SEED_COLUMN.fullmatch(name))]
    wide = [match[0] for match in numbered if match[1] == numbered[0][1]]
    long = next((named[name] for name in ("metric", "metric_name", "measure") if name in named), None)
    if len(wide) > 1:
        question = f"{', '.join(wide)}: a row is one training, with its seed in a column; `DataFrame.melt` makes such rows"
    elif long and named.keys() & {"value", "metric_value"} and call.score is None and len({*rows.columns[long]}) > 1:
        question = f"{long}: a row is one training, with a column for each score; `DataFrame.pivot` makes such rows"
    elif not call.by and "seed" not in rows.columns:
        for match in filter(None, map(SPREAD_COLUMN.fullmatch, rows.columns)):
            means = [name for name in (f"{match[1]}_mean", f"mean_{match[1]}", match[1] or "mean") if name in rows.columns]
            if means:
                question = f"{means[0]}, {match[0]}: a row is one training, and no mean of some; give those that it is of"
    if question:
        raise Unclear(rows, call, {question: []})


Training = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
"""The values of a training's settings, of its task, and of what repeats it."""


def _trainings(rows: Rows, columns: RunColumns, call: Call) -> tuple[dict[Training, int], list[str]]:
    """Returns the row of each training, one that has finished if there is one, and sentences on rows that are left out."""
    settings, tasks, seeds, score = (columns.parts[part] for part in ("settings", "task", "seed", "score"))
    if call.independent and tasks:
        raise DataError(f"{rows.source}: --independent: trainings on several tasks need a seed that says which belong together")
    run = [column for column in columns.every.values() if column.last in RUN][:1]
    same = seeds or run or [each for each in columns.every.values() if each.last not in ("index", "number", "row", "unnamed_0")]
    left = {
        "attempts of finished trainings": 0,
        "rows of a training that is there": 0,
        "failed rows without settings, seed or task": 0,
    }
    (attempts, repeated, bare), trainings = left, dict[Training, int]()

    def values(chosen: Sequence[RunColumn], row: int) -> tuple[Any, ...]:
        return tuple(column.cell(row) for column in chosen)

    for row in np.argsort(~columns.finished, kind="stable").tolist():
        finished, chosen, task, seed = columns.finished[row], *(values(part, row) for part in (settings, tasks, seeds))
        named = None not in task and all(isinstance(cell, int | float) and cell % 1 == 0 for cell in seed)
        if not finished and not (named and (not chosen or {*chosen} != {None})):
            left[bare] += 1
            continue
        first = trainings.setdefault((chosen, task, (values(run, row) or (row,)) if call.independent else seed), row)
        if first != row and finished and (values(score, row), values(same, row)) != (values(score, first), values(same, first)):
            raise _clash(rows, columns, call, first, row)
        left[repeated if finished else attempts] += first != row
    return trainings, [f"Left out: {count} {reason}" for reason, count in left.items() if count]


def _clash(rows: Rows, columns: RunColumns, call: Call, first: int, row: int) -> Unclear:
    """Returns the refusal of two rows of one configuration, task and seed, with what may distinguish them."""
    differ = [column for column in columns.every.values() if column.codes[first] != column.codes[row]]
    steps = [column.name for column in differ if column.last in PROGRESS]
    free = [column for column in differ if columns.left_out.get(column.name) in ("not in --by", "--ignore")]
    seeds = columns.parts["seed"]
    answers: list[dict[str, Any]] = [{"seed": names_of([*seeds, column])} for column in free if column.whole]
    answers += [{"by": names_of([*columns.parts["settings"], column])} for column in free]
    if steps and not any(column.last in RUN_NAMES for column in differ):
        question = f"differ in {steps[0]}: they are one training, of which the last row counts; leave the others out"
        answers = []
    elif not seeds:
        question = "repeat a configuration without a seed: are they independent trainings?"
        answers.append({"independent": True})
    else:
        question = "have equal settings and seed, and other scores: what distinguishes them? Of repeated rows leave one"
    return Unclear(rows, call, {f"{rows.place(row)} and line {rows.number(first)} {question}": answers})


def _scaled(rows: Rows, columns: RunColumns) -> tuple[float, dict[str, Any]]:
    """Returns by what scores are multiplied to be points of which more is better, and what is known of all results: the score's
    name, the ends of its range, how it was rounded, and what the size counts.
    """
    (column,), size = columns.parts["score"], columns.part("size")
    scores = np.where(columns.finished, column.numbers, math.nan)
    low, high = (float(end(scores[columns.finished], initial=0.0)) for end in (np.min, np.max))
    bounded = not columns.minimize and column.metric != "reward"
    signed = column.metric.startswith(("mcc", "matthews", "pearson", "spearman"))
    small, points = (scores > 0) & (scores <= 1), scores[scores > 1]
    mixed = np.logical_and(small if small.sum() <= points.size else scores > 1, bounded and small.any() and points.size > 0)
    mixed = mixed if mixed.any() and points.min() >= 10 * scores[small].max() else np.zeros(len(rows), bool)
    outside = (scores > 100) | (scores < (-100 if signed else 0)) if bounded and column.metric in HIGHER else mixed
    for row in np.flatnonzero(outside | mixed).tolist():
        raise DataError(
            f"{rows.place(row)}: {column.name}: got {column.cells[row]!r}, and others from {np.nanmin(scores):g} to {high:g}; "
            "all as shares up to 1, or all as points up to 100"
        )
    factor = 100.0 if max(-low, high) <= (10 if columns.minimize else 1) else 1.0
    digits = max(
        (-int(Decimal(str(value)).as_tuple().exponent) for value in column.values if not isinstance(value, str | None)),
        default=0,
    )
    bounded = bounded and factor * high <= 100 and (low >= 0 or (factor == 100 and low >= -100))
    unit = "" if size is None else "parameters" if any(size.last in names for names in PARTS["size"]) else size.last
    sign = ("-" if factor == 1 else f"-{factor:g} × ") if columns.minimize else ""
    return -factor if columns.minimize else factor, {
        METRIC: sign + column.plain,
        RANGE: (0.0 if low >= 0 else -100.0, 100.0) if bounded else (-math.inf, math.inf),
        UNIT: unit.replace("_", " "),
        ROUNDING: factor * 10.0**-digits,
    }


def _labels(columns: RunColumns, chosen: Iterable[tuple[Any, ...]]) -> tuple[dict[Any, dict[str, Any]], dict[Any, str]]:
    """Returns the settings and the label of each configuration by the values of its settings. Numbers have three digits if
    these distinguish."""
    titles = [column.title for column in columns.parts["settings"]]
    titles = [column.title if titles.count(column.title) < 2 else column.name for column in columns.parts["settings"]]
    settings = {
        values: {title: value for title, value in zip(titles, values, strict=True) if value is not None} for values in chosen
    }

    def label(values: Mapping[str, Any], digits: int) -> str:
        shown = {name: float(f"{value:.{digits}g}") if isinstance(value, float) else value for name, value in values.items()}
        parts = (
            value if isinstance(value, str) else f"{name.replace('_', ' ')} {text(value)}" for name, value in shown.items()
        )
        return ", ".join(parts) or "none"

    labels = {key: label(values, 3) for key, values in settings.items()}
    if len({*labels.values()}) < len(labels):
        labels = {key: label(values, 10) for key, values in settings.items()}
    return settings, labels


def _entries(
    rows: Rows, columns: RunColumns, trainings: Mapping[Training, int], factor: float, facts: Mapping[str, Any], folder: Path
) -> list[Entry]:
    settings, labels = _labels(columns, dict.fromkeys(chosen for chosen, _, _ in trainings))
    if len(settings) > MOST:
        raise DataError(
            f"{rows.source}: {len(settings):,} configurations, and at most {MOST:,} are compared; --by names fewer settings"
        )
    if len(trainings) > MOST_TRAININGS:
        raise DataError(
            f"{rows.source}: {len(trainings):,} trainings, and at most {MOST_TRAININGS:,} are judged; leave seeds out"
        )
    ids = {key: hashlib.sha256(repr(values).encode()).hexdigest()[:10] for key, values in settings.items()}
    (score,), entries, lengths = columns.parts["score"], list[Entry](), dict[str, tuple[float, str]]()
    task, examples, answers, status = map(columns.part, ("task", "examples", "answers", "status"))
    sizes, times = (
        np.nan_to_num(column.numbers).tolist() if (column := columns.part(part)) else [0.0] * len(rows)
        for part in ("size", "seconds")
    )
    seeds, scores, repeats = columns.parts["seed"], (factor * score.numbers).tolist(), dict[tuple[Any, ...], int]()
    for (key, _, repeat), row in sorted(trainings.items(), key=lambda training: training[1]):
        number = repeats.setdefault(repeat, len(repeats))
        seed = int(seeds[0].cell(row)) if len(seeds) == 1 else number
        trial = Trial(f"row{row}", ids[key], labels[key], "", str(task.cell(row)) if task else UNNAMED, seed, "", settings[key])
        counts = {SIZE: sizes[row]} if columns.part("size") else {}
        if columns.finished[row]:
            scored = {EXAMPLES: float(examples.cell(row))} if examples and score.metric in SHARES else {}
            metrics = {"score": scores[row]}
            if answers and (file := answers.cell(row)):
                scored, error = _answers(rows.place(row), folder / str(file), factor, scores[row])
                metrics |= {} if score.metric in SHARES else {f"{facts[METRIC]}_error": error}
                length, first = lengths.setdefault(trial.task, (scored[EXAMPLES], str(file)))
                if length != scored[EXAMPLES]:
                    numbers = f"{first} has {length:g} answers, {file} {scored[EXAMPLES]:g}"
                    raise DataError(f"{rows.source}: {numbers}; each is of the same examples")
            result = TrialResult(trial.key, "finished", metrics, counts, seconds=times[row], facts={**facts, **scored})
        else:
            state = str(status.cell(row) if status else "")
            ended: Status = "stopped" if state_of(state) in STOPPED else "failed"
            result = TrialResult(trial.key, ended, {}, counts, error=state.lower())
        entries.append(Entry(trial, result, "ended", begun=True))
    # Probabilities come from draws, which follow the order of configurations, and that of the rows means nothing.
    return sorted(entries, key=lambda entry: (entry.result.counts.get(SIZE, 0.0) if entry.result else 0.0, entry.trial.label))


def _answers(place: str, file: Path, factor: float, score: float) -> tuple[dict[str, Any], float]:
    """Returns what a file with the score of each example says of the luck of `score` with them, and the mean's error."""
    rows = read_rows(file)
    name = next(iter(rows.columns)) if len(rows.columns) == 1 else "correct"
    if not all(is_number(str(cell)) for cell in rows.column(name)):
        raise DataError(f"{file}: {name}: numbers, 1 for a right answer and 0 for a wrong one, or a loss")
    values = np.array([float(cell) for cell in rows.column(name)])
    values *= factor if factor < 0 else 100.0 if np.abs(values).max() <= 1 else 1.0
    if abs(values.mean() - score) > MISFIT:
        raise DataError(
            f"{place}: the mean of {file} is {values.mean():.2f}, its score {score:.2f}: is it of another training?"
        )
    scored = {EXAMPLES: float(len(values)), **credits_of(lambda drawn: float(values[drawn].mean()), len(values))}
    return scored, float(values.std()) / math.sqrt(len(values))


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


def _lacks(columns: RunColumns) -> Iterator[str]:
    share = columns.parts["score"][0].metric in SHARES
    if columns.part("size") is None:
        yield "No size: with a column such as trainable_params, the smallest configuration that is enough could be named"
    if columns.part("examples") and not share:
        yield f"The number of scored examples is not used: it gives intervals to {', '.join(SHARES[:2])} and to no other score"
    elif not (columns.part("examples") or columns.part("answers")) and share:
        yield f"No number of scored examples: with a column {PARTS['examples'][0][0]}, intervals would be over examples, too"
