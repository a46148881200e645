"""What people ask of a sweep that exists: what a file changes in it (`apply`), and all other requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from orchestrator.reports.base import Report

Verb = Literal["pause", "continue", "stop", "retry", "propose"]


class ApplyReport(Report):
    """The difference between a sweep file and the sweep of that name."""

    report: Literal["apply"] = Field("apply", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    applied: bool = Field(description="Whether the change was made. False if it was only shown, or there is none.")
    added: list[str] = Field(description="What the file adds, in words: configurations, seeds, tasks.")
    removed: list[str] = Field(description="What the file does not have any more, in words, with what is lost by that.")
    changed: list[str] = Field(description="Other settings that change, in words.")
    text: str = Field(description="The difference as the terminal shows it.")


def apply_report(
    sweep: str, applied: bool, added: Sequence[str], removed: Sequence[str], changed: Sequence[str], text: str
) -> ApplyReport:
    """Returns the report on a change."""
    return ApplyReport(sweep=sweep, applied=applied, added=list(added), removed=list(removed), changed=list(changed), text=text)


class RequestReport(Report):
    """What came of `pause`, `continue`, `stop`, `retry` or `propose`."""

    report: Literal["request"] = Field("request", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    verb: Verb = Field(description="What was asked for.")
    done: bool = Field(description="Whether a driver has done it. False if none runs: the next session does it first.")
    trials: list[str] = Field([], description="The keys of the trials that are stopped, or run again.")
    configuration: str | None = Field(None, description="`propose`: the id of the configuration that is added.")
    text: str = Field(description="What came of it, as the terminal shows it.")
    command: str = Field(description="The command that continues the sweep, where no driver runs. Empty if there is none.")
