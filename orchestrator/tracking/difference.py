"""The difference between a run as it should be and as the store has it, as the items that MLflow takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from orchestrator.plan.configuration import text
from orchestrator.record.state import NO_METRICS
from orchestrator.tracking import tags as names
from orchestrator.tracking.desired import DesiredRun
from orchestrator.tracking.store import NAME_LIMIT, PARAM_LIMIT, TAG_LIMIT, Item, Rows, StoredRun, cut, stored_name

if TYPE_CHECKING:
    from mlflow.entities import RunTag


def differences(desired: DesiredRun, rows: Rows, run: StoredRun, parent: str | None) -> list[Item]:
    """Returns what the store lacks of a run.

    Args:
        rows: what a trial reported, each row with its time. Points that the store has are left out: those up to the last step
            of a metric, or those at its steps if they have been read.
        parent: the id of the parent's run.
    """
    items = [*_points(rows, run), *_values(desired, run), *_params(desired, run), *_tags(desired, run, parent)]
    first: dict[str, Item] = {}
    for item in items:
        if is_tag(item):
            first.setdefault(item.key, item)
    return [item for item in items if not is_tag(item) or first[item.key] is item]


def is_tag(item: Item) -> bool:
    return type(item).__name__ == "RunTag"


def _tags(desired: DesiredRun, run: StoredRun, parent: str | None) -> Iterator[RunTag]:
    from mlflow.entities import RunTag

    tags = {stored_name(name): cut(value, TAG_LIMIT) for name, value in desired.tags.items()}
    tags[names.RUN_NAME] = cut(desired.name, NAME_LIMIT)
    if desired.charts:
        tags[names.NOTE] = with_charts(tags.get(names.NOTE, ""), run.id, desired.charts)
    for name, value in (tags | ({names.PARENT: parent} if parent else {})).items():
        if run.tags.get(name, "") != value:
            yield RunTag(name, value)


def _params(desired: DesiredRun, run: StoredRun) -> Iterator[Item]:
    from mlflow.entities import Param, RunTag

    params = {stored_name(name): cut(text(value), PARAM_LIMIT) for name, value in desired.params.items() if value is not None}
    if desired.place[0] == names.CONFIGURATION_KIND and params:
        params |= dict.fromkeys(run.params.keys() - params.keys(), "differs between trials")
    for name, value in params.items():
        tag = f"{names.NOW}{name}"
        if name not in run.params:
            yield Param(name, value)
        elif run.tags.get(tag, run.params[name]) != value:
            # A run's parameter cannot change in MLflow: the newest value of an extended sweep becomes a tag.
            yield RunTag(tag, value)


def _points(rows: Rows, run: StoredRun) -> Iterator[Item]:
    for time, row in rows:
        step = int(row["step"])
        for name, value in row.items():
            if name in NO_METRICS and name != "epoch":
                continue
            stored = stored_name(name)
            if step not in run.steps[stored] if stored in run.steps else step > run.metrics.get(stored, (-1,))[0]:
                yield from _point(name, value, int(1000 * time), step, run)


def _values(desired: DesiredRun, run: StoredRun) -> Iterator[Item]:
    for name, value in desired.metrics.items():
        value = round_value(value)
        step, time, stored_value = run.metrics.get(stored_name(name), (-1, -1, math.nan))
        if value != stored_value:
            # MLflow shows the value of the last step, and of one step the latest.
            last = max(int(1000 * desired.ended), time + 1)
            yield from _point(name, value, last, max(desired.step, step), run)


def _point(name: str, value: float, time: int, step: int, run: StoredRun) -> Iterator[Item]:
    """Yields a metric's point; a tag for the first that MLflow cannot hold."""
    from mlflow.entities import Metric, RunTag

    name = stored_name(name)
    if math.isfinite(value):
        yield Metric(name, round_value(value), time, step)
    elif (tag := f"{names.NONFINITE}{name}") not in run.tags:
        yield RunTag(tag, f"{float(value)} at step {step}")


def round_value(value: float) -> float:
    """Returns a value with four digits behind the point, or four in all where that is more: MLflow's page shows all it has."""
    digits = 3 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return round(float(value), max(4, digits))


def with_charts(note: str, run_id: str, charts: Iterable[str]) -> str:
    """Returns a description with pictures under it, by the addresses under which MLflow serves artifacts.

    MLflow's page shows no picture whose data are in its address.
    """
    links = [f"![{name}](get-artifact?path={quote(name)}&run_uuid={run_id})" for name in charts]
    return "\n\n".join([cut(note, TAG_LIMIT - sum(len(link) + 2 for link in links)), *links])
