"""`State`: a sweep after its events, with each trial and what became of it.

Everything that shows or decides something is a function of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orchestrator.plan.trial import Number, Trial, TrialResult
from orchestrator.record import events
from orchestrator.sweepfile.settings import Enough
from orchestrator.sweepfile.sweep import Sweep

Phase = Literal["waiting", "running", "paused", "ended"]


@dataclass(frozen=True)
class Evaluation:
    """The last evaluation of a trial. `metrics` are all that it reported at `step`."""

    step: int
    total_steps: int
    epoch: float
    metrics: Mapping[str, Number]


@dataclass(frozen=True)
class Entry:
    """A trial that the sweep asks for, or once asked for, and what became of it.

    Attributes:
        result: how it ended, or failed in an earlier session; None before.
        phase: `waiting` before it starts and after an interruption, `paused` while it waits for its turn at a rung.
        adapter: the local folder of its adapter, relative to the sweep's folder where it is inside.
        seconds: the time of its runs that have ended.
        changed: when its phase last changed, in seconds since 1970.
        wave: the number of the request for trials (`Wanted`) that asked for it first.
    """

    trial: Trial
    result: TrialResult | None = None
    phase: Phase = "waiting"
    begun: bool = False
    report: Evaluation | None = None
    last_steps: Mapping[str, int] = field(default_factory=dict)
    adapter: str | None = None
    seconds: float = 0.0
    changed: float = 0.0
    wave: int = 0

    @property
    def key(self) -> str:
        return self.trial.key

    @property
    def ended(self) -> bool:
        """Whether it has nothing left to run in this session."""
        return self.phase == "ended"

    @property
    def finished(self) -> TrialResult | None:
        return self.result if self.result is not None and self.result.status == "finished" else None

    @property
    def failed(self) -> TrialResult | None:
        """Its result, if it failed, in this session or an earlier one."""
        return self.result if self.result is not None and self.result.status == "failed" else None

    @property
    def current(self) -> TrialResult | None:
        """Its result; None while it runs again."""
        return self.result if self.phase != "running" else None

    @property
    def status(self) -> str:
        """`running`, how it ended, or `interrupted`: what tables and stores show of a trial that has begun."""
        return "running" if self.phase == "running" else self.result.status if self.result else "interrupted"

    def stopped(self, note: str) -> TrialResult:
        """Returns its last evaluation as the result of a trial that is stopped."""
        metrics, steps = (dict(self.report.metrics), self.report.step) if self.report else ({}, 0)
        return TrialResult(self.key, "stopped", metrics, steps=steps, seconds=self.seconds, notes=[note])


def by_configuration(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Returns trials by the id of their configuration, in the order in which configurations first appear."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.trial.configuration, []).append(entry)
    return groups


def count_phases(entries: Iterable[Entry]) -> Counter[str]:
    """Counts trials: waiting, running, paused; or finished, failed, stopped if they have ended."""
    return Counter(entry.result.status if entry.ended and entry.result is not None else entry.phase for entry in entries)


NO_METRICS = frozenset({"step", "time", "epoch"})
"""Keys of a row that are no metrics of their own: its step, when it was measured, its epoch."""


@dataclass(frozen=True)
class State:
    """A sweep after some events.

    Attributes:
        wanted: keys of the trials that the present session, or the last one, asks for, in order.
        waves: the number of requests for trials that had new ones.
        proposals: what the searcher drew, in order.
        refused: configurations that break a constraint, by id.
        started: the start of the present or last session; None before the first.
        earlier_pace: `pace` at the end of the session before it.
        held: the request to pause; None while jobs may start.
        answered: names of the requests that were answered (`orchestrator.driver.request`).
    """

    name: str = ""
    sweep_id: str = ""
    opened: float = 0.0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    wanted: Mapping[str, None] = field(default_factory=dict)
    waves: int = 0
    proposals: tuple[events.Proposed, ...] = ()
    decisions: tuple[events.Decided, ...] = ()
    refused: Mapping[str, events.Refused] = field(default_factory=dict)
    started: events.SessionStarted | None = None
    earlier_pace: float = 1.0
    ended: events.SessionEnded | None = None
    underway: events.Underway | None = None
    files: tuple[str, ...] = ()
    held: events.Requested | None = None
    answered: frozenset[str] = frozenset()

    def after(self, event: events.Event) -> State:
        return _AFTER[type(event)](self, event)

    @property
    def sweep(self) -> Sweep:
        """The sweep file that counts: that of the last session, or the one applied since."""
        assert self.started is not None, "no session has begun"
        return self.started.settings

    @property
    def again(self) -> str:
        """The command that continues the sweep; empty if it is not known."""
        return self.started.again if self.started is not None else ""

    @property
    def requested(self) -> list[Entry]:
        """The trials that the present session, or the last one, asks for, in order."""
        return [self.entries[key] for key in self.wanted]

    @property
    def trainings(self) -> list[Entry]:
        """Those of `requested` that are trained, and not cut."""
        return [entry for entry in self.requested if not entry.trial.is_cut]

    @property
    def most_trainings(self) -> int | None:
        """How many trainings there will be, as far as is known; None before a session. More than were planned may be added."""
        if self.started is None:
            return None
        over = self.ended is not None and self.ended.status == "finished"
        return len(self.trainings) if over else max(len(self.trainings), self.started.trainings)

    @property
    def pace(self) -> float:
        """How many seconds of training the last session did in a second; that of the one before where none has ended."""
        if self.started is None:
            return self.earlier_pace
        began = self.started.time
        seconds = sum(  # a resumed training has the seconds of earlier sessions, too
            min(entry.result.seconds, entry.changed - began)
            for entry in self.trainings
            if entry.result is not None and entry.changed >= began
        )
        last = self.ended.time if self.ended is not None else max((entry.changed for entry in self.trainings), default=0.0)
        return seconds / (last - began) if seconds > 0 and last > began else self.earlier_pace

    def training_of(self, trial: Trial) -> Entry:
        """Returns the training from whose adapter a trial is cut; the trial itself if it is trained, or that is not known."""
        return self.entries.get(trial.training, self.entries[trial.key])

    def cuts_of(self, trial: Trial) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.trial.is_cut and entry.trial.training == trial.key]

    def in_phase(self, phase: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.phase == phase]

    def unfinished(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if not self.entries[key].ended]

    def judged_by(self, rule: Enough) -> State:
        assert self.started is not None, "no session has begun"
        file = self.started.sweep | {"enough": rule.model_dump(mode="json")}
        return replace(self, started=replace(self.started, sweep=file))

    def _with(self, entries: Iterable[Entry], **changes: Any) -> State:
        changed = {entry.key: entry for entry in entries}
        if isinstance(self.entries, _Folding):
            self.entries.update(changed)
            return replace(self, **changes) if changes else self
        return replace(self, entries={**self.entries, **changed}, **changes)


class _Folding(dict[str, Entry]):
    """The entries of a state that nobody else has, so that they are changed and not copied at each of many events."""


def fold(new: Iterable[events.Event], state: State | None = None) -> State:
    """Returns the state after new events, from an empty one or from `state`."""
    state = state or State()
    state = replace(state, entries=_Folding(state.entries))
    for event in new:
        state = state.after(event)
    return replace(state, entries=dict(state.entries))


def new_rows(entry: Entry, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows without the metrics that the trial has reported at this step or a later one.

    A trial that resumes behind its last report repeats what is on record.
    """
    last, fresh = dict(entry.last_steps), []
    for row in rows:
        step = int(row["step"])
        names = [name for name in row if name not in NO_METRICS and step > last.get(name, -1)]
        last |= dict.fromkeys(names, step)
        if names:
            fresh.append({name: value for name, value in row.items() if name in names or name in NO_METRICS})
    return fresh


def _session_started(state: State, event: events.SessionStarted) -> State:
    # How long a lost driver's trials ran is not known, so it is not counted.
    waiting = [
        replace(entry, phase="waiting", changed=event.time)
        for entry in state.entries.values()
        if entry.phase in ("running", "paused") or (entry.ended and entry.result and not entry.result.settled)
    ]
    return state._with(waiting, wanted={}, started=event, earlier_pace=state.pace, ended=None, underway=None)


def _wanted(state: State, event: events.Wanted) -> State:
    waves = state.waves + any(trial.key not in state.entries for trial in event.trials)
    described = [replace(state.entries.get(trial.key, Entry(trial, wave=waves)), trial=trial) for trial in event.trials]
    state = state._with(described, waves=waves)
    wanted = {key: None for key in event.keys if key in state.entries}
    # A constraint may have been loosened since: what runs is no longer refused.
    allowed = {state.entries[key].trial.configuration for key in wanted}
    refused = {name: refusal for name, refusal in state.refused.items() if name not in allowed}
    return replace(state, wanted={**state.wanted, **wanted}, refused=refused)


def _started(state: State, event: events.Started) -> State:
    begun = [replace(entry, phase="running", begun=True, changed=event.time) for entry in _live(state, event.keys)]
    return state._with(begun)


def _reported(state: State, event: events.Reported) -> State:
    entry = state.entries.get(event.key)
    if entry is None or entry.ended or not event.rows:
        return state
    steps = dict(entry.last_steps)
    for row in event.rows:
        steps |= {name: max(int(row["step"]), steps.get(name, -1)) for name in row if name not in NO_METRICS}
    last = event.rows[-1]
    metrics = {name: value for name, value in last.items() if name not in NO_METRICS}
    step, report = int(last["step"]), entry.report
    if report is not None and report.step == step:
        metrics = {**report.metrics, **metrics}
    if report is None or step >= report.step:
        report = Evaluation(step, event.total_steps, event.epoch, metrics)
    return state._with([replace(entry, report=report, last_steps=steps)])


def _left(state: State, event: events.Paused | events.Interrupted) -> State:
    phase: Phase = "paused" if isinstance(event, events.Paused) else "waiting"
    return state._with(replace(_stop(entry, event.time), phase=phase) for entry in _live(state, event.keys))


def _ended(state: State, event: events.Ended) -> State:
    entry = state.entries.get(event.result.key)
    if entry is None or entry.ended:
        return state
    # What a lost machine or a training without an adapter ends may never have started.
    begun = entry.begun or event.result.status == "finished"
    changed = replace(_stop(entry, event.time), phase="ended", begun=begun)
    return state._with([replace(changed, result=event.result, adapter=event.adapter)])


def _applied(state: State, event: events.Applied) -> State:
    started = state.started and replace(
        state.started,
        again=event.again,
        sweep=event.sweep,
        configurations=event.configurations,
        trainings=event.trainings,
    )
    return replace(state, wanted={}, started=started, answered=state.answered | {event.request})


def _requested(state: State, event: events.Requested) -> State:
    state, live = replace(state, answered=state.answered | {event.request}), _live(state, event.keys)
    if event.verb == "stop":
        over = [_stop(entry, event.time) for entry in live]
        return state._with(replace(entry, phase="ended", result=entry.stopped(f"stopped by {event.who}")) for entry in over)
    if event.verb == "retry":
        over = [entry for key in event.keys if (entry := state.entries.get(key)) and entry.ended and not entry.finished]
        return state._with(replace(entry, phase="waiting", result=None, changed=event.time) for entry in over)
    return replace(state, held=event if event.verb == "pause" else None)


def _live(state: State, keys: Iterable[str]) -> list[Entry]:
    return [entry for key in keys if (entry := state.entries.get(key)) and not entry.ended]


def _stop(entry: Entry, time: float) -> Entry:
    elapsed = max(0.0, time - entry.changed) if entry.phase == "running" else 0.0
    return replace(entry, seconds=entry.seconds + elapsed, changed=time)


_AFTER: dict[type[events.Event], Callable[[State, Any], State]] = {
    events.Opened: lambda state, event: replace(state, name=event.sweep, sweep_id=event.sweep_id, opened=event.time),
    events.SessionStarted: _session_started,
    events.Wanted: _wanted,
    events.Proposed: lambda state, event: replace(state, proposals=(*state.proposals, event)),
    events.Decided: lambda state, event: replace(state, decisions=(*state.decisions, event)),
    events.Refused: lambda state, event: replace(state, refused={**state.refused, event.configuration: event}),
    events.Started: _started,
    events.Reported: _reported,
    events.Paused: _left,
    events.Interrupted: _left,
    events.Ended: _ended,
    events.Applied: _applied,
    events.Requested: _requested,
    events.Underway: lambda state, event: replace(state, underway=event),
    events.Filed: lambda state, event: replace(state, files=(*dict.fromkeys((*state.files, event.path)),)),
    events.SessionEnded: lambda state, event: state._with(
        (replace(_stop(entry, event.time), phase="waiting") for entry in state.in_phase("running")), ended=event, underway=None
    ),
}
