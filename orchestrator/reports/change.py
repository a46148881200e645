"""`apply`: what a sweep file changes in a sweep that exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from orchestrator.reports.base import Report


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
