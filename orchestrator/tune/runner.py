"""Runs a plan on Ray Tune so that no finished work is lost, whatever dies.

    log -> state -> what remains -->  attempt-N (a fresh Tune experiment)  -->  events --> log
                        ^                        |
                        +---- fit() broke -------+

A session is one start of the driver, an attempt is one `fit()` (`orchestrator.tune.attempts`). Ray's own restore is not used:
every attempt begins with what remains, so a resumed sweep, an extended one and one whose attempt broke off are the same thing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.driver.display import Display
from orchestrator.driver.driver import Driver
from orchestrator.driver.outcome import SweepOutcome, outcome_of
from orchestrator.driver.preparation import Shared
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Train
from orchestrator.record.checkpoints import attempts, check_writable
from orchestrator.record.folder import SweepFolder
from orchestrator.record.lock import one_driver
from orchestrator.record.options import Options
from orchestrator.record.resume import check_name
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tools.signals import Stop
from orchestrator.tune.attempts import Attempts
from orchestrator.tune.cluster import refuse_running_ray


class Session:
    """One start of the driver.

    Attributes:
        driver: has the sweep's record.
        display: what the terminal shows.
    """

    def __init__(self, driver: Driver, display: Display, stop: Stop) -> None:
        self.driver, self.display, self._stop = driver, display, stop

    def run(
        self,
        train: Train | None = None,
        shared: Shared | None = None,
        last_words: Callable[[SweepOutcome], None] = lambda outcome: None,
        watch: Callable[[], None] = lambda: None,
    ) -> SweepOutcome:
        """Runs what remains of the plan and returns how the sweep stands. The session has begun (`Driver.begin`).

        Ctrl-C or SIGTERM once stops gracefully: trials without a result continue from their last checkpoints when the sweep is
        resumed. A second one stops at once. Where Ray does not return (its own processes died of the same signal) the process
        itself is ended some seconds later, with the record as true as otherwise (`orchestrator.tools.signals`).

        Args:
            train: what workers run instead of `craft.trainer.training.train_run`.
            shared: what was prepared for the trials.
            last_words: called, in another thread, if the process has to be ended; the record is on the disk by then.
            watch: called often while trials run.

        Raises:
            ValueError: the cluster or a trial's share of it is refused, and nothing has been trained.
        """
        driver, stop = self.driver, self._stop
        attempts = Attempts(driver, stop.listen, train, shared)

        def look() -> None:
            watch()
            attempts.look()

        driver.watch = look

        def broken() -> str | None:
            return attempts.cluster.broken if attempts.cluster is not None else None

        def abandon(why: str) -> None:
            driver.lock.acquire(timeout=2)  # the driver's own thread will not come back from Ray, and the process ends next
            trouble = driver.stop() or (None if stop.asked else why)
            self.display.close()
            shutil.rmtree(driver.folder.scratch, ignore_errors=True)
            last_words(outcome_of(driver, trouble, stop.signal))

        trouble = None
        with self.display, stop.watching(broken, abandon):
            try:
                trouble = attempts.run()
            except KeyboardInterrupt:
                stop.asked = True
            finally:
                trouble = driver.stop() or trouble
        return outcome_of(driver, trouble, stop.signal)


@contextmanager
def open_session(plan: Plan, folder: SweepFolder, options: Options) -> Iterator[Session]:
    """Holds the sweep's folder for a session: its lock, its screen, and what is on record.

    Raises:
        ValueError: Ray runs in this process already, another driver has the folder, it holds a sweep and this is no resume, its
            log is another sweep's, or the storage cannot be written.
    """
    refuse_running_ray()
    storage = options.storage_of(folder.path)
    with one_driver(folder.path), noise_to_log(folder.log) as screen:
        if not options.resume and (folder.record.exists() or attempts(storage)):
            raise ValueError(f"{folder.path} holds a sweep already. Continue it by --resume, or give this one another --name.")
        check_writable(storage)
        display = Display(screen, options.verbosity)
        stop = Stop(display.say)
        driver = Driver(plan, folder, options, display, lambda: stop.asked)
        check_name(folder.path, driver.state, plan.sweep.name)
        if driver.copied_from is not None:
            copy = f"{folder.path} is a copy of {driver.copied_from}, which is there still"
            if options.remote is not None:
                raise ValueError(
                    f"{copy}, and both would write to {storage}. Give the copy another --storage, or remove one of them"
                )
            display.say(f"{copy}: it continues as a sweep of its own")
        try:
            yield Session(driver, display, stop)
        finally:
            driver.close()
            shutil.rmtree(folder.scratch, ignore_errors=True)
