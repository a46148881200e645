"""What was spent on tuning a configuration: the trials among which its settings were chosen, and their time.

A trial says by `tunes` among which configurations it helps to choose: those that differ in nothing but what is tuned. A
configuration without such companions kept the settings that the sweep file gives it, so it was not tuned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.plan.trial import TrialResult


@dataclass(frozen=True)
class Tuning:
    """The budget that the choice of a configuration's settings took.

    Attributes:
        candidates: configurations that it was chosen among, itself included; 1 if it was not tuned.
        trials: their trials that have ended; a training of nested ranks is one trial, whatever it makes. 0 if it was not tuned.
        failed: those of `trials` without a score.
        seconds: the time of `trials`.
        over: whether all of its trials have ended.
    """

    candidates: int
    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    over: bool = True

    @classmethod
    def of(cls, candidates: int, results: Sequence[TrialResult | None]) -> Tuning:
        """The budget as far as it is spent.

        Args:
            results: of all trials of the candidates that Ray schedules; None for one that has not ended.
        """
        if candidates == 1:
            return cls(1)
        ended = [result for result in results if result is not None and result.status != "interrupted"]
        failed = sum(result.status == "failed" for result in ended)
        return cls(candidates, len(ended), failed, sum(result.seconds for result in ended), len(ended) == len(results))

    @property
    def tuned(self) -> bool:
        """Whether there was anything to choose."""
        return self.candidates > 1
