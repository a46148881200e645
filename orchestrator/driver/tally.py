"""Counts of a running sweep: trials done, running and failed, the best so far, the time left. Nothing is drawn here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from craft.words import format_duration
from orchestrator.plan.trial import TrialResult, TrialSpec


@dataclass
class Running:
    """A trial on its way: `share` of its steps done, its last search score."""

    spec: TrialSpec
    share: float = 0.0
    score: float | None = None


@dataclass
class Tally:
    """The state of a sweep in numbers. `done` counts trials that ended with a result, failures apart.

    `earlier` trials ended in earlier runs of the sweep: they count as done but say nothing about this run's speed.
    """

    total: int
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    done: int = 0
    failed: int = 0
    earlier: int = 0
    running: dict[str, Running] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    best: tuple[float, str] | None = None

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    @property
    def waiting(self) -> int:
        return max(0, self.total - self.done - self.failed - len(self.running))

    @property
    def left(self) -> float | None:
        """Seconds until the end if the rest goes at this run's pace; None before a tenth of a trial is done."""
        work = self.done + self.failed - self.earlier + sum(trial.share for trial in self.running.values())
        rest = self.waiting + sum(1 - trial.share for trial in self.running.values())
        return self.elapsed / work * rest if work >= 0.1 else None

    def start(self, spec: TrialSpec) -> None:
        self.running.setdefault(spec.key, Running(spec))
        self.paused.discard(spec.key)

    def pause(self, spec: TrialSpec) -> None:
        self.running.pop(spec.key, None)
        self.paused.add(spec.key)

    def progress(self, spec: TrialSpec, step: int, total_steps: int, score: float | None) -> None:
        self.running[spec.key] = Running(spec, step / total_steps if total_steps else 0.0, score)

    def end(self, spec: TrialSpec, result: TrialResult, earlier: bool) -> None:
        self.running.pop(spec.key, None)
        self.paused.discard(spec.key)
        if result.status == "failed":
            self.failed += 1
        elif result.status != "interrupted":
            self.done += 1
        self.earlier += earlier
        self.compare(spec, result)

    def compare(self, spec: TrialSpec, result: TrialResult) -> None:
        """Takes the trial as the best so far if it is."""
        score = result.metrics.get("score")
        if result.status == "finished" and score is not None and (self.best is None or score > self.best[0]):
            self.best = score, f"{spec.label} on {spec.run.task}, seed {spec.run.seed}"

    def sentence(self) -> str:
        """All counts and times in one line."""
        parts = [f"{self.done}/{self.total} trials done", f"{len(self.running)} running", f"{self.failed} failed"]
        if self.paused:
            parts.insert(2, f"{len(self.paused)} paused")
        if self.best:
            parts.append(f"best {self.best[0]:.1f} ({self.best[1]})")
        parts.append(f"{format_duration(self.elapsed)} passed")
        if self.left is not None:
            parts.append(f"{format_duration(self.left)} left")
        return ", ".join(parts)


def trial_name(spec: TrialSpec) -> str:
    return f"{spec.label} · {spec.run.task} · seed {spec.run.seed}"
