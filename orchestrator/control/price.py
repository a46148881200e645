"""`Price`: what a changed sweep file costs, and what its sweep cannot tell any more.

    6 trainings more (about 4 min)
    budget.trials: 3 of 24 are left
    not known any more: whether an adapter is needed at all (no `head`)

A person sees it before the file is applied.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from craft.words import format_duration, plural
from orchestrator.judging.control import HEAD
from orchestrator.judging.experiments import describe_price, pace_of
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import jobs_of
from orchestrator.search.stages import make_strategy
from orchestrator.state.state import State
from orchestrator.state.trial import Trial
from orchestrator.sweepfile.sweep import Sweep


@dataclass(frozen=True)
class Price:
    """A price in words and numbers.

    Attributes:
        trainings: those that the file adds and that have not ended.
        seconds: how long they take at the pace of the last session; None if no training has ended.
        lines: a sentence for each part.
    """

    trainings: int
    seconds: float | None
    lines: tuple[str, ...]


def price_of(before: Sweep | None, plan: Plan, state: State, driven: bool) -> Price:
    """Returns the price of a plan for a sweep with this state.

    Args:
        before: the sweep's effective file.
        driven: whether a session runs, whose time counts.
    """
    jobs = jobs_of(make_strategy(plan).wanted(state))
    requested = {entry.key for entry in state.requested}
    ended = {key for key, entry in state.entries.items() if entry.result is not None and entry.result.settled}
    new = [job.training.trial for job in jobs if job.key not in requested | ended]
    cuts = sum(key not in requested | ended for job in jobs for key in job.keys) - len(new)
    seconds = _seconds(new, state)
    about = "" if not new else describe_price(seconds) if seconds else " (how long is not known: none has ended)"
    more = f" and {cuts} {plural(cuts, 'cut')}" if cuts else ""
    lines = [f"{len(new)} {plural(len(new), 'training')}{more} more{about}"]
    lines += _budget(plan.sweep, len(jobs), state, seconds or 0.0, driven)
    if any(entry.trial.method == HEAD for entry in state.requested) and all(job.training.trial.method != HEAD for job in jobs):
        lines.append("not known any more: whether an adapter is needed at all (no `head`)")
    if before is not None and len(plan.sweep.reported_seeds) < 2 <= len(before.reported_seeds):
        lines.append("not known any more: with what probability a configuration is enough (one seed)")
    return Price(len(new), seconds if new else 0.0, tuple(lines))


def _seconds(new: list[Trial], state: State) -> float | None:
    """Returns the time of trainings: each as those of its configuration took, else of its method, else all."""
    trained = [(entry.trial, entry.result.seconds) for entry in state.trainings if entry.result and entry.finished]
    if not trained:
        return None
    total = 0.0
    for trial in new:
        same = [took for other, took in trained if other.configuration == trial.configuration]
        of_method = [took for other, took in trained if other.method == trial.method]
        total += fmean(same or of_method or [took for _, took in trained])
    return total / pace_of(state)


def _budget(sweep: Sweep, trainings: int, state: State, seconds: float, driven: bool) -> Iterator[str]:
    """Yields what is left of each limit."""
    budget, limit = sweep.budget, sweep.budget.wall_clock_seconds
    if budget.trials is not None:
        yield f"budget.trials: {max(0, budget.trials - trainings)} of {budget.trials} are left"
    if limit is not None:
        passed = time.time() - state.started.time if driven and state.started is not None else 0.0
        left = max(0.0, limit - passed)
        short = ", less than it takes" if seconds > left else ""
        yield f"budget.wall_clock: {format_duration(left)} of {budget.wall_clock} left{short}"
