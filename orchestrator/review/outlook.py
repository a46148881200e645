"""What the running trials do, and how long a sweep still runs: by the trainings that have ended in this session, and by the
forecasts of those that run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from craft.results import Outlook
from craft.words import plural
from orchestrator.record.state import Evaluation, State

STARTING = "starting processes, loading the model"
EARLY = 0.1
"""The share of a training's work from which on its forecast counts for others."""

Outlooks: TypeAlias = Mapping[str, tuple[Outlook, float]]
"""What running trainings last reported to their driver, by key, each with the time of the report."""


def seconds_left(outlook: Outlook, reported: float, now: float) -> float | None:
    """Returns how long a training still runs at `now`; None if it does not foretell its end."""
    return None if outlook.seconds_left is None else max(0.0, reported + outlook.seconds_left - now)


def describe_work(state: State, outlooks: Outlooks, missing: str) -> str:
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


def sweep_seconds_left(state: State, now: float, outlooks: Outlooks) -> float | None:
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
    shares += [_share(entry.report) for entry in running if entry.key not in outlooks]
    remaining = [seconds for _, seconds in ends] + [mean * (1 - share) for share in shares]
    planned = state.most_trainings or len(state.trainings)
    waiting = max(0, planned - sum(entry.ended for entry in state.trainings) - len(running))
    return max([(waiting * mean + sum(remaining)) / max(at_once, len(running)), *remaining])


def _share(report: Evaluation | None) -> float:
    return report.step / report.total_steps if report and report.total_steps else 0.0


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
