"""`Queue`: the jobs that are wanted in a session. A job waits, then the engine has it, then it runs.

`CommonCause` notices that trial after trial fails for one fault, such as a missing model or an expired token: ten
of them say as much as a thousand, and cost less.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence

from orchestrator.plan.trial import Job
from orchestrator.record.state import State
from orchestrator.search.scheduler import Promotion

ENOUGH = 10
"""So many trials in a row fail for one reason before a session ends; each of them was started several times."""


class CommonCause:
    """Counts failures in a row with the same reason; any sign that a trial trains sets the count to zero."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.trouble: str | None = None
        self._clock = clock
        self._reason, self._count, self._since = "", 0, 0.0

    def works(self) -> None:
        self._count = 0

    def failed(self, reason: str, running_since: Iterable[float]) -> None:
        """Notes that a trial has failed by a fault of its machine, after all its attempts.

        Args:
            running_since: when each of the trials began that run now. One that began before the first of these failures and
                still runs may be well: another machine may be in order.
        """
        # Paths, ports and numbered hosts differ from trial to trial.
        pattern = re.sub(r"\S*[\d/]\S*", "#", reason)
        if self._count == 0 or pattern != self._reason:
            self._reason, self._count, self._since = pattern, 0, self._clock()
        self._count += 1
        if self._count >= ENOUGH and not any(began < self._since for began in running_since):
            self.trouble = (
                f"{self._count} trials in a row failed for one reason, and none trained meanwhile: {reason}. It is no fault of "
                "the trials: mend it, then --resume runs them again"
            )


class Queue:
    """The jobs of a session.

    Attributes:
        jobs: those that are wanted, in order.
        running: those that run, with the time at which they started.
        submitted: jobs that the engine has, as it got them. It starts a job some time later, and what is wanted of the job
            may change meanwhile.
    """

    def __init__(self, scheduler: Promotion | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._clock = scheduler, clock
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, float] = {}
        self.submitted: dict[str, Job] = {}

    def job(self, key: str) -> Job | None:
        return self.submitted.get(key) or self.jobs.get(key)

    def waiting(self, state: State) -> dict[str, Job]:
        """Returns the jobs, in order, that have something left to run and wait for room, a source or their turn."""
        return {key: job for key, job in self.jobs.items() if key not in self.submitted and state.unfinished(job.keys)}

    def take_next(self, state: State, only: Sequence[str] | None = None) -> Job | None:
        """Returns the job that is to start now, one of `only` if given, which waits no more; None if all must wait."""
        waiting = self.waiting(state)
        if only is not None:
            waiting = {key: waiting[key] for key in only if key in waiting}
        if self._scheduler is not None:
            busy = {job.training.configuration for job in self.submitted.values()}
            job = self._scheduler.next_job(waiting.values(), busy)
        else:
            ended = {None, *(key for key, entry in state.entries.items() if entry.ended)}
            job = next((job for job in waiting.values() if job.source in ended), None)
        if job is not None:
            self.submitted[job.key] = job
        return job

    def start(self, key: str) -> None:
        self.running.setdefault(key, self._clock())

    def leave(self, key: str) -> None:
        self.running.pop(key, None)
        self.submitted.pop(key, None)

    def restart(self) -> None:
        self.running.clear()
        self.submitted.clear()
