"""`SweepStore`: the runs of one sweep in the tracking store, as it has them, the requests that change them, and what they lack.

Sending something twice is harmless: a metric point carries its event's time, and the same (key, time, step, value) is one row
in the store; a parameter keeps its value, and tags are replaced.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from orchestrator.plan.configuration import text
from orchestrator.record.state import NO_METRICS
from orchestrator.tracking import desired as names
from orchestrator.tracking.client import MISSING, find_runs, inode_of, is_missing, is_refusal, open_experiment
from orchestrator.tracking.desired import DesiredRun
from orchestrator.tracking.private import VIEW

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, Run, RunTag

METRICS_A_BATCH, OTHERS_A_BATCH = 800, 100
"""Together at most 1000, MLflow's limit for one request; 100 is its limit for parameters, and for tags."""
PARAM_LIMIT, TAG_LIMIT, NAME_LIMIT, NOTE_LIMIT = 6000, 8000, 250, 20_000
ASKS = 3
Item: TypeAlias = "Metric | Param | RunTag"
Rows: TypeAlias = Sequence[tuple[float, Mapping[str, Any]]]
"""What a trial reported, each row with its time."""


class RunGone(Exception):
    """The store has lost a run, or somebody deleted it."""

    error_code = MISSING


@dataclass
class StoredRun:
    """A run as the store has it: the last (step, time, value) of each metric, times in milliseconds since 1970.

    `steps` are those of a metric's points, for metrics of which they have been read.
    """

    id: str
    status: str = "RUNNING"
    ended: int | None = None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    data: set[str] = field(default_factory=set)
    steps: dict[str, set[int]] = field(default_factory=dict)

    @staticmethod
    def of(run: Run) -> StoredRun:
        inputs = run.inputs.dataset_inputs if run.inputs else []
        return StoredRun(
            run.info.run_id,
            run.info.status,
            run.info.end_time,
            dict(run.data.params),
            dict(run.data.tags),
            {point.key: (point.step, point.timestamp, point.value) for point in run.data.to_proto().metrics},
            {dataset.dataset.digest for dataset in inputs},
        )

    def note_stored(self, items: Sequence[Item]) -> None:
        from mlflow.entities import Metric, Param

        for item in items:
            if isinstance(item, Metric):
                self.metrics[item.key] = (item.step, item.timestamp, float(item.value))
                if item.key in self.steps:
                    self.steps[item.key].add(item.step)
            else:
                (self.params if isinstance(item, Param) else self.tags)[item.key] = item.value


class SweepStore:
    """The runs of a sweep, by kind and key.

    Args:
        uri: resolved tracking URI; the store and the sweep's experiment are made if absent (`open_experiment`).

    Attributes:
        done: how many requests to change something it has done.
    """

    def __init__(self, uri: str, sweep: str, sweep_id: str, experiment: str | None = None) -> None:
        self.client, self.experiment = open_experiment(uri, sweep, experiment, sweep_id)
        self._sweep, self._sweep_id, self._uri, self._inode = sweep, sweep_id, uri, inode_of(uri)
        self.runs: dict[tuple[str, str], StoredRun] = {}
        self.done = 0
        self._search("")

    def answers(self) -> bool:
        """Returns whether the store answers one of a few requests. If one of three is lost on the way, it is not away."""
        for _ in range(ASKS):
            with suppress(Exception):  # whatever the reason is, the store does not answer now
                self.client.search_experiments(max_results=1)
                return True
        return False

    def read_points(self, run: StoredRun, rows: Rows) -> None:
        """Notes which points the store has of each metric that has several in `rows`."""
        counts = Counter(stored_name(name) for _, row in rows for name in row)
        for name in run.metrics.keys() & {name for name, count in counts.items() if count > 1}:
            run.steps[name] = {point.step for point in self.client.get_metric_history(run.id, name)}

    @property
    def replaced(self) -> bool:
        """Whether another SQLite file has taken the store's place."""
        return inode_of(self._uri) != self._inode

    def look_again(self, place: tuple[str, str]) -> None:
        """Asks the store for a run that a request may have made or changed, though its answer was lost."""
        self.runs.pop(place, None)
        self._search(f" and tags.`{names.KEY}` = '{place[1].replace(chr(39), '')}'")

    def check_there(self, run: StoredRun) -> None:
        """Raises RunGone if the store has the run no more."""
        try:
            stage = self.client.get_run(run.id).info.lifecycle_stage
        except Exception as error:  # MLflow, its drivers and the network have errors of their own
            if not is_missing(error):
                raise
            stage = "lost"
        if stage != "active":
            raise RunGone(f"run {run.id} is {stage}")

    def create(self, place: tuple[str, str], name: str, began: float, origin: Mapping[str, str]) -> StoredRun:
        """Makes a run, with the tags by which it is found, and those of user and source (`origin`)."""
        kind, key = place
        tags = {names.KIND: kind, names.KEY: key, names.SWEEP: self._sweep, names.SWEEP_ID: self._sweep_id}
        run = self.client.create_run(self.experiment, int(1000 * began), {**origin, **tags}, run_name=cut(name, NAME_LIMIT))
        self.runs[place] = StoredRun(run.info.run_id, tags=dict(run.data.tags))
        self.done += 1
        return self.runs[place]

    def send(self, run: StoredRun, items: Sequence[Item]) -> list[tuple[Item, Exception]]:
        """Sends metrics, parameters and tags; returns those that the store has not taken, each with its error.

        Raises:
            Exception: the store is away, or has lost the run.
        """
        failed: list[tuple[Item, Exception]] = []
        for batch in batches(items):
            kinds: dict[str, list[Any]] = {"Metric": [], "Param": [], "RunTag": []}
            for item in batch:
                kinds[type(item).__name__].append(item)
            try:
                self.client.log_batch(run.id, kinds["Metric"], kinds["Param"], kinds["RunTag"])
            except Exception as error:
                if is_missing(error) or not (is_refusal(error) or self.answers()):
                    raise
                if is_refusal(error):
                    self.check_there(run)
                if len(batch) == 1:
                    failed.append((batch[0], error))
                else:
                    for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                        failed += self.send(run, half)
            else:
                run.note_stored(batch)
                self.done += 1
        return failed

    def set_status(self, run: StoredRun, status: str, ended: int) -> None:
        if status == "RUNNING":
            self.client.update_run(run.id, status=status)
        else:
            self.client.set_terminated(run.id, status, ended)
            run.ended = ended
        run.status = status
        self.done += 1

    def add_data(self, run: StoredRun, task: str, digest: str) -> None:
        """Adds the task's data as an MLflow dataset, named after the task and distinguished by its fingerprint."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if (digest := digest[:36]) not in run.data:
            dataset = Dataset(cut(task, NAME_LIMIT), digest, source_type="code", source=f'{{"task": "{stored_name(task)}"}}')
            self.client.log_inputs(run.id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
            run.data.add(digest)
            self.done += 1

    def show(self, views: Mapping[str, str], answer: str, links: str) -> None:
        """Gives the experiment saved views, by their keys, and its description a paragraph of `answer` and `links`, which takes
        the place of an earlier one with these links. Where that is too long, the oldest other paragraphs with links go."""
        present = self.client.get_experiment(self.experiment).tags
        for key, view in views.items():
            if f"{VIEW}{key}" not in present:
                self.client.set_experiment_tag(self.experiment, f"{VIEW}{key}", view)
        stored_note, paragraph = present.get(names.NOTE, ""), f"{answer} {links}".strip()
        paragraphs = [paragraph if links in other else other for other in stored_note.split("\n\n") if other]
        paragraphs = paragraphs if paragraph in paragraphs else [*paragraphs, paragraph]
        old = [other for other in paragraphs if "?viewStateShareKey=" in other and other != paragraph]
        while len(note := "\n\n".join(paragraphs)) > NOTE_LIMIT and old:
            paragraphs.remove(old.pop(0))
        if note != stored_note:
            self.client.set_experiment_tag(self.experiment, names.NOTE, note)

    def _search(self, condition: str) -> None:
        """Reads the sweep's runs. A lost request that is done late makes a second run of a key: the older run stays, the
        other one is deleted."""
        for run in find_runs(self.client, f"tags.`{names.SWEEP_ID}` = '{self._sweep_id}'{condition}", self.experiment):
            place = run.data.tags.get(names.KIND, ""), run.data.tags.get(names.KEY, "")
            earlier_run = self.runs.get(place)
            if earlier_run is None:
                self.runs[place] = StoredRun.of(run)
            elif earlier_run.id != run.info.run_id:
                self.client.delete_run(run.info.run_id)


def batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Splits metrics, and parameters and tags, into requests within MLflow's limits."""
    metrics = [item for item in items if type(item).__name__ == "Metric"]
    texts = [item for item in items if type(item).__name__ != "Metric"]
    for number in range(max(-(-len(metrics) // METRICS_A_BATCH), -(-len(texts) // OTHERS_A_BATCH))):
        first, last = number * METRICS_A_BATCH, number * OTHERS_A_BATCH
        yield [*metrics[first : first + METRICS_A_BATCH], *texts[last : last + OTHERS_A_BATCH]]


@lru_cache(maxsize=1 << 14)
def stored_name(name: str) -> str:
    """Returns `name` as MLflow takes it: other characters become `_`, and no part of the path is empty, `.` or `..`."""
    parts = [part for part in re.sub(r"[^\w.\- :/]", "_", name).split("/") if part.strip(". ")]
    return "/".join(parts)[:NAME_LIMIT] or "_"


def cut(value: str, limit: int) -> str:
    """Returns at most `limit` characters of a text, with a note where some are left out."""
    value = value.replace("\x00", "�")
    if len(value) <= limit:
        return value
    note = f" … (cut, {len(value)} characters)"
    return value[: limit - len(note)] + note


def differences(desired: DesiredRun, rows: Rows, run: StoredRun, parent: str | None) -> list[Item]:
    """Returns what the store lacks of a run.

    Args:
        rows: what a trial reported, each row with its time. Points that are stored are left out: those up to the last step
            of a metric, or those at its steps if they have been read.
    """
    return [*_points(rows, run), *_values(desired, run), *_params(desired, run), *_tags(desired, run, parent)]


def _tags(desired: DesiredRun, run: StoredRun, parent: str | None) -> Iterator[RunTag]:
    from mlflow.entities import RunTag

    tags = {stored_name(name): cut(value, TAG_LIMIT) for name, value in desired.tags.items()}
    tags[names.RUN_NAME] = cut(desired.name, NAME_LIMIT)
    if desired.charts:
        # MLflow's page shows no picture whose data are in its address, so these are the addresses of artifacts.
        links = [f"![{name}](get-artifact?path={quote(name)}&run_uuid={run.id})" for name in desired.charts]
        note = cut(tags.get(names.NOTE, ""), TAG_LIMIT - sum(len(link) + 2 for link in links))
        tags[names.NOTE] = "\n\n".join([note, *links])
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
    for measured, row in rows:
        step = int(row["step"])
        for name, value in row.items():
            if name in NO_METRICS and name != "epoch":
                continue
            stored = stored_name(name)
            if step not in run.steps[stored] if stored in run.steps else step > run.metrics.get(stored, (-1,))[0]:
                yield from _point(stored, value, int(1000 * measured), step)


def _values(desired: DesiredRun, run: StoredRun) -> Iterator[Item]:
    for name, value in desired.metrics.items():
        stored, value = stored_name(name), round_value(value)
        step, time, stored_value = run.metrics.get(stored, (-1, -1, math.nan))
        if value != stored_value:
            # MLflow shows the value of the last step, and of one step the latest.
            last = max(int(1000 * desired.ended), time + 1)
            yield from _point(stored, value, last, max(desired.step, step))


def _point(name: str, value: float, time: int, step: int) -> Iterator[Item]:
    """Yields a metric's point; MLflow cannot hold one that is infinite or no number."""
    from mlflow.entities import Metric

    if math.isfinite(value):
        yield Metric(name, round_value(value), time, step)


def round_value(value: float) -> float:
    """Returns a value with four digits behind the point, or four in all where that is more: MLflow's page shows all it has."""
    digits = 3 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return round(float(value), max(4, digits))
