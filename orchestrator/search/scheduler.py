"""`Promotion`: which trials wait at a rung, and which of them continues, where a sweep promotes trials. No Ray here.

The rule is folded from the same reports as the state. So a resumed sweep judges as if it had never been interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from orchestrator.plan.trial import Job, Trial
from orchestrator.record.events import Event, Reported
from orchestrator.record.state import State
from orchestrator.sweepfile.settings import Direction
from orchestrator.sweepfile.sweep import Sweep

END = 1_000_000
"""The rung at the end of every trial, above all others."""


@dataclass
class _Rung:
    """The configurations that came to one rung, each with its costs (better when smaller) and its score, in this order; and
    those that went on."""

    arrived: dict[str, tuple[tuple[float, ...], float]] = field(default_factory=dict)
    promoted: set[str] = field(default_factory=set)

    def ready(self, factor: float) -> list[str]:
        """Returns the configurations that wait here and may be promoted: all where all score the same, else the best of every
        `factor` rivals. Of equal scores those that went on count as better."""
        names, (costs, scores) = [*self.arrived], map(np.array, zip(*self.arrived.values(), strict=True))
        promoted = np.array([name in self.promoted for name in names])
        rivals = (costs[:, None] >= costs).all(axis=2)  # of each row, itself among them
        ahead = rivals & ((scores > scores[:, None]) | (promoted & (scores == scores[:, None])))
        allowed = ahead.sum(axis=1) < np.maximum(1, rivals.sum(axis=1) // factor)
        return [names[row] for row in np.flatnonzero((allowed | (scores == scores[0]).all()) & ~promoted)]


@dataclass
class Promotion:
    """Successive halving that pauses: a trial continues from a rung as soon as it is among the best of every `factor` rivals
    there, and waits until then. Nothing is stopped: rungs fill up, and a trial that waits may be promoted later.

    Only trials on one task with one seed are compared, and only with those whose objectives that are known beforehand are all
    as good or better.

    Rungs lie at `grace`, `grace` x `factor` ... epochs, and at the end of every trial: the trials of a configuration run one
    after another, so whether its next one starts is decided in the same way. Trials of equal score do not all continue: the
    first to arrive do, as many as of trials that differ. If all trials at a rung score the same, all continue.

    Sources: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (ASHA promotes); Birattari et al. 2002, A
    Racing Algorithm for Configuring Metaheuristics (more tasks and seeds for the promising only).
    """

    objectives: Mapping[str, Direction]
    grace: float = 1.0
    factor: float = 3.0
    _rungs: dict[tuple[tuple[str, int], int], _Rung] = field(default_factory=dict)
    _epochs: dict[str, dict[str, float]] = field(default_factory=dict)
    _standing: dict[str, _Rung] = field(default_factory=dict)
    _level: dict[str, int] = field(default_factory=dict)

    def on_report(self, event: Event, state: State) -> bool:
        """Learns from a report; returns whether its trial waits from now on. Other events change nothing."""
        if not isinstance(event, Reported) or event.key not in state.entries:
            return False
        last = event.rows[-1]
        at_end = last["step"] >= event.total_steps > 0
        return self.pauses(state.entries[event.key].trial, event.epoch, last.get("search_score"), at_end) and not at_end

    def pauses(self, trial: Trial, epoch: float, score: object, last: bool = False) -> bool:
        """Takes in a search score (higher is better) of a trial at an epoch; whether the trial waits now, with its checkpoint,
        until `next_job` names it, which may never happen. After its `last` evaluation its configuration's next trial waits.

        An evaluation that is already known, or whose score is no finite number, changes nothing, so a record may be repeated.
        """
        group = (trial.task, trial.seed)
        epochs = self._epochs.setdefault(trial.configuration, {})
        if not isinstance(score, int | float) or not math.isfinite(score) or epoch <= epochs.get(trial.key, -math.inf):
            return False
        epochs[trial.key] = epoch
        self.promote(trial.configuration)  # it came further, so it was promoted
        level = END if last else -1
        while not last and self.grace * self.factor ** (level + 1) <= epoch + 1e-9:
            level += 1
        if level <= self._level.get(trial.key, -1):
            return False
        self._level[trial.key] = level
        rung = self._rungs.setdefault((group, level), _Rung())
        planned = [(trial.planned[name], way) for name, way in self.objectives.items() if name in trial.planned]
        rung.arrived[trial.configuration] = tuple(value if way == "minimize" else -value for value, way in planned), score
        self._standing[trial.configuration] = rung
        if last or not self.may_be_promoted(trial.configuration):
            return True
        self.promote(trial.configuration)
        return False

    def may_be_promoted(self, configuration: str) -> bool:
        """Returns whether a configuration need not wait: it is at no rung, or among the best there."""
        rung = self._standing.get(configuration)
        return rung is None or configuration in rung.ready(self.factor)

    def promote(self, configuration: str) -> None:
        if configuration in self._standing:
            self._standing.pop(configuration).promoted.add(configuration)

    def next_job(self, waiting: Iterable[Job], busy: Container[str]) -> Job | None:
        """Returns the waiting job that continues, or begins, now, and counts it as running; None if all must wait. It is one of
        the configuration that may continue and is furthest along, among equals of the one that came to its rung first. A job
        that has begun comes before those that have not, which come in the file's order, and one that is trained to its end, and
        lacks its result or a size, before all.

        Args:
            busy: configurations of which a trial runs.
        """
        jobs: dict[str, list[Job]] = {}
        for job in waiting:
            if job.training.configuration not in busy:
                jobs.setdefault(job.training.configuration, []).append(job)
        if trained := next((job for job in chain(*jobs.values()) if self._level.get(job.key) == END), None):
            return trained
        promoted = [name for rung in self._rungs.values() for name in rung.ready(self.factor) if name in jobs]
        free = [name for name in jobs if name not in self._standing]
        if not promoted and not free:
            return None
        chosen = max([*promoted, *free], key=lambda name: sum(self._epochs.get(name, {}).values()))
        self.promote(chosen)
        begun = self._epochs.get(chosen, {})
        return next((job for job in jobs[chosen] if job.key in begun), jobs[chosen][0])


def make_scheduler(sweep: Sweep) -> Promotion | None:
    """Returns the rule of a sweep; None lets every trial run to its end."""
    if sweep.scheduler.name == "none":
        return None
    return Promotion(sweep.objectives, sweep.scheduler.grace, sweep.scheduler.factor)
