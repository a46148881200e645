"""What was spent on tuning a configuration: the trials among which its settings were chosen, and their time.

A trial says by `tunes` among which configurations it helps to choose: those that differ in nothing but what is tuned. A
configuration without such companions kept the settings that the sweep file gives it, so it was not tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        at_end: numbers of this configuration that are the lowest or highest of those tried, such as `highest learning_rate`: a
            better value may lie beyond.
    """

    candidates: int
    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    over: bool = True
    at_end: tuple[str, ...] = ()

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


def ends(candidates: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Which numbers of each candidate are the lowest or the highest of all; numbers with fewer than three values are left out,
    because every one of those is at an end.

    Args:
        candidates: by configuration, its parameters, which may be numbers as text.
    """
    found: dict[str, tuple[str, ...]] = dict.fromkeys(candidates, ())
    for name in next(iter(candidates.values()), {}):
        numbers = {one: _number(parameters.get(name)) for one, parameters in candidates.items()}
        values = {one: value for one, value in numbers.items() if value is not None}
        if len(values) < len(numbers) or len(set(values.values())) < 3:
            continue
        word = {min(values.values()): "lowest", max(values.values()): "highest"}
        for one, value in values.items():
            found[one] += (f"{word[value]} {name}",) if value in word else ()
    return found


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
