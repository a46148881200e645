"""One session of a sweep, from its claimed folder to its front: the parts that only a run needs, put together.

    effective file --> preparation --> Tracker ... run_sweep ... front files --> Tracker closed --> table on the screen

What is here is order: nothing is recorded before what trials share is known to be there; the tracking store gets the front
before it is closed; and however the run ends, the record says so.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from craft.disk import replacing
from craft.words import redact
from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.driver.preparation import prepare
from orchestrator.driver.tally import trial_name
from orchestrator.plan.configuration import Dropped
from orchestrator.plan.parameters import flatten
from orchestrator.plan.plan import Plan
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.record.lock import one_driver
from orchestrator.record.manifest import make_manifest
from orchestrator.record.resume import check_data
from orchestrator.record.tracker import Tracker
from orchestrator.record.tracking_uri import resolve_uri
from orchestrator.results.front import knee, mark_front
from orchestrator.results.summary import Summary, summarize
from orchestrator.review.front_files import write_front
from orchestrator.review.front_tables import markdown, terminal_table
from orchestrator.review.front_words import caption
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tune.runner import run_sweep

log = logging.getLogger(__name__)

SHIP_SECONDS = 120.0
SHIP_STOPPED_SECONDS = 4.0
"""Whoever stopped the sweep waits, or will kill it soon: what is not shipped then is shipped on resuming."""
PAGE_SECONDS = 120.0
FAILURES_SHOWN = 5


def run_session(plan: Plan, options: RunOptions, tracking_uri: str, console: Console, again: str) -> SweepOutcome:
    """Runs what remains of `plan`, records it, and shows and files the front.

    Args:
        again: the command that goes on with the sweep, for people to copy.

    Raises:
        ValueError: the sweep is refused: data, model, storage or tracking store; nothing has been trained.
    """
    folder, sweep = options.folder, plan.sweep
    uri = resolve_uri(tracking_uri)
    with one_driver(folder), noise_to_log(SweepFolder(folder).log) as screen:
        fingerprints = _prepare(plan, options, console)
        _write_effective(plan, uri)
        tracker = Tracker(uri, sweep.name, folder)
        patience = SHIP_STOPPED_SECONDS
        try:
            tracker.sweep_started(_info(plan, fingerprints))
            record = partial(_record_dropped, tracker, sweep.protocol)
            plan.on_refusal(record)
            for dropped in () if plan.adaptive else plan.dropped:  # of an adaptive one they were tried out, not proposed
                record(dropped)
            status = "failed"

            def last_words(outcome: SweepOutcome) -> None:
                tracker.sweep_ended("interrupted", {})
                left = tracker.close(SHIP_STOPPED_SECONDS)
                _show_rest(outcome, left, folder, console, again)
                if outcome.trouble:
                    print(outcome.trouble, file=screen)

            try:
                outcome = run_sweep(plan, options, tracker=tracker, last_words=last_words)
                done, open_ = outcome.complete or outcome.spent, outcome.interrupted or outcome.missing or outcome.open
                status = "finished" if done else "interrupted" if open_ else "failed"
                deciding = sweep.replication.deciding if sweep.replication else ()
                summaries = mark_front(summarize(plan.trials, outcome.results, plan.counts), sweep.objectives, deciding)
                for one in summaries:
                    if one.screened:  # it was on record as complete until others had more seeds
                        tracker.configuration_ended(one.configuration, one.label, one.parameters, one.tracked())
                files = _front_files(plan, summaries, console)
            except BaseException:
                tracker.sweep_ended(status, {})
                raise
            tracker.sweep_ended(status, _ended(plan, summaries, outcome), files)
            if outcome.signal is None:
                # The page reads the store, so the store must have everything first; then it is an artifact there itself.
                patience = SHIP_STOPPED_SECONDS if outcome.trouble else SHIP_SECONDS
                patience = SHIP_STOPPED_SECONDS if tracker.flush(patience) else patience
                for page in _page(folder, uri):
                    tracker.add_file(page)
                    files.append(page)
        finally:
            left = tracker.close(patience)
    _show(plan, summaries, outcome, console, uri, files)
    _show_rest(outcome, left, folder, console, again)
    return outcome


def _prepare(plan: Plan, options: RunOptions, console: Console) -> dict[str, str]:
    """Prepares what remains; returns the data's fingerprints by task, as far as they were read."""
    results = Ledger(options.folder).results() if options.resume else {}
    trials = [*plan.trials, *plan.examples]
    remaining = [trial for trial in trials if trial.key not in results or not results[trial.key].settled]
    if options.address is not None or not remaining:
        return {}  # on a cluster the machine that drives need not be one that could train
    with _doing(console, "preparing model, data and decompositions"):
        fingerprints = prepare(remaining)
    check_data(results.values(), plan.trials, fingerprints)
    return fingerprints


def _write_effective(plan: Plan, uri: str) -> None:
    tracking = plan.sweep.tracking.model_copy(update={"uri": redact(uri)})
    text = plan.sweep.model_copy(update={"tracking": tracking}).to_yaml()
    with replacing(SweepFolder(plan.sweep.folder).effective) as aside:
        aside.write_text(f"# The effective sweep file: what {plan.sweep.name} runs with, defaults written out.\n{text}")


def _info(plan: Plan, fingerprints: dict[str, str]) -> dict[str, Any]:
    sweep = plan.sweep
    return {
        "model": sweep.model,
        "tasks": ",".join(sweep.tasks),
        "seeds": ",".join(map(str, sweep.seeds)),
        "objectives": json.dumps(sweep.objectives),
        "algorithm": sweep.search.algorithm,
        "scheduler": sweep.scheduler.name,
        "protocol": sweep.protocol,
        "configurations": plan.wanted if plan.adaptive else len(plan.configurations),
        "trials": plan.expected_trials,
        "manifest": make_manifest(sweep.model_dump(mode="json"), seeds=sweep.seeds, data=fingerprints),
        "sweep_yaml": SweepFolder(sweep.folder).effective.read_text(),
    }


def _record_dropped(tracker: Tracker, protocol: str, dropped: Dropped) -> None:
    """A configuration that breaks a constraint is on record as such, so that a reader can count it."""
    one = dropped.configuration
    parameters = {"method": one.method, **flatten(one.parameters), **flatten(one.training)}
    why = {"status": "infeasible", "complete": False, "error": dropped.reason, "method": one.method, "protocol": protocol}
    tracker.configuration_ended(one.id, one.label, parameters, {**one.counts.known(), **why})


def _ended(plan: Plan, summaries: Sequence[Summary], outcome: SweepOutcome) -> dict[str, Any]:
    objectives = plan.sweep.objectives
    best = knee(summaries, objectives)
    content: dict[str, Any] = {
        "description": markdown(summaries, objectives),
        "on_front": [one.configuration for one in summaries if one.on_front],
        "may_be_on_front": [one.configuration for one in summaries if one.may_be_on_front],
        "trials_planned": len(plan.trials),
        "trials_done": len(outcome.finished),
        "trials_failed": len(outcome.failed),
        "trials_stopped": len(outcome.stopped),
        "trials_missing": len(outcome.missing) + len(outcome.interrupted),
        "seconds": outcome.seconds,
    }
    return content | ({"knee": best.configuration} if best else {})


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


def _page(folder: Path, uri: str) -> list[Path]:
    """`front.html`, by the dashboards in a process of their own: they may not be imported here."""
    page = SweepFolder(folder).page
    if "@" in uri:
        log.warning("%s is left out: the store's address holds a password, which the command line would show", page.name)
        return []
    command = [sys.executable, "-m", "dashboards", "export", folder.name, "--tracking-uri", uri, "--to", str(page)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PAGE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        log.exception("%s could not be made", page.name)
        return []
    if done.returncode:
        log.error("%s could not be made: %s", page.name, redact(done.stderr or done.stdout))
        return []
    return [page]


def _show(
    plan: Plan,
    summaries: Sequence[Summary],
    outcome: SweepOutcome,
    console: Console,
    uri: str,
    files: Sequence[Path],
) -> None:
    objectives, folder = plan.sweep.objectives, plan.sweep.folder
    if any(summary.finished or summary.failed for summary in summaries):
        console.print(terminal_table(summaries, objectives, f"{plan.sweep.name}: {plan.sweep.model}"))
        console.print(caption(summaries, objectives), markup=False)
    trials = {trial.key: trial for trial in plan.trials}
    for key in outcome.failed[:FAILURES_SHOWN]:
        console.print(f"failed: {trial_name(trials[key])}: {outcome.results[key].error}", style="red", markup=False)
    if more := len(outcome.failed[FAILURES_SHOWN:]):
        console.print(f"failed: {more} more", style="red", markup=False)
    for note in outcome.notes:
        console.print(note, markup=False)
    if files:
        console.print(f"files: {', '.join(shown_path(path) for path in files)}", markup=False, soft_wrap=True)
    console.print(f"runs and adapters: mlflow ui --backend-store-uri {redact(uri)}", markup=False, soft_wrap=True)
    console.print(f"log: {shown_path(SweepFolder(folder).log)}", markup=False, soft_wrap=True)


def _show_rest(outcome: SweepOutcome, left: int, folder: Path, console: Console, again: str) -> None:
    """What is still to do, and how."""
    if left:
        replay = f"python -m orchestrator.tracking replay {shown_path(folder)}"
        console.print(f"{left} records wait for the tracking store; ship them with: {replay}", markup=False, soft_wrap=True)
    rest = len(outcome.interrupted) + len(outcome.missing)
    if rest:
        have = "trial has" if rest == 1 else "trials have"
        console.print(f"{rest} {have} no result yet; go on with: {again}", markup=False, soft_wrap=True)
    elif outcome.open:
        console.print(f"there was more to propose; go on with: {again}", markup=False, soft_wrap=True)


def shown_path(path: Path) -> str:
    """`path` from the current folder where it lies inside it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


@contextmanager
def _doing(console: Console, what: str) -> Iterator[None]:
    if console.is_terminal:
        with console.status(f"{what} ..."):
            yield
    else:
        console.print(f"{what} ...", markup=False)
        yield
