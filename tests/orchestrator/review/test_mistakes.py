"""Confusions and differing rows, by hand-made answers."""

from __future__ import annotations

import pytest

from craft.scoring.predictions import Prediction
from orchestrator.adapters.model_card import mistakes_page
from orchestrator.review.comparing import differing


def classes(labels: str, answers: str) -> list[Prediction]:
    pairs = enumerate(zip(labels, answers, strict=True), 1)
    return [{"row": row, "label": label, "answer": answer, "right": label == answer} for row, (label, answer) in pairs]


def values(*errors: float) -> list[Prediction]:
    return [{"row": row, "label": 1.0, "answer": 1.0 + error} for row, error in enumerate(errors, 1)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([classes("ab", "aa"), classes("ab", "bb")], [classes("ab", "ab"), classes("ab", "ab")], [(0, -0.5), (1, -0.5)]),
        ([values(0.5, -2.0)], [values(-0.25, 0.5)], [(1, -1.5), (0, -0.25)]),
        ([classes("ab", "ab")], [classes("ab", "ab")], []),
    ],
    ids=["mean over seeds", "values by their error", "nothing"],
)
def test_rows_that_differ_come_largest_first(
    first: list[list[Prediction]], second: list[list[Prediction]], expected: list[tuple[int, float]]
) -> None:
    assert differing(first, second) == expected


def test_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="different rows"):
        differing([classes("ab", "ab")], [classes("ba", "ab")])


def test_the_page_shows_markup_as_text_and_leaves_out_answers_without_a_label() -> None:
    lines = classes("ab", "bb")
    lines[0] |= {"probability": 0.9, "margin": 2.2, "text": "<b>free</b> | [money](http://x)"}
    page = mistakes_page("x", {"reported": lines, "told": [{"row": 1, "response": "hello"}]})
    assert "1 of 2 rows are right." in page
    assert "| a | 0 | 1 |\n| b | 0 | 1 |" in page
    (mistake,) = [line for line in page.splitlines() if line.startswith("| 1 |")]
    assert "<b>" not in mistake
    assert "\\[money\\]" in mistake
    assert "told" not in page
    assert mistakes_page("x", {"told": [{"row": 1}]}) == ""


def test_many_classes_are_listed_by_the_commonest_confusions() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    page = mistakes_page("x", {"reported": classes(letters + "aa", letters + "bb")})
    assert "| rows | label | answer |\n| --- | --- | --- |\n| 2 | a | b |\n\n" in page
