"""The finished trials of a sweep as one CSV file: a line for each, with its parameters, scores and costs, and no path.

It is what is left of a sweep to publish or to keep in a repository; `read_trials` gives the same trials back. Columns are named
`parameter.NAME`, `metric.NAME`, `count.NAME` and `fact.NAME`. A cell holds text, or JSON; an empty one, nothing.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.plan.trial import TrialResult
from orchestrator.results.summary import Entry

OF_TRIAL = ("key", "configuration", "label", "method", "task", "protocol", "seed", "tunes")
OF_RESULT = ("steps", "seconds")
FACTS = ("data_fingerprint", "train_examples", "search_examples", "reported_examples", "best_step", "device", "versions")
"""What a record says of a trial's surroundings that means something elsewhere."""


def write_trials(entries: Iterable[Entry], file: Path) -> int:
    """Writes the finished ones of `entries`, and returns how many they are."""
    rows = [_row(one, one.result) for one in entries if one.result is not None and one.result.status == "finished"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    groups = ("parameter.", "metric.", "count.", "fact.")
    names.sort(key=lambda name: next((place for place, group in enumerate(groups, start=1) if name.startswith(group)), 0))
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def read_trials(file: Path) -> list[Entry]:
    """The trials of such a file."""
    with file.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        if missing := {*OF_TRIAL, *OF_RESULT} - {*(reader.fieldnames or ())}:
            raise ValueError(f"{file} is no table of trials: it has no column {', '.join(sorted(missing))}")
        entries = []
        for row in reader:
            if None in row:
                raise ValueError(f"{file}:{reader.line_num}: more cells than columns")
            try:
                entries.append(_entry(row))
            except KeyError as error:
                raise ValueError(f"{file}:{reader.line_num}: a trial without {error}") from None
    return entries


def _row(entry: Entry, result: TrialResult) -> dict[str, str]:
    facts = {name: result.facts[name] for name in FACTS if name in result.facts}
    cells = {name: getattr(entry, name) for name in OF_TRIAL} | {name: getattr(result, name) for name in OF_RESULT}
    cells |= {"carried": entry.carried} if entry.carried else {}
    groups = {"parameter": entry.parameters, "metric": result.metrics, "count": result.counts, "fact": facts}
    cells |= {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    return {name: _written(value) for name, value in cells.items()}


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


def _entry(row: dict[str, str]) -> Entry:
    cells = {name: _read(cell) for name, cell in row.items() if cell}

    def group(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in cells.items() if name.startswith(prefix)}

    result = TrialResult(
        cells["key"],
        "finished",
        group("metric."),
        group("count."),
        facts=group("fact."),
        **{name: cells[name] for name in OF_RESULT},
    )
    of_trial = {name: cells[name] for name in OF_TRIAL if name in cells or name != "tunes"}
    return Entry(**of_trial, parameters=group("parameter."), result=result, carried=cells.get("carried"))
