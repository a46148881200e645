"""Reported rows that adapters get wrong: the classes that one confuses and its worst mistakes, as `mistakes.md` next to its
model card; and the rows that two configurations answer differently, on the screen and, if asked for, in a file."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from craft.scoring.predictions import WORST, Prediction, worst
from craft.words import plural
from orchestrator.results.summary import Entry
from orchestrator.review.past_sweep import PastSweep
from orchestrator.tools.filling import write_table
from orchestrator.tools.markup import plain

MISTAKES_FILE = "mistakes.md"
POINTER = f"\n`{MISTAKES_FILE}` shows where it is wrong, with texts of the data: leave it out where they are private.\n"
COLUMNS = ("row", "label", "answer", "probability", "text", "text_pair", "prompt")
_MOST_CLASSES = 20


def confusions(lines: Sequence[Prediction]) -> tuple[list[str], list[list[int]]]:
    """Counts rows by label and answer; returns the classes in order, and for each label its counts by answer."""
    names = sorted({str(line[side]) for line in lines for side in ("label", "answer")})
    counts = Counter((str(line["label"]), str(line["answer"])) for line in lines)
    return names, [[counts[label, answer] for answer in names] for label in names]


def worth(line: Prediction) -> float:
    """Returns 1 for a right answer and 0 for a wrong one; for a value, minus its error."""
    return float(line["right"]) if "right" in line else -abs(line["answer"] - line["label"])


def differing(first: Sequence[Sequence[Prediction]], second: Sequence[Sequence[Prediction]]) -> list[tuple[int, float]]:
    """Compares two sides row by row.

    Args:
        first: the lines of each trial of the first side; all trials have the same rows in the same order.

    Returns:
        The places of rows that differ, largest difference first: the first side's mean `worth` minus the second's.
    """
    if len({tuple((line["row"], line["label"]) for line in lines) for lines in (*first, *second)}) > 1:
        raise ValueError("the trials were scored on different rows")
    means = [[sum(map(worth, row)) / len(row) for row in zip(*side, strict=True)] for side in (first, second)]
    gaps = [(place, a - b) for place, (a, b) in enumerate(zip(*means, strict=True)) if a != b]
    return sorted(gaps, key=lambda gap: -abs(gap[1]))


def mistakes_page(title: str, answers: Mapping[str, Sequence[Prediction]]) -> str:
    """Writes the page of a trial's answers, by split. It is empty if no line has a label and an answer."""
    parts = []
    for split, lines in answers.items():
        if all("answer" in line and "label" in line for line in lines):
            classes = "right" in lines[0]
            parts += [f"## {plain(split)}", *(_confused(lines) if classes else [])]
            parts += ["Most confident mistakes:" if classes else "Largest errors:", _worst(lines)]
    return "\n\n".join([f"# Where {plain(title)} is wrong", *parts]) + "\n" if parts else ""


def _confused(lines: Sequence[Prediction]) -> list[str]:
    names, counts = confusions(lines)
    right = f"{sum(line['right'] for line in lines):,} of {len(lines):,} rows are right."
    if len(names) <= _MOST_CLASSES:
        return [
            right,
            _table(["label \\ answer", *map(plain, names)], ([name, *row] for name, row in zip(names, counts, strict=True))),
        ]
    pairs = ((counts[i][j], label, answer) for i, label in enumerate(names) for j, answer in enumerate(names) if i != j)
    return [right, _table(["rows", "label", "answer"], sorted((pair for pair in pairs if pair[0]), reverse=True)[:WORST])]


def _worst(lines: Sequence[Prediction]) -> str:
    mistakes = [lines[place] for place in worst(lines)]
    heads = [name for name in COLUMNS if any(name in line for line in mistakes)]
    return _table(heads, ([line.get(name, "") for name in heads] for line in mistakes)) if mistakes else "none"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


Side = tuple[str, PastSweep, Sequence[Entry]]
"""A configuration: its name, its sweep and its trials."""
SHOWN = 5


def show_differing(first: Side, second: Side, file: Path | None, console: Console) -> None:
    """Prints for each task which rows each side answers better over the seeds that both have; writes them all to `file`."""
    names = [first[0], second[0] if second[0] != first[0] else f"{second[0]}, the second"]
    rows = list(_rows(first, second))
    for (place, total), group in itertools.groupby(rows, key=lambda row: row[:2]):
        gaps = [(gap, lines[0]["row"]) for _, _, gap, *lines in group]
        better = [[row for gap, row in gaps if gap > 0], [row for gap, row in gaps if gap < 0]]
        sides = [f"{name} is better on {_listed(side)}" for name, side in zip(names, better, strict=True) if side]
        console.print(f"{place}: {len(gaps)} of {total:,} rows differ; {'; '.join(sides)}.", markup=False, soft_wrap=True)
    if file is not None:
        columns = ["task", "row", "label", *names, "difference", "text", "text_pair"]
        table = []
        for place, _, gap, *lines in rows:
            line = lines[0] | lines[1] | {"task": place, "difference": gap}
            line |= {name: each["answer"] for name, each in zip(names, lines, strict=True)}
            table.append({name: line.get(name) for name in columns})
        write_table(file, table, columns)
        console.print(f"{len(rows)} rows written to {file}", markup=False, soft_wrap=True)


def _rows(*sides: Side) -> Iterator[tuple[Any, ...]]:
    """Yields task and split, the number of rows there, `differing`'s gap, and a line of each side."""
    keys = [{(entry.trial.task, entry.trial.seed): entry.key for entry in entries if entry.finished} for _, _, entries in sides]
    shared = sorted(keys[0].keys() & keys[1].keys())
    for task, group in itertools.groupby(shared, key=lambda key: key[0]):
        seeds = list(group)
        with TemporaryDirectory() as scratch:
            answers = [
                [record.predictions(trial_keys[key], Path(scratch) / str(at) / trial_keys[key]) for key in seeds]
                for at, ((_, record, _), trial_keys) in enumerate(zip(sides, keys, strict=True))
            ]
        splits = [set(answer) for side in answers for answer in side]
        for split in sorted(set.intersection(*splits)):
            first, second = ([answer[split] for answer in side] for side in answers)
            if all("answer" in line for line in first[0]):
                place = task if split == "reported" else f"{task} ({split})"
                for row, gap in differing(first, second):
                    yield place, len(first[0]), gap, _with_texts(first, row), _with_texts(second, row)


def _with_texts(trials: Sequence[Sequence[Prediction]], row: int) -> Prediction:
    return {**{name: lines[row][name] for lines in trials for name in lines[row] if name.startswith("text")}, **trials[0][row]}


def _listed(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
    return f"{plural(len(rows), 'row')} {', '.join(map(str, rows[:SHOWN]))}{more}"
