"""The judgement of a sweep as its status says it, kept in the sweep's folder: to judge thousands of trials takes seconds."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from craft.disk import replacing
from orchestrator.judging import answer as judging
from orchestrator.judging.answer import answer_of
from orchestrator.record.folder import SweepFolder
from orchestrator.reports.answer import AnswerPart
from orchestrator.state.snapshot import code_digest
from orchestrator.state.state import State

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
