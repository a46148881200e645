"""Answers in words: a batch says what each prompt alone is told, and likelihoods are those of the plain forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from craft.data_settings import GenerationSettings
from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models import Base
from craft.models.loading import load_model, load_tokenizer
from craft.scoring.generation import cut_left, encode_prompts, generate, log_likelihoods
from craft.tasks.prompts import PROMPTS, TaughtText, encode

QUESTIONS = (
    "Is the sky blue? true or false",
    "Once upon a time, there was a little girl named Lily. Lily had a dog. The dog was",
    "One day",
    "Which of these is a fruit?\n\nAnswer1: a stone Answer2: an apple Answer3: a shoe",
    "Tom and Sam went to the park. They saw a big red ball, and Tom said:",
    "Please choose the correct ending: the cat sat on the\n\nAnswer format: ending1/ending2",
    "It was a very sunny day and the bird wanted to fly away from the nest in the old tree. So it",
)


@pytest.fixture(params=["real", "random", "random with CRAFT"])
def spoken(request: pytest.FixtureRequest, tiny_llama: str) -> tuple[Any, Any]:
    """A float32 language model with its tokenizer: stories260K, a random LLaMA, and that under an adapter."""
    folder = tiny_llama
    if request.param == "real":
        folder = request.getfixturevalue("stories")
    model: Any = load_model(Base(folder, "generation", ()))
    if request.param == "random with CRAFT":
        row = METHODS["craft"]
        parameters = row.parameters.model_validate({"ranks": ["all", 8, 8], "init_epsilon": 0.3})
        model = row.build(model, parameters, BuildContext("CAUSAL_LM"))
    return model, load_tokenizer(folder)


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_batch_is_answered_token_for_token_as_one_by_one(spoken: tuple[Any, Any], beams: int) -> None:
    model, tokenizer = spoken
    settings = GenerationSettings(beams=beams, max_new_tokens=20)
    prompts = encode_prompts(tokenizer, [PROMPTS["alpaca"].for_evaluation(text) for text in QUESTIONS])
    assert len({len(prompt) for prompt in prompts}) > 4, "most prompts are padded"
    alone = [generate(model, tokenizer, [prompt], settings, 1)[0] for prompt in prompts]
    for batch_size in (3, len(prompts)):
        assert generate(model, tokenizer, prompts, settings, batch_size) == alone
    assert all(0 < len(answer) <= 20 for answer in alone)
    assert len({tuple(answer) for answer in alone}) > 2, "different prompts are told different things"


def test_one_by_one_is_what_the_library_generates(spoken: tuple[Any, Any]) -> None:
    model, tokenizer = spoken
    (prompt,) = encode_prompts(tokenizer, [QUESTIONS[0]])
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.eval().generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=4, do_sample=False, max_new_tokens=12
        )
    expected = [token for token in out[0, len(prompt) :].tolist() if token != tokenizer.eos_token_id]
    assert generate(model, tokenizer, [prompt], GenerationSettings(max_new_tokens=12), 1) == [expected]


def test_a_models_own_sampling_settings_do_not_come_in(tiny_llama: str) -> None:
    model, tokenizer = load_model(Base(tiny_llama, "generation", ())), load_tokenizer(tiny_llama)
    prompts = encode_prompts(tokenizer, QUESTIONS[:3])
    settings = GenerationSettings(max_new_tokens=8)
    expected = generate(model, tokenizer, prompts, settings, 3)
    model.generation_config.update(do_sample=True, temperature=5.0, top_k=50, repetition_penalty=3.0, length_penalty=9.0)
    assert generate(model, tokenizer, prompts, settings, 3) == expected


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_positions_do_not_depend_on_the_padding(tiny_model: Callable[..., Any], tiny_llama: str, kind: str) -> None:
    """GPT-2's positions are absolute: padding on the left must not shift them."""
    model, tokenizer = tiny_model(kind, head="causal"), load_tokenizer(tiny_llama)
    prompts = [[5, 9, 7], [11, 3, 8, 30, 21, 17, 40, 12], [50]]
    settings = GenerationSettings(max_new_tokens=10)
    model.generation_config.eos_token_id = None
    alone = [generate(model, tokenizer, [prompt], settings, 1)[0] for prompt in prompts]
    assert generate(model, tokenizer, prompts, settings, 3) == alone
    texts = [TaughtText(prompt + answer[:3], len(prompt)) for prompt, answer in zip(prompts, alone, strict=True)]
    np.testing.assert_allclose(log_likelihoods(model, texts, 2, 3), [plainly(model, text) for text in texts], atol=1e-4)


def plainly(model: Any, text: TaughtText) -> float:
    """log p of a response, from all the logits of the text alone."""
    with torch.no_grad():
        log_p = model.eval()(input_ids=torch.tensor([text.tokens])).logits[0].double().log_softmax(-1)
    return float(sum(log_p[at - 1, text.tokens[at]] for at in range(text.start, len(text.tokens))))


@pytest.mark.parametrize("ends", [True, False])
def test_likelihoods_are_those_of_the_plain_forward_pass(spoken: tuple[Any, Any], ends: bool) -> None:
    model, tokenizer = spoken
    prompts = [PROMPTS["alpaca"].for_evaluation(text) for text in QUESTIONS]
    responses = ["the correct answer is true", "no", "the correct answer is answer3", "so", "yes", "ending1", "flew"]
    texts = encode(tokenizer, prompts, responses, max_length=None, loss="response", ends=ends)
    assert {text.tokens[-1] == tokenizer.eos_token_id for text in texts} == {ends}
    model.train()
    found = log_likelihoods(model, texts, int(tokenizer.pad_token_id), 3)
    assert model.training, "the model is left as it was"
    np.testing.assert_allclose(found, [plainly(model, text) for text in texts], rtol=1e-4, atol=1e-3)


def test_a_prompt_too_long_keeps_its_end_and_the_token_that_begins_it() -> None:
    assert cut_left([1, 5, 6, 7, 8], 3, 1) == [1, 7, 8]
    assert cut_left([4, 5, 6, 7, 8], 3, 1) == [6, 7, 8]
    assert cut_left([4, 5, 6, 7, 8], 3, None) == [6, 7, 8]
    assert cut_left([1, 5, 6], 3, 1) == [1, 5, 6]
