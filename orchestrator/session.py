"""One session of a sweep, from its claimed folder to its front: the steps around `run_sweep`.

    effective file --> preparation --> Tracker ... run_sweep ... front files --> Tracker closed --> table on the screen

This module fixes the order of the steps: nothing is recorded before what trials share is known to be there; the tracking store
gets the front before it is closed; and the record says how the session ended, however that was.
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from craft.disk import replacing
from craft.methods import shown_method
from craft.words import redact
from orchestrator.driver.closing import show_outcome, show_rest
from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.driver.preparation import Shared, needs_of, prepare
from orchestrator.plan.configuration import Dropped
from orchestrator.plan.parameters import flatten
from orchestrator.plan.plan import Plan
from orchestrator.record.checkpoints import check_writable
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.record.lock import one_driver
from orchestrator.record.manifest import cores, make_manifest, origin
from orchestrator.record.mlflow_client import check_store
from orchestrator.record.overrides import write_overrides
from orchestrator.record.resume import check_data
from orchestrator.record.tracker import Tracker
from orchestrator.record.tracking_uri import TrackingError, resolve_uri
from orchestrator.results.control import NORMALIZED
from orchestrator.results.front import mark_front, marks
from orchestrator.results.summary import Summary, summarize
from orchestrator.review.front_tables import markdown, terminal_table, write_front
from orchestrator.review.front_words import caption
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tune.runner import run_sweep

log = logging.getLogger(__name__)

SHIP_SECONDS = 120.0
SHIP_STOPPED_SECONDS = 4.0
"""Somebody who stopped the sweep waits for its end, or kills it soon; what is not shipped by then is shipped on resuming."""
QUICK_SECONDS = 3.0
"""A wait that needs no word."""
PAGE_SECONDS = 120.0


def run_session(plan: Plan, options: RunOptions, tracking_uri: str, console: Console, again: str) -> SweepOutcome:
    """Runs what remains of `plan`, records it, and shows and files the front.

    Raises:
        ValueError: the sweep is refused: data, model, storage or tracking store; nothing has been trained.
    """
    folder, uri = options.folder, resolve_uri(tracking_uri)
    with one_driver(folder), noise_to_log(SweepFolder(folder).log) as screen:
        if options.retry_failed:
            _reopen_failed(folder, console)
        if options.storage is not None:
            check_writable(options.storage)
        _check_store(folder, uri, console)
        shared = _prepare(plan, options, console)
        _write_effective(plan, uri)
        write_overrides(folder, options.overrides)
        tracker = Tracker(uri, plan.sweep.name, folder, own_process=True)
        patience = SHIP_STOPPED_SECONDS

        def last_words(outcome: SweepOutcome) -> None:
            tracker.sweep_ended("interrupted", {})
            left = tracker.close(SHIP_STOPPED_SECONDS)
            show_rest(outcome, left, folder, console, again)
            if outcome.trouble:
                print(outcome.trouble, file=screen)

        try:
            if sizes := len(plan.outputs) - len(plan.trials):
                console.print(f"{len(plan.trials)} trainings, which are cut to {sizes} smaller sizes too")
            _begin(plan, tracker, dict(shared.fingerprints) if shared else {}, options.sweep_file)
            outcome, summaries, files = _run(plan, options, tracker, shared, last_words, console)
            _show_front(plan, summaries, console)
            if outcome.signal is None:
                # The page reads the store, so the store must have everything first; then it is an artifact there itself.
                patience = SHIP_STOPPED_SECONDS if outcome.trouble else SHIP_SECONDS
                patience = patience if _shipped(tracker, patience, console) else SHIP_STOPPED_SECONDS
                page = _page(folder, uri)
                if page is not None:
                    tracker.add_file(page)
                    files.append(page)
        finally:
            left = tracker.close(patience)
    show_outcome(plan, outcome, summaries, console, uri, files, again)
    show_rest(outcome, left, folder, console, again)
    return outcome


def _check_store(folder: Path, uri: str, console: Console) -> None:
    """Asks the tracking store before anything trains. A new sweep is refused without one; a resumed one continues.

    Raises:
        TrackingError: the store of a new sweep does not answer.
    """
    try:
        check_store(uri)
    except TrackingError as error:
        if not SweepFolder(folder).ledger.exists():
            raise
        console.print(f"{error}; the sweep continues, and its record waits in {SweepFolder(folder).journal}", markup=False)


def _show_front(plan: Plan, summaries: Sequence[Summary], console: Console) -> None:
    if any(summary.finished or summary.failed for summary in summaries):
        objectives = plan.sweep.objectives
        console.print(terminal_table(summaries, objectives, f"{plan.sweep.name}: {plan.sweep.model}"))
        console.print(caption(summaries, objectives), markup=False)


def _shipped(tracker: Tracker, patience: float, console: Console) -> bool:
    """Waits until the store has everything; False if time, or the person who waits, ended that."""
    try:
        if not tracker.flush(QUICK_SECONDS):
            return True
        console.print(f"waiting for the tracking store, at most {patience:.0f} s (Ctrl-C leaves the rest for later) ...")
        return not tracker.flush(patience)
    except KeyboardInterrupt:
        return False


def _run(
    plan: Plan,
    options: RunOptions,
    tracker: Tracker,
    shared: Shared | None,
    last_words: Callable[[SweepOutcome], None],
    console: Console,
) -> tuple[SweepOutcome, list[Summary], list[Path]]:
    """Runs the sweep and records its end; returns the outcome, the judged configurations and the front's files."""
    sweep, status = plan.sweep, "failed"
    try:
        outcome = run_sweep(plan, options, tracker=tracker, shared=shared, last_words=last_words)
        status = _status_of(outcome)
        summaries = mark_front(summarize(plan.outputs, outcome.results, plan.counts), sweep.objectives)
        for one in summaries:
            # It was on record before those that it is compared with, or as complete until others had more seeds.
            if one.tunes or one.tuning is not None or NORMALIZED in one.metrics or math.isfinite(one.score.half):
                content = one.tracked() | {"judged": True}
                tracker.configuration_ended(one.configuration, one.label, one.parameters, content)
        files = _front_files(plan, summaries, console)
    except BaseException:
        tracker.sweep_ended(status, {})
        raise
    content = {"description": markdown(summaries, sweep.objectives), **_closing_content(plan, summaries, outcome)}
    tracker.sweep_ended(status, content, files)
    return outcome, summaries, files


def _begin(plan: Plan, tracker: Tracker, fingerprints: dict[str, str], file: Path | None) -> None:
    """Opens the sweep's record; every configuration that breaks a constraint is on record from then on, as infeasible."""
    sweep, rule = plan.sweep, plan.sweep.replication
    reported = rule.seeds if rule is not None and rule.tunes else sweep.seeds
    tracker.sweep_started(
        {
            "model": sweep.model,
            "tasks": ",".join(sweep.tasks),
            "seeds": ",".join(map(str, reported)),
            **({"tuning_seeds": ",".join(map(str, sweep.seeds))} if reported is not sweep.seeds else {}),
            "objectives": json.dumps(sweep.objectives),
            "algorithm": sweep.search.algorithm,
            "scheduler": sweep.scheduler.name,
            "protocol": sweep.protocol,
            **({"compare": sweep.compare, "tuned": ",".join(rule.tuned)} if sweep.compare and rule else {}),
            "configurations": plan.wanted if plan.adaptive else len(plan.counts),
            "trials": plan.most_trials,
            "origin": origin(file),
            "manifest": make_manifest(sweep.model_dump(mode="json"), seeds=reported, data=fingerprints),
            "sweep_yaml": SweepFolder(sweep.folder).effective.read_text(encoding="utf-8"),
        }
    )

    def infeasible(dropped: Dropped) -> None:
        one = dropped.configuration
        method = shown_method(one.method, one.parameters)
        parameters = {"method": method, **flatten(one.parameters), **flatten(one.training)}
        why = {"status": "infeasible", "complete": False, "error": dropped.reason}
        summary = {**one.counts.known(), **why, "method": method, "protocol": sweep.protocol}
        tracker.configuration_ended(one.id, one.label, parameters, summary)

    plan.on_refusal(infeasible)
    if not plan.adaptive:  # those that an adaptive plan dropped were tried out, not proposed
        for dropped in plan.dropped:
            infeasible(dropped)


def _status_of(outcome: SweepOutcome) -> str:
    """The status under which the sweep's own run ends: `finished`, `interrupted` or `failed`."""
    if outcome.complete or outcome.spent:
        return "finished"
    return "interrupted" if outcome.interrupted or outcome.missing or outcome.open else "failed"


def _closing_content(plan: Plan, summaries: Sequence[Summary], outcome: SweepOutcome) -> dict[str, Any]:
    """What the sweep's own run is given when it ends: the front, how many trials ended how."""
    return {
        **marks(summaries, plan.sweep.objectives),
        "trials_planned": len(plan.trials),
        "trials_done": len(outcome.finished),
        "trials_failed": len(outcome.failed),
        "trials_stopped": len(outcome.stopped),
        "trials_missing": len(outcome.missing) + len(outcome.interrupted),
        "seconds": outcome.seconds,
    }


def _prepare(plan: Plan, options: RunOptions, console: Console) -> Shared | None:
    """Prepares what the remaining trials share; None if none remain."""
    results = Ledger(options.folder).results() if options.resume else {}
    trials = [*plan.trials, *plan.examples]
    settled = {key for key, result in results.items() if result.settled}
    remaining = [trial for trial in trials if any(one.key not in settled for one in trial.outputs)]
    if not remaining:
        return None
    elsewhere = options.address is not None
    with _doing(console, "preparing model" + (" and data" if elsewhere else ", data and decompositions")):
        fingerprints = prepare(needs_of(remaining), options.cpus or cores(), elsewhere=elsewhere)
    check_data(results.values(), plan.trials, fingerprints)
    return Shared(fingerprints, elsewhere)


def _reopen_failed(folder: Path, console: Console) -> None:
    ledger = Ledger(folder)
    try:
        failed = ledger.reopen_failed()
    finally:
        ledger.close()
    console.print(f"{failed} failed trial{'s run' if failed != 1 else ' runs'} again", markup=False)


def _write_effective(plan: Plan, uri: str) -> None:
    tracking = plan.sweep.tracking.model_copy(update={"uri": redact(uri)})
    text = plan.sweep.model_copy(update={"tracking": tracking}).to_yaml()
    with replacing(SweepFolder(plan.sweep.folder).effective) as aside:
        aside.write_text(
            f"# The effective sweep file: what {plan.sweep.name} runs with, defaults written out.\n{text}", encoding="utf-8"
        )


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


def _page(folder: Path, uri: str) -> Path | None:
    """Makes `front.html` by the dashboards in a process of their own: they may not be imported here. None if it fails."""
    page = SweepFolder(folder).page
    if redact(uri) != uri:
        log.warning("%s is left out: the store's address holds a password, which the command line would show", page.name)
        return None
    command = [sys.executable, "-m", "dashboards", "export", folder.name, "--tracking-uri", uri, "--to", str(page)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PAGE_SECONDS, encoding="utf-8", errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        log.exception("%s could not be made", page.name)
        return None
    if done.returncode:
        log.error("%s could not be made: %s", page.name, redact(done.stderr or done.stdout))
        return None
    return page


@contextmanager
def _doing(console: Console, what: str) -> Iterator[None]:
    if console.is_terminal:
        with console.status(f"{what} ..."):
            yield
    else:
        console.print(f"{what} ...", markup=False)
        yield
