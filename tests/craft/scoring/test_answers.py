"""A run that is answered in words, from the mixture to the predictions file; broken off between tests it goes on there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from craft.models import Base
from craft.models.loading import load_model, load_tokenizer
from craft.results import Leave, Progress, RunFailed, RunResult
from craft.scoring.generation import cut_left, encode_prompts, generate, log_likelihoods
from craft.scoring.passes import token_loss
from craft.scoring.predictions import read_predictions
from craft.settings import GenerationSettings
from craft.spec import RunSpec
from craft.tasks.commonsense import extract
from craft.tasks.prompts import PROMPTS, TaughtText, encode
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.training import train_run
from craft.watch import watching
from tests.craft.conftest import MakeSpec, make_spec
from tests.craft.methods.cases import put
from tests.craft.trainer.same import close_weights, same_run

TESTS = {"boolq": ("true", "false"), "piqa": ("solution1", "solution2"), "winogrande": ("option1", "option2")}


def question(number: int, answers: tuple[str, ...]) -> dict[str, str]:
    answer = answers[number % len(answers)]
    texts = "".join(f" {name.capitalize()}: {name[-1]}" for name in answers if name != "true" and name != "false")
    return {
        "instruction": f"Item {number * 7 % 41} _?\n\n{texts.strip()}\n\nAnswer format: {'/'.join(answers)}",
        "input": "",
        "output": f"the correct answer is {answer}",
        "answer": answer,
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published layout: 60 records to train on, 6 questions each of three tests."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "commonsense"
    folder.mkdir(parents=True)
    mixture = [question(number, answers) for number in range(20) for answers in TESTS.values()]
    (folder / "commonsense_16k.json").write_text(json.dumps(mixture))
    for name, answers in TESTS.items():
        (folder / "dataset" / name).mkdir(parents=True)
        rows = [question(number, answers) for number in range(6)]
        (folder / "dataset" / name / "test.json").write_text(json.dumps(rows))
    return root


@pytest.fixture
def words_spec(tiny_llama: str, root: Path) -> MakeSpec:
    def make(**changes: Any) -> RunSpec:
        generation = {"tests": list(TESTS), "beams": 2, "max_new_tokens": 6} | changes.pop("generation", {})
        training = {"max_steps": 4, "batch_size": 4, "eval_batch_size": 4, "max_length": 256}
        training |= {"train_examples": 16, "eval_examples": 5} | changes.pop("training", {})
        spec = {"model": tiny_llama, "task": "commonsense", "method": "lora"} | changes
        return make_spec(**spec, training=training, data={"root": str(root), "generation": generation})

    return make


def test_every_prediction_is_kept_with_what_it_was_scored_by(words_spec: MakeSpec, tmp_path: Path) -> None:
    result = train_run(words_spec(), tmp_path)
    accuracies = []
    for test, answers in TESTS.items():
        kept = read_predictions(tmp_path / "predictions")[test]
        assert len(kept) == 5
        for one in kept:
            assert one["prompt"].startswith("Below is an instruction")
            assert one["prompt"].endswith("### Response:\n")
            assert one["label"] in answers
            assert one["right"] == (one["answer"] == one["label"])
            family = {"boolq": "truth", "piqa": "solution", "winogrande": "option"}[test]
            assert one["answer"] == extract(one["output"], family)
        accuracies.append(100 * sum(one["right"] for one in kept) / 5)
        assert result.metrics[f"accuracy_{test}"] == pytest.approx(accuracies[-1])
    assert result.metrics["score"] == pytest.approx(np.mean(accuracies))
    assert np.isfinite(result.metrics["search_loss"])
    assert result.facts["tests"] == dict.fromkeys(TESTS, 5)
    assert result.facts["mixture"] == "commonsense_16k.json"
    assert any("trained on commonsense_16k.json" in note for note in result.notes)
    assert result.counts.head_parameters == 0
    assert "mean of 3 of the 8 commonsense tests" in result.notes[0]


@pytest.mark.slow
def test_without_a_head_the_control_is_the_base_model_as_it_is(words_spec: MakeSpec, tmp_path: Path) -> None:
    """Its answers are those of an adapter that has learned nothing; it trains no step, and resumes without a step."""
    kept: list[Progress] = []
    spec = words_spec(method="head", parameters={})
    base = train_run(spec, tmp_path / "base", report=kept.append)
    idle = train_run(words_spec(training={"max_steps": 1, "learning_rate": 1e-30}), tmp_path / "idle")
    assert base.metrics == pytest.approx(idle.metrics)
    assert (base.steps, base.counts.trainable_parameters, base.counts.head_parameters) == (0, 0, 0)
    again = train_run(spec, tmp_path / "again", resume_from=kept[0].checkpoint)
    assert again.metrics == base.metrics
    model, _ = load_adapter(base.adapter)
    assert not any(weight.requires_grad for weight in model.parameters())


def test_a_run_by_chosen_positions_ends_where_one_by_all_of_them_does(
    words_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = words_spec(
        generation={"tests": ["boolq"], "score": "cloze"},
        training={"gradient_accumulation": 2, "gradient_checkpointing": True},
    )
    with monkeypatch.context() as patched:
        for module in ("trainer.loop", "scoring.passes", "scoring.generation"):
            patched.setattr(f"craft.{module}.can_choose", lambda model: False)
        every = train_run(spec, tmp_path / "every")
    used: list[int] = []
    monkeypatch.setattr("craft.trainer.loop.token_loss", lambda *given: used.append(given[3].shape[1]) or token_loss(*given))
    chosen = train_run(spec, tmp_path / "chosen")
    assert len(used) == 8
    assert max(used) < 40, "an answer's bytes, not its prompt's"
    assert chosen.metrics["search_loss"] == pytest.approx(every.metrics["search_loss"], rel=1e-5)
    assert close_weights(every, chosen, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_run_that_leaves_while_it_is_scored_goes_on_with_what_is_not_scored(words_spec: MakeSpec, tmp_path: Path) -> None:
    """It leaves once in mid-evaluation, whose step is in no checkpoint yet, and once between two answers of the last test."""
    spec = words_spec(training={"max_steps": 4, "evaluate_every": 0.5}, parameters={"rank": 4, "dropout": 0.1})
    scored: list[tuple[int, dict[str, float]]] = []
    whole = train_run(spec, tmp_path / "whole", report=lambda one: scored.append((one.step, one.metrics)))
    steps: list[int] = []
    told: list[tuple[int, dict[str, float]]] = []
    left: list[Path] = []

    def go(number: int, leaves: Callable[[], bool]) -> RunResult:
        def on_step(step: int, total: int) -> None:
            if not steps or step > steps[-1]:
                steps.append(step)
            elif leaves():
                raise Leave("taken away")

        def report(progress: Progress) -> None:
            left.append(progress.checkpoint or tmp_path)
            told.extend([(progress.step, progress.metrics)] if progress.metrics else [])

        return train_run(spec, tmp_path / str(number), report=report, resume_from=left[-1] if left else None, on_step=on_step)

    with pytest.raises(Leave):
        go(0, lambda: steps[-1] == 2)
    assert left[-1].name == "checkpoint-2"
    assert told == []
    with pytest.raises(Leave):
        go(1, lambda: bool(told) and "accuracy_piqa" in told[-1][1])
    checkpoint, asked = left[-1], list[str]()
    assert sorted(file.name for file in (checkpoint / "predictions").iterdir()) == ["boolq.jsonl", "piqa.jsonl"]
    with watching(lambda what, _done, _total: asked.append(what)):
        again = go(2, lambda: False)
    assert {*filter(None, asked)} == {"winogrande"}, "nothing is scored twice"
    assert steps == [1, 2, 3, 4]
    assert told[: len(scored)] == scored
    assert all(one in scored for one in told)
    assert same_run(whole, again)


def test_texts_without_a_response_in_them_are_left_out_and_all_of_them_is_an_error(
    words_spec: MakeSpec, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match=r"none of 16 texts .* max_length 64"):
        train_run(words_spec(training={"max_length": 64}), tmp_path)


def test_a_test_question_that_cannot_be_read_is_an_error_before_the_training(
    words_spec: MakeSpec, root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root, tmp_path / "data")
    file = tmp_path / "data" / "commonsense" / "dataset" / "piqa" / "test.json"
    file.write_text(file.read_text().replace("Solution2: 2", "2"))
    spec = words_spec(generation={"tests": ["piqa"], "score": "cloze"})
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"root": str(tmp_path / "data")})})
    with pytest.raises(RunFailed, match=r"^no question or no text of an option in"):
        train_run(spec, tmp_path / "run", report=lambda progress: pytest.fail("it trained"))


QUESTIONS = (
    "Is the sky blue? true or false",
    "Once upon a time, there was a little girl named Lily. Lily had a dog. The dog was",
    "One day",
    "Which of these is a fruit?\n\nAnswer1: a stone Answer2: an apple Answer3: a shoe",
    "Tom and Sam went to the park. They saw a big red ball, and Tom said:",
    "Please choose the correct ending: the cat sat on the\n\nAnswer format: ending1/ending2",
    "It was a very sunny day and the bird wanted to fly away from the nest in the old tree. So it",
)


@pytest.fixture(params=["real", *(pytest.param(name, marks=pytest.mark.slow) for name in ("random", "random with CRAFT"))])
def spoken(request: pytest.FixtureRequest, tiny_llama: str) -> tuple[Any, Any]:
    """A float32 language model with its tokenizer: stories260K, a random LLaMA, and that under an adapter."""
    folder = tiny_llama
    if request.param == "real":
        folder = request.getfixturevalue("stories")
    model: Any = load_model(Base(folder, "generation", ()))
    if request.param == "random with CRAFT":
        model = put(model, "craft", {"ranks": ["all", 8, 8], "init_epsilon": 0.3}, "CAUSAL_LM")
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
    assert len({tuple(answer) for answer in alone}) > 2, "different prompts have different answers"


def test_one_by_one_is_what_the_library_generates(spoken: tuple[Any, Any]) -> None:
    model, tokenizer = spoken
    (prompt,) = encode_prompts(tokenizer, [QUESTIONS[0]])
    settings = GenerationSettings(beams=4, max_new_tokens=12)
    expected = as_the_library(model, tokenizer, prompt, settings)
    assert generate(model, tokenizer, [prompt], settings, 1) == [expected]


def as_the_library(model: Any, tokenizer: Any, prompt: list[int], settings: GenerationSettings) -> list[int]:
    ids = torch.tensor([prompt])
    how = {"num_beams": settings.beams, "max_new_tokens": settings.max_new_tokens, "do_sample": False}
    out = model.eval().generate(input_ids=ids, attention_mask=torch.ones_like(ids), **how)
    return [token for token in out[0, len(prompt) :].tolist() if token != tokenizer.eos_token_id]


def test_a_text_ends_with_the_tokenizers_token_and_with_the_models(spoken: tuple[Any, Any]) -> None:
    """Training ends each text by the tokenizer's."""
    model, tokenizer = spoken
    (prompt,) = encode_prompts(tokenizer, [QUESTIONS[0]])
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None
    (written,) = generate(model, tokenizer, [prompt], (settings := GenerationSettings(max_new_tokens=12, beams=1)), 1)
    model.generation_config.eos_token_id = 0 if written[2] else 1
    own, tokenizer.eos_token_id = tokenizer.eos_token_id, written[2]
    try:
        assert generate(model, tokenizer, [prompt], settings, 1) == [written[: written.index(written[2])]]
    finally:
        model.generation_config.eos_token_id, tokenizer.eos_token_id = before, own


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


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma", "lfm2"])
def test_a_prompt_of_several_texts_is_read_once(kind: str, tiny_model: Callable[..., Any]) -> None:
    """Responses of one to five tokens, up to seven of a prompt: more than are read at once; LFM2 keeps more than keys."""
    model, draw = tiny_model(kind, head="causal"), np.random.default_rng(0)
    texts = []
    for responses in (1, 7, 2, 3):
        prompt = draw.integers(1, 64, size=draw.integers(2, 20)).tolist()
        endings = [draw.integers(1, 64, size=draw.integers(1, 6)).tolist() for _ in range(responses)]
        texts += [TaughtText([*prompt, *ending], len(prompt)) for ending in endings]
    read = list[int]()
    handle = model.get_input_embeddings().register_forward_pre_hook(lambda _, args: read.append(args[0].numel()))
    found = log_likelihoods(model, texts, 0, 5)
    handle.remove()
    assert (sum(read) < sum(len(text.tokens) for text in texts)) == (kind != "lfm2")
    expected = [plainly(model, text) for text in texts]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(log_likelihoods(model, texts, 0, 1), expected, rtol=1e-4, atol=1e-4)
    short = [TaughtText([*text.tokens[: text.start], text.tokens[-1]], text.start) for text in texts]
    np.testing.assert_allclose(log_likelihoods(model, short, 0, 5), [plainly(model, text) for text in short], atol=1e-4)


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
