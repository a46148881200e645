"""A sweep's answer as a part of reports."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from orchestrator.judging.answer import Answer, Kind
from orchestrator.reports.base import Number, Part
from orchestrator.results.summary import Summary
from orchestrator.results.table import full_label
from orchestrator.sweepfile.settings import Enough


class AnswerPart(Part):
    """Which configuration is enough, what is not known, and what to run to know it."""

    kind: Kind = Field(
        description="`enough`: the configuration is. `unsure`: none is with the wanted probability yet. `one seed`, `means`: "
        "there are no probabilities, so nothing is known to be enough. `random guessing`: nothing is shown to be above it. "
        "`head`: no adapter is shown to beat the task head alone."
    )
    configuration: str = Field(
        description="The id of the configuration that is enough (`enough`), the likeliest to be (`unsure`), the smallest by "
        "the means (`one seed`, `means`), the best (`random guessing`), or the head alone (`head`)."
    )
    label: str = Field(description="The name of that configuration for people.")
    best: str = Field(description="The id of the configuration with the highest expected score.")
    within: float = Field(description="The points of the score below the true best that are allowed.")
    sure: float = Field(description="The least probability of that, from 0.5 to 1.")
    p_better: Number = Field(
        description="The probability, from 0 to 1, that any configuration of the sweep is better by more than `within` points. "
        "Null where it is not known, as with one seed."
    )
    verdict: str = Field(description="What is known, in sentences.")
    unknown: str = Field(description="What is not known, in sentences. Empty if all is.")
    proposal: str = Field(description="What to run next, and how long that takes. Empty if there is nothing to propose.")
    command: str = Field(description="The command that runs it. Empty if there is none.")
    p_decides: Number = Field(description="The probability, from 0 to 1, that it says all that is unknown. Null if not known.")
    text: str = Field(description="The answer as the terminal shows it.")

    @classmethod
    def of(cls, answer: Answer | None, summaries: Sequence[Summary], rule: Enough) -> AnswerPart | None:
        """Returns the part for an answer over these configurations; None without an answer."""
        if answer is None:
            return None
        labels = {summary.configuration: full_label(summary) for summary in summaries}
        return cls(
            kind=answer.kind,
            configuration=answer.configuration,
            label=labels[answer.configuration],
            best=answer.best,
            within=rule.within,
            sure=rule.sure,
            p_better=answer.better,
            verdict=answer.verdict,
            unknown=answer.unknown,
            proposal=answer.proposal,
            command=answer.command,
            p_decides=answer.decides,
            text=answer.text,
        )
