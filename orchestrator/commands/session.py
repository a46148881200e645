"""One session of a sweep, from its claimed folder to its front: the steps around `drive`.

    preparation --> effective file --> Driver.begin, Follower ... drive ... front files --> SessionEnded --> table, page

This module fixes the order of the steps: nothing is recorded before what trials share is known to be there; the tracking store
gets the front before the page is made; and the record says how the session ended, however that was.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console

from craft.results import Train
from craft.words import plural
from orchestrator.driver.display import Display, SweepOutcome, show_outcome, show_rest, show_unsent
from orchestrator.driver.driver import Driver
from orchestrator.plan.plan import Plan
from orchestrator.record.checkpoints import attempts, check_writable
from orchestrator.record.events import Filed, SessionEnded
from orchestrator.record.folder import SweepFolder, one_driver
from orchestrator.record.manifest import describe_session, record_in, write_effective
from orchestrator.record.options import Options
from orchestrator.record.resume import changed_plugins, check_data, check_name, has_moved, recorded_digests, recorded_sweep
from orchestrator.results.answer import find_answer
from orchestrator.results.front import judge_state
from orchestrator.results.summary import Summary
from orchestrator.review.front_tables import show_front, write_front
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tools.secrets import redact
from orchestrator.tools.signals import BEGUN_AGAIN, Stop, begin_again
from orchestrator.tracking.client import TrackingError, check_store
from orchestrator.tracking.follower import Follower, Lacks
from orchestrator.tune.attempts import Attempts
from orchestrator.tune.cluster import refuse_running_ray
from orchestrator.worker.preparation import Shared, prepare

log = logging.getLogger(__name__)

SHIP_SECONDS = 120.0
SHIP_STOPPED_SECONDS = 4.0
"""Somebody who stopped the sweep waits for its end, or kills it soon; what is not shipped by then is shipped on resuming."""
QUICK_SECONDS = 3.0
"""A wait that needs no word."""
PAGE_SECONDS = 120.0


def drive(
    driver: Driver,
    stop: Stop,
    train: Train | None = None,
    shared: Shared | None = None,
    last_words: Callable[[SweepOutcome], None] = lambda outcome: None,
) -> SweepOutcome:
    """Runs what remains of the plan and returns the outcome. The session has begun (`Driver.begin`).

    Ctrl-C or SIGTERM once stops gracefully: trials without a result continue from their last checkpoints when the sweep is
    resumed. A second one stops at once. Where Ray does not return (its own processes died of the same signal) the process
    itself is ended some seconds later, with the record as true as otherwise (`orchestrator.tools.signals`).

    Args:
        train: what workers run instead of `craft.trainer.training.train_run`.
        last_words: called, in another thread, if the process has to be ended; the record is on the disk by then.
    """
    attempts = Attempts(driver, stop.listen, train, shared)
    driver.watchers.append(attempts.look)

    def broken() -> str | None:
        return attempts.cluster.broken if attempts.cluster is not None else None

    def abandon(why: str) -> None:
        driver.lock.acquire(timeout=2)  # the driver's own thread will not come back from Ray, and the process ends next
        trouble = driver.stop() or (None if stop.asked else why)
        driver.display.close()
        shutil.rmtree(driver.folder.scratch, ignore_errors=True)
        last_words(driver.outcome(trouble, stop.signal))

    trouble = None
    with driver.display, stop.watching(broken, abandon):
        try:
            trouble = attempts.run()
        except KeyboardInterrupt:
            stop.asked = True
        finally:
            trouble = driver.stop() or trouble
    return driver.outcome(trouble, stop.signal)


@contextmanager
def open_session(plan: Plan, folder: SweepFolder, options: Options) -> Iterator[tuple[Driver, Stop]]:
    """Holds the sweep's folder for a session: its lock, its screen, and what is on record."""
    refuse_running_ray()
    storage = options.storage_of(folder.path)
    with one_driver(folder.path), noise_to_log(folder.log) as screen:
        if not options.resume and (folder.record.exists() or attempts(storage)):
            raise ValueError(f"{folder.path} holds a sweep already. Continue it by --resume, or give this one another --name.")
        check_writable(storage)
        display = Display(screen, options.quiet)
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
            yield driver, stop
        finally:
            driver.close()
            shutil.rmtree(folder.scratch, ignore_errors=True)


def run_session(plan: Plan, options: Options, uri: str, console: Console) -> SweepOutcome:
    """Runs what remains of `plan`, records it, and shows and files the front.

    Where Ray's processes on this machine died, the sweep begins again in place of this process, once. Raises ValueError where
    the sweep is refused and nothing has been trained: data, model, storage or tracking store.
    """
    folder = SweepFolder(plan.sweep.folder.absolute())
    plan = record_in(plan, uri)
    with open_session(plan, folder, options) as (driver, stop):
        _check_store(folder, uri, plan.sweep, console)
        shared = _prepare(driver, console)
        for sentence in changed_plugins(driver.state):
            console.print(sentence, markup=False)
        write_effective(folder, plan.sweep)
        options.remember(folder, plan.sweep.written)
        if cuts := len(plan.trials) - len(plan.jobs):
            trainings = f"{len(plan.jobs)} {plural(len(plan.jobs), 'training')}"
            console.print(f"{trainings}; adapters are also cut to {cuts} smaller {plural(cuts, 'size')}")
        driver.begin(describe_session(plan, shared.fingerprints if shared else {}, Path(options.sweep), options.again()))
        follower = Follower(folder.path, uri)
        driver.watchers.append(follower.look)

        def last_words(outcome: SweepOutcome) -> None:
            driver.record(SessionEnded(status="interrupted", seconds=outcome.seconds))
            show_rest(outcome, console)
            show_unsent(_leave(follower, SHIP_STOPPED_SECONDS), folder.path, console)
            if outcome.trouble:
                driver.display.say(outcome.trouble)
            if outcome.trouble and driver.options.restart and options.address is None and BEGUN_AGAIN not in os.environ:
                driver.display.say("The sweep begins again by itself, once, from its last checkpoints.")
                begin_again(driver.options.restart, driver.display.stream.fileno())

        try:
            outcome = drive(driver, stop, shared=shared, last_words=last_words)
            plan = driver.plan  # of the file that was applied last
            summaries = judge_state(outcome.state)
            files = _front_files(plan, summaries, console)
        except BaseException:
            driver.record(SessionEnded(status="failed", seconds=driver.seconds))
            _leave(follower, SHIP_STOPPED_SECONDS)
            raise
        driver.record(*(Filed(path=path.name) for path in files))
        driver.record(SessionEnded(status=outcome.status, seconds=outcome.seconds))
        answer = find_answer(summaries, driver.state)
        show_front(summaries, plan.sweep, answer, f"{plan.sweep.name}: {plan.sweep.model}", console)

        def show_end() -> None:
            show_outcome(plan, outcome, summaries, console, uri, files)
            show_rest(outcome, console)

        if outcome.signal is not None:  # the person who stopped it may not wait for the store
            show_end()
        unsent = _ship(driver, follower, outcome, uri, files, console)
    if outcome.signal is None:
        show_end()
    show_unsent(unsent, folder.path, console)
    return outcome


def _ship(driver: Driver, follower: Follower, outcome: SweepOutcome, uri: str, files: list[Path], console: Console) -> Lacks:
    """Waits until the tracking store has everything, and adds the page to it; returns what it lacks."""
    patience = SHIP_STOPPED_SECONDS
    if outcome.signal is None:
        # The page reads the store, so the store must have everything first; then it is an artifact there itself.
        patience = SHIP_STOPPED_SECONDS if outcome.trouble else SHIP_SECONDS
        patience = patience if _is_shipped(follower, patience, outcome, console) else SHIP_STOPPED_SECONDS
        page = _page(driver.folder, driver.state.sweep_id, uri)
        if page is not None:
            driver.record(Filed(path=page.name))
            files.append(page)
    return _leave(follower, patience)


def _leave(follower: Follower, patience: float) -> Lacks:
    """Gives the store so many seconds for the rest, and ends the process; returns what it lacks."""
    unsent = follower.wait(patience)
    follower.stop()
    return unsent


def _check_store(folder: SweepFolder, uri: str, sweep: Sweep, console: Console) -> None:
    """Asks the tracking store for the sweep's experiment before anything trains.

    A new sweep is refused without a store; a resumed one continues.
    """
    try:
        check_store(uri, sweep.name, sweep.tracking.experiment, make=True)
    except TrackingError as error:
        if not folder.record.exists():
            raise
        console.print(f"{error}; the sweep continues, and its record waits in {folder.record}", markup=False)


def _is_shipped(follower: Follower, patience: float, outcome: SweepOutcome, console: Console) -> bool:
    """Waits until the store has everything; False if time, or the person who waits, ended that."""
    try:
        if not follower.wait(QUICK_SECONDS).events:
            return True
        show_rest(outcome, console)
        console.print(f"waiting for the tracking store, at most {patience:.0f} s (Ctrl-C leaves the rest for later) ...")
        return not follower.wait(patience).events
    except KeyboardInterrupt:
        return False


def _prepare(driver: Driver, console: Console) -> Shared | None:
    plan, state, options = driver.plan, driver.state, driver.options
    entries, recorded = state.entries.values(), recorded_sweep(plan.sweep.folder)
    moved, elsewhere = recorded is not None and has_moved(recorded, plan.sweep), options.address is not None
    settled = {
        key for key, e in state.entries.items() if e.result and e.result.settled and not (options.retry_failed and e.failed)
    }
    every = [*plan.trials, *plan.examples, *driver.strategy.wanted(state)]
    remaining = [trial for trial in every if trial.key not in settled]
    if not remaining and driver.strategy.is_open(state):
        remaining = every  # the trials to come are like those before them
    if not (remaining or moved):
        return None
    work = "preparing model and data ..."
    if not console.is_terminal:
        console.print(work, markup=False)
    with console.status(work) if console.is_terminal else nullcontext():
        digests = prepare(every if moved else remaining, elsewhere=elsewhere or not remaining)
    check_data(plan.sweep, entries, digests)
    return Shared(recorded_digests(plan.sweep, entries) | digests) if remaining else None


def _front_files(plan: Plan, summaries: Sequence[Summary], console: Console) -> list[Path]:
    if not any(summary.finished for summary in summaries):
        return []
    try:
        return write_front(summaries, plan.sweep.objectives, plan.sweep.folder, plan.sweep.name)
    except OSError as error:
        # Results are on record; a full disk must not turn a finished sweep into a failed one.
        log.exception("the front's files could not be written")
        console.print(f"the front's files could not be written: {error}", markup=False)
        return []


def _page(folder: SweepFolder, sweep_id: str, uri: str) -> Path | None:
    """Writes `front.html` in a separate process, because this package may not import dashboards. None if it fails."""
    page = folder.page
    # The address may hold a password, which a list of processes would show: standard input it is.
    command = [sys.executable, "-P", "-m", "orchestrator", "page", sweep_id, "--tracking-uri", "-", "--to", str(page)]
    try:
        done = subprocess.run(command, input=uri, capture_output=True, timeout=PAGE_SECONDS, encoding="utf-8", errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        log.exception("%s could not be made", page.name)
        return None
    if done.returncode:
        log.error("%s could not be made: %s", page.name, redact(done.stderr or done.stdout))
        return None
    return page
