"""Requests to a served adapter: what fits is answered, and what does not fit is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest

from craft.spec import RunSpec
from craft.trainer.training import train_run
from orchestrator.serving import Answerer

SINGLE, PAIR = "toy/sentiment", "toy/paraphrase"


@pytest.fixture(scope="module")
def served(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answerer]:
    training = {"train_examples": 16, "eval_examples": 8, "max_steps": 1, "batch_size": 8, "max_length": 16}
    folder = tmp_path_factory.mktemp("served")
    specs = {task: RunSpec(model=tiny_bert, task=task, method="head", training=training) for task in (SINGLE, PAIR)}
    return {task: Answerer(train_run(spec, folder / spec.key).adapter) for task, spec in specs.items()}


@pytest.mark.parametrize(
    ("task", "rows", "said"),
    [
        (PAIR, [{"text": "a"}], "columns text; the adapter reads text and text_pair"),
        (PAIR, [{"text_pair": "a"}], "columns text_pair; the adapter reads text and text_pair"),
        (PAIR, [{"text": "a", "text_pair": "b"}, {"text": "a"}], "row 2: text_pair is nan; a text is expected"),
        (PAIR, [{"text": None, "text_pair": "b"}], "row 1: text is None; a text is expected"),
        (SINGLE, [{"text": "a", "text_pair": "b"}], "columns text, text_pair; the adapter reads text"),
        (SINGLE, [{"texts": "a"}], "columns texts; the adapter reads text"),
        (SINGLE, [{"text": "a"}, {"text": 5}], "row 2: text is 5; a text is expected"),
        (SINGLE, [{"text": "a"}, {"text": " "}], "row 2: text is ' '; a text is expected"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(
    served: dict[str, Answerer], task: str, rows: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        served[task].predict(rows)


def test_what_fits_is_answered(served: dict[str, Answerer]) -> None:
    assert len(served[PAIR].predict([{"text": "a", "text_pair": "b"}] * 2)) == 2
    assert len(served[SINGLE].predict([{"text": "a", "id": 7}])) == 1
