"""What happens to a trial after an evaluation, and which waiting trial is next: asked by Ray Tune's side and by replays.

    an evaluation  -->  Judge  --rule-->  go on, pause or stop
    a free worker  -->  the rule's next_turn, where trials pause  -->  the waiting trial that goes on

The rule is in `orchestrator.search.promotion`, or where another row of SCHEDULERS names it. A judge adds what is the same for
all rules: a trial that has ended cannot be stopped, and one that is stopped takes its configuration's other trials with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

from orchestrator.search.rivals import Entrant
from orchestrator.sweepfile.algorithms import imported

if TYPE_CHECKING:
    from orchestrator.sweepfile.settings import SchedulerSettings


class Decision(Enum):
    """What a trial does after an evaluation."""

    GO_ON = "go on"
    """It trains on; after its last evaluation it has nothing more to do."""
    PAUSE = "pause"
    """It waits with its checkpoint until `PausingRule.next_turn` names it, which may never happen. After its last evaluation
    the next trial of its configuration waits instead."""
    STOP = "stop"
    """It ends for good, and the other trials of its configuration are spared: those that wait are not started, those that run
    end at their next evaluation."""


class Rule(Protocol):
    """Judges trials by their evaluations."""

    def report(self, entrant: Entrant, epoch: float, score: float, last: bool = False) -> Decision:
        """Takes in a search score (higher is better) of a trial at an epoch, and decides.

        An evaluation that is already known changes nothing and is answered by GO_ON, so a record may be told again.

        Args:
            last: whether it is the trial's last evaluation. STOP then has no effect.
        """
        ...


class PausingRule(Rule, Protocol):
    """A rule that may answer PAUSE; its row of SCHEDULERS has `pauses`."""

    def next_turn(self, waiting: Mapping[str, Sequence[Entrant]]) -> Entrant | None:
        """The waiting trial that goes on, or begins, now; None if all must wait. The rule counts it as running from here on.

        Args:
            waiting: by configuration, its trials that have not ended, in the file's order; without the configurations of which
                a trial runs.
        """
        ...

    def so_far(self, trials: Sequence[Entrant]) -> float | None:
        """The mean search score of a configuration's trials as far as it is known; None if there is nothing to go by."""
        ...


def rule_of(settings: SchedulerSettings) -> Rule | None:
    """A new rule of the scheduler that a sweep file names, with its settings; None if that scheduler judges no trial."""
    return imported(settings.row.rule)(settings) if settings.row.rule else None


class Judge:
    """Asks the rule of a scheduler. `turns` is the rule if trials pause under it, otherwise None."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._rule = rule_of(settings)
        self.turns: PausingRule | None = cast(PausingRule, self._rule) if settings.row.pauses else None
        self._given_up: set[str] = set()

    def decide(self, entrant: Entrant, epoch: float, score: object, last: bool) -> Decision:
        """The decision after an evaluation; a score that is no finite number is passed over."""
        decision = self.remember(entrant, epoch, score, last)
        if last:
            return Decision.PAUSE if decision is Decision.PAUSE else Decision.GO_ON
        if decision is Decision.STOP:
            self._given_up.add(entrant.configuration)
        return Decision.STOP if entrant.configuration in self._given_up else decision

    def remember(self, entrant: Entrant, epoch: float, score: object, last: bool) -> Decision:
        """Tells the rule an evaluation of an earlier session. The answer has no consequence: it was acted on then."""
        if self._rule is None or not _counts(score):
            return Decision.GO_ON
        return self._rule.report(entrant, epoch, score, last)


def _counts(score: object) -> TypeGuard[float]:
    return isinstance(score, int | float) and math.isfinite(score)
