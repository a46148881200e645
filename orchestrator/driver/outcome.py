"""`SweepOutcome`: what a caller gets back from a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.state.entry import Entry
from orchestrator.state.state import State

if TYPE_CHECKING:
    from orchestrator.driver.driver import Driver


@dataclass(frozen=True)
class SweepOutcome:
    """How a session ended.

    Attributes:
        state: how the sweep stands.
        seconds: of this session.
        trouble: why the session ended before its plan did, if it did.
        signal: the number of the signal that stopped it.
        exhausted: what of the budget ended it.
        notes: sentences on what was decided.
        open: whether a searcher had more to propose, or more seeds were to be given, when it ended.
        new: keys of the trials that finished in this session.
    """

    state: State
    seconds: float
    trouble: str | None = None
    signal: int | None = None
    exhausted: str | None = None
    notes: Sequence[str] = ()
    open: bool = False
    new: frozenset[str] = field(default_factory=frozenset)

    @property
    def left(self) -> list[Entry]:
        """The trainings with a trial that has not ended, begun or not."""
        sources = {entry.trial.training for entry in self.state.requested if not entry.ended}
        return [entry for entry in self.state.trainings if not entry.ended or entry.key in sources]

    def ended(self, status: str) -> list[Entry]:
        """Returns the trainings that ended so: `finished`, `failed` or `stopped`."""
        return [entry for entry in self.state.trainings if entry.ended and entry.result and entry.result.status == status]

    @property
    def complete(self) -> bool:
        """Whether every trial has a result that counts, and no more were to come."""
        return not (self.ended("failed") or self.left or self.open)

    @property
    def status(self) -> str:
        """The status of the sweep: `finished`, `interrupted` or `failed`."""
        if self.complete or self.exhausted:
            return "finished"
        return "interrupted" if self.left or self.open else "failed"


def outcome_of(driver: Driver, trouble: str | None, signal: int | None) -> SweepOutcome:
    """Returns the outcome of a session that ended early for `trouble`, or by a signal, if it did."""
    exhausted = driver.exhausted
    notes = [*([f"ended by {exhausted}"] if exhausted else []), *driver.notes]
    ended = driver.strategy.is_open(driver.state)
    return SweepOutcome(driver.state, driver.seconds, trouble, signal, exhausted, notes, ended, driver.new)
