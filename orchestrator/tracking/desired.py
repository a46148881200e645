"""What the runs of a sweep in MLflow should be, as values: the store is made equal to them (`orchestrator.review.mirror`).

    log.jsonl --> LogFollower (State) --> DesiredRuns --> DesiredRun

The first constants are the names of tags that a sweep's runs have in MLflow: `orchestrator.review.desired_runs` writes them,
all others read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.record.events import Event, Opened, Reported, SessionEnded, Started
from orchestrator.record.log import read_events
from orchestrator.record.state import State, new_rows

PREFIX = "craft."

KIND = "craft.kind"
SWEEP_KIND, CONFIGURATION_KIND, TRIAL_KIND = "sweep", "configuration", "trial"
KEY, SWEEP, SWEEP_ID = "craft.key", "craft.sweep", "craft.sweep_id"
"""A run is found by its kind, its key and the id of its sweep."""

CONFIGURATION, LABEL, METHOD, PROTOCOL = "craft.configuration", "craft.label", "craft.method", "craft.protocol"
TASK, SEED, TUNES, TRANSFERRED = "craft.task", "craft.seed", "craft.tunes", "craft.transferred"
ADDED = "craft.added"
"""Why a trial or a configuration was added while the sweep ran, in words."""

STATUS, COMPLETE, ERROR = "craft.status", "craft.complete", "craft.error"
ON_FRONT, MAY_BE_ON_FRONT, ENOUGH, KNEE = "craft.on_front", "craft.may_be_on_front", "craft.enough", "craft.knee"
UNDERWAY = "craft.underway"
"""JSON: `left` (seconds), `doing`, and `time` (milliseconds since 1970) of the driver's last report."""
ASKED = "craft.asked"
"""`false` of a trial or configuration that the sweep file does not ask for any more."""
ANSWER = "craft.answer"
FACT = "craft.fact."
"""Begins the tag of each fact of a trial's result."""
NOW = "craft.now."
"""Begins the tag of a parameter that has changed: MLflow keeps a parameter's first value."""

NOTE, RUN_NAME, PARENT = "mlflow.note.content", "mlflow.runName", "mlflow.parentRunId"

Place = tuple[str, str]
"""A run's kind and key."""
KINDS = (SWEEP_KIND, CONFIGURATION_KIND, TRIAL_KIND)
"""From parents to children."""


@dataclass(frozen=True)
class DesiredRun:
    """A run as it should be.

    Attributes:
        ended: when its last change happened, in seconds since 1970: the end of a run that has ended.
        tags: an empty text stands for no tag.
        metrics: the last values, apart from those that a trial reports while it runs; they belong to `step`.
        texts, files: artifacts by name; a file may be a folder.
        data: the name and the fingerprint of the dataset that it was trained on.
        charts: names of the figures that belong under its description.
    """

    place: Place
    name: str
    status: str
    ended: float
    tags: Mapping[str, str]
    parent: Place | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    texts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    data: tuple[str, str] | None = None
    charts: tuple[str, ...] = ()


class LogFollower:
    """The log at `path`, read up to byte `offset`.

    Attributes:
        end: the state in which the last session that has ended was left.
        began: when the sweep, each configuration and each trial first started, by name, id and key, in seconds since 1970.
        rows: rows of metrics that a trial reported, each with its time, in order; the sender removes them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        self.state = State()
        self.end: State | None = None
        self.began: dict[str, float] = {}
        self.rows: dict[str, list[tuple[float, dict[str, Any]]]] = {}
        self._last = 0.0

    def read(self) -> None:
        for event, offset in read_events(self._path, self.offset):
            self._fold(event)
            self.offset = offset

    def close(self) -> None:
        """Takes a session that the log leaves open for interrupted: its driver is gone."""
        if self.state.started is not None and self.state.ended is None:
            self._fold(SessionEnded(status="interrupted", time=self._last))

    def _fold(self, event: Event) -> None:
        if isinstance(event, Reported) and (entry := self.state.entries.get(event.key)):
            rows = new_rows(entry, event.rows)
            if rows and rows[-1]["step"] == event.rows[-1]["step"]:
                rows[-1]["epoch"] = event.epoch
            self.rows.setdefault(event.key, []).extend((row.get("time", event.time), row) for row in rows)
        elif isinstance(event, Started):
            for entry in map(self.state.entries.get, event.keys):
                for name in (entry.trial.configuration, entry.key) if entry else ():
                    self.began.setdefault(name, event.time)
        elif isinstance(event, Opened):
            self.began[event.sweep] = event.time
        self.state, self._last = self.state.after(event), event.time
        if isinstance(event, SessionEnded):
            self.end = self.state
