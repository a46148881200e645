"""A trial as the log knows it: what it last reported, and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from orchestrator.state.trial import Number, Trial

Status = Literal["finished", "failed", "stopped", "interrupted"]
Phase = Literal["waiting", "running", "paused", "ended"]


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended.

    `stopped` is the end of a trial that was never promoted: its metrics are those of its last evaluation. `retryable` marks a
    failure that is not the configuration's fault (a crash, a full disk): the next session runs such a trial again. `seconds`
    of a cut adapter are those of cutting and scoring it.
    """

    key: str
    status: Status
    metrics: dict[str, Number] = field(default_factory=dict)
    counts: dict[str, Number] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    error: str | None = None
    retryable: bool = False
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def with_facts(self, **facts: Any) -> TrialResult:
        """Returns the result with these facts added."""
        return replace(self, facts={**self.facts, **facts})

    @property
    def settled(self) -> bool:
        """Whether no later session runs the trial again."""
        return self.status != "failed" or not self.retryable

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TrialResult:
        """Raises TypeError for what is no result: an unknown or missing key, a metric or count that is no number."""
        result = cls(**fields)
        wrong = [f"{name} is {value!r}" for name, value in (result.metrics | result.counts).items() if not _is_number(value)]
        if wrong:
            raise TypeError(f"{', '.join(wrong)}, which is no number")
        return result


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
