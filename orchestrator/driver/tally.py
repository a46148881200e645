"""Counts of a running sweep: trials done, running and failed, the best so far, the time left. Nothing is drawn here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from craft.words import format_duration
from orchestrator.plan.trial import TrialResult, TrialSpec

Outlook = Mapping[str, Any]


@dataclass
class Running:
    """A trial on its way, as it was when it was last heard of, at `heard`.

    Of its work, evaluations and the final scoring included, `share` is done, `before` of it in processes before this session's.
    `phase` says what it does, and `left` how many seconds it takes from `heard` on; None while it does not know.
    """

    spec: TrialSpec
    share: float = 0.0
    score: float | None = None
    before: float = 0.0
    phase: str = ""
    left: float | None = None
    heard: float = 0.0

    def left_at(self, now: float) -> float | None:
        """Seconds left at `now`. One that is late says that it is about to come to its end."""
        return None if self.left is None else max(0.0, self.left - (now - self.heard))


@dataclass
class Tally:
    """The state of a sweep in numbers. `done` counts trials that ended with a result, failures apart.

    `earlier` trials, and parts of trials, were done in earlier runs of the sweep: they say nothing about this run's speed.
    """

    total: int
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    done: int = 0
    failed: int = 0
    earlier: float = 0
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
        """Seconds until the end: of the last trial where none waits, else if the rest goes at this run's pace.

        Until a trial has ended in this run, the pace is what the running ones foretell: until then much of the time that has
        passed went into starting them. None as long as none of that is known, and before a tenth of a trial is done.
        """
        now, trials = self.clock(), self.running.values()
        known = [left for trial in trials if (left := trial.left_at(now)) is not None]
        foretold = bool(known) and len(known) == len(trials)
        if foretold and not self.waiting:
            return max(known)
        rest = self.waiting + sum(1 - trial.share for trial in trials)
        if foretold and self.done + self.failed <= self.earlier:
            # Each trial that runs does its own rest in its own time; those that wait come in like them, side by side.
            own = sum(1 - trial.share for trial in trials)
            return max([sum(known) / own * rest / len(known), *known]) if own > 0 else None
        work = self.done + self.failed - self.earlier + sum(trial.share - trial.before for trial in trials)
        return max([self.elapsed / work * rest, *known]) if work >= 0.1 else None

    def start(self, spec: TrialSpec) -> None:
        self.running.setdefault(spec.key, Running(spec))
        self.paused.discard(spec.key)

    def pause(self, spec: TrialSpec) -> None:
        self.running.pop(spec.key, None)
        self.paused.add(spec.key)

    def progress(
        self,
        spec: TrialSpec,
        step: int,
        total_steps: int,
        score: float | None,
        outlook: Outlook | None = None,
        again: bool = False,
    ) -> None:
        """A trial was evaluated: now, or (`again`) in a process before this one."""
        trial = self.running.setdefault(spec.key, Running(spec))
        trial.score = score
        if outlook is not None:
            self.look(spec, outlook)
        elif not trial.phase:
            trial.share = step / total_steps if total_steps else 0.0
        if again:
            trial.before, trial.left = trial.share, None

    def look(self, spec: TrialSpec, outlook: Outlook) -> None:
        """A trial says how far it is, by the fields of `craft.results.Outlook`."""
        trial = self.running.setdefault(spec.key, Running(spec))
        trial.phase, trial.share, trial.before = outlook["phase"], outlook["share"], outlook["before"]
        trial.left, trial.heard = outlook["left"], self.clock()

    def end(self, spec: TrialSpec, result: TrialResult, earlier: bool) -> None:
        trial = self.running.pop(spec.key, None)
        self.paused.discard(spec.key)
        if result.status == "failed":
            self.failed += 1
        elif result.status != "interrupted":
            self.done += 1
        if result.status != "interrupted":
            self.earlier += 1 if earlier else trial.before if trial else 0
        self.compare(spec, result)

    def compare(self, spec: TrialSpec, result: TrialResult) -> None:
        """Takes the trial as the best so far if it is."""
        score = result.metrics.get("score")
        if result.status == "finished" and score is not None and (self.best is None or score > self.best[0]):
            self.best = score, f"{spec.label} on {spec.run.task}, seed {spec.run.seed}"

    def sentence(self) -> str:
        """All counts and times in one line."""
        parts = [f"{self.done}/{self.total} trials done", f"{len(self.running)} running{self._phases}", f"{self.failed} failed"]
        if self.paused:
            parts.insert(2, f"{len(self.paused)} paused")
        if self.best:
            parts.append(f"best {self.best[0]:.1f} ({self.best[1]})")
        parts.append(f"{format_duration(self.elapsed)} passed")
        if self.left is not None:
            parts.append(f"{format_duration(self.left)} left")
        return ", ".join(parts)

    @property
    def _phases(self) -> str:
        """What the trials that run do, in brackets: the phase of a single one, or how many of several score."""
        phases = [trial.phase for trial in self.running.values()]
        if len(phases) == 1:
            return f" ({phases[0]})" if phases[0] else ""
        scoring = sum(phase.startswith("scoring") for phase in phases)
        return f" ({scoring} scoring)" if scoring else ""

    def told(self, most: int = 8) -> dict[str, Any]:
        """For the page: seconds left, and what the trials do that say so, `most` of them."""
        now = self.clock()
        speaking = [trial for trial in self.running.values() if trial.phase]
        trials = [{"name": trial_name(one.spec), "phase": one.phase, "left": one.left_at(now)} for one in speaking[:most]]
        return {"left": self.left, "trials": trials, "more": max(0, len(speaking) - most)}


def trial_name(spec: TrialSpec) -> str:
    return f"{spec.label} · {spec.run.task} · seed {spec.run.seed}"
