"""A trial as the log knows it: what it last reported, and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.plan.trial import Number, Trial, TrialResult

Phase = Literal["waiting", "running", "paused", "ended"]


@dataclass(frozen=True)
class Report:
    """The last evaluation of a trial. `metrics` are all that it reported at `step`."""

    step: int
    total_steps: int
    epoch: float
    metrics: Mapping[str, Number]


@dataclass(frozen=True)
class Entry:
    """A trial that the sweep asks for, or once asked for, and what became of it.

    Attributes:
        result: how it ended, or failed in an earlier session; None before.
        phase: `waiting` before it starts and after an interruption, `paused` while it waits for its turn at a rung.
        begun: whether it has ever started.
        report: its last evaluation.
        last_steps: the last step of each metric that it reported.
        adapter: the local folder of its adapter, relative to the sweep's folder where it is inside.
        seconds: the time of its runs that have ended.
        changed: when its phase last changed, in seconds since 1970.
        wave: the number of the request for trials (`Wanted`) that asked for it first.
    """

    trial: Trial
    result: TrialResult | None = None
    phase: Phase = "waiting"
    begun: bool = False
    report: Report | None = None
    last_steps: Mapping[str, int] = field(default_factory=dict)
    adapter: str | None = None
    seconds: float = 0.0
    changed: float = 0.0
    wave: int = 0

    @property
    def key(self) -> str:
        return self.trial.key

    @property
    def ended(self) -> bool:
        """Whether it has nothing left to run in this session."""
        return self.phase == "ended"

    @property
    def finished(self) -> TrialResult | None:
        """Its result, if it finished."""
        return self.result if self.result is not None and self.result.status == "finished" else None


def count_phases(entries: Iterable[Entry]) -> Counter[str]:
    """Counts trials: waiting, running, paused; or finished, failed, stopped if they have ended."""
    return Counter(entry.result.status if entry.ended and entry.result is not None else entry.phase for entry in entries)
