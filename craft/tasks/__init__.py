"""TASKS and SUITES: the tasks that a run can be scored on, one row each. No torch, no datasets until data are loaded.

A row names its columns, labels, metrics and the function that reads its data; `craft.tasks.splits` turns that into the three
splits of a protocol. `custom/NAME` tasks are rows made from the sweep file's `data.custom`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from craft.settings import CustomTask, DataSettings
from craft.tasks import commonsense, custom, glue, toy
from craft.tasks.task import Task
from craft.words import nearest

TASKS: dict[str, Task] = {row.name: row for row in (*glue.TASKS, *toy.TASKS, *commonsense.TASKS)}
SUITES: dict[str, tuple[str, ...]] = {
    suite: tuple(name for name, row in TASKS.items() if row.suite == suite)
    for suite in dict.fromkeys(row.suite for row in TASKS.values())
}


def find_task(name: str, data: DataSettings) -> Task:
    """Finds the row called `name`, `custom/NAME` included. Raises ValueError with the nearest name."""
    if (own := data.own(name)) is not None:
        return custom.row(name.removeprefix("custom/"), own)
    if name in TASKS:
        return TASKS[name]
    names = [*TASKS, *(f"custom/{task}" for task in data.custom)]
    raise ValueError(
        f"unknown task {name!r}.{nearest(name, names)} Tasks: {', '.join(names)}. Suites: {', '.join(suite_names(data.custom))}"
    )


def suite_names(custom_tasks: Mapping[str, CustomTask]) -> list[str]:
    return [*SUITES, *(["custom"] if custom_tasks else [])]


def expand_tasks(names: Iterable[str], data: DataSettings) -> list[str]:
    """Replaces suites by their tasks, each once, in order. Raises ValueError for an unknown name."""
    expanded: dict[str, None] = {}
    for name in names:
        if name == "custom" and data.custom:
            members: tuple[str, ...] = tuple(f"custom/{task}" for task in data.custom)
        else:
            is_own = data.own(name) is not None  # its file may be elsewhere
            members = (name,) if is_own else SUITES.get(name) or (find_task(name, data).name,)
        expanded.update(dict.fromkeys(members))
    return list(expanded)
