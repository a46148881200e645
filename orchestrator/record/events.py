"""The typed events of a sweep. Each is a line of its log.

=================  ================================================================================
`Opened`           the log begins, or a copy of it
`SessionStarted`   a driver starts: nothing runs, and what failed by a machine's fault waits again
`Wanted`           the strategy asks for trials, now or again in this session
`Proposed`         a searcher drew a point
`Decided`          more trials are added: the answer's next step (`search.until`)
`Refused`          a configuration breaks a constraint and is not trained
`Started`          trials run: those of one job
`Reported`         a running trial was evaluated
`Paused`           trials wait for their turn
`Interrupted`      trials do not run any more and have no result
`Ended`            a trial has a result
`Underway`         how far the running trials are, every 15 s
`Applied`          another sweep file counts from here on: a person applied it while the driver ran
`Requested`            a person pauses or continues the sweep, stops trials, or lets them run again
`Filed`            a file belongs to the sweep's own run
`SessionEnded`     a driver ends
=================  ================================================================================

An event that others follow from is `durable`: it is on the disk before the driver acts on it.
"""

from __future__ import annotations

import re
import time as clock
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from craft import __version__
from craft.plugins import note_rows, refuse
from craft.tasks.metrics import METRICS
from craft.tasks.task import Metric
from orchestrator.plan.trial import Number, Trial, TrialResult
from orchestrator.sweepfile.load import read_effective
from orchestrator.sweepfile.settings import SEARCHERS, SearcherRow
from orchestrator.sweepfile.sweep import Sweep

FORMAT = 4
"""The number of the log's format (`orchestrator.record.log`)."""
PLAIN = ConfigDict(strict=True, extra="forbid")
"""How a dataclass, and those in it, are read from JSON: no value is converted, no field may be unknown."""
Verb = Literal["pause", "continue", "retry", "stop"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, at `time` in seconds since 1970."""

    __pydantic_config__: ClassVar = PLAIN
    durable: ClassVar[bool] = False
    time: float = field(default_factory=clock.time)

    def to_json(self) -> dict[str, Any]:
        """Returns the event as plain data, its name under `event`."""
        name = type(self).__name__
        return {"event": name, **_reader(name).dump_python(self)}

    @staticmethod
    def from_json(line: bytes | str) -> Event:
        """Raises ValueError for what is no event: an unknown name, an unknown or missing field, a value of another type."""
        text = line.encode() if isinstance(line, str) else line
        name = re.match(rb'\{"event": ?"(\w+)",? ?', text)
        kind = EVENTS.get(name[1].decode()) if name else None
        if name is None or kind is None:
            raise ValueError(f"it is no event of a sweep ({text[:40].decode(errors='replace')} ...)")
        try:
            return _reader(kind.__name__).validate_json(b"{" + text[name.end() :])
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, wrong["loc"]))
            raise ValueError(f"it is no {kind.__name__} of a sweep ({place}: {wrong['msg']})") from error


@dataclass(frozen=True, kw_only=True)
class Opened(Event):
    durable = True
    sweep: str
    sweep_id: str
    format: int = FORMAT
    version: str = __version__


@dataclass(frozen=True, kw_only=True)
class SessionStarted(Event):
    """`sweep` is the effective sweep file as plain data; `configurations` and `trainings` are the most that its plan has.
    `again` is the command that continues the sweep, `origin` its user and source, `manifest` its versions and hardware.
    `folder` is where the sweep's folder is, so that a copy is known."""

    sweep: dict[str, Any]
    configurations: int
    trainings: int
    again: str = ""
    origin: dict[str, str] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    folder: str = ""

    @cached_property
    def settings(self) -> Sweep:
        """The effective file, checked; none of the user's files is opened, and no plugin is imported."""
        added = self.manifest.get("added", {})
        note_rows(METRICS, partial(Metric, refuse), added.get("metrics", {}))
        note_rows(SEARCHERS, partial(SearcherRow, make="craft.plugins:refuse"), added.get("searchers", {}))
        return read_effective(self.sweep)


@dataclass(frozen=True, kw_only=True)
class Wanted(Event):
    """`keys` in the order in which they are to run; `trials` are the new ones, and those whose description changed."""

    keys: list[str]
    trials: list[Trial] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Proposed(Event):
    """`number` counts the searcher's draws; `point` is the point of the space (`sweepfile.space.dimensions.Point`).

    `space` names the space that it was drawn from. A draw whose point needs no training has a `verdict` that says why.
    """

    durable = True
    number: int
    space: str
    point: dict[str, Any]
    configuration: str | None = None
    verdict: str | None = None


@dataclass(frozen=True, kw_only=True)
class Decided(Event):
    """`why` says in words what runs, and for what. `seeds` are further seeds of configurations, by the id of what is trained;
    `point` is the point of a configuration that the file does not list, whose seeds they are."""

    durable = True
    why: str
    seeds: dict[str, list[int]]
    point: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Refused(Event):
    configuration: str
    label: str
    method: str
    protocol: str
    parameters: dict[str, Any]
    counts: dict[str, Number]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    keys: list[str]


@dataclass(frozen=True, kw_only=True)
class Reported(Event):
    """`rows` are the training points since the last report and the evaluation, each with its `step`; the evaluation is the last
    row. `epoch` and `total_steps` are those of the evaluation."""

    key: str
    rows: list[dict[str, Number]]
    epoch: float
    total_steps: int


@dataclass(frozen=True, kw_only=True)
class Paused(Event):
    keys: list[str]


@dataclass(frozen=True, kw_only=True)
class Interrupted(Event):
    keys: list[str]


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """`adapter` is the local folder of the trial's adapter, relative to the sweep's folder where it is inside."""

    durable = True
    result: TrialResult
    adapter: str | None = None


@dataclass(frozen=True, kw_only=True)
class Underway(Event):
    """`left` are the seconds until the sweep ends, if they are known; `doing` says what the running trials do."""

    left: float | None
    doing: str


@dataclass(frozen=True, kw_only=True)
class Applied(Event):
    """`request` names the request that it answers. `difference` says in words what changes. `again`, `sweep`, `configurations`
    and `trainings` replace those of `SessionStarted`."""

    durable = True
    request: str
    who: str
    difference: list[str]
    again: str
    sweep: dict[str, Any]
    configurations: int
    trainings: int


@dataclass(frozen=True, kw_only=True)
class Requested(Event):
    """`keys` are the trials that are stopped, or run again."""

    durable = True
    request: str
    who: str
    verb: Verb
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Filed(Event):
    path: str


@dataclass(frozen=True, kw_only=True)
class SessionEnded(Event):
    """`status` is `finished`, `failed` or `interrupted`; `seconds` are those of the session."""

    durable = True
    status: str
    seconds: float = 0.0


EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


@cache
def _reader(name: str) -> TypeAdapter[Event]:
    return TypeAdapter(EVENTS[name])
