"""`status`: how far a sweep is, running or not, by its log alone."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from orchestrator.judging.answer import REASONS, describe_running
from orchestrator.record.folder import SweepFolder
from orchestrator.record.lock import Holder, holder_of
from orchestrator.record.resume import check_name
from orchestrator.reports.answer import AnswerPart, Judged, recall
from orchestrator.reports.base import Command, Count, Number, Part, Report
from orchestrator.state.entry import Entry, count_phases
from orchestrator.state.events import SessionEnded
from orchestrator.state.log import read_state
from orchestrator.state.state import State
from orchestrator.sweepfile.settings import Budget

Phase = Literal["empty", "running", "lost", "finished", "failed", "interrupted"]
MORE_FAILURES = "run what has failed again"


class Counts(Part):
    """How many trials are in which phase."""

    total: int = Field(description="All that the session asks for by now. A searcher or further seeds may add more.")
    waiting: int = Field(description="Those that have not begun, or wait to be continued.")
    running: int = Field(description="Those that run.")
    paused: int = Field(description="Those that wait for their turn at a rung.")
    finished: int = Field(description="Those with a score.")
    failed: int = Field(description="Those that failed.")
    stopped: int = Field(description="Those that ended because they were never promoted, or because a person stopped them.")

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Counts:
        phases = count_phases(entries)
        names = ("waiting", "running", "paused", "finished", "failed", "stopped")
        return cls(total=phases.total(), **{name: phases[name] for name in names})


class TrialPart(Part):
    """A trial."""

    trial: str = Field(description="Its key.")
    configuration: str = Field(description="The id of its configuration.")
    label: str = Field(description="The name of its configuration for people.")
    task: str = Field(description="Its task.")
    seed: int = Field(description="Its seed.")

    @staticmethod
    def names(entry: Entry) -> dict[str, Any]:
        return {"trial": entry.key, **{name: getattr(entry.trial, name) for name in ("configuration", "label", "task", "seed")}}

    @property
    def name(self) -> str:
        """The trial's name for people."""
        return f"{self.label} · {self.task} · seed {self.seed}"


class RunningPart(TrialPart):
    """A trial that runs."""

    step: int = Field(description="Optimizer steps at its last evaluation. 0 before the first.")
    total_steps: Count = Field(description="Optimizer steps of all its training. Null before its first evaluation.")
    epoch: Number = Field(description="Passes over the training data at its last evaluation. Null before the first.")
    search_score: Number = Field(description="The score of its last evaluation, in points, on the split that may choose.")
    seconds: Number = Field(description="Seconds since it started, or was continued.")


class FailedPart(TrialPart):
    """A trial that has failed."""

    reason: str = Field(description="Why.")
    retryable: bool = Field(description="Whether the machine was at fault, so that the next session runs it again.")


class DriverPart(Part):
    """The process that drives the sweep."""

    alive: bool | None = Field(description="Whether it runs. Null where that is not known: it is on another machine.")
    process: Count = Field(description="Its number. Null without a driver.")
    machine: str | None = Field(description="The name of its machine. Null without a driver.")


class BudgetPart(Part):
    """The limits of the sweep."""

    trials: Count = Field(description="The most trials. Null without that limit.")
    wall_clock_seconds: Number = Field(description="The most seconds of one session. Null without that limit.")
    seconds_left: Number = Field(description="Seconds until the session reaches that. Null if none runs, or without a limit.")


class EndPart(Part):
    """How the last session ended."""

    status: str = Field(description="`finished`, `failed` or `interrupted`.")
    time: float = Field(description="When, in seconds since 1970.")
    seconds: Number = Field(description="How long the session was, in seconds.")


class StatusReport(Report):
    """How far a sweep is."""

    report: Literal["status"] = Field("status", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    folder: str = Field(description="Its folder.")
    phase: Phase = Field(
        description="`empty`: nothing is on record. `running`: a driver runs it, or ran when it was last heard of from another "
        "machine. `lost`: its driver is gone without an end. `finished`, `failed`, `interrupted`: how its last session ended."
    )
    driver: DriverPart = Field(description="The process that drives it. While it prepares or ends a session, no phase says so.")
    started: Number = Field(description="The start of the present or last session, in seconds since 1970.")
    updated: Number = Field(description="The last entry of its log that has a time here, in seconds since 1970.")
    ended: EndPart | None = Field(description="How the last session ended. Null while one runs, or if it was lost.")
    seconds_passed: Number = Field(description="Seconds of the present or last session.")
    seconds_left: Number = Field(description="Seconds until the sweep ends, as far as that can be said. Null if not running.")
    doing: str = Field(description="What the running trials do.")
    paused_by: str | None = Field(
        description="Who paused the sweep, as user@machine: no trial starts. Null if it is not paused."
    )
    trainings: Counts = Field(description="The trials that are trained.")
    trainings_planned: Count = Field(description="How many trainings there will be, as far as is known. Null if it is not.")
    trials: Counts = Field(description="All trials, with those whose adapters are cut from a training's.")
    refused: int = Field(description="Configurations that break a constraint and are not trained.")
    running: list[RunningPart] = Field(description="The trials that run.")
    failed: list[FailedPart] = Field(description="The trials that have failed, cuts aside that failed with their training.")
    budget: BudgetPart = Field(description="The limits at which the sweep ends before its plan does.")
    added: list[str] = Field(description="What `search.until` has added, in order: what runs, and for what.")
    answer: AnswerPart | None = Field(
        description="The answer so far, or in `kind` why there is none. Null before a session has begun."
    )
    next: list[Command] = Field(description="What can be done next.")


def read_status(folder: Path) -> StatusReport:
    """Returns the report on the sweep in a folder, at this moment."""
    state = read_state(SweepFolder(folder).record)
    check_name(folder, state)
    return status_report(state, folder, holder_of(folder.absolute()), time.time(), recall(state, SweepFolder(folder)))


def status_report(
    state: State, folder: Path, holder: Holder | None, current_time: float, judged: Judged | None = None
) -> StatusReport:
    """Returns the report on a sweep at `current_time`, in seconds since 1970."""
    judged = judged or Judged.of_state(state)
    alive = holder.is_alive if holder is not None else False
    phase, underway, updated = _phase(state, alive), state.underway, _updated(state)
    if phase == "lost":  # nothing runs, as after an end
        state = state.after(SessionEnded(status="interrupted", time=updated))
    answer = judged.answer
    if answer is not None and state.ended is None and (alive or phase == "running"):
        answer = answer.running(describe_running(state, current_time))
    began = state.started.time if state.started is not None else None
    until = current_time if phase == "running" else updated if phase == "lost" else None
    ended = state.ended if phase != "lost" else None
    passed = ended.seconds if ended is not None else until - began if until is not None and began is not None else None
    return StatusReport(
        sweep=state.name or folder.name,
        folder=str(folder),
        phase=phase,
        driver=DriverPart(alive=alive, process=holder.pid if holder else None, machine=holder.host if holder else None),
        started=began,
        updated=updated or None,
        ended=None if ended is None else EndPart.fill(ended),
        seconds_passed=passed,
        seconds_left=max(0.0, underway.left - (current_time - underway.time))
        if phase == "running" and underway is not None and underway.left is not None
        else None,
        doing=underway.doing if phase == "running" and underway is not None else "",
        paused_by=state.held.who if state.held is not None else None,
        trainings=Counts.of(state.trainings),
        trainings_planned=state.most_trainings,
        trials=Counts.of(state.requested),
        refused=len(state.refused),
        running=[_running(entry, current_time) for entry in state.requested if _runs(entry, state)],
        failed=[_failed(entry) for entry in state.requested if _has_failed(entry, state)],
        budget=_budget(state, passed if phase == "running" else None),
        added=[decision.why for decision in state.decisions],
        answer=answer,
        next=_next(state, "running" if alive else phase, folder, judged),
    )


def _phase(state: State, alive: bool | None) -> Phase:
    if state.started is None:
        return "running" if alive else "empty"
    if state.ended is None:
        return "lost" if alive is False else "running"
    return state.ended.status if state.ended.status in ("finished", "interrupted") else "failed"  # type: ignore[return-value]


def _updated(state: State) -> float:
    """Returns the time of the last event, as far as the state has it; 0 for none."""
    events = (state.started, state.ended, state.underway)
    times = [event.time for event in events if event is not None] + [entry.changed for entry in state.entries.values()]
    return max([state.opened, *times])


def _runs(entry: Entry, state: State) -> bool:
    """Returns whether a trial runs; a cut waits in the same process for the end of its training."""
    training = state.training_of(entry.trial)
    return entry.phase == "running" and (training is entry or training.ended)


def _running(entry: Entry, current_time: float) -> RunningPart:
    report = entry.report
    return RunningPart(
        **TrialPart.names(entry),
        step=report.step if report else 0,
        total_steps=report.total_steps if report else None,
        epoch=report.epoch if report else None,
        search_score=report.metrics.get("search_score") if report else None,
        seconds=max(0.0, current_time - entry.changed),
    )


def _has_failed(entry: Entry, state: State) -> bool:
    if entry.result is None or entry.result.status != "failed":
        return False
    training = state.training_of(entry.trial)
    return training is entry or training.result is None or training.result.error != entry.result.error


def _failed(entry: Entry) -> FailedPart:
    assert entry.result is not None
    return FailedPart(**TrialPart.names(entry), reason=entry.result.error or "", retryable=entry.result.retryable)


def _budget(state: State, seconds: float | None) -> BudgetPart:
    budget = state.sweep.budget if state.started is not None else Budget()
    limit = budget.wall_clock_seconds
    seconds_left = None if limit is None or seconds is None else max(0.0, limit - seconds)
    return BudgetPart.fill(budget, seconds_left=seconds_left)


def _next(state: State, phase: Phase, folder: Path, judged: Judged) -> list[Command]:
    again, place, commands = state.again, shlex.quote(str(folder)), dict[str, str]()
    if state.held is not None:
        commands["let trials start again"] = f"craft-sweeps continue {place}"
    if phase in ("lost", "interrupted") and again:
        commands["continue it"] = again
    if phase != "running" and again and any(entry.result and entry.result.status == "failed" for entry in state.requested):
        commands[MORE_FAILURES] = f"{again} --retry-failed"
    if phase == "finished" and judged.answer is not None and judged.answer.command:
        commands["know more"] = judged.answer.command
    if judged.has_front:
        commands["see the front"] = f"craft-sweeps front {place}"
    if judged.answer is not None and judged.answer.kind in REASONS:
        commands["take an adapter"] = f"craft-sweeps take {place} --to adapter"
    return [Command(purpose=purpose, command=command) for purpose, command in commands.items()]
