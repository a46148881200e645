"""Runs a plan on Ray Tune so that no finished work is lost, whatever dies.

    plan - ledger = what remains -->  attempt-N (a fresh Tune experiment)  -->  results --> ledger, tracker, display
                  ^                        |
                  +---- fit() broke -------+

A session is one start of the driver, an attempt is one `fit()` (`orchestrator.tune.attempts`). Ray's own restore is not used:
every attempt begins with what remains, so a resumed sweep, an extended one and one whose attempt broke off are the same thing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.driver.display import Display
from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome, outcome_of
from orchestrator.driver.preparation import Shared
from orchestrator.plan.trial import Train
from orchestrator.record.checkpoints import attempts, check_writable
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.record.lock import one_driver
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tune.assembly import Parts, assemble
from orchestrator.tune.attempts import Attempts

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan
    from orchestrator.record.tracker import Tracker


def run_sweep(
    plan: Plan,
    options: RunOptions,
    *,
    tracker: Tracker | None = None,
    train: Train | None = None,
    shared: Shared | None = None,
    last_words: Callable[[SweepOutcome], None] = lambda outcome: None,
) -> SweepOutcome:
    """Runs what remains of a plan and returns how the sweep stands.

    Ctrl-C or SIGTERM once stops gracefully: the outcome has `interrupted` trials, which go on from their last checkpoints when
    the sweep is resumed. A second one stops at once. Where Ray does not let go (its own processes died of the same signal) the
    process itself is ended some seconds later, with the record as true as otherwise (`orchestrator.tools.signals`).

    Args:
        tracker: records every trial and configuration; its maker opens and closes the sweep's own run.
        train: what workers run instead of `craft.trainer.training.train_run`.
        shared: what was prepared for the trials.
        last_words: called, in another thread, if the process has to be ended; the record is on the disk by then.

    Raises:
        ValueError: the session is refused, and nothing has been trained.
    """
    folder = options.folder.absolute()
    storage = options.storage or str(SweepFolder(folder).ray)
    storage = storage if "://" in storage else str(Path(storage).absolute())
    with one_driver(folder):
        ledger = Ledger(folder)
        if not options.resume and (ledger.results() or attempts(storage)):
            raise ValueError(f"{folder} holds a sweep already. Go on with it by --resume, or start afresh with another --name.")
        check_writable(storage)
        try:
            with (
                noise_to_log(SweepFolder(folder).log) as screen,
                Display(plan.most_trials, screen, options.verbosity) as display,
            ):
                parts = assemble(plan, options, folder, storage, ledger, display, tracker)
                session = Session(parts, train, shared)
                with parts.stop.watching(session.is_broken, lambda why: last_words(session.abandoned(why))):
                    trouble = session.to_the_end()
        finally:
            ledger.close()
            shutil.rmtree(SweepFolder(folder).scratch, ignore_errors=True)
    return session.outcome(trouble)


class Session:
    """One start of the driver: from what is on record to the outcome."""

    def __init__(self, parts: Parts, train: Train | None, shared: Shared | None = None) -> None:
        self._parts, self._attempts = parts, Attempts(parts, train, shared)
        self._started = time.monotonic()

    def to_the_end(self) -> str | None:
        """Runs what remains; returns why the session ended before its plan did, or None."""
        parts = self._parts
        if not parts.more_to_run():
            return None
        parts.exchange.recall()
        parts.watch.check()
        trouble = None
        try:
            trouble = self._attempts.run()
        except KeyboardInterrupt:
            parts.stop.asked = True
        return self._closed() or trouble

    def is_broken(self) -> str | None:
        """Why the cluster that the session has joined is of no use any more, if it is not."""
        cluster = self._attempts.cluster
        return cluster.broken if cluster is not None else None

    def abandoned(self, why: str) -> SweepOutcome:
        """Ends the session when its own thread will not come back from Ray. The process must end after it: the lock is kept."""
        parts = self._parts
        parts.recorder.lock.acquire(timeout=2)
        trouble = self._closed() or (None if parts.stop.asked else why)
        parts.display.close()
        shutil.rmtree(parts.folder.scratch, ignore_errors=True)
        return self.outcome(trouble)

    def outcome(self, trouble: str | None) -> SweepOutcome:
        """How the sweep stands, after a session that ended early for `trouble` if it did."""
        parts, spent = self._parts, self._parts.watch.spent
        return outcome_of(
            parts.recorder.standing,
            seconds=time.monotonic() - self._started,
            trouble=trouble,
            signal=parts.stop.signal,
            spent=spent,
            notes=[*([f"ended by {spent}"] if spent else []), *parts.recorder.notes],
            open=parts.more_to_propose,
        )

    def _closed(self) -> str | None:
        """Marks what was running as interrupted; returns what is wrong if the disk does not take it."""
        parts = self._parts
        parts.recorder.interrupted()
        if parts.recorder.flush():
            return None
        return (
            f"{parts.folder.path} cannot be written: results since then are kept only in {parts.storage}; "
            "make room and --resume"
        )
