"""Trials that run or are paused: what each of them last reported, and the time that each has taken."""

from __future__ import annotations

import time
from typing import Any

from orchestrator.state.entry import Status, TrialResult


class Underway:
    """Keeps last reports and times by trial key. Only `Recorder` changes it.

    Attributes:
        seconds: what trials have taken in runs that have ended, of all sessions; the present runs are not counted.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: dict[str, dict[str, Any]] = {}
        self._paused: dict[str, dict[str, Any]] = {}
        self._since: dict[str, float] = {}

    @property
    def running(self) -> list[str]:
        """Keys of trials that run."""
        return list(self._running)

    @property
    def running_since(self) -> list[float]:
        """When each trial that runs was first started in this session, by the monotonic clock."""
        return [self._since[key] for key in self._running]

    def step_of(self, key: str) -> int:
        """The last step that a running trial has reported; 0 before its first report."""
        return int(self._running.get(key, {}).get("step", 0))

    def last_report(self, key: str) -> dict[str, Any]:
        """What a trial that runs or is paused last reported; empty if nothing."""
        return self._running.get(key) or self._paused.get(key, {})

    def start(self, key: str) -> None:
        self._running.setdefault(key, {})
        self._since.setdefault(key, time.monotonic())

    def report(self, key: str, progress: dict[str, Any]) -> None:
        self._running[key] = progress

    def pause(self, key: str) -> None:
        self._paused[key] = self._running.pop(key, {})
        self.took(key, self._taken(key))

    def paused_at(self, key: str) -> bool:
        """Whether the trial has reported something and was paused in this session."""
        return bool(self._paused.get(key))

    def break_off(self) -> list[str]:
        """Nothing runs any more; returns the keys of what did. Their time counts on until they are started again or end."""
        keys = list(self._running)
        self._running.clear()
        return keys

    def end(self, key: str, seconds: float) -> bool:
        """The trial has ended after so long; whether it was running or paused."""
        began = key in self._running or key in self._paused
        for kept in (self._running, self._paused, self._since):
            kept.pop(key, None)
        self.took(key, seconds)
        return began

    def took(self, key: str, seconds: float) -> None:
        """A trial has taken so long in all its runs that have ended."""
        self.seconds[key] = seconds

    def result(self, key: str, status: Status) -> TrialResult:
        """The result of a trial that has none of its own: its last evaluation, and the time it took. Its time ends here."""
        last = self.last_report(key)
        metrics, steps = dict(last.get("metrics", {})), int(last.get("step", 0))
        return TrialResult(key, status, metrics=metrics, steps=steps, seconds=self._taken(key))

    def _taken(self, key: str) -> float:
        """Seconds of a trial's runs, the present one included, which ends with that."""
        began = self._since.pop(key, None)
        return self.seconds.get(key, 0.0) + (time.monotonic() - began if began is not None else 0.0)
