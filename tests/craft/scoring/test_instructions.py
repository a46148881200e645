"""Runs on own instructions: the score is the likelihood of held-out responses, or what the answers are worth."""

from __future__ import annotations

import json
import math
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from craft.results import RunFailed
from craft.scoring.predictions import read_predictions
from craft.settings import DataSettings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.tasks.prompts import TaughtText
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.training import train_run
from orchestrator.results.intervals import sampling_reach
from tests.craft.scoring.test_answers import plainly
from tests.craft.tasks.test_chats import TEMPLATE, turns
from tests.word_pairs import COLOURS, colours


def spec_of(model: str, folder: Path, metric: str | None = None, **training: Any) -> RunSpec:
    settings = {"max_steps": 3, "batch_size": 4, "eval_batch_size": 4, "max_length": 300, "learning_rate": 3e-3}
    task = colours(folder, metric, beams=1, max_new_tokens=16)
    return RunSpec(model=model, method="full", training=settings | training, **task)


def lines(folder: Path) -> list[dict[str, Any]]:
    return read_predictions(folder / "predictions")["reported"]


@pytest.mark.slow
def test_the_score_is_the_mean_probability_of_a_held_out_token(tiny_llama: str, tmp_path: Path) -> None:
    losses: list[float] = []
    spec = spec_of(tiny_llama, tmp_path, max_steps=60, evaluate_every=0.7)
    result = train_run(spec, tmp_path, report=lambda progress: losses.append(progress.metrics["search_loss"]))
    rows, metrics = lines(tmp_path), result.metrics
    assert len(rows) == 6 == result.facts["reported_examples"]
    model, tokenizer = load_adapter(result.adapter)
    for row in rows:
        before = tokenizer(row["prompt"])["input_ids"]
        ids = [*tokenizer(row["prompt"] + row["response"])["input_ids"], tokenizer.eos_token_id]
        wanted = plainly(model, TaughtText(ids, len(before)))
        assert (row["log_likelihood"], row["tokens"]) == (pytest.approx(wanted, abs=1e-3), len(ids) - len(before))
        assert "output" not in row
    bits = -sum(row["log_likelihood"] for row in rows) / sum(row["tokens"] for row in rows) / math.log(2)
    assert metrics["bits_per_token"] == pytest.approx(bits)
    assert metrics["score"] == metrics["likelihood"] == pytest.approx(100 * 2**-bits)
    assert sampling_reach(metrics, 6, "likelihood")[0] == 1.96 * metrics["likelihood_error"] > 0
    assert losses[-1] < 0.7 * losses[0]
    assert result.facts["prompt_form"] == "alpaca"


def test_answers_are_compared_with_the_responses(tiny_llama: str, tmp_path: Path) -> None:
    metrics = pytest.importorskip("sacrebleu.metrics")
    result = train_run(spec_of(tiny_llama, tmp_path, "chrf"), tmp_path)
    rows = lines(tmp_path)
    assert result.metrics["exact_match"] == pytest.approx(100 * sum(row["output"] == row["response"] for row in rows) / 6)
    outputs, responses = ([row[name] for row in rows] for name in ("output", "response"))
    assert result.metrics["score"] == pytest.approx(metrics.CHRF().corpus_score(outputs, [responses]).score)
    assert {"likelihood", "search_exact_match", "search_chrf"} <= result.metrics.keys()
    (note,) = [note for note in result.notes if "do not end" in note]  # a random model says no end
    assert note.startswith(f"{sum(row.get('unended', False) for row in rows)} of 6 answers do not end within 16 tokens")


def test_an_answer_as_long_as_the_models_positions_is_refused_before_the_training(tiny_llama: str, tmp_path: Path) -> None:
    spec = spec_of(tiny_llama, tmp_path, "exact_match")
    generation = spec.data.generation.model_copy(update={"max_new_tokens": 384})
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"generation": generation})})
    with pytest.raises(RunFailed, match="max_new_tokens 384: prompt and answer have 384 positions"):
        train_run(spec, tmp_path, report=lambda progress: pytest.fail("it trained"))


def test_cloze_takes_the_likeliest_of_the_files_answers(tiny_llama: str, tmp_path: Path) -> None:
    result = train_run(spec_of(tiny_llama, tmp_path, "cloze"), tmp_path)
    rows = lines(tmp_path)
    for row in rows:
        assert sorted(row["normalized"]) == sorted(f"It is {word}." for word in COLOURS)
        assert row["answer"] == max(row["normalized"], key=row["normalized"].get)
        assert row["normalized"]["It is red."] == pytest.approx(row["log_likelihoods"]["It is red."] / 10)
        assert row["log_likelihood"] == row["log_likelihoods"][row["response"]]
    assert result.metrics["score"] == pytest.approx(100 * sum(row["answer"] == row["response"] for row in rows) / 6)
    assert {"likelihood", "search_cloze", "search_loss"} <= result.metrics.keys()
    assert "exact_match" not in result.metrics, "nothing is written"
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"talk": turns("q", word)}) + "\n" for word in COLOURS))
    task = {"kind": "generation", "train": str(tmp_path / "chats.jsonl"), "messages": "talk", "metric": "cloze"}
    with pytest.raises(ValueError, match="give the columns prompt and response"):
        find_task("custom/qa", DataSettings(custom={"qa": task}))


def test_chats_are_written_in_the_template_and_the_adapter_takes_it_along(tiny_llama: str, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_llama, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    chats = [{"talk": turns(f"Colour of {n}?", COLOURS[n % 4], "Sure?", f"Yes, {COLOURS[n % 4]}.")} for n in range(30)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    spec = spec_of(str(model), tmp_path)
    task = {"kind": "generation", "train": str(tmp_path / "chat.jsonl"), "messages": "talk"}
    spec = RunSpec.model_validate(spec.model_dump() | {"method": "lora", "parameters": {}, "data": {"custom": {"qa": task}}})
    result = train_run(spec, tmp_path / "run")
    rows = lines(tmp_path / "run")
    assert result.facts["prompt_form"] == "chat template"
    assert [row["prompt"].count("[user]") for row in rows] == [1, 2] * 3
    assert all(row["tokens"] == len(row["response"]) + 1 for row in rows), "a byte is a token, and the turn has an end"
    assert AutoTokenizer.from_pretrained(result.adapter).chat_template == TEMPLATE


def test_what_decides_the_answers_decides_the_key(tiny_llama: str, tmp_path: Path) -> None:
    spec = spec_of(tiny_llama, tmp_path)
    data = spec.data
    changed = [
        {"generation": data.generation.model_copy(update={"beams": 2})},
        {"generation": data.generation.model_copy(update={"date": date(2025, 1, 31)})},
        {"search_groups": False},
        {"custom": {"qa": data.custom["qa"].model_copy(update={"metric": "exact_match"})}},
    ]
    runs = [spec, *(spec.model_copy(update={"data": data.model_copy(update=row)}) for row in changed)]
    assert len({run.key for run in runs}) == 5
    assert all(RunSpec.model_validate_json(run.model_dump_json()).key == run.key for run in runs)
    unread = data.generation.model_copy(update={"score": "cloze", "tests": ("boolq",)})
    changed = [{"generation": unread}, {"root": str(tmp_path)}, {"custom": data.custom | {"other": data.custom["qa"]}}]
    assert {spec.model_copy(update={"data": data.model_copy(update=row)}).key for row in changed} == {spec.key}
