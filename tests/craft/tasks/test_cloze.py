"""Multiple choice by the options' own text: the forms, what is refused, and likelihoods against transformers' own loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from craft.data_settings import GenerationSettings
from craft.scoring.generation import log_likelihoods
from craft.tasks.commonsense import QuestionForm, read_options
from craft.tasks.prompts import encode

FORMS = {
    "question": (
        "Please choose the correct answer to the question: What stops mold?\n\nAnswer1: safety goggles Answer2: a mask\n\n"
        "Answer format: answer1/answer2", "answer",
        [("Question: What stops mold?\nAnswer:", " safety goggles"), ("Question: What stops mold?\nAnswer:", " a mask")],
    ),
    "solution": (
        "Please choose the correct solution to the question: dresser\n\n"
        "Solution1: use a pin \n\nSolution2: finish with  a pin \n\n"
        "Answer format: solution1/solution2", "solution",
        [("Question: dresser\nAnswer:", " use a pin"), ("Question: dresser\nAnswer:", " finish with  a pin")],
    ),
    "ending": (
        "Please choose the correct ending to complete the given sentence: Clean and jerk: She bends. the lady\n\n"
        "Ending1: swings. Ending2: pulls.\n\nAnswer format: ending1/ending2", "ending",
        [("Clean and jerk: She bends. the lady", " swings."), ("Clean and jerk: She bends. the lady", " pulls.")],
    ),
    "blank": (
        "Please choose the correct answer to fill in the blank to complete the given sentence: Sarah beat Maria so _ won.\n\n"
        "Option1: Sarah Option2: Maria Answer format: option1/option2", "option",
        [("Sarah beat Maria so Sarah", " won."), ("Sarah beat Maria so Maria", " won.")],
    ),
    "truth": (
        "Please answer the following question with true or false, question: is it so?\n\nAnswer format: true/false", "truth",
        [("Question: is it so?\nAnswer:", " true"), ("Question: is it so?\nAnswer:", " false")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("instruction", "kind", "expected"), FORMS.values(), ids=FORMS)
def test_the_forms(instruction: str, kind: str, expected: list[tuple[str, str]]) -> None:
    options = read_options(instruction, "", kind)
    assert [option[:2] for option in options.values()] == expected
    assert [option.characters for option in options.values()] == [len(text.strip()) for _, text in expected]
    behind = read_options(instruction, "A passage.", kind).values()
    assert [option.context for option in behind] == [f"A passage.\n{context}" for context, _ in expected]
    form = QuestionForm(None, GenerationSettings(score="cloze"))  # type: ignore[arg-type]
    rows = {"text": [instruction], "input": [""], "family": [kind], "label": [[*options][1]]}
    assert form.texts(rows)[:2] == ([expected[1][0]], [expected[1][1]])
    with pytest.raises(ValueError, match=f"the answer 'answer9' is none of {', '.join(options)} in"):
        form.texts(rows | {"label": ["answer9"]})


@pytest.mark.parametrize(
    ("instruction", "kind", "message"),
    [
        ("Which?\n\nAnswer format: answer1/answer2", "answer", "no question or no text of an option"),
        ("Which?\n\nAnswer1: a Answer3: b\n\nAnswer format: answer1/answer2", "answer", "no question or no text"),
        ("Which?\n\nAnswer1:  Answer2: b\n\nAnswer format: answer1/answer2", "answer", "no question or no text"),
        ("Answer1: a Answer2: b\n\nAnswer format: answer1/answer2", "answer", "no question or no text"),
        ("Sarah won.\n\nOption1: Sarah Option2: Maria Answer format: option1/option2", "option", "no blank '_'"),
        ("So won _\n\nOption1: Sarah Option2: Maria Answer format: option1/option2", "option", "no blank '_'"),
    ],
)
def test_another_form_is_refused(instruction: str, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_options(instruction, "", kind)


def test_cloze_has_no_template() -> None:
    with pytest.raises(ValueError, match="score: cloze"):
        GenerationSettings(score="cloze", prompt="llm_adapters")


def test_a_likelihood_is_transformers_loss_on_the_options_tokens(tiny_llama: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_llama).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_llama)
    contexts = [context for _, _, pairs in FORMS.values() for context, _ in pairs]
    continuations = [continuation for _, _, pairs in FORMS.values() for _, continuation in pairs]
    texts = encode(tokenizer, contexts, continuations, max_length=None, loss="response", ends=False)
    assert all(text.tokens[-1] != tokenizer.eos_token_id for text in texts)
    expected = []
    for context, continuation in zip(contexts, continuations, strict=True):
        whole = tokenizer(context + continuation, return_tensors="pt")["input_ids"]
        whole = whole[:, :-1] if whole[0, -1] == tokenizer.eos_token_id else whole
        asked = tokenizer(context)["input_ids"]
        asked = asked[:-1] if asked[-1] == tokenizer.eos_token_id else asked
        labels = whole.clone()
        labels[:, : len(asked)] = -100
        with torch.no_grad():
            expected.append(-float(model(whole, labels=labels).loss) * int((labels != -100).sum()))
    found = log_likelihoods(model, texts, 0, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
