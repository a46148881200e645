"""A sweep replayed from recorded curves with simulated time: the product's driver and strategies, no training, no Ray.

    driver --job--> N workers --events in order of time--> driver

A worker takes the next job and is busy until its next evaluation, for as long as that took in the record. Then the driver
decides whether the trial continues, as it does on Ray Tune.
"""

from __future__ import annotations

import heapq
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.driver.display import Display
from orchestrator.driver.driver import Driver
from orchestrator.driver.options import RunOptions
from orchestrator.plan import trial
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.sweepfile.sweep import Sweep
from tests.benchmarks.replay.curves import Curve, RecordedCurves
from tests.benchmarks.replay.yardstick import Yardstick, of_finished


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


def simulate(sweep: Sweep, record: RecordedCurves, workers: int, yardstick: Yardstick, enough: float | None = None) -> Outcome:
    """Replays one sweep on its record.

    Args:
        enough: a hypervolume at which the replay may end.

    Raises:
        MissingCurve: the searcher asks for what was not recorded.
    """
    plan = make_plan(sweep, Planner(sweep, record.counts))
    return Simulation(plan, record.curve, workers, yardstick).run(enough)


class Simulation:
    """One replay, on so many workers; `curve` gives the recorded curve of a run."""

    def __init__(self, plan: Plan, curve: Callable[[Any], Curve], workers: int, yardstick: Yardstick) -> None:
        self._plan, self._curve, self._free, self._yardstick = plan, curve, workers, yardstick
        self._now = 0.0
        self._events: list[tuple[float, int, str]] = []
        self._curves: dict[str, Curve] = {}
        self._done: dict[str, int] = {}
        self._points: list[list[float]] = []
        self._outcome = Outcome()

    def run(self, enough: float | None = None, limit: float | None = None) -> Outcome:
        """Ends early with a hypervolume that is `enough`, or after `limit` trial-epochs."""
        with tempfile.TemporaryDirectory() as folder:
            display = Display(0, io.StringIO(), "quiet")
            driver = Driver(self._plan, RunOptions(Path(folder)), display)
            driver.begin()
            self._run(driver, enough, limit)
            if not self._events:
                # Nothing runs any more, so a trial that waits is never promoted.
                self._outcome.stopped += len(driver.waiting)
            driver.close()
        self._outcome.seconds = self._now
        return self._outcome

    def _run(self, driver: Driver, enough: float | None, limit: float | None) -> None:
        outcome = self._outcome
        self._fill(driver)
        while self._events:
            if enough is not None and outcome.progress and outcome.progress[-1][2] >= enough - 1e-12:
                break
            if limit is not None and outcome.epochs >= limit:
                break
            self._now, _, key = heapq.heappop(self._events)
            self._free += 1
            self._evaluate(driver, key)
            self._fill(driver)

    def _fill(self, driver: Driver) -> None:
        while self._free and (job := driver.next_job()) is not None:
            self._outcome.begun += job.key not in self._done
            self._curves.setdefault(job.key, self._curve(job.training.run))
            driver.started(job.key)
            self._work(job.key)

    def _work(self, key: str) -> None:
        """A worker works towards the trial's next evaluation."""
        curve, done = self._curves[key], self._done.setdefault(key, 0)
        epochs = curve.evaluations[done][0] - (curve.evaluations[done - 1][0] if done else 0.0)
        self._outcome.epochs += epochs
        self._free -= 1
        seconds = curve.seconds * epochs / curve.evaluations[-1][0]
        heapq.heappush(self._events, (self._now + seconds, len(self._done) * 1000 + done, key))

    def _evaluate(self, driver: Driver, key: str) -> None:
        curve = self._curves[key]
        epoch, score = curve.evaluations[self._done[key]]
        self._done[key] += 1
        done, steps = self._done[key], len(curve.evaluations)
        progress = {"step": done, "total_steps": steps, "epoch": epoch, "metrics": {"search_score": score}}
        waits = driver.reported(key, progress | {"points": [], "time": self._now})
        if done == steps:
            self._outcome.finished += 1
            driver.ended(key, [trial.Outcome(of_finished(key, curve))])
            self._measure(driver, key)
        elif waits:
            driver.paused(key)
        else:
            self._work(key)

    def _measure(self, driver: Driver, key: str) -> None:
        configuration = driver.state.entries[key].configuration
        entries = [entry for entry in driver.state.asked_for if entry.configuration == configuration]
        (summary,) = summarize_entries(entries)
        if summary.complete:
            self._outcome.summaries.append(summary)
            self._points.append(self._yardstick.point(summary))
            self._outcome.progress.append((self._outcome.epochs, self._outcome.begun, self._yardstick.measure(self._points)))
