"""`SweepOutcome`: what a caller gets back from a session, and what the terminal shows of it: failures, files, next commands."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from craft.words import format_duration, plural
from orchestrator.plan.plan import Plan
from orchestrator.record.folder import SweepFolder
from orchestrator.record.state import Entry, State
from orchestrator.results.front import above_guessing
from orchestrator.results.metrics import PHASES
from orchestrator.results.summary import Summary
from orchestrator.review.progress import progress
from orchestrator.sweepfile.settings import TrackingSettings
from orchestrator.tools.secrets import public_address, redact
from orchestrator.tracking.client import DATABRICKS, resolve_uri
from orchestrator.tracking.follower import Report

if TYPE_CHECKING:
    from orchestrator.driver.driver import Driver


@dataclass(frozen=True)
class SweepOutcome:
    """How a session ended.

    Attributes:
        open: whether a searcher had more to propose, or more seeds were to be given, when it ended.
    """

    state: State
    seconds: float
    trouble: str | None = None
    signal: int | None = None
    exhausted: str | None = None
    notes: Sequence[str] = ()
    open: bool = False
    new: frozenset[str] = field(default_factory=frozenset)

    @property
    def left(self) -> list[Entry]:
        """The trainings with a trial that has not ended, begun or not."""
        sources = {entry.trial.training for entry in self.state.requested if not entry.ended}
        return [entry for entry in self.state.trainings if not entry.ended or entry.key in sources]

    def ended(self, status: str) -> list[Entry]:
        """Returns the trainings that ended so: `finished`, `failed` or `stopped`."""
        return [entry for entry in self.state.trainings if entry.ended and entry.result and entry.result.status == status]

    @property
    def complete(self) -> bool:
        """Whether every trial has a result that counts, and no more were to come."""
        return not (self.ended("failed") or self.left or self.open)

    @property
    def status(self) -> str:
        """The status of the sweep: `finished`, `interrupted` or `failed`."""
        if self.complete or self.exhausted:
            return "finished"
        return "interrupted" if self.left or self.open else "failed"


def outcome_of(driver: Driver, trouble: str | None, signal: int | None) -> SweepOutcome:
    """Returns the outcome of a session that ended early for `trouble`, or by a signal, if it did."""
    exhausted = driver.exhausted
    notes = [*([f"ended by {exhausted}"] if exhausted else []), *driver.notes]
    ended = driver.strategy.is_open(driver.state)
    return SweepOutcome(driver.state, driver.seconds, trouble, signal, exhausted, notes, ended, driver.new)


def show_outcome(
    plan: Plan,
    outcome: SweepOutcome,
    summaries: Sequence[Summary],
    console: Console,
    uri: str,
    files: Sequence[Path],
) -> None:
    """Prints the first failures with their reasons, where files, runs and the log are, and what can be done next."""
    for line in progress(outcome.state, time.time()).failures:
        console.print(line, style="red", markup=False)
    for note in outcome.notes:
        console.print(note, markup=False)
    if spent := _where_time_went(outcome):
        console.print(spent, markup=False)
    if files:
        console.print(f"files: {', '.join(shown_path(path) for path in files)}", markup=False, soft_wrap=True)
    console.print(f"log: {shown_path(SweepFolder(plan.sweep.folder).log)}", markup=False, soft_wrap=True)
    complete = [summary for summary in summaries if summary.complete]
    if outcome.ended("finished"):
        for purpose, command in _next(plan, uri, bool(complete) and above_guessing(complete)).items():
            console.print(f"{purpose:<17} {command}", markup=False, soft_wrap=True)


def _next(plan: Plan, uri: str, complete: bool) -> dict[str, str]:
    sweep = plan.sweep
    store = "" if uri == resolve_uri(TrackingSettings().uri) else f" --tracking-uri {redact(uri)}"
    take = f"craft-sweeps take {shown_path(sweep.folder)} --to adapter"
    commands = ({"take an adapter:": take} if complete else {}) | {"open the page:": f"craft-sweeps page{store}"}
    if (page := Report(SweepFolder(sweep.folder), uri).page) and not uri.startswith(DATABRICKS):
        ui = f"mlflow ui --backend-store-uri {redact(uri)}, then http://127.0.0.1:5000"
        commands["see it in MLflow:"] = f"{public_address(uri).rstrip('/') if uri.startswith('http') else ui}/{page}"
    return commands


def _where_time_went(outcome: SweepOutcome) -> str | None:
    """Returns `2 min 04 s: training 61 %, scoring 22 %, ...`: the session's time, with shares of the time of the trainings that
    finished in it; None if none did."""
    total: Counter[str] = Counter()
    for entry in outcome.ended("finished"):
        if entry.key in outcome.new and entry.result is not None:
            total.update(entry.result.facts.get("phases", {}))
    spent = total.total()
    if not spent:
        return None
    shares = [f"{PHASES[name]} {seconds / spent:.0%}" for name, seconds in total.most_common() if seconds / spent >= 0.005]
    return f"{format_duration(outcome.seconds)}: {', '.join(shares)}".replace("%", " %")


def show_unsent(unsent: int, folder: Path, console: Console) -> None:
    """Prints what the tracking store lacks, and the command that sends it."""
    if unsent:
        send = f"craft-sweeps replay {shown_path(folder)}"
        line = f"{unsent} {plural(unsent, 'event')} not in the tracking store yet; send with: {send}"
        console.print(line, markup=False, soft_wrap=True)


def show_rest(outcome: SweepOutcome, console: Console) -> None:
    """Prints what is still to run, and the command that continues."""
    say, unfinished, again = partial(console.print, markup=False, soft_wrap=True), len(outcome.left), outcome.state.again
    if unfinished:
        say(f"{unfinished} {plural(unfinished, 'trial')} without a result; continue with: {again}")
    elif outcome.open:
        say(f"the searcher has more to propose; continue with: {again}")


def shown_path(path: Path) -> str:
    """Returns `path` relative to the current folder if it is inside."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
