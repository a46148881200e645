"""A trial as the rule of `promotion` sees it, and its rivals: the trials that it may be compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.state.entry import Entry

END = 1_000_000
"""The rung at the end of every trial, above all others."""


@dataclass(frozen=True)
class Candidate:
    """A trial as the rule sees it.

    `group` is its task and seed: only trials of equal groups are compared. Every one of `costs` is better when smaller.
    """

    key: str
    configuration: str
    group: tuple[str, int]
    costs: tuple[float, ...] = ()


def levels_at(epoch: float, start: float, factor: float) -> Iterator[int]:
    """Numbers of the rungs at `start`, `start` x `factor` ... that lie no later than `epoch`."""
    level = 0
    while start * factor**level <= epoch + 1e-9:
        yield level
        level += 1


def candidate_of(entry: Entry, objectives: Mapping[str, str]) -> Candidate:
    """Returns the trial as the rule sees it under the sweep's objectives."""
    costs = [
        entry.trial.planned[name] * (1 if direction == "minimize" else -1)
        for name, direction in objectives.items()
        if name in entry.trial.planned
    ]
    return Candidate(entry.key, entry.trial.configuration, (entry.trial.task, entry.trial.seed), tuple(costs))
