"""The rule that stops a trial, from the search scores reported so far. No Ray: a record can be replayed by them.

The rule compares a trial only with its *rivals*: the trials of other configurations on the same task with the same seed that
cost no more. The costs are the sweep's objectives that are known before training (trainable parameters, adapter bytes). So a
large adapter never stops a small one, which it does not compete with, and the smallest of all is never stopped. Scores of
different tasks are never compared. Only trials whose score at the same epoch is known are compared, so the order of arrival
matters a little, as it does in every asynchronous rule.

Progress is measured in epochs. A trial is judged at each of its evaluations; after the last one there is nothing to stop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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

    Source: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (ASHA).
    """

    grace: float = 1.0
    factor: float = 3.0
    _rungs: dict[tuple[tuple[str, int], int], tuple[Ranked, Ranked]] = field(default_factory=dict)

    def report(self, entrant: Entrant, epoch: float, score: float, last: bool = False) -> Decision:
        new = []
        for level in levels_at(epoch, self.grace, self.factor):
            reached, went_on = self._rungs.setdefault((entrant.group, level), (Ranked(), Ranked()))
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


def halving(settings: SchedulerSettings) -> Halving:
    return Halving(settings.grace, settings.factor)
