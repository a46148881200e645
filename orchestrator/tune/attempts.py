"""Attempts of a session: one Tune experiment after another, until nothing remains.

An attempt is a fresh experiment over what remains; each of its trials looks for the newest whole checkpoint of its key in all
attempts (`orchestrator.worker.worker`). Trials whose process or machine dies are started again by Tune. When Ray gives up as a
whole (the system killed a worker for memory), another attempt follows: first the trials that were running, one at a time, so
that the one to blame fails alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from ray import tune

from orchestrator.driver.preparation import Shared
from orchestrator.plan.gpu_shares import idle_lines
from orchestrator.plan.trial import Train
from orchestrator.record.checkpoints import attempts
from orchestrator.search.proposers import Listed
from orchestrator.state.entry import TrialResult
from orchestrator.tune.assembly import Parts
from orchestrator.tune.callbacks import Recording, Stopper, key_of, share_of, trainable
from orchestrator.tune.cluster import Cluster, joined, machines
from orchestrator.tune.trial_source import TrialSource
from orchestrator.worker import crash
from orchestrator.worker.worker import WorkerSettings

log = logging.getLogger(__name__)

ANNOUNCED_TRIALS = 200
"""How many waiting trials an autoscaler is shown at once: Ray Tune's own number for plans that are known beforehand."""
FRUITLESS_ATTEMPTS = 3
"""How many attempts in a row may break without one trial ending before the session gives up."""


class Attempts:
    """Runs attempts. `cluster` is the one that the present attempt has joined."""

    def __init__(self, parts: Parts, train: Train | None, shared: Shared | None) -> None:
        self.cluster: Cluster | None = None
        self._parts, self._train, self._shared = parts, train, shared
        self._began = False

    def run(self) -> str | None:
        """Attempts until nothing remains or the session is to end; returns why it gave up, if it did."""
        parts, standing = self._parts, self._parts.recorder.standing
        suspects: list[str] = []
        fruitless = 0
        while parts.more_to_run() and not parts.ending:
            before = len(standing.results)
            error = self._attempt(suspects)
            parts.proposer.advance()
            if parts.ending:
                return parts.common_cause.trouble
            running = parts.recorder.lost()
            if error is None:
                if not suspects:
                    self._end_those_that_wait()
                    if parts.more_to_run():
                        return "Ray ended the attempt with trials left; see the log"
                suspects = []
                continue
            log.error("the attempt broke off", exc_info=error)
            reason = crash.describe(error)
            if "memory" in str(error).lower():
                suspects = self._blame(suspects, running, reason)
            fruitless = 0 if len(standing.results) > before else fruitless + 1
            parts.display.trouble(f"Ray broke off ({reason}); starting again with what remains")
            if fruitless >= FRUITLESS_ATTEMPTS:
                return f"Ray broke off {fruitless} times without one trial ending: {reason}"
        return None

    def _end_those_that_wait(self) -> None:
        """Ends the trials that were not promoted, once nothing can come that would promote them."""
        scheduler = self._parts.scheduler
        if scheduler is not None and self._parts.proposer.exhausted:
            self._parts.recorder.not_promoted(scheduler.recalled)

    def _blame(self, suspects: list[str], running: list[str], reason: str) -> list[str]:
        """Memory ran out while these trials were running; returns those that are to run alone next."""
        if not (suspects and running):
            return running
        recorder = self._parts.recorder
        for key in running:
            recorder.ended(TrialResult(key, "failed", error=f"{reason} (it ran alone)", retryable=True))
        return [key for key in suspects if not recorder.standing.is_settled(key)]

    def _attempt(self, only: Sequence[str]) -> Exception | None:
        """One Tune experiment over what remains (over the trials `only`, one at a time, if given). Returns what broke it."""
        parts = self._parts
        number = max(attempts(parts.storage), default=0) + 1
        try:
            with joined(parts.options.address, parts.options.cpus) as self.cluster:
                parts.stop.listen()  # Ray has put its own handler there
                tuner = self._tuner(number, only, self._slots(self.cluster))
                if not self._began:
                    self._tell_of_machines()
                self._began = True
                tuner.fit()
        except ValueError as error:
            if not self._began:
                raise  # a refusal: nothing has been trained
            return error
        except Exception as error:
            return error
        finally:
            self.cluster = None
        return None

    def _tell_of_machines(self) -> None:
        shares = self._parts.plan.sweep.shares
        for line in idle_lines(shares, sum(one.get("GPU", 0) for one in machines())):
            self._parts.display.say(line, style="yellow")

    def _tuner(self, number: int, only: Sequence[str], slots: int) -> tune.Tuner:
        parts = self._parts
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(1 if only else self._pending(slots))
        return tune.Tuner(
            tune.with_resources(trainable(self._worker_settings()), share_of),
            param_space={},
            tune_config=tune.TuneConfig(
                search_alg=self._source(only, slots),
                scheduler=parts.scheduler,
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=key_of,
                trial_dirname_creator=key_of,
            ),
            run_config=tune.RunConfig(
                name=f"attempt-{number}",
                storage_path=parts.storage,
                stop=Stopper(parts),
                callbacks=[Recording(parts, number)],
                failure_config=tune.FailureConfig(max_failures=parts.options.max_failures),
                # Two, so that a damaged one has one before it.
                checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
                verbose=0,
            ),
        )

    def _source(self, only: Sequence[str], slots: int) -> TrialSource:
        parts, standing = self._parts, self._parts.recorder.standing
        if only:
            alone = [standing.spec(key) for key in only]
            return TrialSource(Listed(()), parts.exchange.trials_of, standing.is_settled, alone, max_concurrent=1)
        # Tune asks for trials before it can run them; what a proposer learns meanwhile would come too late for those.
        early = (parts.plan.adaptive or parts.scheduler is not None) and not parts.options.address
        at_once = slots if early else parts.options.max_concurrent
        waiting = parts.exchange.handed_out
        return TrialSource(parts.proposer, parts.exchange.trials_of, standing.is_settled, waiting, at_once, parts.scheduler)

    def _pending(self, slots: int) -> int:
        """How many trials Ray is asked to place at once.

        A cluster that grows starts machines for what waits, perhaps from none, so it is shown as much as it may need. What a
        searcher learns or a rule decides while trials run would come too late for those that wait already.
        """
        parts = self._parts
        if not parts.options.address or parts.plan.adaptive or parts.scheduler is not None:
            return slots
        return max(slots, min(len(parts.recorder.standing.remaining), ANNOUNCED_TRIALS))

    def _slots(self, cluster: Cluster) -> int:
        """How many trials run at once, of those that take least."""
        shares, options = self._parts.plan.sweep.shares, self._parts.options
        if not options.address:
            for resources in shares:
                cluster.check(resources)
        slots = max(map(cluster.slots, shares))
        return max(1, min(slots, options.max_concurrent or slots))

    def _worker_settings(self) -> WorkerSettings:
        scratch = None if self._parts.options.address else str(self._parts.folder.scratch)
        shared = self._shared.there if self._shared else None
        return WorkerSettings(storage=self._parts.storage, scratch=scratch, threads=1, train=self._train, shared=shared)
