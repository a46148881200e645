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
from orchestrator.driver.tally import STARTING, Outlook, Tally, trial_name
from orchestrator.plan.trial import Trial
from orchestrator.state.entry import TrialResult

PLAIN_EVERY = 30.0
SHOWN_RUNNING = 8


class Display:
    """Shows a sweep on `stream`. Use as a context manager; call `tick` often."""

    def __init__(self, total: int, stream: IO[str], verbosity: Verbosity = "normal", live: bool | None = None) -> None:
        """
        Args:
            live: redraw one block; whether `stream` is a terminal unless given.
        """
        self.tally = Tally(total)
        self._verbosity = verbosity
        self._console = Console(file=stream, force_terminal=live, quiet=verbosity == "quiet", highlight=False, soft_wrap=True)
        wanted = self._console.is_terminal if live is None else live
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True) if wanted and verbosity != "quiet" else None
        )
        self._next_line = self.tally.started + PLAIN_EVERY
        self._last_trouble = ""

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._live:
            self._live.stop()
        if self.tally.total:
            self._console.print(self.tally.sentence(over=True), markup=False)

    def expect(self, total: int) -> None:
        """Sets how many trials there will be."""
        self.tally.total = total

    def started(self, spec: Trial) -> None:
        self.tally.start(spec)

    def progressed(self, spec: Trial, progress: dict) -> None:
        score = progress.get("metrics", {}).get("search_score")
        self.tally.progress(spec, progress.get("step", 0), progress.get("total_steps", 0), score)
        if self._verbosity == "verbose":
            shown = "" if score is None else f", search score {score:.1f}"
            self.say(f"{trial_name(spec)}: step {progress.get('step')}/{progress.get('total_steps')}{shown}")

    def looked(self, spec: Trial, outlook: Outlook) -> None:
        self.tally.look(spec, outlook)

    def ended(self, spec: Trial, result: TrialResult, earlier: bool = False) -> None:
        self.tally.end(spec, result, earlier)
        if earlier:
            return
        if result.status == "failed":
            self.say(f"failed: {trial_name(spec)}: {result.error}", style="red")
        elif self._verbosity == "verbose":
            score = result.metrics.get("score")
            self.say(f"{result.status}: {trial_name(spec)}" + ("" if score is None else f": score {score:.1f}"))

    def made(self, spec: Trial, result: TrialResult) -> None:
        """An output has ended, now or earlier. Its training alone counts; the best so far may be a size."""
        self.tally.compare(spec, result)

    def paused(self, spec: Trial) -> None:
        self.tally.pause(spec)
        if self._verbosity == "verbose":
            self.say(f"waits: {trial_name(spec)}")

    def retried(self, spec: Trial, why: str) -> None:
        self.tally.running.pop(spec.key, None)
        self.say(f"again: {trial_name(spec)}: {why}", style="yellow")

    def trouble(self, what: str) -> None:
        """Says what goes wrong around the trials, and does not repeat it until something else has gone wrong."""
        if what != self._last_trouble:
            self.say(what, style="yellow")
        self._last_trouble = what

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
        left = "…" if tally.left is None else format_duration(tally.left)
        counts = Text.assemble(
            (f"{tally.done}", "bold green"), f"/{tally.total} trainings   ",
            (f"{len(tally.running)}", "bold"), " running   ",
            (f"{len(tally.paused)} paused   " if tally.paused else ""),
            (f"{tally.failed}", "bold red" if tally.failed else "bold"), " failed   ",
            (format_duration(tally.elapsed), "bold"), " passed   ", (left, "bold"), " left",
        )  # fmt: skip
        head = Table.grid(padding=(0, 2))
        head.add_row(ProgressBar(total=max(1, tally.total), completed=tally.done + tally.failed, width=24), counts)
        lines: list[RenderableType] = [head]
        if tally.best:
            lines.append(Text(f"best reported score {tally.best[0]:.1f}: {tally.best[1]}"))
        lines.append(self._running_table() if tally.running or tally.done else Text(STARTING, style="dim"))
        return Group(*lines)

    def _running_table(self) -> Table:
        table, now = Table.grid(padding=(0, 2)), self.tally.clock()
        if any(trial.score is not None for trial in self.tally.running.values()):
            table.add_row("", "", "", "", Text("search score", style="dim"))
        for trial in list(self.tally.running.values())[:SHOWN_RUNNING]:
            score = "" if trial.score is None else f"{trial.score:.1f}"
            left = trial.left_at(now)
            table.add_row(
                Text(trial_name(trial.spec), style="dim", overflow="ellipsis", no_wrap=True),
                f"{trial.share:4.0%}",
                trial.phase or "starting",
                "" if left is None else f"{format_duration(left)} left",
                score,
            )
        hidden = len(self.tally.running) - SHOWN_RUNNING
        if hidden > 0:
            table.add_row(Text(f"and {hidden} more", style="dim"))
        return table
