"""Rules that stop a trial, from the search scores reported so far. No Ray: a record can be replayed by them.

Every rule compares a trial only with its *rivals*: the trials of other configurations on the same task with the same seed that
cost no more. The costs are the sweep's objectives that are known before training (trainable parameters, adapter bytes). So a
large adapter never stops a small one, which it does not compete with, and the smallest of all is never stopped. Scores of
different tasks are never compared. Only trials whose score at the same epoch is known are compared, so the order of arrival
matters a little, as it does in every asynchronous rule.

Progress is measured in epochs. A trial is judged at each of its evaluations; after the last one there is nothing to stop.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from craft.settings import content_hash
from orchestrator.search.judge import Decision
from orchestrator.search.rivals import Entrant, Ranked, levels_at

if TYPE_CHECKING:
    from orchestrator.sweepfile.settings import SchedulerSettings


@dataclass
class Halving:
    """Asynchronous successive halving: at each rung only the best of every `factor` rivals go on.

    Rungs lie at `grace`, `grace` x `factor`, `grace` x `factor`² ... epochs. A trial is recorded at a rung with its first
    report there. A `factor`-th of the trial and its rivals may stay, at least one. The trial stops if that many rivals were
    better, or scored the same and went on: trials that collapsed to one class all score the same, and only the first of them go
    on. An unbeaten trial always goes on: if all score the same, the rung tells nothing apart.

    With several `brackets` (Hyperband) every bracket starts its rungs a `factor` later than the one before, and only trials of
    one bracket are compared; a configuration's bracket is drawn by its name, in Hyperband's shares.

    Sources: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (ASHA); Li et al. 2018, Hyperband.
    """

    grace: float = 1.0
    factor: float = 3.0
    brackets: int = 1
    _rungs: dict[tuple[tuple[str, int], int, int], tuple[Ranked, Ranked]] = field(default_factory=dict)

    def report(self, entrant: Entrant, epoch: float, score: float, last: bool = False) -> Decision:
        bracket = self.bracket(entrant.configuration)
        new = []
        for level in self._levels(bracket, epoch):
            reached, went_on = self._rungs.setdefault((entrant.group, bracket, level), (Ranked(), Ranked()))
            if reached.add(entrant, score):
                new.append((reached, went_on))
        if not new:
            return Decision.GO_ON
        for _, went_on in new[:-1]:
            went_on.add(entrant, score)
        reached, went_on = new[-1]
        rivals = reached.rivals(entrant)
        stay = max(1, int(sum(map(len, rivals)) / self.factor))
        better = sum(len(scores) - bisect_right(scores, score) for scores in rivals)
        equals = sum(bisect_right(scores, score) - bisect_left(scores, score) for scores in went_on.rivals(entrant))
        if better and better + equals >= stay:
            return Decision.STOP
        went_on.add(entrant, score)
        return Decision.GO_ON

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
    """Median stopping: a trial stops if its best score so far is below the median of its rivals' mean scores until then.

    A trial is judged from `grace` epochs on, against rivals that have come as far, if there are at least `rivals` of them.

    Source: Golovin et al. 2017, Google Vizier, section 3.2.2.
    """

    grace: float = 1.0
    rivals: int = 3
    _fields: dict[tuple[str, int], _Means] = field(default_factory=dict)

    def report(self, entrant: Entrant, epoch: float, score: float, last: bool = False) -> Decision:
        means = self._fields.setdefault(entrant.group, _Means())
        best = means.add(entrant, epoch, score)
        if best is None or epoch < self.grace - 1e-9:
            return Decision.GO_ON
        rivals = [numbers for numbers in means.at(epoch).rivals(entrant, others=True) if numbers]
        enough = sum(map(len, rivals)) >= self.rivals
        return Decision.STOP if enough and _below_median(best, rivals) else Decision.GO_ON


@dataclass
class _Means:
    """Trials of one task and seed: for every epoch that one of them has reported, the mean score until then of each trial that
    came as far."""

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


def halving(settings: SchedulerSettings) -> Halving:
    return Halving(settings.grace, settings.factor)


def hyperband(settings: SchedulerSettings) -> Halving:
    return Halving(settings.grace, settings.factor, settings.brackets)


def median(settings: SchedulerSettings) -> Median:
    return Median(settings.grace, settings.rivals)
