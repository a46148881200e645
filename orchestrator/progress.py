"""What a running sweep shows: trials done, running and failed, the best so far, the time that has passed and that is left.

On a terminal one block that redraws itself; in a file or a pipe a plain line now and then. Failures and troubles are told when
they happen, in either. The numbers are kept in `Tally`, apart from the drawing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.options import Verbosity
from orchestrator.plan.trial import TrialResult, TrialSpec

PLAIN_EVERY = 30.0
SHOWN_RUNNING = 8


@dataclass
class Running:
    """A trial on its way: `share` of its steps done, its last search score."""

    spec: TrialSpec
    share: float = 0.0
    score: float | None = None


@dataclass
class Tally:
    """The state of a sweep in numbers. `done` counts trials that ended with a result, failures apart.

    `earlier` trials ended in earlier runs of the sweep: they count as done but say nothing about this run's speed.
    """

    total: int
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    done: int = 0
    failed: int = 0
    earlier: int = 0
    retries: int = 0
    running: dict[str, Running] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    best: tuple[float, str] | None = None

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    @property
    def waiting(self) -> int:
        return max(0, self.total - self.done - self.failed - len(self.running))

    @property
    def left(self) -> float | None:
        """Seconds until the end if the rest goes at this run's pace; None before a tenth of a trial is done."""
        work = self.done + self.failed - self.earlier + sum(trial.share for trial in self.running.values())
        rest = self.waiting + sum(1 - trial.share for trial in self.running.values())
        return self.elapsed / work * rest if work >= 0.1 else None

    def start(self, spec: TrialSpec) -> None:
        self.running.setdefault(spec.key, Running(spec))
        self.paused.discard(spec.key)

    def pause(self, spec: TrialSpec) -> None:
        self.running.pop(spec.key, None)
        self.paused.add(spec.key)

    def progress(self, spec: TrialSpec, step: int, total_steps: int, score: float | None) -> None:
        self.running[spec.key] = Running(spec, step / total_steps if total_steps else 0.0, score)

    def end(self, spec: TrialSpec, result: TrialResult, earlier: bool) -> None:
        self.running.pop(spec.key, None)
        self.paused.discard(spec.key)
        if result.status == "failed":
            self.failed += 1
        elif result.status != "interrupted":
            self.done += 1
        self.earlier += earlier
        score = result.metrics.get("score")
        if result.status == "finished" and score is not None and (self.best is None or score > self.best[0]):
            self.best = score, f"{spec.label} on {spec.run.task}, seed {spec.run.seed}"

    def sentence(self) -> str:
        """All of it in one line."""
        parts = [f"{self.done}/{self.total} trials done", f"{len(self.running)} running", f"{self.failed} failed"]
        if self.paused:
            parts.insert(2, f"{len(self.paused)} paused")
        if self.best:
            parts.append(f"best {self.best[0]:.1f} ({self.best[1]})")
        parts.append(f"{duration(self.elapsed)} passed")
        if self.left is not None:
            parts.append(f"{duration(self.left)} left")
        return ", ".join(parts)


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
            self._console.print(self.tally.sentence(), markup=False)

    def expect(self, total: int) -> None:
        """There are so many trials now."""
        self.tally.total = total

    def started(self, spec: TrialSpec) -> None:
        self.tally.start(spec)

    def progressed(self, spec: TrialSpec, progress: dict) -> None:
        score = progress.get("metrics", {}).get("search_score")
        self.tally.progress(spec, progress.get("step", 0), progress.get("total_steps", 0), score)
        if self._verbosity == "verbose":
            shown = "" if score is None else f", search score {score:.1f}"
            self.say(f"{trial_name(spec)}: step {progress.get('step')}/{progress.get('total_steps')}{shown}")

    def ended(self, spec: TrialSpec, result: TrialResult, earlier: bool = False) -> None:
        self.tally.end(spec, result, earlier)
        if earlier:
            return
        if result.status == "failed":
            self.say(f"failed: {trial_name(spec)}: {result.error}", style="red")
        elif self._verbosity == "verbose":
            score = result.metrics.get("score")
            self.say(f"{result.status}: {trial_name(spec)}" + ("" if score is None else f": score {score:.1f}"))

    def paused(self, spec: TrialSpec) -> None:
        self.tally.pause(spec)
        if self._verbosity == "verbose":
            self.say(f"waits: {trial_name(spec)}")

    def retried(self, spec: TrialSpec, why: str) -> None:
        self.tally.retries += 1
        self.tally.running.pop(spec.key, None)
        self.say(f"again: {trial_name(spec)}: {why}", style="yellow")

    def trouble(self, what: str) -> None:
        """Says what goes wrong around the trials, once until something else does."""
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
        left = "…" if tally.left is None else duration(tally.left)
        counts = Text.assemble(
            (f"{tally.done}", "bold green"), f"/{tally.total} done   ",
            (f"{len(tally.running)}", "bold"), " running   ",
            (f"{len(tally.paused)} paused   " if tally.paused else ""),
            (f"{tally.failed}", "bold red" if tally.failed else "bold"), " failed   ",
            (duration(tally.elapsed), "bold"), " passed   ", (left, "bold"), " left",
        )  # fmt: skip
        head = Table.grid(padding=(0, 2))
        head.add_row(ProgressBar(total=max(1, tally.total), completed=tally.done + tally.failed, width=24), counts)
        lines: list[RenderableType] = [head]
        if tally.best:
            lines.append(Text(f"best so far {tally.best[0]:.1f}: {tally.best[1]}"))
        lines.append(self._running_table())
        return Group(*lines)

    def _running_table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for trial in list(self.tally.running.values())[:SHOWN_RUNNING]:
            score = "" if trial.score is None else f"{trial.score:.1f}"
            table.add_row(
                Text(trial_name(trial.spec), style="dim", overflow="ellipsis", no_wrap=True), f"{trial.share:4.0%}", score
            )
        hidden = len(self.tally.running) - SHOWN_RUNNING
        if hidden > 0:
            table.add_row(Text(f"and {hidden} more", style="dim"))
        return table


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    whole = int(seconds + 0.5)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    if minutes:
        return f"{minutes} min {whole % 60:02d} s"
    return f"{whole} s"


def trial_name(spec: TrialSpec) -> str:
    return f"{spec.label} · {spec.run.task} · seed {spec.run.seed}"
