"""A sweep's answer as a part of reports, and as `status` keeps it in the sweep's folder: to judge thousands of trials takes
seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field

from craft.disk import replacing
from orchestrator.judging import answer as judging
from orchestrator.judging.answer import Answer, Kind, answer_of
from orchestrator.record.folder import SweepFolder
from orchestrator.reports.base import Number, Part
from orchestrator.results.summary import Summary
from orchestrator.results.table import full_label
from orchestrator.state.log import code_digest
from orchestrator.state.state import State
from orchestrator.sweepfile.settings import Enough


class AnswerPart(Part):
    """Which configuration is enough, what is not known, and what to run to know it."""

    kind: Kind = Field(
        description="`enough`: the configuration is. `unsure`: none is with the wanted probability yet. `one seed`, `means`: "
        "there are no probabilities, so nothing is known to be enough. `random guessing`: nothing is shown to be above it. "
        "`head`: no adapter is shown to be better than none. Why there is no answer: `unfinished`: no configuration has "
        "finished its trials. `failed`: none will. `no score`: the score is no objective."
    )
    configuration: str = Field(
        description="The id of the configuration that is enough (`enough`), the likeliest to be (`unsure`), the smallest by "
        "the means (`one seed`, `means`), the best (`random guessing`), or the control (`head`). Empty without an answer."
    )
    label: str = Field(description="The name of that configuration for people. Empty without an answer.")
    best: str = Field(description="The id of the configuration with the highest expected score. Empty without an answer.")
    within: float = Field(description="The points of the score below the true best that are allowed.")
    sure: float = Field(description="The least probability of that, from 0.5 to 1.")
    p_better: Number = Field(
        description="The probability, from 0 to 1, that any configuration of the sweep is better by more than `within` points. "
        "Null where it is not known, as with one seed."
    )
    verdict: str = Field(description="What is known, in sentences.")
    unknown: str = Field(description="What is not known, in sentences. Empty if all is.")
    proposal: str = Field(description="What to run next, and how long that takes. Empty if there is nothing to propose.")
    command: str = Field(description="The command that runs it. Empty if there is none, and while a driver runs the sweep.")
    p_decides: Number = Field(description="The probability, from 0 to 1, that it says all that is unknown. Null if not known.")
    text: str = Field(description="The answer as the terminal shows it.")

    @classmethod
    def of(cls, answer: Answer, summaries: Sequence[Summary], rule: Enough) -> AnswerPart:
        """Returns the part for an answer over these configurations."""
        labels = {summary.configuration: full_label(summary) for summary in summaries}
        probabilities = {"p_better": answer.better, "p_decides": answer.decides}
        label = labels.get(answer.configuration, "")
        return cls.fill(answer, label=label, within=rule.within, sure=rule.sure, **probabilities)

    def running(self, words: str) -> AnswerPart:
        """Returns the answer so far, as `Answer.running` has it."""
        text = f"{self.verdict}\n{words}"
        return self.model_copy(update={"unknown": "", "proposal": words, "command": "", "p_decides": None, "text": text})


MANY = 500
"""From so many trials on the judgement is kept for the next call."""


class Judged(BaseModel):
    """The judgement of a sweep, as far as its status says it.

    Attributes:
        of: a digest of all that it depends on.
    """

    of: str
    answer: AnswerPart | None
    has_front: bool

    @classmethod
    def of_state(cls, state: State) -> Judged:
        """Judges the state of a sweep."""
        if state.started is None:
            return cls(of="", answer=None, has_front=False)
        summaries, answer = answer_of(state)
        part = AnswerPart.of(answer, summaries, state.sweep.enough)
        return cls(of=_digest(state), answer=part, has_front=any(summary.finished for summary in summaries))


def _digest(state: State) -> str:
    trials = [(entry.key, entry.phase, entry.changed) for entry in state.requested]
    code = code_digest(Path(judging.__file__).parent)
    return hashlib.sha256(repr((code, state.started, state.ended, trials)).encode()).hexdigest()


def recall(state: State, folder: SweepFolder) -> Judged:
    """Returns the last judgement if nothing has changed since, or a new one."""
    with suppress(OSError, ValueError):
        judged = Judged.model_validate_json(folder.judged.read_bytes())
        if judged.of == _digest(state):
            return judged
    judged = Judged.of_state(state)
    with suppress(OSError):
        if len(state.entries) >= MANY:
            with replacing(folder.judged) as aside:
                aside.write_text(judged.model_dump_json(), encoding="utf-8")
    return judged
