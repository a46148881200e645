"""`check`: what was looked at before a run, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from orchestrator.results.report import Report

Level = Literal["good", "doubt", "bad"]


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    level: Annotated[Level, Field(description="`good`; `doubt`: it may go wrong; `bad`: it would go wrong.")]
    subject: Annotated[str, Field(description="What was checked, such as `storage` or a machine's name.")]
    sentence: Annotated[str, Field(description="How it is.")]
    remedy: Annotated[str, Field(description="What to do if it is not good. Empty if it is.")] = ""


class CheckReport(Report):
    """Whether a sweep would run to its end here."""

    report: Literal["check"] = Field("check", description="The kind of this report.")
    ok: bool = Field(description="Whether nothing is `bad`. The exit status is 0 then, and 1 otherwise.")
    findings: list[Finding] = Field(description="What was checked, in order. A `bad` one may end the checks.")


def check_report(findings: Iterable[Finding]) -> CheckReport:
    """Returns the report on findings."""
    checked = list(findings)
    return CheckReport(ok=all(finding.level != "bad" for finding in checked), findings=checked)
