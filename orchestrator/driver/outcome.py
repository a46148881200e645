"""`SweepOutcome`: what a caller gets back from a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.plan.trial import TrialResult


@dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended. Keys of trials by how they ended; `missing` never ended, `interrupted` will go on from a checkpoint.

    Attributes:
        results: of every trial of the plan that ever ended, by key, those of earlier runs included.
        stopped: ended early by the scheduler, with a result.
        seconds: of this run.
        trouble: why the run ended before its plan did, where it did.
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

    @property
    def complete(self) -> bool:
        """Every trial of the plan has a result that counts, and no more were to come."""
        return not (self.failed or self.interrupted or self.missing or self.open)
