"""Runs a plan on Ray Tune so that no finished work is lost, whatever dies.

    plan - ledger = what remains -->  attempt-N (a fresh Tune experiment)  -->  results --> ledger, tracker, display
                  ^                        |
                  +---- fit() broke -------+

Ray's own restore is not used. An attempt is a fresh experiment over what remains; each of its trials looks for the newest whole
checkpoint of its key in all attempts (`orchestrator.worker.worker`). So a resumed sweep, an extended one and one whose attempt
broke off are the same thing. Trials whose process or machine dies are started again by Tune. When Ray gives up as a whole (the
system killed a worker for memory), another attempt follows: first the trials that were running, one at a time, so that the one
to blame fails alone.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ray import tune

from orchestrator.driver.display import Display
from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome, outcome_of
from orchestrator.driver.recorder import Recorder, Tracker
from orchestrator.plan.trial import Train, TrialResult, TrialSpec
from orchestrator.record.checkpoints import attempts, check_writable
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.record.lock import one_driver
from orchestrator.results.search_values import SearchValues
from orchestrator.results.summary import Summary
from orchestrator.search.budget import Watch
from orchestrator.search.proposers import Listed, Proposer, propose
from orchestrator.search.replication import Replicating
from orchestrator.sweepfile.algorithms import imported
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tools.signals import Stop
from orchestrator.tune.callbacks import Recording, Stopper, key_of, share_of, trainable
from orchestrator.tune.cluster import Cluster, joined
from orchestrator.tune.schedulers import Pausing, scheduler_of
from orchestrator.tune.trial_source import TrialSource
from orchestrator.worker import crash
from orchestrator.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan

log = logging.getLogger(__name__)

FRUITLESS_ATTEMPTS = 3
"""How many attempts in a row may break without one trial ending before the run gives up."""


def run_sweep(
    plan: Plan,
    options: RunOptions,
    *,
    tracker: Tracker | None = None,
    train: Train | None = None,
    last_words: Callable[[SweepOutcome], None] = lambda outcome: None,
) -> SweepOutcome:
    """Runs what remains of a plan and returns how the sweep stands.

    Ctrl-C or SIGTERM once stops gracefully: the outcome has `interrupted` trials, which go on from their last checkpoints when
    the sweep is resumed. A second one stops at once. Where Ray does not let go (its own processes died of the same signal) the
    process itself is ended some seconds later, with the record as true as otherwise (`orchestrator.tools.signals`).

    Args:
        tracker: hears of every trial and configuration; whoever made it opens and closes the sweep's own run.
        train: what workers run instead of `craft.trainer.training.train_run`.
        last_words: called, in another thread, if the process has to be ended; the record is on the disk by then.

    Raises:
        FolderInUse: another driver runs this sweep.
        ValueError: the folder holds results and `options.resume` is not set; storage cannot be written; no machine can hold a
            trial; a trial has more workers than examples in a micro-batch; a cluster does not answer.
    """
    folder = options.folder.absolute()
    storage = options.storage or str(SweepFolder(folder).ray)
    storage = storage if "://" in storage else str(Path(storage).absolute())
    _check_workers(plan)
    with one_driver(folder):
        ledger = Ledger(folder)
        if not options.resume and (ledger.results() or attempts(storage)):
            raise ValueError(f"{folder} holds a sweep already. Go on with it by --resume, or start afresh with another --name.")
        check_writable(storage)
        try:
            with (
                noise_to_log(SweepFolder(folder).log) as screen,
                Display(plan.expected_trials, screen, options.verbosity) as display,
            ):
                run = Session(plan, options, folder, storage, ledger, display, tracker, train)
                with run.stop.watching(run.is_broken, lambda why: last_words(run.abandoned(why))):
                    trouble = run.to_the_end()
        finally:
            ledger.close()
            shutil.rmtree(SweepFolder(folder).scratch, ignore_errors=True)
    return run.outcome(trouble)


def _check_workers(plan: Plan) -> None:
    for trial in plan.trials or plan.examples:
        workers, smallest = trial.resources.workers, trial.run.training.batch_size
        if workers > smallest:
            raise ValueError(
                f"resources.workers: got {workers}, which share micro-batches of {smallest} examples, so that some would have "
                f"nothing to do; at most {smallest}, or a larger training.batch_size"
            )


class Session:
    """One run of the driver: attempts until nothing remains, somebody stops it or nothing helps any more."""

    def __init__(
        self,
        plan: Plan,
        options: RunOptions,
        folder: Path,
        storage: str,
        ledger: Ledger,
        display: Display,
        tracker: Tracker | None,
        train: Train | None,
    ) -> None:
        self.plan, self.options, self.folder, self.storage, self.train = plan, options, folder, storage, train
        self.display = display
        self.watch = Watch(plan.sweep.budget, plan.sweep.objectives)
        # First the proposer: one that learns adds to the plan what it proposed before.
        self.proposer: Proposer = propose(plan, folder)
        self.recorder = Recorder(plan, ledger, display, tracker)
        self.recorder.listeners.append(self._tell)
        self._scheduler = scheduler_of(plan, folder)
        if isinstance(self._scheduler, Pausing):
            self._scheduler.on_wait = self._hear
        self.stop = Stop(display.say)
        self._values = SearchValues(plan.sweep.objectives)
        self._at_once = 1
        self._started = time.monotonic()
        self._cluster: Cluster | None = None
        self._began = False
        self._suggested: list[str] = []
        self._trials_of: dict[str, list[TrialSpec]] = {}
        for trial in plan.trials:
            self._trials_of.setdefault(trial.configuration, []).append(trial)
        if plan.adaptive:
            for configuration in list(plan.configurations):
                self._trials(configuration)
        if plan.sweep.scheduler.row.population:
            self.proposer = imported(plan.sweep.scheduler.row.population)(plan, self.recorder)
        elif plan.sweep.replication is not None:
            self.proposer = Replicating(self.proposer, plan, self.recorder)

    def _more_to_run(self) -> bool:
        """Lets the proposer take up what has ended; whether there are trials to run then, or may be."""
        self.proposer.advance()
        return bool(self.recorder.standing.remaining) or (self.plan.grows and not self.proposer.exhausted)

    @property
    def ending(self) -> bool:
        """Whether no trial may start any more: somebody asked for it, or the budget is used up."""
        return self.stop.asked or self.watch.spent is not None

    @property
    def pauses(self) -> bool:
        """Whether a trial that Tune ends without a result waits for its turn."""
        return isinstance(self._scheduler, Pausing)

    def check(self) -> None:
        """Compares what has been used with the budget."""

        def gpus(key: str) -> float:
            return self.recorder.standing.spec(key).resources.gpus

        before = sum(seconds * gpus(key) for key, seconds in self.recorder.underway.seconds.items())
        self.watch.check({key: gpus(key) for key in self.recorder.underway.running}, before)

    def to_the_end(self) -> str | None:
        """Returns why it ended before its plan did, or None."""
        if not self._more_to_run():
            return None
        for summary in self.recorder.standing.summaries():
            if summary.complete:
                self._tell(summary)
        self.check()
        trouble = None
        try:
            trouble = self._attempts()
        except KeyboardInterrupt:
            self.stop.asked = True
        return self._closed() or trouble

    def is_broken(self) -> str | None:
        cluster = self._cluster
        return cluster.broken if cluster is not None else None

    def abandoned(self, why: str) -> SweepOutcome:
        """The run's end when its own thread will not come back from Ray. The process must end after it: the lock is kept."""
        self.recorder.lock.acquire(timeout=2)
        trouble = self._closed() or (None if self.stop.asked else why)
        self.display.close()
        shutil.rmtree(SweepFolder(self.folder).scratch, ignore_errors=True)
        return self.outcome(trouble)

    def outcome(self, trouble: str | None) -> SweepOutcome:
        seconds, spent = time.monotonic() - self._started, self.watch.spent
        more = self.plan.grows and not self.proposer.exhausted
        notes = [f"ended by {spent}"] if spent else []
        return outcome_of(
            self.recorder.standing,
            seconds=seconds,
            trouble=trouble,
            signal=self.stop.signal,
            spent=spent,
            notes=notes,
            open=more,
        )

    def _closed(self) -> str | None:
        """Marks what was running as interrupted; returns what is wrong if the disk does not take it."""
        self.recorder.interrupted()
        if self.recorder.flush():
            return None
        return f"{self.folder} cannot be written: results since then are kept only in {self.storage}; make room and --resume"

    def _attempts(self) -> str | None:
        suspects: list[str] = []
        fruitless = 0
        while self._more_to_run() and not self.ending:
            before = len(self.recorder.standing.results)
            error = self._attempt(suspects)
            self.proposer.advance()
            if self.ending:
                return None
            running = self.recorder.lost()
            if error is None:
                if isinstance(self._scheduler, Pausing) and not suspects and self.proposer.exhausted:
                    self.recorder.not_promoted(self._scheduler.recalled)
                if not suspects and self._more_to_run():
                    return "Ray ended the attempt with trials left; see the log"
                suspects = []
                continue
            log.error("the attempt broke off", exc_info=error)
            what = crash.describe(error)
            if "memory" in str(error).lower():
                if suspects and running:
                    for key in running:
                        self.recorder.ended(TrialResult(key, "failed", error=f"{what} (it ran alone)", retryable=True))
                    suspects = [key for key in suspects if not self.recorder.standing.is_settled(key)]
                else:
                    suspects = running
            fruitless = 0 if len(self.recorder.standing.results) > before else fruitless + 1
            self.display.trouble(f"Ray broke off ({what}); starting again with what remains")
            if fruitless >= FRUITLESS_ATTEMPTS:
                return f"Ray broke off {fruitless} times without one trial ending: {what}"
        return None

    def _attempt(self, only: Sequence[str]) -> Exception | None:
        """One Tune experiment over what remains (of the trials `only`, one at a time, if given). Returns what broke it."""
        number = max(attempts(self.storage), default=0) + 1
        try:
            with joined(self.options.address, self.options.cpus) as self._cluster:
                self.stop.listen()  # Ray has put its own handler there
                self._at_once = self._slots = self._slots_of(self._cluster)
                tuner = tune.Tuner(
                    tune.with_resources(trainable(self._worker_settings()), share_of),
                    param_space={},
                    tune_config=tune.TuneConfig(
                        search_alg=self._source(only),
                        scheduler=self._scheduler,
                        num_samples=-1,
                        reuse_actors=True,
                        trial_name_creator=key_of,
                        trial_dirname_creator=key_of,
                    ),
                    run_config=tune.RunConfig(
                        name=f"attempt-{number}",
                        storage_path=self.storage,
                        stop=Stopper(self),
                        callbacks=[Recording(self, number)],
                        failure_config=tune.FailureConfig(max_failures=self.options.max_failures),
                        # Two, so that a damaged one has one before it.
                        checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
                        verbose=0,
                    ),
                )
                os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(1 if only else self._slots)
                self._began = True
                tuner.fit()
        except ValueError as error:
            if not self._began:
                raise  # a refusal: nothing has been trained
            return error
        except Exception as error:
            return error
        finally:
            self._cluster = None
        return None

    def _source(self, only: Sequence[str]) -> TrialSource:
        if only:
            waiting = [self.recorder.standing.spec(key) for key in only]
            return TrialSource(Listed(()), self._trials, self.recorder.standing.is_settled, waiting, max_concurrent=1)
        waiting = [trial for configuration in dict.fromkeys(self._suggested) for trial in self._trials_of[configuration]]
        # Tune asks for trials before it can run them; what a proposer learns meanwhile would come too late for those.
        early = (self.plan.adaptive or self.pauses) and not self.options.address
        slots = self._at_once if early else self.options.max_concurrent
        turns = self._scheduler if isinstance(self._scheduler, Pausing) else None
        return TrialSource(self.proposer, self._trials, self.recorder.standing.is_settled, waiting, slots, turns)

    def _trials(self, configuration: Configuration) -> list[TrialSpec]:
        """A proposed configuration's trials. One whose trials are all on record is answered at once."""
        self._suggested.append(configuration.id)
        if configuration.id not in self._trials_of:
            self._trials_of[configuration.id] = self.plan.trials_of(configuration.id)
            self.recorder.add(self._trials_of[configuration.id])
        elif self.plan.sweep.replication is not None:
            self._trials_of[configuration.id] = self.plan.trials_of(configuration.id)
        trials = self._trials_of[configuration.id]
        if all(self.recorder.standing.is_settled(trial.key) for trial in trials):
            self._tell(*self.recorder.standing.summaries([configuration.id]))
        return trials

    def _tell(self, summary: Summary) -> None:
        values = self._values.of(summary, self.recorder.standing.results, self.recorder.standing.spec)
        self.proposer.tell(summary.configuration, values, "complete" if summary.complete else "incomplete")
        if summary.complete:
            self.watch.finished(summary.label, values)

    def _hear(self, configuration: str, score: float) -> None:
        known = self.plan.configuration(configuration).known
        self.proposer.tell_partial(configuration, {**known, "score": score})

    def _slots_of(self, cluster: Cluster) -> int:
        """How many trials run at once, of those that take least.

        Raises:
            ValueError: not one of some kind, and the cluster is this machine, which will not grow.
        """
        shares = self.plan.sweep.shares
        if not self.options.address:
            for resources in shares:
                cluster.check(resources)
        slots = max(map(cluster.slots, shares))
        return max(1, min(slots, self.options.max_concurrent or slots))

    def _worker_settings(self) -> WorkerSettings:
        scratch = None if self.options.address else str(SweepFolder(self.folder).scratch)
        return WorkerSettings(storage=self.storage, scratch=scratch, threads=1, train=self.train)
