"""Counts of a running sweep: trials done, running, stopped and failed, the time left. Nothing is drawn here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from craft.words import format_duration, plural
from orchestrator.state.entry import Entry

Outlook = Mapping[str, Any]
EARLY = 0.1
STARTING = "starting processes, loading the model"


@dataclass
class Running:
    """A trial that runs, as it last reported.

    Attributes:
        started: when.
        cold: it began before any trial of this session had ended, so its process may have begun with it.
        share: how much of its work is done, scoring included.
        phase: what it does.
        ends: when it ends, as far as it knows.
    """

    entry: Entry
    started: float
    cold: bool
    share: float = 0.0
    score: float | None = None
    phase: str = ""
    ends: float | None = None

    def left_at(self, clock_seconds: float) -> float | None:
        """Returns the seconds left at `clock_seconds`; 0 for a trial that is late."""
        return None if self.ends is None else max(0.0, self.ends - clock_seconds)


@dataclass
class Tally:
    """The state of a sweep in numbers. `done` counts trials that have finished.

    `cutting` has the keys of cuts that have started. `missing` says what the trials wait for that no machine has. `most` is the
    number of trials that have run at once, and `took` the seconds of each that has ended, in this session.
    """

    total: int
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    done: int = 0
    failed: int = 0
    stopped: int = 0
    running: dict[str, Running] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    cutting: set[str] = field(default_factory=set)
    missing: str = ""
    most: int = 1
    took: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    @property
    def waiting(self) -> int:
        return max(0, self.total - self.done - self.failed - self.stopped - len(self.running))

    @property
    def left(self) -> float | None:
        """Seconds until the end; None until a trial has ended, or one that runs foretells its end.

        A trial that waits is taken to last as long as the mean of those that have ended and those that run. One that has
        hardly begun says little, so it counts only while no other is known.
        """
        clock_seconds, trials = self.clock(), self.running.values()
        outlooks = [(trial.share, seconds) for trial in trials if (seconds := trial.left_at(clock_seconds)) is not None]
        least = EARLY if self.took else 0.0
        durations = self.took + [seconds / (1 - share) for share, seconds in outlooks if least <= share < 1]
        if not durations:
            return max((seconds for _, seconds in outlooks), default=None)
        mean = sum(durations) / len(durations)
        remaining = [seconds for _, seconds in outlooks] + [mean * (1 - trial.share) for trial in trials if trial.ends is None]
        return max([(self.waiting * mean + sum(remaining)) / self.most, *remaining])

    def start(self, entry: Entry) -> Running:
        """Notes that a training runs."""
        self.paused.discard(entry.key)
        trial = self.running.setdefault(entry.key, Running(entry, self.clock(), cold=not self.took))
        self.most = max(self.most, len(self.running))
        return trial

    def pause(self, entry: Entry) -> None:
        """Notes that a training waits for its turn."""
        self.running.pop(entry.key, None)
        self.paused.add(entry.key)

    def stop(self, key: str) -> None:
        """Notes that a training does not run any more, and has no result."""
        self.running.pop(key, None)

    def progress(self, entry: Entry) -> None:
        """Notes that a training was evaluated, in this process or an earlier one."""
        trial, report = self.start(entry), entry.report
        if report is not None:
            trial.score = report.metrics.get("search_score")
            if not trial.phase:
                trial.share = report.step / report.total_steps if report.total_steps else 0.0

    def look(self, entry: Entry, outlook: Outlook) -> None:
        """Takes the progress of a training, as `craft.results.Outlook` has it."""
        trial = self.start(entry)
        trial.phase, trial.share, seconds_left = outlook["phase"], outlook["share"], outlook["seconds_left"]
        trial.ends = None if seconds_left is None else self.clock() + seconds_left

    def end(self, entry: Entry, *, earlier: bool = False) -> None:
        """Notes that a training has ended; `earlier` if that was in an earlier session."""
        trial, result = self.running.pop(entry.key, None), entry.result
        self.paused.discard(entry.key)
        if result is None or result.status == "failed":
            self.failed += 1
            return
        if result.status == "stopped":
            self.stopped += 1
        else:
            self.done += 1
        if trial is not None and not earlier:
            # Starting a process takes long, and those that come after use it again. A resumed trial took longer than here.
            self.took.append(result.seconds if trial.cold else max(result.seconds, self.clock() - trial.started))

    def count_again(self, entries: Sequence[Entry]) -> None:
        """Counts all trials from the start, because others are wanted now or results are void."""
        self.done = self.failed = self.stopped = 0
        self.paused = {entry.key for entry in entries if entry.phase == "paused"}
        for entry in entries:
            if entry.ended and not entry.trial.is_cut:
                self.end(entry, earlier=True)

    def sentence(self, over: bool = False) -> str:
        """Returns all counts and times in one line; `over` when nothing starts any more."""
        parts = [f"{self.done}/{self.total} trainings done", f"{len(self.running)} running", f"{self.failed} failed"]
        parts[1] += f" ({self.doing})" if self.doing and not over else ""
        if self.paused:
            parts.insert(2, f"{len(self.paused)} paused")
        if self.stopped:
            parts.append(f"{self.stopped} stopped")
        parts.append(f"{format_duration(self.elapsed)} passed")
        if self.left is not None:
            parts.append(f"{format_duration(self.left)} left")
        return ", ".join(parts)

    @property
    def doing(self) -> str:
        """What the trials do: the phase of one that runs alone, how many of several are scored, that finished adapters are cut,
        that the first are starting, or what they wait for."""
        if self.cutting and not self.running:
            return f"making {len(self.cutting)} {plural(len(self.cutting), 'cut')} of finished adapters"
        if self.missing and not self.running:
            return f"no machine: waiting for {self.missing}"
        phases = [trial.phase for trial in self.running.values()]
        if not (any(phases) or self.done or self.failed):
            return STARTING
        scoring = sum(phase.startswith("scoring") for phase in phases)
        return phases[0] if len(phases) == 1 else f"{scoring} scoring" if scoring else ""
