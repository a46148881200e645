"""The metric `cloze` of an audit: which of the answers that its rows have is the likeliest one to each prompt.

A row becomes one pair for each answer. The likelihood of an answer is divided by its characters, as `acc_norm` of
lm-evaluation-harness is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from craft.audit.data import Data
from craft.audit.paired import Answers
from craft.tasks.files import DataError, read_rows

CLOZE = "cloze"
MOST = 32
"""An audit compares at most so many answers."""


@dataclass(frozen=True)
class Options:
    """The distinct answers of the held-out rows, and which of them is right: (n,)."""

    answers: tuple[str, ...]
    right: np.ndarray

    def choose(self, lines: Sequence[Mapping[str, Any]]) -> Answers:
        """Returns the likeliest answers, from the predictions of all pairs in the order of `write_options`."""
        values = np.array([line["log_likelihood"] for line in lines]).reshape(len(self.right), len(self.answers))
        characters = np.array([max(1, len(answer.strip())) for answer in self.answers])
        return Answers("accuracy", ((values / characters).argmax(axis=1), self.right))


def write_options(data: Data, file: Path) -> tuple[Data, Options]:
    """Writes a pair for each row and answer to `file`, and returns data that read it. Raises ValueError if there are none."""
    if not data.prompt or data.response is None:
        raise ValueError("the metric cloze compares answers: give --prompt and --response")
    assert data.held_out is not None, "the rows of a run have no columns"
    rows = read_rows(data.held_out)
    responses, prompts = rows.column(data.response), [rows.column(name) for name in data.prompt]
    for row, response in enumerate(responses):
        if not isinstance(response, str) or not response.strip():
            raise DataError(f"{rows.place(row)}: {data.response} holds no answer in words")
    answers = tuple(sorted(set(responses)))
    if not 2 <= len(answers) <= MOST:
        raise ValueError(
            f"the metric cloze compares 2 to {MOST} answers, and {data.response} of {data.held_out} has {len(answers):,} "
            "different ones: take likelihood or exact_match"
        )
    with file.open("w", encoding="utf-8") as out:
        for texts in zip(*prompts, strict=True):
            pair = dict(zip(data.prompt, texts, strict=True))
            out.writelines(json.dumps(pair | {data.response: answer}) + "\n" for answer in answers)
    train = data.train or data.held_out
    return replace(data, held_out=str(file), train=train, metric="likelihood"), Options(
        answers, np.array([answers.index(response) for response in responses])
    )
