"""A sweep replayed from recorded curves with simulated time: the product's proposers and rules, no training, no Ray.

    proposer --configuration--> queue of trials --> N workers --events in order of time--> rule, results --> tell

A worker takes the next trial and is busy until its next evaluation, for as long as that took in the record; then the rule
decides whether the trial continues, as it does on Ray Tune (`orchestrator.search.promotion`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Trial
from orchestrator.results.search_values import SearchValues
from orchestrator.results.summary import Summary, summarize
from orchestrator.search.promotion import Promotion
from orchestrator.search.proposers import Proposer, propose
from orchestrator.search.rivals import Entrant, entrant
from orchestrator.state.entry import TrialResult
from orchestrator.sweepfile.sweep import Sweep
from tests.benchmarks.replay.curves import Curve, RecordedCurves
from tests.benchmarks.replay.yardstick import Yardstick, of_finished

SumUp = Callable[[Sequence[Trial], dict[str, TrialResult], Configuration], Summary]


@dataclass
class Outcome:
    """The result of a replay. `progress` has (trial-epochs, trials begun, hypervolume) for each configuration that finished."""

    epochs: float = 0.0
    seconds: float = 0.0
    finished: int = 0
    stopped: int = 0
    begun: int = 0
    progress: list[tuple[float, int, float]] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)

    def epochs_to(self, hypervolume: float) -> float | None:
        """Trial-epochs spent until the front had that hypervolume; None if it never had."""
        return next((epochs for epochs, _, reached in self.progress if reached >= hypervolume - 1e-12), None)

    def trials_to(self, hypervolume: float) -> int | None:
        return next((trials for _, trials, reached in self.progress if reached >= hypervolume - 1e-12), None)


@dataclass
class _Running:
    spec: Trial
    curve: Curve
    configuration: Configuration
    entrant: Entrant
    done: int = 0


def simulate(
    sweep: Sweep,
    record: RecordedCurves,
    workers: int,
    yardstick: Yardstick,
    enough: float | None = None,
    folder: Path | None = None,
) -> Outcome:
    """Replays one sweep on its record.

    Args:
        enough: a hypervolume at which the replay may end.
        folder: gets the searcher's study, as a sweep's folder does; kept in memory if not given.

    Raises:
        MissingCurve: the searcher asks for what was not recorded.
    """
    plan = make_plan(sweep, Planner(sweep, record.counts))
    return Simulation(plan, propose(plan, folder), record.curve, workers, yardstick).run(enough)


def _summed_up(specs: Sequence[Trial], results: dict[str, TrialResult], configuration: Configuration) -> Summary:
    (summary,) = summarize(specs, results, {configuration.id: configuration.known})
    return summary


class Simulation:
    def __init__(
        self,
        plan: Plan,
        proposer: Proposer,
        curve: Callable[[Any], Curve],
        workers: int,
        yardstick: Yardstick,
        sum_up: SumUp = _summed_up,
    ) -> None:
        self._plan, self._proposer, self._curve, self._free, self._yardstick = plan, proposer, curve, workers, yardstick
        self._sum_up = sum_up
        settings = plan.sweep.scheduler
        self._rule = None if settings.name == "none" else Promotion(settings.grace, settings.factor)
        # Only where trials pause: each configuration's trials that have not ended, by key; configurations of which one runs.
        self._left: dict[str, dict[str, _Running]] = {}
        self._out: set[str] = set()
        self._now, self._order = 0.0, 0
        self._queue: deque[_Running] = deque()
        self._events: list[tuple[float, int, _Running]] = []
        self._open: dict[str, list[Trial]] = {}
        self._results: dict[str, TrialResult] = {}
        self._values = SearchValues(plan.sweep.objectives)
        self._points: list[list[float]] = []
        self._outcome = Outcome()

    def run(self, enough: float | None = None, limit: float | None = None) -> Outcome:
        """Ends early with a hypervolume that is `enough`, or after `limit` trial-epochs."""
        outcome = self._outcome
        self._fill()
        while self._events:
            if enough is not None and outcome.progress and outcome.progress[-1][2] >= enough - 1e-12:
                break
            if limit is not None and outcome.epochs >= limit:
                break
            self._now, _, trial = heapq.heappop(self._events)
            self._free += 1
            self._evaluated(trial)
            self._fill()
        if not self._events:
            # Nothing runs any more, so a trial that waits is never promoted.
            outcome.stopped += sum(map(len, self._left.values()))
        outcome.seconds = self._now
        return outcome

    def _fill(self) -> None:
        while self._free:
            if not self._queue and not self._promote() and not self._propose():
                return
            self._go_on(self._queue.popleft())

    def _propose(self) -> bool:
        configuration = self._proposer.suggest()
        if configuration is None:
            return False
        specs = self._open[configuration.id] = self._plan.trials_of(configuration.id)
        trials = [
            _Running(spec, self._curve(spec.run), configuration, entrant(self._plan.sweep, spec, configuration))
            for spec in specs
        ]
        if self._rule is None:
            self._queue.extend(trials)
            return True
        self._left[configuration.id] = {trial.spec.key: trial for trial in trials}
        return self._promote()

    def _promote(self) -> bool:
        """Lets the waiting trial go on whose turn it is, if there is one."""
        if self._rule is None:
            return False
        waiting = {
            key: [trial.entrant for trial in trials.values()] for key, trials in self._left.items() if key not in self._out
        }
        chosen = self._rule.next_turn(waiting)
        if chosen is None:
            return False
        self._out.add(chosen.configuration)
        self._queue.append(self._left[chosen.configuration][chosen.key])
        return True

    def _pause(self, configuration: Configuration) -> None:
        """A configuration waits; the searcher learns what is known of it."""
        self._out.discard(configuration.id)
        if self._rule is None or configuration.id not in self._left:
            return
        score = self._rule.so_far([entrant(self._plan.sweep, spec, configuration) for spec in self._open[configuration.id]])
        if score is not None:
            self._proposer.tell_partial(configuration.id, {**configuration.known, "score": score})

    def _release(self, trial: _Running) -> None:
        """A trial has ended, so that the next one of its configuration may have its turn."""
        self._out.discard(trial.configuration.id)
        left = self._left.get(trial.configuration.id, {})
        left.pop(trial.spec.key, None)
        if not left:
            self._left.pop(trial.configuration.id, None)

    def _go_on(self, trial: _Running) -> None:
        """A worker works towards the trial's next evaluation."""
        before = trial.curve.evaluations[trial.done - 1][0] if trial.done else 0.0
        epochs = trial.curve.evaluations[trial.done][0] - before
        self._outcome.begun += not trial.done
        self._outcome.epochs += epochs
        self._free -= 1
        self._order += 1
        seconds = trial.curve.seconds * epochs / trial.curve.evaluations[-1][0]
        heapq.heappush(self._events, (self._now + seconds, self._order, trial))

    def _evaluated(self, trial: _Running) -> None:
        epoch, score = trial.curve.evaluations[trial.done]
        trial.done += 1
        last = trial.done == len(trial.curve.evaluations)
        pauses = self._rule is not None and self._rule.pauses(trial.entrant, epoch, score, last)
        if last:
            self._outcome.finished += 1
            self._end(trial, of_finished(trial.spec.key, trial.curve))
        if pauses:
            self._pause(trial.configuration)
        elif not last:
            self._go_on(trial)

    def _end(self, trial: _Running, result: TrialResult) -> None:
        self._results[trial.spec.key] = result
        configuration = trial.configuration
        self._release(trial)
        specs = self._open[configuration.id]
        if any(spec.key not in self._results for spec in specs):
            return
        summary = self._sum_up(specs, self._results, configuration)
        values = self._values.of(summary, self._results, lambda key: next(spec for spec in specs if spec.key == key))
        self._proposer.tell(configuration.id, values, "complete" if summary.complete else "incomplete")
        if summary.complete:
            self._outcome.summaries.append(summary)
            self._points.append(self._yardstick.point(summary))
            self._outcome.progress.append((self._outcome.epochs, self._outcome.begun, self._yardstick.measure(self._points)))
