"""`Queue`: the jobs of a session. A job waits, then the engine has it, then it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from orchestrator.plan.trial import Job
from orchestrator.search.turns import Turns
from orchestrator.state.state import State


class Queue:
    """The jobs that are wanted in a session.

    Attributes:
        jobs: all of them, by the key of their training.
        waiting: those that wait for room, a source or their turn, in the order in which they are wanted.
        running: those that run, with the time of `time.monotonic` at which they started.
    """

    def __init__(self, turns: Turns | None) -> None:
        """
        Args:
            turns: decides which job may run if not all are promoted.
        """
        self._turns = turns
        self.jobs: dict[str, Job] = {}
        self.waiting: dict[str, Job] = {}
        self.running: dict[str, float] = {}
        self._out: set[str] = set()
        """Keys of jobs that the engine has: it starts a job some time after it takes it."""

    def take_next(self, state: State, only: Sequence[str] | None = None) -> Job | None:
        """Returns the job that is to start now, which does not wait any more; None if all must wait.

        Args:
            only: keys of the jobs to choose from, if not from all.
        """
        waiting = self.waiting if only is None else {key: self.waiting[key] for key in only if key in self.waiting}
        if self._turns is not None:
            busy = {state.entries[key].configuration for key in self._out}
            job = self._turns.choose(waiting.values(), busy, state)
        else:
            job = next((job for job in waiting.values() if _is_ready(job, state)), None)
        if job is not None:
            del self.waiting[job.key]
            self._out.add(job.key)
        return job

    def start(self, key: str) -> None:
        """Notes that a job runs, for the first time or again."""
        self.running.setdefault(key, time.monotonic())

    def leave(self, key: str) -> None:
        """Notes that a job neither waits nor runs."""
        self.waiting.pop(key, None)
        self.running.pop(key, None)
        self._out.discard(key)

    def wait(self, key: str) -> None:
        """Notes that a job waits, for the first time or again."""
        self.leave(key)
        self.waiting[key] = self.jobs[key]

    def restart(self, state: State) -> None:
        """Notes that the engine has no job any more: all that have something left to run wait again, in their order."""
        self.running.clear()
        self._out.clear()
        self.waiting = {key: job for key, job in self.jobs.items() if state.unfinished(job.keys)}


def _is_ready(job: Job, state: State) -> bool:
    source = state.entries.get(job.source) if job.source else None
    return job.source is None or (source is not None and source.ended)
