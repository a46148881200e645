"""What a running sweep shows: trials done, running and failed, the best so far, the time that has passed and that is left.

On a terminal it is one block that redraws itself; in a file or a pipe it is a plain line every 30 s. Either shows failures and
troubles when they happen. `Tally` keeps the numbers, apart from the drawing.
"""

from __future__ import annotations

from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from craft.words import format_duration
from orchestrator.driver.options import Verbosity
from orchestrator.driver.tally import Outlook, Tally
from orchestrator.state.entry import Entry
from orchestrator.state.events import Applied, Ended, Event, Interrupted, Paused, Reported, Requested, Started, Wanted
from orchestrator.state.state import State

PLAIN_EVERY = 30.0
SHOWN_RUNNING = 8


class Display:
    """Shows a sweep on `stream`. Use as a context manager while it runs; call `tick` often."""

    def __init__(self, total: int, stream: IO[str], verbosity: Verbosity = "normal", live: bool | None = None) -> None:
        """
        Args:
            live: redraw one block; whether `stream` is a terminal unless given.
        """
        self.tally = Tally(total)
        self._verbosity = verbosity
        quiet = verbosity == "quiet"
        self._console = Console(file=stream, force_terminal=live, quiet=quiet, highlight=False, emoji=False, soft_wrap=True)
        wanted = self._console.is_terminal if live is None else live
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True) if wanted and verbosity != "quiet" else None
        )
        self._next_line = self.tally.started + PLAIN_EVERY
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
        if self.tally.total and not self._closed:
            self._closed = True
            self._console.print(self.tally.sentence(over=True), markup=False)

    def show(self, event: Event, state: State) -> None:
        """Shows an event.

        Args:
            state: the state after it.
        """
        if isinstance(event, Ended):
            self._show_end(state.entries[event.result.key])
        elif isinstance(event, Reported):
            self._show_report(state.entries[event.key])
        elif isinstance(event, Applied | Requested):
            self.tally.count_again(state.requested)
            self.say(_announcement(event, state), style="bold")
        elif isinstance(event, Wanted | Started | Paused | Interrupted):
            for entry in (state.entries[key] for key in event.keys if key in state.entries):
                if not entry.trial.is_cut:
                    self._show_phase(event, entry)
                elif isinstance(event, Started):
                    self.tally.cutting.add(entry.key)
                elif not isinstance(event, Wanted):
                    self.tally.cutting.discard(entry.key)

    def look(self, key: str, outlook: Outlook, state: State) -> None:
        """Shows how far a running training is."""
        self.tally.look(state.entries[key], outlook)

    def retry(self, entry: Entry, why: str) -> None:
        """Says that a training starts again."""
        self.tally.stop(entry.key)
        self.say(f"again: {entry.trial.name}: {why}", style="yellow")

    def outlook(self) -> tuple[float | None, str]:
        """Returns the seconds left, if they are known, and what the running trainings do."""
        return self.tally.left, self.tally.doing

    def _show_phase(self, event: Event, entry: Entry) -> None:
        if isinstance(event, Started):
            self.tally.start(entry)
        elif isinstance(event, Interrupted):
            self.tally.stop(entry.key)
        elif isinstance(event, Paused):
            self.tally.pause(entry)
            if self._verbosity == "verbose":
                self.say(f"waits: {entry.trial.name}")
        elif entry.ended:
            self.tally.end(entry, earlier=True)

    def _show_report(self, entry: Entry) -> None:
        self.tally.progress(entry)
        if self._verbosity == "verbose" and entry.report is not None:
            score = entry.report.metrics.get("search_score")
            suffix = "" if score is None else f", search score {score:.1f}"
            self.say(f"{entry.trial.name}: step {entry.report.step}/{entry.report.total_steps}{suffix}")

    def _show_end(self, entry: Entry) -> None:
        self.tally.cutting.discard(entry.key)
        if entry.trial.is_cut or entry.result is None:
            return
        self.tally.end(entry)
        if entry.result.status == "failed":
            self.say(f"failed: {entry.trial.name}: {entry.result.error}", style="red")
        elif self._verbosity == "verbose":
            score = entry.result.metrics.get("score")
            self.say(f"{entry.result.status}: {entry.trial.name}" + ("" if score is None else f": score {score:.1f}"))

    def trouble(self, line: str) -> None:
        """Says what goes wrong around the trials, and does not repeat it until something else has gone wrong."""
        if line != self._last_trouble:
            self.say(line, style="yellow")
        self._last_trouble = line

    def say(self, line: str, style: str | None = None) -> None:
        self._console.print(line, style=style, markup=False)

    def tick(self) -> None:
        """Redraws, or says a plain line if it is time for one."""
        if self._live:
            self._live.update(self._block(), refresh=True)
        elif self.tally.clock() >= self._next_line:
            self._next_line = self.tally.clock() + PLAIN_EVERY
            self.say(self.tally.sentence())

    def _block(self) -> RenderableType:
        tally = self.tally
        time_left = "…" if tally.left is None else format_duration(tally.left)
        counts = Text.assemble(
            (f"{tally.done}", "bold green"), f"/{tally.total} trainings   ",
            (f"{len(tally.running)}", "bold"), " running   ",
            (f"{len(tally.paused)} paused   " if tally.paused else ""),
            (f"{tally.failed}", "bold red" if tally.failed else "bold"), " failed   ",
            (f"{tally.stopped} stopped   " if tally.stopped else ""),
            (format_duration(tally.elapsed), "bold"), " passed   ", (time_left, "bold"), " left",
        )  # fmt: skip
        head = Table.grid(padding=(0, 2))
        ended = tally.done + tally.failed + tally.stopped
        head.add_row(ProgressBar(total=max(1, tally.total), completed=ended, width=24), counts)
        lines: list[RenderableType] = [head]
        lines.append(self._running_table() if tally.running else Text(tally.doing, style="dim"))
        return Group(*lines)

    def _running_table(self) -> Table:
        table, clock_seconds = Table.grid(padding=(0, 2)), self.tally.clock()
        if any(trial.score is not None for trial in self.tally.running.values()):
            table.add_row("", "", "", "", Text("search score", style="dim"))
        for trial in list(self.tally.running.values())[:SHOWN_RUNNING]:
            score = "" if trial.score is None else f"{trial.score:.1f}"
            seconds_left = trial.left_at(clock_seconds)
            table.add_row(
                Text(trial.entry.trial.name, style="dim", overflow="ellipsis", no_wrap=True),
                f"{trial.share:4.0%}",
                trial.phase or "starting",
                "" if seconds_left is None else f"{format_duration(seconds_left)} left",
                score,
            )
        hidden = len(self.tally.running) - SHOWN_RUNNING
        if hidden > 0:
            table.add_row(Text(f"and {hidden} more", style="dim"))
        return table


def _announcement(event: Applied | Requested, state: State) -> str:
    """Returns what a person asked for, in a sentence."""
    if isinstance(event, Applied):
        return f"applied by {event.who}: {', '.join(event.difference)}"
    named = [state.entries[key].trial.name for key in event.keys if key in state.entries]
    return f"{event.verb}, asked by {event.who}" + (f": {', '.join(named)}" if named else "")
