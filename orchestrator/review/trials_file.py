"""`trials.csv`: a line for each finished trial with its parameters, scores and costs, and no path, to publish or to keep in a
repository.

Columns are named `parameter.NAME`, `metric.NAME`, `count.NAME` and `fact.NAME`. A cell holds text, or JSON; an empty one,
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.results.summary import Entry
from orchestrator.state.entry import TrialResult
from orchestrator.tools.cells import write_table

TRIALS_FILE = "trials.csv"
OF_TRIAL = ("key", "configuration", "label", "method", "task", "protocol", "seed", "tunes")
OF_RESULT = ("steps", "seconds")
FACTS = ("data_fingerprint", "train_examples", "search_examples", "reported_examples", "best_step", "device", "versions")
"""What a record says of a trial's surroundings that means something elsewhere."""


def write_trials(entries: Iterable[Entry], file: Path) -> int:
    """Writes the finished trials among `entries` to `file`, whole or not at all, and returns how many they are."""
    trials = [cells_of(entry, result) for entry in entries if (result := entry.finished)]
    rows = [{name: _written(value) for name, value in cells.items()} for cells in trials]
    names = list(dict.fromkeys(name for row in rows for name in row))
    groups = ("parameter.", "metric.", "count.", "fact.")
    names.sort(key=lambda name: next((place for place, group in enumerate(groups, start=1) if name.startswith(group)), 0))
    write_table(file, rows, names)
    return len(rows)


def cells_of(entry: Entry, result: TrialResult) -> dict[str, Any]:
    """Returns the values of a finished trial by the names of their columns."""
    facts = {name: result.facts[name] for name in FACTS if name in result.facts}
    cells = {name: getattr(entry, name) for name in OF_TRIAL} | {name: getattr(result, name) for name in OF_RESULT}
    cells |= {"carried": entry.carried} if entry.carried else {}
    groups = {"parameter": entry.parameters, "metric": result.metrics, "count": result.counts, "fact": facts}
    cells |= {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    return cells


def _written(value: Any) -> str:
    if value is None:
        return ""
    plain = isinstance(value, str) and value != "" and _read(value) == value
    return value if plain else json.dumps(value)


def _read(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell
