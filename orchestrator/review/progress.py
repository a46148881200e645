"""`Progress`: how far a sweep is, from its state: at this moment in its driver, or from its log anywhere else.

The screen of a session, `status`, `--json`, the outcome and the page show it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field
from rich.console import Console

from craft.words import format_duration, plural
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import SessionEnded
from orchestrator.record.folder import SILENT_SECONDS, Holder, SweepFolder, holder_of
from orchestrator.record.log import read_state
from orchestrator.record.resume import check_name
from orchestrator.record.state import Entry, State, count_phases
from orchestrator.results.answer import REASONS, Answer, answer_of
from orchestrator.results.report import Command, Count, Number, Part, Report
from orchestrator.results.step import describe_price
from orchestrator.results.summary import Summary
from orchestrator.review.outlook import Outlooks, describe_work, sweep_seconds_left
from orchestrator.sweepfile.settings import Budget

Phase = Literal["empty", "running", "lost", "finished", "failed", "interrupted"]
PHASES: dict[Phase, str] = {
    "empty": "nothing is on record yet",
    "lost": "interrupted: its driver is gone",
    "running": "running",
    "finished": "finished",
    "failed": "ended, and some trials have failed",
    "interrupted": "interrupted",
}
FAILURES_SHOWN, RUNNING_SHOWN = 5, 8
MORE_FAILURES = "run what has failed again"


class Counts(Part):
    """How many trials are in which phase."""

    total: int = Field(description="All that the session asks for by now. A searcher or further seeds may add more.")
    waiting: int = Field(description="Those that have not begun, or wait to be continued.")
    running: int = Field(description="Those that run.")
    paused: int = Field(description="Those that wait for their turn at a rung.")
    finished: int = Field(description="Those with a score.")
    failed: int = Field(description="Those that failed.")
    stopped: int = Field(description="Those that ended because they were never promoted, or because a person stopped them.")

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        phases = count_phases(entries)
        return cls(total=phases.total(), **{name: phases[name] for name in cls.model_fields if name != "total"})


class TrialPart(Part):
    """A trial."""

    trial: str = Field(description="Its key.")
    configuration: str = Field(description="The id of its configuration.")
    label: str = Field(description="The name of its configuration for people.")
    task: str = Field(description="Its task.")
    seed: int = Field(description="Its seed.")

    @classmethod
    def of(cls, entry: Entry, **fields: Any) -> Self:
        return cls.fill(entry.trial, trial=entry.key, **fields)

    @property
    def name(self) -> str:
        return f"{self.label} · {self.task} · seed {self.seed}"


class RunningPart(TrialPart):
    """A trial that runs."""

    step: int = Field(description="Optimizer steps at its last evaluation. 0 before the first.")
    total_steps: Count = Field(description="Optimizer steps of all its training. Null before its first evaluation.")
    epoch: Number = Field(description="Passes over the training data at its last evaluation. Null before the first.")
    search_score: Number = Field(description="The score of its last evaluation, in points, on the split that may choose.")
    seconds: Number = Field(description="Seconds since it started, or was continued.")

    @property
    def share(self) -> float:
        """How much of its training was done at its last evaluation."""
        return self.step / self.total_steps if self.total_steps else 0.0

    @property
    def line(self) -> str:
        parts = [f"step {self.step:,} of {self.total_steps:,}" if self.total_steps else "no evaluation yet"]
        parts += [] if self.search_score is None else [f"search score {self.search_score:.1f}"]
        parts += [] if self.seconds is None else [f"{format_duration(self.seconds)} since it started"]
        return f"  {self.name}: {', '.join(parts)}"


class FailedPart(TrialPart):
    """A trial that has failed."""

    reason: str = Field(description="Why.")
    retryable: bool = Field(description="Whether the machine was at fault, so that the next session runs it again.")

    @property
    def line(self) -> str:
        again = " (the next session runs it again)" if self.retryable else ""
        return f"failed: {self.name}: {(self.reason.splitlines() or ['no reason is on record'])[0]}{again}"


class DriverPart(Part):
    """The process that drives the sweep."""

    alive: bool | None = Field(description="Whether it runs. Null where that is not known: it is on another machine.")
    process: Count = Field(description="Its number. Null without a driver.")
    machine: str | None = Field(description="The name of its machine. Null without a driver.")


class BudgetPart(Part):
    """The limits of the sweep."""

    trials: Count = Field(description="The most trials. Null without that limit.")
    wall_clock_seconds: Number = Field(description="The most seconds of one session. Null without that limit.")
    seconds_left: Number = Field(description="Seconds until the session reaches that. Null if none runs, or without a limit.")


class EndPart(Part):
    """How the last session ended."""

    status: str = Field(description="`finished`, `failed` or `interrupted`.")
    time: float = Field(description="When, in seconds since 1970.")
    seconds: Number = Field(description="How long the session was, in seconds.")


class Progress(Report):
    """How far a sweep is."""

    report: Literal["status"] = Field("status", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    folder: str = Field("", description="Its folder.")
    phase: Phase = Field(
        description="`empty`: nothing is on record. `running`: a driver runs it, or ran when it last reported from another "
        "machine. `lost`: its driver is gone without an end. `finished`, `failed`, `interrupted`: how its last session ended."
    )
    driver: DriverPart = Field(description="The process that drives it. While it prepares or ends a session, no phase says so.")
    started: Number = Field(description="The start of the present or last session, in seconds since 1970.")
    updated: Number = Field(description="The last entry of its log that has a time here, in seconds since 1970.")
    ended: EndPart | None = Field(description="How the last session ended. Null while one runs, or if it was lost.")
    seconds_passed: Number = Field(description="Seconds of the present or last session.")
    seconds_left: Number = Field(description="Seconds until the sweep ends, as far as that can be said. Null if not running.")
    doing: str = Field(description="What the running trials do.")
    paused_by: str | None = Field(
        description="Who paused the sweep, as user@machine: no trial starts. Null if it is not paused."
    )
    trainings: Counts = Field(description="The trials that are trained.")
    trainings_planned: Count = Field(description="How many trainings there will be, as far as is known. Null if it is not.")
    trials: Counts = Field(description="All trials, with those whose adapters are cut from a training's.")
    refused: int = Field(description="Configurations that break a constraint and are not trained.")
    running: list[RunningPart] = Field(description="The trials that run.")
    failed: list[FailedPart] = Field(description="The trials that have failed, cuts aside that failed with their training.")
    budget: BudgetPart = Field(description="The limits at which the sweep ends before its plan does.")
    added: list[str] = Field(description="What `search.until` has added, in order: what runs, and for what.")
    answer: Answer | None = Field(
        None, description="The answer so far, or in `kind` why there is none. Null before a session has begun."
    )
    next: Sequence[Command] = Field((), description="What can be done next.")

    @property
    def counts(self) -> str:
        """All counts in one line, and what the trials do."""
        done = self.trainings
        doing = f" ({self.doing})" if self.doing else ""
        parts = [f"{done.finished}/{self.trainings_planned or done.total} trainings done", f"{done.running} running{doing}"]
        parts += [f"{done.paused} paused"] if done.paused else []
        parts += [f"{done.failed} failed"]
        parts += [f"{done.stopped} stopped"] if done.stopped else []
        if cuts := self.trials.total - done.total:
            parts.append(f"{self.trials.finished - done.finished}/{cuts} cuts done")
        if self.refused:
            parts.append(f"{self.refused} {plural(self.refused, 'configuration')} refused by a constraint")
        return ", ".join(parts)

    @property
    def times(self) -> list[str]:
        passed, left, budget = self.seconds_passed, self.seconds_left, self.budget.seconds_left
        parts = [] if passed is None else [f"{format_duration(passed)} passed"]
        parts += [] if left is None else [f"about {format_duration(left)} left"]
        return parts + ([] if budget is None else [f"{format_duration(budget)} left of budget.wall_clock"])

    @property
    def failures(self) -> list[str]:
        more = len(self.failed) - FAILURES_SHOWN
        lines = [failure.line for failure in self.failed[:FAILURES_SHOWN]]
        return lines + ([f"failed: {more} more"] if more > 0 else [])

    def show(self, console: Console) -> None:
        for line, style in self.lines():
            console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def lines(self) -> Iterator[tuple[str, str | None]]:
        """Yields what `status` prints: counts, running trials, failures, the answer so far, what can be done next. Each
        line has its style."""
        phase = PHASES[self.phase] if self.failed or self.phase != "failed" else "ended early by an error"
        held = [] if self.paused_by is None else [f"paused by {self.paused_by}"]
        driver = []
        if self.driver.alive is not False and (self.driver.alive or self.phase == "running"):
            prepares = "" if self.phase == "running" else " prepares or ends a session"
            driver = [f"process {self.driver.process} on {self.driver.machine}{prepares}"]
        yield f"{self.sweep}: {', '.join([phase, *held, *self.times, *driver])}", "bold"
        if self.trials.total:
            yield self.counts, None
        yield from ((trial.line, None) for trial in self.running[:RUNNING_SHOWN])
        if hidden := len(self.running[RUNNING_SHOWN:]):
            yield f"  and {hidden} more", None
        yield from ((line, "red") for line in self.failures)
        yield from ((f"added: {why}", None) for why in self.added)
        # While a sweep runs, what it does not know yet is what it is running for.
        runs, answer = self.phase == "running", self.answer
        if answer is not None:
            text = f"So far: {answer.verdict}" if runs else answer.text
            yield from ((line, "bold") for line in text.splitlines())
        said = answer.command if answer is not None and not runs else ""
        steps = [step for step in self.next if step.command != said]
        width = max((len(step.purpose) for step in steps), default=0) + 1
        yield from ((f"{step.purpose + ':':<{width}} {step.command}", None) for step in steps)


def read_status(folder: Path) -> Progress:
    state = read_state(SweepFolder(folder).record)
    check_name(folder, state)
    return progress_of(state, folder, holder_of(folder.absolute()), time.time())


def progress_of(state: State, folder: Path, holder: Holder | None, now: float, alive: bool | None = False) -> Progress:
    """Returns the progress of the sweep in a folder with its answer and the next commands. Without a `holder`, `alive` says
    whether its driver lives; it is None in a store, which cannot know."""
    report = progress(state, now, alive=holder.is_alive if holder is not None else alive)
    if report.phase == "lost":  # nothing runs, as after an end
        state = state.after(SessionEnded(status="interrupted", time=report.updated or 0.0))
    process, machine = (holder.pid, holder.host) if holder else (None, None)
    driver = DriverPart(alive=report.driver.alive, process=process, machine=machine)
    about: dict[str, Any] = {"sweep": state.name or folder.name, "folder": str(folder), "driver": driver}
    if state.started is None:
        return report.model_copy(update=about)
    summaries, answer = answer_of(state)
    runs = report.driver.alive or report.phase == "running"
    shown = answer.running(describe_running(state, now)) if runs and state.ended is None else answer
    about["answer"] = shown
    about["next"] = _next(state, "running" if report.driver.alive else report.phase, folder, summaries, answer)
    return report.model_copy(update=about)


def is_running(state: State, now: float, alive: bool | None = None) -> bool:
    """Returns whether a driver runs a session: where it is not known whether that lives, if its log has grown lately."""
    lives = now - _updated(state) < SILENT_SECONDS if alive is None else alive
    return lives and state.started is not None and state.ended is None


def describe_running(state: State, now: float) -> str:
    """Returns that a sweep runs and how long it still does, as far as its log says that."""
    at, lefts = progress(state, now), list[float]()
    lefts += [] if at.budget.seconds_left is None else [at.budget.seconds_left]
    lefts += [] if at.seconds_left is None or (state.sweep.search.until and lefts) else [at.seconds_left]
    left = describe_price(min(lefts, default=0.0)).strip(" ()")
    return f"It is running{f', {left} left' if left else ''}."


def progress(
    state: State,
    now: float,
    alive: bool | None = None,
    outlooks: Outlooks | None = None,
    missing: str = "",
) -> Progress:
    """Returns how far a sweep is at `now`, in seconds since 1970.

    Args:
        alive: whether its driver lives; None where that is not known.
        outlooks: what its running trainings last reported, by key. None where that is not known: what the driver last wrote to
            the log counts.
        missing: the resources that no machine has and a trial waits for.
    """
    phase, underway, updated = _phase(state, now, alive), state.underway, _updated(state)
    if phase == "lost":
        state = state.after(SessionEnded(status="interrupted", time=updated))
    runs, ended = phase == "running", state.ended if phase != "lost" else None
    began = state.started.time if state.started is not None else None
    until = now if runs else updated if phase == "lost" else None
    passed = ended.seconds if ended is not None else until - began if until is not None and began is not None else None
    since = now - underway.time if underway is not None else SILENT_SECONDS
    if outlooks is None and runs and underway is not None and 0 <= since < SILENT_SECONDS:
        left, doing = None if underway.left is None else max(0.0, underway.left - since), underway.doing
    else:
        left = sweep_seconds_left(state, now, outlooks or {}) if runs else None
        doing = "" if outlooks is None else describe_work(state, outlooks, missing)
    budget = state.sweep.budget if state.started is not None else Budget()
    limit = budget.wall_clock_seconds if runs else None
    running = [entry for entry in state.requested if entry.phase == "running"]
    # A cut waits, in the same process, for the end of its training.
    running = [entry for entry in running if not entry.trial.is_cut or state.training_of(entry.trial).ended]
    return Progress(
        sweep=state.name,
        phase=phase,
        driver=DriverPart(alive=alive, process=None, machine=None),
        started=began,
        updated=updated or None,
        ended=None if ended is None else EndPart.fill(ended),
        seconds_passed=passed,
        seconds_left=left,
        doing=doing,
        paused_by=state.held.who if state.held is not None else None,
        trainings=Counts.of(state.trainings),
        trainings_planned=state.most_trainings,
        trials=Counts.of(state.requested),
        refused=len(state.refused),
        running=[_running(entry, now) for entry in running],
        failed=[
            FailedPart.of(entry, reason=result.error or "", retryable=result.retryable)
            for entry in state.requested
            if (result := _failure(entry, state))
        ],
        budget=BudgetPart.fill(budget, seconds_left=None if limit is None else max(0.0, limit - (passed or 0.0))),
        added=[decision.why for decision in state.decisions],
    )


def _phase(state: State, now: float, alive: bool | None) -> Phase:
    if state.started is None:
        return "running" if alive else "empty"
    if state.ended is None:
        return "running" if is_running(state, now, alive) else "lost"
    return state.ended.status if state.ended.status in ("finished", "interrupted") else "failed"  # type: ignore[return-value]


def _updated(state: State) -> float:
    """Returns the time of the last event, as far as the state has it; 0 for none."""
    events = [event for event in (state.started, state.ended, state.underway) if event is not None]
    return max([state.opened, *(event.time for event in events), *(entry.changed for entry in state.entries.values())])


def _running(entry: Entry, now: float) -> RunningPart:
    report = entry.report
    return RunningPart.of(
        entry,
        step=report.step if report else 0,
        total_steps=report.total_steps if report else None,
        epoch=report.epoch if report else None,
        search_score=report.metrics.get("search_score") if report else None,
        seconds=max(0.0, now - entry.changed),
    )


def _failure(entry: Entry, state: State) -> TrialResult | None:
    """Returns the result of a trial that has failed; None for a cut that failed with its training."""
    result, training = entry.failed if entry.ended else None, state.training_of(entry.trial)
    by_training = result and training is not entry and training.result and training.result.error == result.error
    return None if by_training else result


def _next(state: State, phase: Phase, folder: Path, summaries: Sequence[Summary], answer: Answer) -> list[Command]:
    again, place, commands = state.again, shlex.quote(str(folder)), dict[str, str]()
    if state.held is not None:
        commands["let trials start again"] = f"craft-sweeps continue {place}"
    if phase in ("lost", "interrupted") and again:
        commands["continue it"] = again
    if phase != "running" and again and any(entry.failed for entry in state.requested):
        commands[MORE_FAILURES] = f"{again} --retry-failed"
    if phase == "finished" and answer.command:
        commands["know more"] = answer.command
    if any(summary.finished for summary in summaries):
        commands["see the front"] = f"craft-sweeps front {place}"
    if answer.kind in REASONS:
        commands["take an adapter"] = f"craft-sweeps take {place} --to adapter"
    return [Command(purpose=purpose, command=command) for purpose, command in commands.items()]
