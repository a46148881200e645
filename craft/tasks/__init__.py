"""TASKS and SUITES: what a run can be scored on, one row each. No torch, no datasets until data are loaded.

A row names its columns, labels, metrics and the function that reads its data; `craft.tasks.splits` turns that into the three
splits of a protocol. `custom/NAME` tasks are rows made from the sweep file's `data.custom`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from craft.settings import CustomTask, DataSettings

if TYPE_CHECKING:
    from datasets import Dataset

Kind = Literal["classification", "regression", "generation"]


@dataclass(frozen=True)
class RawData:
    """A task's data as published: every `Dataset` has the columns `text`, `text_pair` (for pairs) and `label`.

    Tasks that are answered in words have the columns of `craft.tasks.commonsense.COLUMNS` instead.

    `reported` maps a split's suffix to its rows; the usual single split has the suffix `""` (MNLI: `_matched`,
    `_mismatched`). `fingerprint` is a SHA-256 over the rows, so that equal data are seen to be equal anywhere. `files` are the
    local files they were read from, if any: data kept in memory are good while those do not change.
    """

    train: Dataset
    reported: Mapping[str, Dataset]
    fingerprint: str
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Task:
    """One row of TASKS. `metrics` are names in `craft.tasks.metrics.METRICS`; `primary` x 100 is the score.

    `text` and `label` are the columns of the published data. `labels` are the class names in order, none for other kinds;
    `span` is what the values of a regression lie in, where that is known.
    """

    name: str
    title: str
    kind: Kind
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    primary: str
    load: Callable[[Task, DataSettings], RawData]
    span: tuple[float, float] | None = None

    @property
    def suite(self) -> str:
        return self.name.split("/", 1)[0]


from craft.tasks import commonsense, custom, glue, toy  # noqa: E402  (rows need Task, defined above)

TASKS: dict[str, Task] = {row.name: row for row in (*glue.TASKS, *toy.TASKS, *commonsense.TASKS)}
SUITES: dict[str, tuple[str, ...]] = {
    suite: tuple(name for name, row in TASKS.items() if row.suite == suite)
    for suite in dict.fromkeys(row.suite for row in TASKS.values())
}


def find_task(name: str, data: DataSettings) -> Task:
    """The row called `name`, `custom/NAME` included; a ValueError with the nearest names otherwise."""
    if name.startswith("custom/") and name.removeprefix("custom/") in data.custom:
        return custom.row(name.removeprefix("custom/"), data.custom[name.removeprefix("custom/")])
    if name in TASKS:
        return TASKS[name]
    known = [*TASKS, *(f"custom/{given}" for given in data.custom)]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown task {name!r}.{hint} Tasks: {', '.join(known)}. Suites: {', '.join(suite_names(data.custom))}")


def suite_names(custom_tasks: Mapping[str, CustomTask]) -> list[str]:
    return [*SUITES, *(["custom"] if custom_tasks else [])]


def expand_tasks(names: Iterable[str], data: DataSettings) -> list[str]:
    """Task names with suites replaced by their tasks, each once, in order. Raises ValueError for an unknown name."""
    expanded: dict[str, None] = {}
    for name in names:
        if name == "custom" and data.custom:
            members: tuple[str, ...] = tuple(f"custom/{given}" for given in data.custom)
        else:
            members = SUITES.get(name) or (find_task(name, data).name,)
        expanded.update(dict.fromkeys(members))
    return list(expanded)
