"""`SweepOutcome`: what a caller gets back from a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.driver.standing import Standing
from orchestrator.state.entry import TrialResult


@dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended. Keys of trainings by how they ended; `missing` never did, `interrupted` will go on from a checkpoint.

    Attributes:
        results: of every trial of the plan that ever ended, sizes included, in this session or an earlier one, by key.
        stopped: ended early by the scheduler, with a result.
        finished_now: those of `finished` that ended in this session.
        seconds: of this session.
        trouble: why the session ended before its plan did, if it did.
        signal: the number of the signal that stopped it, where one did.
        spent: what of the budget ended it, where something did.
        open: whether a searcher had more to propose, or more seeds were to be given, when it ended.
    """

    results: dict[str, TrialResult]
    finished: list[str]
    stopped: list[str]
    failed: list[str]
    interrupted: list[str]
    missing: list[str]
    seconds: float
    trouble: str | None = None
    signal: int | None = None
    spent: str | None = None
    notes: list[str] = field(default_factory=list)
    open: bool = False
    finished_now: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Every trial of the plan has a result that counts, and no more were to come."""
        return not (self.failed or self.interrupted or self.missing or self.open)


def outcome_of(standing: Standing, **how: Any) -> SweepOutcome:
    """The outcome of a session whose trials stand as given."""

    def keys(status: str) -> list[str]:
        return [key for key in standing.trainings if key in standing.results and standing.results[key].status == status]

    return SweepOutcome(
        results=dict(standing.results),
        finished=keys("finished"),
        stopped=keys("stopped"),
        failed=keys("failed"),
        interrupted=keys("interrupted"),
        missing=[key for key in standing.trainings if key not in standing.results],
        finished_now=[key for key in keys("finished") if not standing.is_on_record(standing.spec(key))],
        **how,
    )
