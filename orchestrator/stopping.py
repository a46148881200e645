"""Rules that stop or pause a trial, from the search scores reported so far. No Ray: a record can be replayed by them.

One rule for whom a trial is held against, everywhere: only *rivals*, the trials of other configurations on the same task with
the same seed that cost no more. Cost is whatever of the sweep's objectives is known before training (trainable parameters,
adapter bytes): a small adapter is never stopped by a large one, which it does not compete with, and the smallest of all is
never stopped. Scores of different tasks never meet. Only trials whose score at the same epoch is known are compared, so the
order of arrival matters a little, as it does in every asynchronous rule.

Epochs are the measure of progress. A trial is judged when it reports; at its last report there is nothing left to stop.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Protocol

import numpy as np

from craft.settings import content_hash
from orchestrator.plan.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.sweepfile.settings import SchedulerSettings
    from orchestrator.sweepfile.sweep import Sweep


END = 1_000_000
"""The rung at the end of every trial, above all others."""


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


class Ranked:
    """One number of each trial, in order, kept apart by what the trials cost: what a trial is held against, without going
    through all of them."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}
        self._by_costs: dict[tuple[float, ...], list[float]] = {}

    def add(self, entrant: Entrant, number: float) -> bool:
        """Takes in a trial's number; False if it has one."""
        if entrant.key in self._numbers:
            return False
        self._numbers[entrant.key] = number
        insort(self._by_costs.setdefault(entrant.costs, []), number)
        return True

    def rivals(self, entrant: Entrant, others: bool = False) -> list[list[float]]:
        """The numbers of all that may be held against `entrant`, itself among them or the `others` only, each list in order."""
        found = [numbers for costs, numbers in self._by_costs.items() if entrant.competes_with(costs)]
        if not others or entrant.key not in self._numbers:
            return found
        own, mine = self._numbers[entrant.key], self._by_costs[entrant.costs]
        place = bisect_left(mine, own)
        return [mine[:place] + mine[place + 1 :] if numbers is mine else numbers for numbers in found]


class Rule(Protocol):
    """What judges trials by their reports."""

    def report(self, entrant: Entrant, epoch: float, score: float) -> bool:
        """Takes in a search score (higher is better) at an epoch; whether the trial should stop there.

        A report that is already known changes nothing, so a record may be told again.
        """
        ...


def levels_at(epoch: float, start: float, factor: float) -> Iterator[int]:
    """Numbers of the rungs at `start`, `start` x `factor` ... that lie no later than `epoch`."""
    level = 0
    while start * factor**level <= epoch + 1e-9:
        yield level
        level += 1


@dataclass
class Halving:
    """Asynchronous successive halving: at each rung only the best of every `factor` rivals go on.

    Rungs lie at `grace`, `grace` x `factor`, `grace` x `factor`² ... epochs. A trial is recorded at a rung with its first
    report there; it stops if as many rivals as may stay (a `factor`-th of them and itself, at least one) were better, or were
    its equals and went on: trials that collapsed to one class all score the same, and no more of them go on than of others. One
    that no rival has beaten goes on: where all are equal, the rung has told nothing apart.
    With several `brackets` (Hyperband) every bracket starts its rungs a `factor` later than the one before, and only trials of
    one bracket are compared; a configuration's bracket is drawn by its name, in Hyperband's shares.

    Sources: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (ASHA); Li et al. 2018, Hyperband.
    """

    grace: float = 1.0
    factor: float = 3.0
    brackets: int = 1
    _rungs: dict[tuple[tuple[str, int], int, int], tuple[Ranked, Ranked]] = field(default_factory=dict)

    def report(self, entrant: Entrant, epoch: float, score: float) -> bool:
        bracket = self.bracket(entrant.configuration)
        new = []
        for level in self._levels(bracket, epoch):
            reached, went_on = self._rungs.setdefault((entrant.group, bracket, level), (Ranked(), Ranked()))
            if reached.add(entrant, score):
                new.append((reached, went_on))
        if not new:
            return False
        for _, went_on in new[:-1]:
            went_on.add(entrant, score)
        reached, went_on = new[-1]
        rivals = reached.rivals(entrant)
        stay = max(1, int(sum(map(len, rivals)) / self.factor))
        better = sum(len(scores) - bisect_right(scores, score) for scores in rivals)
        equals = sum(bisect_right(scores, score) - bisect_left(scores, score) for scores in went_on.rivals(entrant))
        if better and better + equals >= stay:
            return True
        went_on.add(entrant, score)
        return False

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
        return levels_at(epoch, self.grace * self.factor**bracket, self.factor)


@dataclass
class Median:
    """Median stopping: a trial stops where its best score so far is below the median of its rivals' mean scores until then.

    It is judged from `grace` epochs on, against rivals that have come as far, if there are at least `rivals` of them.

    Source: Golovin et al. 2017, Google Vizier, section 3.2.2.
    """

    grace: float = 1.0
    rivals: int = 3
    _fields: dict[tuple[str, int], _Means] = field(default_factory=dict)

    def report(self, entrant: Entrant, epoch: float, score: float) -> bool:
        means = self._fields.setdefault(entrant.group, _Means())
        best = means.add(entrant, epoch, score)
        if best is None or epoch < self.grace - 1e-9:
            return False
        rivals = [numbers for numbers in means.at(epoch).rivals(entrant, others=True) if numbers]
        return sum(map(len, rivals)) >= self.rivals and _below_median(best, rivals)


@dataclass
class _Means:
    """Trials of one task and seed: at every epoch that one of them has reported, the mean scores until then of all who came
    as far."""

    _curves: dict[str, tuple[Entrant, dict[float, float]]] = field(default_factory=dict)
    _epochs: dict[float, Ranked] = field(default_factory=dict)

    def add(self, entrant: Entrant, epoch: float, score: float) -> float | None:
        """Takes in a report; the trial's best score so far, or None if the report is known."""
        _, curve = self._curves.setdefault(entrant.key, (entrant, {}))
        if epoch in curve:
            return None
        before = max(curve, default=-math.inf)
        curve[epoch] = score
        if epoch not in self._epochs:
            self._epochs[epoch] = Ranked()
            for one, other in self._curves.values():
                if other is not curve:
                    self._place(one, other, epoch)
        for at in self._epochs:
            if before + 1e-9 < at <= epoch + 1e-9:
                self._place(entrant, curve, at)
        return max(curve.values())

    def at(self, epoch: float) -> Ranked:
        return self._epochs[epoch]

    def _place(self, entrant: Entrant, curve: Mapping[float, float], at: float) -> None:
        until = [score for epoch, score in curve.items() if epoch <= at + 1e-9]
        if until and max(curve) >= at - 1e-9:
            self._epochs[at].add(entrant, fmean(until))


class _Rung:
    """The configurations that came to one rung: of each, how many rivals it has there, how many of them are better, and how
    many are its equals and went on. Every arrival brings all of them up to date, so that a long sweep need not count anew."""

    def __init__(self, costs: int) -> None:
        self._places: dict[str, int] = {}
        self._names: list[str] = []
        self._costs = np.empty((0, costs))
        self._scores = np.empty(0)
        self._rivals, self._better, self._equals = (np.empty(0, int) for _ in range(3))
        self._went_on = np.empty(0, bool)

    def arrive(self, entrant: Entrant, score: float) -> None:
        costs = np.array(entrant.costs, dtype=float)
        rivals = (self._costs <= costs).all(axis=1)
        held_against = (self._costs >= costs).all(axis=1)
        self._rivals[held_against] += 1
        self._better[held_against & (self._scores < score)] += 1
        self._rivals = np.append(self._rivals, rivals.sum() + 1)  # itself among them
        self._better = np.append(self._better, (rivals & (self._scores > score)).sum())
        self._equals = np.append(self._equals, (rivals & self._went_on & (self._scores == score)).sum())
        self._costs, self._scores = np.vstack([self._costs, costs]), np.append(self._scores, score)
        self._went_on = np.append(self._went_on, False)
        self._places[entrant.configuration] = len(self._names)
        self._names.append(entrant.configuration)

    def go_on(self, configuration: str) -> None:
        place = self._places[configuration]
        self._went_on[place] = True
        self._equals[(self._costs >= self._costs[place]).all(axis=1) & (self._scores == self._scores[place])] += 1

    def may_go_on(self, configuration: str, factor: float) -> bool:
        return bool(self._may(factor)[self._places[configuration]])

    def ready(self, factor: float) -> list[str]:
        """Those that wait and need not."""
        return [self._names[place] for place in np.flatnonzero(self._may(factor) & ~self._went_on)]

    def _may(self, factor: float) -> np.ndarray:
        if (self._scores == self._scores[0]).all():
            return np.ones(len(self._scores), bool)
        return self._better + self._equals < np.maximum(1, self._rivals // factor)


@dataclass
class Promotion:
    """Successive halving that pauses: a trial goes on from a rung as soon as it is among the best of every `factor` rivals
    there, and waits until then. Nothing is stopped: rungs fill up, and who waited may be promoted.

    Rungs lie where `Halving` has them, and one more at the end of every trial: a configuration's trials run one after another,
    so whether its next one starts is decided in the same way. Of equals only as many go on as of others, the first of them;
    where all trials at a rung are equal it has told nothing apart, and all go on.

    Which trial of a configuration is next: one on the task whose latest scores differ most from trial to trial, for it says
    most about the configuration's mean; in the file's order until every task has two scores.

    Sources: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (ASHA promotes); Birattari et al. 2002, A
    Racing Algorithm for Configuring Metaheuristics (more tasks and seeds for the promising only).
    """

    grace: float = 1.0
    factor: float = 3.0
    _rungs: dict[tuple[tuple[str, int], int], _Rung] = field(default_factory=dict)
    _epochs: dict[str, dict[str, float]] = field(default_factory=dict)
    _standing: dict[str, _Rung] = field(default_factory=dict)
    _level: dict[str, int] = field(default_factory=dict)
    _latest: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)

    def report(self, entrant: Entrant, epoch: float, score: float, last: bool = False) -> bool:
        """Takes in a search score; whether the trial should pause there.

        Args:
            last: whether it is the trial's last evaluation: nothing to pause then, but its configuration's next trial waits.
        """
        epochs = self._epochs.setdefault(entrant.configuration, {})
        if epoch <= epochs.get(entrant.key, -math.inf):
            return False
        epochs[entrant.key] = epoch
        self.go_on(entrant.configuration)  # it came further, so it went on
        self._latest.setdefault(entrant.group, {})[entrant.key] = score
        level = END if last else max(levels_at(epoch, self.grace, self.factor), default=None)
        if level is None or level <= self._level.get(entrant.key, -1):
            return False
        self._level[entrant.key] = level
        rung = self._rungs.setdefault((entrant.group, level), _Rung(len(entrant.costs)))
        rung.arrive(entrant, score)
        self._standing[entrant.configuration] = rung
        if last or not self.may_go_on(entrant.configuration):
            return True
        self.go_on(entrant.configuration)
        return False

    def may_go_on(self, configuration: str) -> bool:
        """Whether a configuration need not wait: it stands at no rung, or is among the best there."""
        rung = self._standing.get(configuration)
        return rung is None or rung.may_go_on(configuration, self.factor)

    def ready(self) -> list[str]:
        """Configurations that stand at a rung and may go on."""
        return [one for rung in self._rungs.values() for one in rung.ready(self.factor)]

    def go_on(self, configuration: str) -> None:
        """The configuration goes on from where it stands."""
        if configuration in self._standing:
            self._standing.pop(configuration).go_on(configuration)

    def epochs_of(self, configuration: str) -> dict[str, float]:
        """How far each of its trials has come that has reported."""
        return dict(self._epochs.get(configuration, {}))

    def next_of(self, trials: Sequence[Entrant]) -> Entrant:
        """Of a configuration's trials that have not begun, the one to begin with."""
        spreads: dict[str, list[float]] = {}
        for (task, _), scores in self._latest.items():
            if len(scores) > 1:
                spreads.setdefault(task, []).append(pstdev(scores.values()))
        if any(one.group[0] not in spreads for one in trials):
            return trials[0]
        return max(trials, key=lambda one: fmean(spreads[one.group[0]]))

    def so_far(self, trials: Sequence[Entrant]) -> float | None:
        """A configuration's mean score as it is known: the latest of each of its trials, and for one that has none the mean of
        all others on its task with its seed. None where there are none either."""
        known = [self._latest.get(one.group, {}) for one in trials]
        if not all(known):
            return None
        return fmean(scores.get(one.key, fmean(scores.values())) for one, scores in zip(trials, known, strict=True))


def _below_median(value: float, groups: Sequence[Sequence[float]]) -> bool:
    """Whether `value` is below the median of ordered groups of numbers taken together."""
    count = sum(map(len, groups))
    places = [bisect_right(numbers, value) for numbers in groups]
    above = count - sum(places)
    if 2 * above != count:
        return 2 * above > count
    # As many above as not: the median lies halfway between the two neighbours of `value`.
    lower = max(numbers[place - 1] for numbers, place in zip(groups, places, strict=True) if place)
    upper = min(numbers[place] for numbers, place in zip(groups, places, strict=True) if place < len(numbers))
    return value < (lower + upper) / 2


RULES: dict[str, Callable[[SchedulerSettings], Rule | Promotion | None]] = {
    "none": lambda settings: None,
    "asha": lambda settings: Halving(settings.grace, settings.factor),
    "hyperband": lambda settings: Halving(settings.grace, settings.factor, settings.brackets),
    "median": lambda settings: Median(settings.grace, settings.rivals),
    "promotion": lambda settings: Promotion(settings.grace, settings.factor),
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
