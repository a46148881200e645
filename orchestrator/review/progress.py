"""Replays `Progress` from the state of a sweep: at this moment in its driver, or from its log anywhere else."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from craft.results import Outlook
from craft.words import plural
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import SessionEnded
from orchestrator.record.folder import Holder, SweepFolder, holder_of
from orchestrator.record.log import read_state
from orchestrator.record.resume import check_name
from orchestrator.record.state import Entry, State
from orchestrator.results.answer import REASONS, Answer, answer_of
from orchestrator.results.report import Command
from orchestrator.results.step import describe_price
from orchestrator.results.summary import Summary
from orchestrator.review.status import (
    BudgetPart,
    Counts,
    DriverPart,
    EndPart,
    FailedPart,
    Phase,
    Progress,
    RunningPart,
)
from orchestrator.sweepfile.settings import Budget

SILENT_SECONDS = 120.0
"""A driver reports every 15 s. What it reported of its trials counts for so long."""
EARLY = 0.1
"""The share of a training's work from which on its forecast counts for others."""
STARTING = "starting processes, loading the model"
MORE_FAILURES = "run what has failed again"


Outlooks: TypeAlias = Mapping[str, tuple[Outlook, float]]
"""What running trainings last reported to their driver, by key, each with the time of the report."""


def seconds_left(outlook: Outlook, reported: float, now: float) -> float | None:
    """Returns how long a training still runs at `now`; None if it does not foretell its end."""
    return None if outlook.seconds_left is None else max(0.0, reported + outlook.seconds_left - now)


def read_status(folder: Path) -> Progress:
    """Returns how far the sweep in a folder is at this moment, with its answer."""
    state = read_state(SweepFolder(folder).record)
    check_name(folder, state)
    return status_of(state, folder, holder_of(folder.absolute()), time.time())


def status_of(state: State, folder: Path, holder: Holder | None, now: float) -> Progress:
    """Returns the progress of the sweep in a folder with its answer and the next commands."""
    report = progress(state, now, alive=holder.is_alive if holder is not None else False)
    if report.phase == "lost":  # nothing runs, as after an end
        state = state.after(SessionEnded(status="interrupted", time=report.updated or 0.0))
    process, machine = (holder.pid, holder.host) if holder else (None, None)
    driver = DriverPart(alive=report.driver.alive, process=process, machine=machine)
    about: dict[str, Any] = {"sweep": state.name or folder.name, "folder": str(folder), "driver": driver}
    if state.started is None:
        return report.model_copy(update=about)
    summaries, answer = answer_of(state)
    runs = report.driver.alive or report.phase == "running"
    shown = answer.running(describe_running(state, now)) if runs and state.ended is None else answer
    about["answer"] = shown
    about["next"] = _next(state, "running" if report.driver.alive else report.phase, folder, summaries, answer)
    return report.model_copy(update=about)


def is_recent(state: State, now: float) -> bool:
    """Returns whether a session's log was written lately, so that its driver most likely runs, on whichever machine."""
    works = state.started is not None and state.ended is None and any(not entry.ended for entry in state.requested)
    return works and now - _updated(state) < SILENT_SECONDS


def describe_running(state: State, now: float) -> str:
    """Returns that a sweep runs and how long it still does, as far as its log says that."""
    at, lefts = progress(state, now), list[float]()
    lefts += [] if at.budget.seconds_left is None else [at.budget.seconds_left]
    lefts += [] if at.seconds_left is None or (state.sweep.search.until and lefts) else [at.seconds_left]
    left = describe_price(min(lefts, default=0.0)).strip(" ()")
    return f"It is running{f', {left} left' if left else ''}."


def progress(
    state: State,
    now: float,
    alive: bool | None = None,
    outlooks: Outlooks | None = None,
    missing: str = "",
) -> Progress:
    """Returns how far a sweep is at `now`, in seconds since 1970.

    Args:
        alive: whether its driver lives; None where that is not known.
        outlooks: what its running trainings last reported, by key. None where that is not known: what the driver last wrote to
            the log counts.
        missing: the resources that no machine has and a trial waits for.
    """
    phase, underway, updated = _phase(state, alive), state.underway, _updated(state)
    if phase == "lost":
        state = state.after(SessionEnded(status="interrupted", time=updated))
    runs, ended = phase == "running", state.ended if phase != "lost" else None
    began = state.started.time if state.started is not None else None
    until = now if runs else updated if phase == "lost" else None
    passed = ended.seconds if ended is not None else until - began if until is not None and began is not None else None
    since = now - underway.time if underway is not None else SILENT_SECONDS
    if outlooks is None and runs and underway is not None and 0 <= since < SILENT_SECONDS:
        left, doing = None if underway.left is None else max(0.0, underway.left - since), underway.doing
    else:
        left = _seconds_left(state, now, outlooks or {}) if runs else None
        doing = "" if outlooks is None else _doing(state, outlooks, missing)
    budget = state.sweep.budget if state.started is not None else Budget()
    limit = budget.wall_clock_seconds if runs else None
    running = [entry for entry in state.requested if entry.phase == "running"]
    # A cut waits, in the same process, for the end of its training.
    running = [entry for entry in running if not entry.trial.is_cut or state.training_of(entry.trial).ended]
    return Progress(
        sweep=state.name,
        phase=phase,
        driver=DriverPart(alive=alive, process=None, machine=None),
        started=began,
        updated=updated or None,
        ended=None if ended is None else EndPart.fill(ended),
        seconds_passed=passed,
        seconds_left=left,
        doing=doing,
        paused_by=state.held.who if state.held is not None else None,
        trainings=Counts.of(state.trainings),
        trainings_planned=state.most_trainings,
        trials=Counts.of(state.requested),
        refused=len(state.refused),
        running=[_running(entry, now) for entry in running],
        failed=[
            FailedPart.of(entry, reason=result.error or "", retryable=result.retryable)
            for entry in state.requested
            if (result := _failure(entry, state))
        ],
        budget=BudgetPart.fill(budget, seconds_left=None if limit is None else max(0.0, limit - (passed or 0.0))),
        added=[decision.why for decision in state.decisions],
    )


def _phase(state: State, alive: bool | None) -> Phase:
    if state.started is None:
        return "running" if alive else "empty"
    if state.ended is None:
        return "lost" if alive is False else "running"
    return state.ended.status if state.ended.status in ("finished", "interrupted") else "failed"  # type: ignore[return-value]


def _updated(state: State) -> float:
    """Returns the time of the last event, as far as the state has it; 0 for none."""
    events = [event for event in (state.started, state.ended, state.underway) if event is not None]
    return max([state.opened, *(event.time for event in events), *(entry.changed for entry in state.entries.values())])


def _running(entry: Entry, now: float) -> RunningPart:
    report = entry.report
    return RunningPart.of(
        entry,
        step=report.step if report else 0,
        total_steps=report.total_steps if report else None,
        epoch=report.epoch if report else None,
        search_score=report.metrics.get("search_score") if report else None,
        seconds=max(0.0, now - entry.changed),
    )


def _failure(entry: Entry, state: State) -> TrialResult | None:
    """Returns the result of a trial that has failed; None for a cut that failed with its training."""
    result, training = entry.result, state.training_of(entry.trial)
    if result is None or result.status != "failed":
        return None
    by_training = training is not entry and training.result is not None and training.result.error == result.error
    return None if by_training else result


def _doing(state: State, outlooks: Outlooks, missing: str) -> str:
    """Returns a phrase for the status line: what is running, or what is waited for; empty while several trials train."""
    running = [entry for entry in state.trainings if entry.phase == "running"]
    cutting = [entry for entry in state.requested if entry.trial.is_cut and entry.phase == "running"]
    if cutting and not running:
        return f"making {len(cutting)} {plural(len(cutting), 'cut')} of finished adapters"
    if missing and not running:
        return f"no machine: waiting for {missing}"
    phases = [outlooks[entry.key][0].phase for entry in running if entry.key in outlooks]
    if not phases and (running or state.held is None) and not any(entry.ended for entry in state.trainings):
        return STARTING
    scoring = sum(phase.startswith("scoring") for phase in phases)
    return phases[0] if len(running) == len(phases) == 1 else f"{scoring} scoring" if scoring else ""


def _seconds_left(state: State, now: float, outlooks: Outlooks) -> float | None:
    """Returns the seconds until the end; None until a trial of this session has ended, or one that runs foretells its end.

    A trial that waits is taken to last as long as the mean of those that have ended and those that run. One that has hardly
    begun says little, so it counts only while no other is known.
    """
    took, at_once = _took(state)
    running = [entry for entry in state.trainings if entry.phase == "running"]
    reports = [outlooks[entry.key] for entry in running if entry.key in outlooks]
    lefts = [(outlook.share, seconds_left(outlook, reported, now)) for outlook, reported in reports]
    ends = [(share, left) for share, left in lefts if left is not None]
    least = EARLY if took else 0.0
    durations = took + [seconds / (1 - share) for share, seconds in ends if least <= share < 1]
    if not durations:
        return max((seconds for _, seconds in ends), default=None)
    mean = sum(durations) / len(durations)
    shares = [share for share, left in lefts if left is None]
    shares += [_running(entry, now).share for entry in running if entry.key not in outlooks]
    remaining = [seconds for _, seconds in ends] + [mean * (1 - share) for share in shares]
    counts = Counts.of(state.trainings)
    waiting = max(0, (state.most_trainings or counts.total) - counts.finished - counts.failed - counts.stopped - len(running))
    return max([(waiting * mean + sum(remaining)) / max(at_once, len(running)), *remaining])


def _took(state: State) -> tuple[list[float], int]:
    """Returns the seconds of each training that has ended in this session, and how many of these ran at once.

    Starting a process takes long, and the trainings that come after the first use it again, so of the first the process's time
    does not count. A resumed training took longer than its run in this session.
    """
    began = state.started.time if state.started is not None else 0.0
    over = [(entry, entry.result) for entry in state.trainings if entry.ended and entry.result and entry.changed >= began]
    over = [(entry, result) for entry, result in over if result.status != "failed"]
    if not over:
        return [], 1
    ends = [entry.changed for entry, _ in over]
    first = min(ends)
    starts = [max(began, entry.changed - entry.seconds) for entry, _ in over]
    took = [
        result.seconds if start <= first else max(result.seconds, entry.seconds)
        for (entry, result), start in zip(over, starts, strict=True)
    ]
    busy, span = sum(end - start for start, end in zip(starts, ends, strict=True)), max(ends) - min(starts)
    return took, max(1, round(busy / span)) if span else 1


def _next(state: State, phase: Phase, folder: Path, summaries: Sequence[Summary], answer: Answer) -> list[Command]:
    again, place, commands = state.again, shlex.quote(str(folder)), dict[str, str]()
    if state.held is not None:
        commands["let trials start again"] = f"craft-sweeps continue {place}"
    if phase in ("lost", "interrupted") and again:
        commands["continue it"] = again
    if phase != "running" and again and any(entry.result and entry.result.status == "failed" for entry in state.requested):
        commands[MORE_FAILURES] = f"{again} --retry-failed"
    if phase == "finished" and answer.command:
        commands["know more"] = answer.command
    if any(summary.finished for summary in summaries):
        commands["see the front"] = f"craft-sweeps front {place}"
    if answer.kind in REASONS:
        commands["take an adapter"] = f"craft-sweeps take {place} --to adapter"
    return [Command(purpose=purpose, command=command) for purpose, command in commands.items()]
