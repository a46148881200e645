"""Rules that stop a trial early, from the search scores reported so far. No Ray: a record can be replayed by them.

One rule for whom a trial is held against, everywhere: only *rivals*, the trials of other configurations on the same task with
the same seed that cost no more. Cost is whatever of the sweep's objectives is known before training (trainable parameters,
adapter bytes): a small adapter is never stopped by a large one, which it does not compete with, and the smallest of all is
never stopped. Scores of different tasks never meet. Only trials whose score at the same epoch is known are compared, so the
order of arrival matters a little, as it does in every asynchronous rule.

Epochs are the measure of progress. A trial is judged when it reports; at its last report there is nothing left to stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Protocol

from craft.spec import content_hash
from orchestrator.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.plan import Configuration
    from orchestrator.sweep import SchedulerSettings, Sweep


@dataclass(frozen=True)
class Entrant:
    """A trial as the rules see it. `group` holds what is comparable at all; every one of `costs` is better when smaller."""

    key: str
    configuration: str
    group: tuple[str, int]
    costs: tuple[float, ...] = ()

    def competes_with(self, costs: tuple[float, ...]) -> bool:
        """Whether one of such costs may be held against it: none of them is larger than its own."""
        return all(other <= own for other, own in zip(costs, self.costs, strict=True))


class Rule(Protocol):
    """What judges trials by their reports."""

    def report(self, entrant: Entrant, epoch: float, score: float) -> bool:
        """Takes in a search score (higher is better) at an epoch; whether the trial should stop there.

        A report that is already known changes nothing, so a record may be told again.
        """
        ...


@dataclass
class Halving:
    """Asynchronous successive halving: at each rung only the best of every `factor` rivals go on.

    Rungs lie at `grace`, `grace` x `factor`, `grace` x `factor`² ... epochs. A trial is recorded at a rung with its first
    report there; it stops if as many rivals as may stay (a `factor`-th of them and itself, at least one) were strictly better.
    With several `brackets` (Hyperband) every bracket starts its rungs a `factor` later than the one before, and only trials of
    one bracket are compared; a configuration's bracket is drawn by its name, in Hyperband's shares.

    Sources: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (ASHA); Li et al. 2018, Hyperband.
    """

    grace: float = 1.0
    factor: float = 3.0
    brackets: int = 1
    _rungs: dict[tuple[tuple[str, int], int, int], dict[str, tuple[tuple[float, ...], float]]] = field(default_factory=dict)

    def report(self, entrant: Entrant, epoch: float, score: float) -> bool:
        bracket = self.bracket(entrant.configuration)
        top: dict[str, tuple[tuple[float, ...], float]] | None = None
        for level in self._levels(bracket, epoch):
            rung = self._rungs.setdefault((entrant.group, bracket, level), {})
            if entrant.key not in rung:
                rung[entrant.key] = (entrant.costs, score)
                top = rung
        if top is None:
            return False
        field_ = [other for costs, other in top.values() if entrant.competes_with(costs)]
        stay = max(1, int(len(field_) / self.factor))
        return sum(other > score for other in field_) >= stay

    def bracket(self, configuration: str) -> int:
        """The bracket a configuration belongs to; 0 stops earliest and gets the most."""
        last = self.brackets - 1
        shares = [(last + 1) / (last - bracket + 1) * self.factor ** (last - bracket) for bracket in range(self.brackets)]
        drawn = int(content_hash(["bracket", configuration], 8), 16) / 16**8 * sum(shares)
        for bracket, share in enumerate(shares):
            drawn -= share
            if drawn < 0:
                return bracket
        return last

    def _levels(self, bracket: int, epoch: float) -> Iterator[int]:
        start = self.grace * self.factor**bracket
        level = 0
        while start * self.factor**level <= epoch + 1e-9:
            yield level
            level += 1


@dataclass
class Median:
    """Median stopping: a trial stops where its best score so far is below the median of its rivals' mean scores until then.

    It is judged from `grace` epochs on, against rivals that have come as far, if there are at least `rivals` of them.

    Source: Golovin et al. 2017, Google Vizier, section 3.2.2.
    """

    grace: float = 1.0
    rivals: int = 3
    _curves: dict[tuple[str, int], dict[str, tuple[tuple[float, ...], dict[float, float]]]] = field(default_factory=dict)

    def report(self, entrant: Entrant, epoch: float, score: float) -> bool:
        group = self._curves.setdefault(entrant.group, {})
        _, own = group.setdefault(entrant.key, (entrant.costs, {}))
        if epoch in own:
            return False
        own[epoch] = score
        if epoch < self.grace - 1e-9:
            return False
        means = [
            fmean(value for at, value in curve.items() if at <= epoch + 1e-9)
            for key, (costs, curve) in group.items()
            if key != entrant.key and entrant.competes_with(costs) and max(curve) >= epoch - 1e-9 and min(curve) <= epoch + 1e-9
        ]
        return len(means) >= self.rivals and max(own.values()) < median(means)


RULES: dict[str, Callable[[SchedulerSettings], Rule | None]] = {
    "none": lambda settings: None,
    "asha": lambda settings: Halving(settings.grace, settings.factor),
    "hyperband": lambda settings: Halving(settings.grace, settings.factor, settings.brackets),
    "median": lambda settings: Median(settings.grace, settings.rivals),
    "pbt": lambda settings: None,  # it stops nothing; its generations are `orchestrator.population`'s
}


def entrant(sweep: Sweep, trial: TrialSpec, configuration: Configuration) -> Entrant:
    """The trial as the rules see it under the sweep's objectives."""
    costs = [
        configuration.known[name] * (1 if direction == "minimize" else -1)
        for name, direction in sweep.objectives.items()
        if name in configuration.known
    ]
    return Entrant(trial.key, trial.configuration, (trial.run.task, trial.run.seed), tuple(costs))


def judged(score: object) -> bool:
    """Whether a reported value can be judged by."""
    return isinstance(score, int | float) and math.isfinite(score)
