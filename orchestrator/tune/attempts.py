"""Runs a plan on Ray Tune so that no finished work is lost, whatever dies.

    log -> state -> what remains -->  attempt-N (a fresh Tune experiment)  -->  events --> log
                        ^                        |
                        +---- fit() broke -------+

A session is one start of the driver, an attempt is one `fit()`. Ray's own restore is not used: every attempt begins with what
remains, and each of its trials looks for the newest whole checkpoint of its key in all attempts (`orchestrator.worker.worker`).
So a resumed sweep, an extended one and one whose attempt broke off are the same thing. Trials whose process or machine dies are
started again by Tune. When Ray gives up as a whole (the system killed a worker for memory), another attempt follows: first the
trials that were running, one at a time, so that the one to blame fails alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence

from ray import tune

from craft.results import Train
from orchestrator.driver.driver import Driver
from orchestrator.plan.table import idle_line
from orchestrator.record.checkpoints import attempts
from orchestrator.tune.cluster import Cluster, joined, machines, missing
from orchestrator.tune.crew import share_of, trainable
from orchestrator.tune.engine import Jobs, Judge, Recording, Stopper, key_of
from orchestrator.worker import crash
from orchestrator.worker.preparation import Shared
from orchestrator.worker.surroundings import WorkerSettings

log = logging.getLogger(__name__)

ANNOUNCED_TRIALS = 200
"""How many waiting trials an autoscaler is shown at once: Ray Tune's own number for plans that are known beforehand."""
LOOK_SECONDS = 5.0
FRUITLESS_ATTEMPTS = 3
"""How many attempts in a row may break without one trial ending before the session gives up."""
FRUITLESS_STARTS = 10
"""The same where Ray did not even start: its raylet gives its helpers 15 s, too little on a machine that is far too busy."""


class Attempts:
    """Runs attempts. `cluster` is the one that the present attempt has joined."""

    def __init__(self, driver: Driver, listen: Callable[[], None], train: Train | None, shared: Shared | None) -> None:
        self.cluster: Cluster | None = None
        self._driver, self._listen, self._train, self._shared = driver, listen, train, shared
        self._began, self._started, self._next_look = False, False, 0.0

    def run(self) -> str | None:
        """Runs attempts until nothing remains or the session is to end; returns why it gave up, if it did."""
        driver = self._driver
        suspects: list[str] = []
        fruitless = 0
        while driver.is_open and not driver.is_ending:
            ended_before = self._ended
            error = self._attempt(suspects)
            if driver.is_ending:
                return driver.common_cause.trouble
            running = driver.record_break()
            if error is None:
                if not suspects:
                    driver.end_waiting()
                    if driver.is_open:
                        return "Ray ended the attempt with trials left; see the log"
                suspects = []
                continue
            log.error("the attempt broke off", exc_info=error)
            reason = crash.describe(error)
            if "memory" in reason.lower():
                suspects = self._blame(suspects, running, reason)
            fruitless = 0 if self._ended > ended_before else fruitless + 1
            driver.display.trouble(f"Ray broke off ({reason}); starting again with what remains")
            if fruitless >= (FRUITLESS_ATTEMPTS if self._started else FRUITLESS_STARTS):
                return f"Ray broke off {fruitless} times without one trial ending: {reason}"
        return None

    @property
    def _ended(self) -> int:
        return sum(entry.ended for entry in self._driver.state.entries.values())

    def look(self) -> None:
        """Notes now and then whether the cluster has a machine for any of the trials that wait; called often."""
        if self.cluster is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._driver.display.missing = missing(self._driver.waiting_shares, machines())

    def _blame(self, suspects: list[str], running: list[str], reason: str) -> list[str]:
        """Returns the jobs that are to run alone next, after memory ran out while they were running."""
        if not (suspects and running):
            return running
        for key in running:
            self._driver.record_failure(key, f"{reason} (it ran alone)")
        return [key for key in suspects if not self._driver.is_ended(key)]

    def _attempt(self, only: Sequence[str]) -> Exception | None:
        """Runs one Tune experiment over what remains (over the jobs `only`, one at a time, if given); returns what broke it."""
        options = self._driver.options
        number, self._started = max(attempts(self._driver.storage), default=0) + 1, False
        try:
            with joined(options.address, options.cpus) as self.cluster:
                self._started = True
                self._listen()
                tuner = self._tuner(number, only, self._slots(self.cluster))
                gpus = sum(machine.get("GPU", 0) for machine in machines())
                if gpus and not self._began and not any(share.gpu for share in self._driver.plan.sweep.shares):
                    self._driver.display.say(str(idle_line(gpus)), style="yellow")
                self._began = True
                tuner.fit()
        except Exception as error:
            if isinstance(error, ValueError) and not self._began:
                raise  # a refusal: nothing has been trained
            return error
        finally:
            self.cluster = None
        return None

    def _tuner(self, number: int, only: Sequence[str], slots: int) -> tune.Tuner:
        driver = self._driver
        scratch = None if driver.options.address else str(driver.folder.scratch)
        shared = self._shared.checked if self._shared else None
        settings = WorkerSettings(storage=driver.storage, scratch=scratch, threads=1, train=self._train, shared=shared)
        at_once, pending = (1, 1) if only else self._limits(slots)
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(pending)
        return tune.Tuner(
            tune.with_resources(trainable(settings), share_of),
            param_space={},
            tune_config=tune.TuneConfig(
                search_alg=Jobs(driver, at_once, only),
                scheduler=Judge(driver, number),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=key_of,
                trial_dirname_creator=key_of,
            ),
            run_config=tune.RunConfig(
                name=f"attempt-{number}",
                storage_path=driver.storage,
                stop=Stopper(driver),
                callbacks=[Recording(driver)],
                failure_config=tune.FailureConfig(max_failures=-1),  # `Recording` counts them
                # Two, so that a damaged one has one before it.
                checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
                verbose=0,
            ),
        )

    def _limits(self, slots: int) -> tuple[int | None, int]:
        """Returns how many jobs may be with Tune, None for all that it asks for, and how many trials Ray is asked to place.

        Tune asks for trials before it can run them: what a searcher learns or a rule decides meanwhile would come too late. A
        cluster that grows starts machines for what waits, perhaps from none, so it is shown as much as it may need.
        """
        driver, options = self._driver, self._driver.options
        decides = driver.plan.adaptive or driver.promotes
        if not options.address:
            return slots if decides else options.max_concurrent, slots
        return options.max_concurrent, slots if decides else max(slots, min(len(driver.waiting_shares), ANNOUNCED_TRIALS))

    def _slots(self, cluster: Cluster) -> int:
        shares, options = self._driver.plan.sweep.shares, self._driver.options
        if not options.address:
            for resources in shares:
                cluster.check(resources)
        slots = max(resources.slots(*cluster.machines) for resources in shares)
        return max(1, min(slots, options.max_concurrent or slots))
