"""The screen of a sweep: while it runs its `Progress`, and the events that a person wants to see when they happen; at the end
of a session its `SweepOutcome`: failures, files, next commands.

On a terminal it is one block that redraws itself; in a file or a pipe it is a plain line every 30 s. Either shows failures and
troubles when they happen.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from craft.results import Outlook
from craft.words import format_duration, plural
from orchestrator.plan.plan import Plan
from orchestrator.record.events import Applied, Ended, Event, Requested, Started
from orchestrator.record.folder import SweepFolder
from orchestrator.record.state import Entry, State, count_phases
from orchestrator.results.front import above_guessing
from orchestrator.results.metrics import PHASES
from orchestrator.results.summary import Summary
from orchestrator.review.outlook import seconds_left
from orchestrator.review.progress import RUNNING_SHOWN, Progress, progress
from orchestrator.sweepfile.settings import TrackingSettings
from orchestrator.tools.secrets import public_address, redact
from orchestrator.tracking.client import DATABRICKS, resolve_uri
from orchestrator.tracking.follower import Lacks, Sent, describe_refused

PLAIN_EVERY, REDRAWN_EVERY = 30.0, 0.25


class Display:
    """Shows a sweep on `stream`. Use as a context manager while it runs; call `tick` often."""

    def __init__(
        self,
        stream: IO[str],
        quiet: bool = False,
        live: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.stream, self.state, self.missing = stream, State(), ""
        self._clock, self._outlooks = clock, dict[str, tuple[Outlook, float]]()
        self._console = Console(file=stream, force_terminal=live, quiet=quiet, highlight=False, emoji=False, soft_wrap=True)
        redraws = (self._console.is_terminal if live is None else live) and not quiet
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if redraws else None
        self._next_tick = clock() + (0.0 if redraws else PLAIN_EVERY)
        self._last_trouble, self._closed = "", False

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the block, and says how far the sweep came; once."""
        if self._live:
            self._live.stop()
        if self.state.trainings and not self._closed:
            self._closed = True
            self.say(_line(self.progress().model_copy(update={"doing": ""})))

    def progress(self) -> Progress:
        return progress(self.state, self._clock(), True, self._outlooks, self.missing)

    def show(self, event: Event, state: State) -> None:
        self.state = state
        if isinstance(event, Started):
            for key in event.keys:
                self._outlooks.pop(key, None)
        elif isinstance(event, Ended):
            entry = state.entries[event.result.key]
            if entry.result is not None and entry.result.status == "failed" and not entry.trial.is_cut:
                self.say(f"failed: {entry.trial.name}: {entry.result.error}", style="red")
        elif isinstance(event, Applied | Requested):
            self.say(_announcement(event, state), style="bold")

    def look(self, key: str, outlook: Mapping[str, Any]) -> None:
        """Takes the progress of a running training, as `craft.results.Outlook` has it."""
        self._outlooks[key] = Outlook(**outlook), self._clock()

    def retry(self, entry: Entry, why: str) -> None:
        self.say(f"again: {entry.trial.name}: {why}", style="yellow")

    def trouble(self, line: str) -> None:
        """Says what goes wrong around the trials, and does not repeat it until something else has gone wrong."""
        if line != self._last_trouble:
            self.say(line, style="yellow")
        self._last_trouble = line

    def say(self, line: str, style: str | None = None) -> None:
        self._console.print(line, style=style, markup=False)

    def tick(self) -> None:
        """Redraws, or says a plain line, if it is time for that."""
        if self._clock() < self._next_tick:
            return
        began = self._clock()
        if self._live:
            now, head = self.progress(), Table.grid(padding=(0, 2))
            done = now.trainings
            ended = done.finished + done.failed + done.stopped
            bar = ProgressBar(total=max(1, now.trainings_planned or done.total), completed=ended, width=24)
            head.add_row(bar, Text(_line(now), style="bold red" if now.failed else "bold"))
            self._live.update(Group(head, *([self._running_table(now)] if now.running else [])), refresh=True)
        else:
            self.say(_line(self.progress()))
        # thousands of trials take longer to draw, which must not slow down the driver
        self._next_tick = began + max(20 * (self._clock() - began), REDRAWN_EVERY if self._live else PLAIN_EVERY)

    def _running_table(self, now: Progress) -> Table:
        table = Table.grid(padding=(0, 2))
        if any(trial.search_score is not None for trial in now.running):
            table.add_row("", "", "", "", Text("search score", style="dim"))
        for trial in now.running[:RUNNING_SHOWN]:
            outlook, reported = self._outlooks.get(trial.trial) or (Outlook("starting", trial.share, None), 0.0)
            left = seconds_left(outlook, reported, self._clock())
            table.add_row(
                Text(trial.name, style="dim", overflow="ellipsis", no_wrap=True),
                f"{outlook.share:4.0%}",
                Text(outlook.phase, overflow="ellipsis", no_wrap=True),
                "" if left is None else f"{format_duration(left)} left",
                "" if trial.search_score is None else f"{trial.search_score:.1f}",
            )
        if hidden := len(now.running[RUNNING_SHOWN:]):
            table.add_row(Text(f"and {hidden} more", style="dim"))
        return table


def _line(now: Progress) -> str:
    return ", ".join([now.counts, *now.times])


def _announcement(event: Applied | Requested, state: State) -> str:
    if isinstance(event, Applied):
        return f"applied by {event.who}: {', '.join(event.difference)}"
    named = [state.entries[key].trial.name for key in event.keys if key in state.entries]
    return f"{event.verb}, asked by {event.who}" + (f": {', '.join(named)}" if named else "")


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

    @property
    def left(self) -> list[Entry]:
        """The trainings with a trial that has not ended, begun or not."""
        sources = {entry.trial.training for entry in self.state.requested if not entry.ended}
        return [entry for entry in self.state.trainings if not entry.ended or entry.key in sources]

    def ended(self, status: str) -> list[Entry]:
        """Returns the trainings that ended so: `finished`, `failed` or `stopped`."""
        return [entry for entry in self.state.trainings if entry.ended and entry.result and entry.result.status == status]

    @property
    def failed(self) -> bool:
        """Whether a training or a cut has failed."""
        return count_phases(self.state.requested)["failed"] > 0

    @property
    def complete(self) -> bool:
        """Whether every trial has a result that counts, and no more were to come."""
        return not (self.failed or self.left or self.open)

    @property
    def status(self) -> str:
        """The status of the sweep: `finished`, `interrupted` or `failed`."""
        if self.complete or self.exhausted:
            return "finished"
        return "interrupted" if self.left or self.open else "failed"


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
    sweep, address = plan.sweep, shlex.quote(redact(uri))
    store = "" if uri == resolve_uri(TrackingSettings().uri) else f" --tracking-uri {address}"
    take = f"craft-sweeps take {shlex.quote(shown_path(sweep.folder))} --to adapter"
    commands = ({"take an adapter:": take} if complete else {}) | {"open the page:": f"craft-sweeps page{store}"}
    if (page := Sent.read(SweepFolder(sweep.folder), uri).page) and not uri.startswith(DATABRICKS):
        ui = f"mlflow ui --backend-store-uri {address}, then http://127.0.0.1:5000"
        commands["see it in MLflow:"] = f"{public_address(uri).rstrip('/') if uri.startswith('http') else ui}/{page}"
    return commands


def _where_time_went(outcome: SweepOutcome) -> str | None:
    """Returns `2 min 04 s: training 61 %, scoring 22 %, ...`: the session's time, with shares of the time of the trainings that
    finished in it; None if none did."""
    total, began = Counter[str](), outcome.state.started.time if outcome.state.started else 0.0
    for entry in outcome.ended("finished"):
        if entry.changed >= began and entry.result is not None:
            total.update(entry.result.facts.get("phases", {}))
    spent = total.total()
    if not spent:
        return None
    shares = [f"{PHASES[name]} {seconds / spent:.0%}" for name, seconds in total.most_common() if seconds / spent >= 0.005]
    return f"{format_duration(outcome.seconds)}: {', '.join(shares)}".replace("%", " %")


def show_unsent(unsent: Lacks, folder: Path, console: Console) -> None:
    if unsent.events:
        send = f"craft-sweeps replay {shlex.quote(shown_path(folder))}"
        line = f"{unsent.events} {plural(unsent.events, 'event')} not in the tracking store yet; send with: {send}"
        console.print(line, markup=False, soft_wrap=True)
    if unsent.refused:
        console.print(describe_refused(unsent.refused), markup=False, soft_wrap=True)


def show_rest(outcome: SweepOutcome, console: Console) -> None:
    say, again, entries = partial(console.print, markup=False, soft_wrap=True), outcome.state.again, outcome.state.requested
    lost = {entry.trial.training for entry in entries if entry.result and not entry.result.settled}
    if unfinished := len(lost.union(entry.key for entry in outcome.left)):
        say(f"{unfinished} {plural(unfinished, 'trial')} without a result; continue with: {again}")
    elif outcome.open:
        say(f"more trials follow; continue with: {again}")


def shown_path(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
