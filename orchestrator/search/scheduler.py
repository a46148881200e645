"""`PromotionScheduler`: which trials wait at a rung, and which of them continues, where a sweep promotes trials.

The rule (`orchestrator.search.promotion`) is folded from the same reports as the state. So a resumed sweep judges as if it had
never been interrupted.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from orchestrator.plan.trial import Job
from orchestrator.search.promotion import Promotion
from orchestrator.search.rivals import Candidate, candidate_of
from orchestrator.state.events import Event, Reported
from orchestrator.state.state import State
from orchestrator.sweepfile.sweep import Sweep


class PromotionScheduler:
    """The rule of one sweep, after some events."""

    def __init__(self, sweep: Sweep) -> None:
        self._rule = Promotion(sweep.scheduler.grace, sweep.scheduler.factor)
        self._objectives = sweep.objectives

    def on_report(self, event: Event, state: State) -> bool:
        """Learns from a report; returns whether its trial waits from now on. Other events change nothing.

        Args:
            state: the state after the event.
        """
        if not isinstance(event, Reported) or event.key not in state.entries:
            return False
        last = event.rows[-1]
        at_end = last["step"] >= event.total_steps > 0
        rival = candidate_of(state.entries[event.key], self._objectives)
        return self._rule.pauses(rival, event.epoch, last.get("search_score"), at_end) and not at_end

    def next_job(self, waiting: Iterable[Job], busy: Container[str], state: State) -> Job | None:
        """Returns the job whose turn it is, which then continues; None if all must wait.

        Args:
            busy: configurations of which a trial runs.
        """
        jobs = {job.key: job for job in waiting if job.training.configuration not in busy}
        candidates: dict[str, list[Candidate]] = {}
        for job in jobs.values():
            candidates.setdefault(job.training.configuration, []).append(candidate_of(state.entries[job.key], self._objectives))
        chosen = self._rule.next_turn(candidates)
        return None if chosen is None else jobs[chosen.key]


def make_scheduler(sweep: Sweep) -> PromotionScheduler | None:
    """Returns the scheduler of a sweep; None lets every trial run to its end."""
    return None if sweep.scheduler.name == "none" else PromotionScheduler(sweep)
