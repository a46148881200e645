"""What people ask of a sweep that exists: what a file changes in it (`apply`), and all other requests."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.control.change import Change, Price
from orchestrator.results.report import Number, Report
from orchestrator.state.events import Verb


class ApplyReport(Report):
    """The difference between a sweep file and the sweep of that name."""

    report: Literal["apply"] = Field("apply", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    applied: bool = Field(description="Whether the change was made. False if it was only shown, or there is none.")
    added: list[str] = Field(description="What the file adds, in words: configurations, seeds, tasks.")
    removed: list[str] = Field(description="What the file does not have any more, in words, with what is lost by that.")
    changed: list[str] = Field(description="Other settings that change, in words.")
    trainings: int = Field(description="How many trainings the file adds that have not ended.")
    seconds: Number = Field(description="How long they take, by trainings that have ended. Null if none has.")
    price: list[str] = Field(
        description="What it costs, in words: trainings, time, what is left of the budget, what is not known any more."
    )
    text: str = Field(description="The difference and its price, as the terminal shows them.")


def apply_report(change: Change, applied: bool) -> ApplyReport:
    """Returns the report on a change."""
    price = change.price or Price(0, 0.0, ())
    return ApplyReport.fill(change, applied=applied, trainings=price.trainings, seconds=price.seconds, price=price.lines)


class RequestReport(Report):
    """What came of `pause`, `continue`, `stop` or `retry`."""

    report: Literal["request"] = Field("request", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    verb: Verb = Field(description="What was asked for.")
    done: bool = Field(description="Whether a driver has done it. False if none runs: the next session does it first.")
    trials: list[str] = Field([], description="The keys of the trials that are stopped, or run again.")
    text: str = Field(description="What came of it, as the terminal shows it.")
    command: str = Field(description="The command that continues the sweep, where no driver runs. Empty if there is none.")
