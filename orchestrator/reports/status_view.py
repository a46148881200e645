"""What `status` prints for people: the same report, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from craft.words import format_duration
from orchestrator.reports.status import RunningPart, StatusReport

FAILURES_SHOWN, RUNNING_SHOWN = 5, 8
PHASES = {
    "empty": "nothing is on record yet",
    "lost": "interrupted: its driver is gone",
    "running": "running",
    "finished": "finished",
    "failed": "ended, and some trials have failed",
    "interrupted": "interrupted",
}


def show_status(report: StatusReport, console: Console) -> None:
    """Prints how far a sweep is: counts, running trials, failures, the answer so far, what can be done next."""
    for line, style in _lines(report):
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _lines(report: StatusReport) -> Iterator[tuple[str, str | None]]:
    phase = PHASES[report.phase] if report.failed or report.phase != "failed" else "ended early by an error"
    held = [] if report.paused_by is None else [f"paused by {report.paused_by}"]
    yield f"{report.sweep}: {', '.join([phase, *held, *_times(report)])}", "bold"
    if report.trials.total:
        yield _counts(report), None
    for trial in report.running[:RUNNING_SHOWN]:
        yield f"  {trial.name}: {', '.join(_progress(trial))}", None
    if hidden := len(report.running[RUNNING_SHOWN:]):
        yield f"  and {hidden} more", None
    for failure in report.failed[:FAILURES_SHOWN]:
        again = " (the next session runs it again)" if failure.retryable else ""
        yield f"failed: {failure.name}: {(failure.reason.splitlines() or ['no reason is on record'])[0]}{again}", "red"
    if hidden := len(report.failed[FAILURES_SHOWN:]):
        yield f"failed: {hidden} more", "red"
    yield from ((f"added: {why}", None) for why in report.added)
    if report.answer is not None:
        yield from ((line, "bold") for line in _answer(report).splitlines())
    said = report.answer.command if report.answer is not None and report.phase != "running" else ""
    steps = [step for step in report.next if step.command != said]
    width = max((len(step.purpose) for step in steps), default=0) + 1
    for step in steps:
        yield f"{step.purpose + ':':<{width}} {step.command}", None


def _times(report: StatusReport) -> Iterator[str]:
    if report.seconds_passed is not None:
        yield f"{format_duration(report.seconds_passed)} passed"
    if report.seconds_left is not None:
        yield f"about {format_duration(report.seconds_left)} left"
    if report.budget.seconds_left is not None:
        yield f"{format_duration(report.budget.seconds_left)} left of budget.wall_clock"
    if report.driver.alive is not False and (report.driver.alive or report.phase == "running"):
        prepares = "" if report.phase == "running" else " prepares or ends a session"
        yield f"process {report.driver.process} on {report.driver.machine}{prepares}"


def _counts(report: StatusReport) -> str:
    trainings = report.trainings
    parts = [f"{trainings.finished}/{report.trainings_planned or trainings.total} trainings done"]
    parts += [
        f"{count} {name}"
        for name in ("running", "paused", "failed", "stopped")
        if (count := getattr(trainings, name)) or name in ("running", "failed")
    ]
    if cuts := report.trials.total - trainings.total:
        parts.append(f"{report.trials.finished - trainings.finished}/{cuts} cuts done")
    if report.refused:
        parts.append(f"{report.refused} configurations refused by a constraint")
    return ", ".join(parts) + (f" ({report.doing})" if report.doing else "")


def _progress(trial: RunningPart) -> Iterator[str]:
    yield f"step {trial.step:,} of {trial.total_steps:,}" if trial.total_steps else "no evaluation yet"
    if trial.search_score is not None:
        yield f"search score {trial.search_score:.1f}"
    if trial.seconds is not None:
        yield f"{format_duration(trial.seconds)} since it started"


def _answer(report: StatusReport) -> str:
    assert report.answer is not None
    # While a sweep runs, what it does not know yet is what it is running for.
    return f"So far: {report.answer.verdict}" if report.phase == "running" else report.answer.text
