"""What `export` writes: `trials.csv`, a line for each trial that has ended with its parameters, scores and costs, and no path,
to publish or to keep in a repository.

Columns are named `parameter.NAME`, `metric.NAME`, `count.NAME` and `fact.NAME`. A cell holds text, or JSON; an empty one,
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from craft.results import METRIC, POSITIVE
from craft.scoring.predictions import CREDITS, SEARCH_CREDITS
from craft.tasks.files import DataError, Rows
from craft.words import printable
from orchestrator.plan.trial import Reason, Trial, TrialResult, Why
from orchestrator.results.report import Report
from orchestrator.results.summary import GUESSING, Entry
from orchestrator.tools.filling import write_table

TRIALS_FILE = "trials.csv"
OF_TRIAL = ("key", "configuration", "label", "method", "task", "protocol", "seed")
OF_RESULT = ("status", "error", "steps", "seconds")
FACTS = (
    *("data_fingerprint", "train_examples", "search_examples", "reported_examples", "best_step", "device", "versions"),
    *(METRIC, POSITIVE, GUESSING, CREDITS, SEARCH_CREDITS),
)
"""What a record says of a trial that means something elsewhere."""
REASONS: dict[str, Reason] = {"serves": "source", "tunes": "candidate", "added": "added", "transferred": "transferred"}
"""Why there is a trial, by the column that says it."""


def write_trials(entries: Iterable[Entry], file: Path) -> int:
    """Writes the trials among `entries` that have ended to `file`, whole or not at all, and returns how many they are."""
    trials = [cells_of(entry, entry.result) for entry in entries if entry.result]
    rows = [{name: _written(value) for name, value in cells.items()} for cells in trials]
    names = list(dict.fromkeys(name for row in rows for name in row))
    groups = ("parameter.", "metric.", "count.", "fact.")
    names.sort(key=lambda name: next((place for place, group in enumerate(groups, start=1) if name.startswith(group)), 0))
    write_table(file, rows, names)
    return len(rows)


def read_trials(rows: Rows) -> list[Entry]:
    entries = dict[str, Entry]()
    for place in range(len(rows)):
        row = {name: column[place] for name, column in rows.columns.items()}
        cells = {name: _read(cell) for name, cell in row.items() if cell not in (None, "") and cell == cell}  # NaN is none
        try:
            entry = _entry(cells)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{rows.place(place)}: it is no trial of a sweep ({error})") from error
        if entries.setdefault(entry.key, entry) != entry:
            raise DataError(f"{rows.place(place)}: the trial {entry.key} is there with another result")
    return [*entries.values()]


def _entry(cells: Mapping[str, Any]) -> Entry:
    def group(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in cells.items() if name.startswith(prefix)}

    numbers = {"metrics": group("metric."), "counts": group("count."), "facts": group("fact.")}
    fields = {"status": "finished"} | {name: cells[name] for name in ("key", *OF_RESULT) if name in cells} | numbers
    parameters = group("parameter.")
    why = next((Why(reason, cells[name]) for name, reason in REASONS.items() if name in cells), Why())
    why = Why("cut", parameters["cut_from"], why) if "cut_from" in parameters else why
    trial = Trial(**{name: cells[name] for name in OF_TRIAL}, parameters=parameters, why=why)
    return Entry(trial, TrialResult.from_json(fields), "ended", begun=True, wave=int(cells.get("wave", 0)))


def cells_of(entry: Entry, result: TrialResult) -> dict[str, Any]:
    """Returns the values of a trial that has ended by the names of their columns."""
    facts = {name: result.facts[name] for name in FACTS if name in result.facts}
    trial = entry.trial
    cells = {name: getattr(trial, name) for name in OF_TRIAL} | {"wave": entry.wave, "tunes": trial.group}
    cells |= {name: getattr(result, name) for name in OF_RESULT}
    cells |= {name: reason for name in ("transferred", "added", "serves") if (reason := getattr(trial, name))}
    groups = {"parameter": entry.trial.parameters, "metric": result.metrics, "count": result.counts, "fact": facts}
    cells |= {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    return cells


def _written(value: Any) -> str:
    if value is None:
        return ""
    plain = isinstance(value, str) and value != "" and _read(value) == value
    return value if plain else json.dumps(value)


def _read(cell: Any) -> Any:
    """Returns what a cell holds, text with escapes of what is not seen: a terminal shows labels of strangers."""
    try:
        value = json.loads(cell) if isinstance(cell, str) else cell
    except ValueError:
        value = cell
    return "\n".join(map(printable, value.split("\n"))) if isinstance(value, str) else value


class ExportReport(Report):
    """The table of a sweep's trials that have ended."""

    report: Literal["export"] = Field("export", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    path: str = Field(description="The CSV. `craft-sweeps judge` reads it.")
    trials: int = Field(description="The number of its lines, one for each trial that has ended.")
