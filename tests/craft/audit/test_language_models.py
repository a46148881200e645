"""Audits of adapters of language models: the form of pairs, the likeliest of the answers, words of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from craft.audit.audit import audit_adapter
from craft.audit.folder import Data
from craft.models.adapters import WEIGHTS_FILE
from craft.tasks.prompts import PROMPTS, TaughtText
from tests.craft.scoring.test_answers import plainly


def saved_llama(base: Any, folder: Path, *targets: str, embeddings: bool = False, **settings: Any) -> None:
    """Saves an adapter of rank 2 with random weights, of which the second direction does next to nothing."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(base) if isinstance(base, str) else base
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=[*targets], task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad or "embed_tokens" in name:
                weight.add_(0.3 * torch.randn_like(weight))
            if "lora_B" in name:
                weight[:, 1] *= 1e-4
    model.save_pretrained(folder, save_embedding_layers=embeddings)


def _data(folder: Path, pairs: Iterable[tuple[str, str]], **more: Any) -> Data:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"ask": ask, "reply": reply}) + "\n" for ask, reply in pairs))
    return Data(str(file), prompt=("ask",), response="reply", **more)


PAIRS = [(f"say {at}", f"{at} it is") for at in range(12)]


@pytest.mark.usefixtures("helpful")
@pytest.mark.parametrize("metric", [None, pytest.param("exact_match", marks=pytest.mark.slow)])
def test_an_audit_of_a_language_model(metric: str | None, tiny_llama: str, tmp_path: Path) -> None:
    saved_llama(tiny_llama, tmp_path / "whole", "q_proj", "v_proj")
    data = _data(tmp_path, PAIRS, metric=metric)
    audit = audit_adapter(tmp_path / "whole", data, within=100, to=tmp_path / "small")
    assert audit.metric == (metric or "likelihood")
    assert audit.sizes
    assert audit.enough is not None
    if metric is None:
        assert audit.without != audit.score
    again = audit_adapter(tmp_path / "small", data, within=100)
    assert again.score == pytest.approx(audit.enough.score)
    with pytest.raises(ValueError, match="--prompt and --response, or --messages"):
        audit_adapter(tmp_path / "whole", Data(data.held_out))


def test_blanks_around_an_answer_count_for_nothing(tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_llama(tiny_llama, tmp_path / "whole", "q_proj", "v_proj")
    yes = AutoTokenizer.from_pretrained(tiny_llama)("yes", add_special_tokens=False)["input_ids"]
    monkeypatch.setattr("craft.scoring.words.generate", lambda _model, _tokenizer, prompts, *_: [yes] * len(prompts))
    data = _data(tmp_path, [(ask, " yes ") for ask, _ in PAIRS], metric="exact_match", plain=True)
    assert audit_adapter(tmp_path / "whole", data).score == 100


@pytest.mark.slow
@pytest.mark.parametrize("plain", [True, False])
def test_pairs_are_read_in_the_form_of_the_training(plain: bool, tiny_llama: str, tmp_path: Path) -> None:
    pairs = [(f"number {at}: ", "odd" if at % 2 else "even") for at in range(24)]
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    prompts = [ask if plain else PROMPTS["alpaca"].for_training(ask) for ask, _ in pairs]
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_llama)
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    )
    steps = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=3e-2)
    for _ in range(6):
        for prompt, (_, reply) in zip(prompts, pairs, strict=True):
            start, ids = len(tokenizer(prompt)["input_ids"]), tokenizer(prompt + reply, return_tensors="pt")["input_ids"]
            labels = ids.clone()
            labels[:, :start] = -100
            model(input_ids=ids, labels=labels).loss.backward()
            steps.step()
            steps.zero_grad()
    model.save_pretrained(tmp_path / "whole")
    data, lines = _data(tmp_path, pairs), list[str]()
    audit = audit_adapter(tmp_path / "whole", data, tell=lines.append)
    assert audit.form == ("as they stand" if plain else "in Alpaca's form")
    assert any(line.startswith(f"pairs are read {audit.form}: ") for line in lines)
    forms = {
        form: audit_adapter(tmp_path / "whole", replace(data, plain=form), tell=lines.append).score for form in (True, False)
    }
    assert audit.score == forms[plain] > forms[not plain]
    assert audit.within == pytest.approx(min(1.0, 0.1 * (audit.score - audit.without)))


@pytest.mark.slow
def test_cloze_takes_the_likeliest_answer_for_each_of_its_characters(tiny_llama: str, tmp_path: Path) -> None:
    """Plain transformers is the reference. A model is audited as its folder is."""
    saved_llama(tiny_llama, tmp_path / "whole", "q_proj", "v_proj")
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_llama), str(tmp_path / "whole")).eval()
    options = ("maybe so", "no", "yes")
    pairs = [(f"is {at} odd? ", options[at % 3]) for at in range(15)]

    def worth(ask: str, option: str) -> float:
        ids = [*tokenizer(ask + option)["input_ids"], tokenizer.eos_token_id]
        return plainly(model, TaughtText(ids, len(tokenizer(ask)["input_ids"]))) / len(option)

    right = [max(options, key=lambda option, ask=ask: worth(ask, option)) == reply for ask, reply in pairs]
    data, lines = _data(tmp_path, pairs, metric="cloze", plain=True), list[str]()
    audit = audit_adapter(tmp_path / "whole", data, within=100, tell=lines.append)
    assert (audit.metric, audit.rows, audit.score) == ("cloze", 15, pytest.approx(100 * sum(right) / 15))
    assert any("above the most frequent class (33.3)" in line for line in audit.warnings)
    assert lines[0].startswith("LORA with 448 parameters in 4 modules (q_proj, v_proj)")
    again = audit_adapter(model, data, within=100)
    assert (again.score, [size.score for size in again.sizes]) == (audit.score, [size.score for size in audit.sizes])
    data = _data(tmp_path, [(ask, f"{at} {ask}") for at, (ask, _) in enumerate(pairs * 3)], metric="cloze", plain=True)
    with pytest.raises(ValueError, match=r"compares 2 to 32 answers, and reply of .* has 45 different ones"):
        audit_adapter(tmp_path / "whole", data)


@pytest.mark.usefixtures("helpful")
def test_an_adapter_with_words_of_its_own(tiny_llama: str, tmp_path: Path) -> None:
    base, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_llama), AutoTokenizer.from_pretrained(tiny_llama)
    tokenizer.add_tokens(["<ask>", "<reply>"])
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    base.resize_token_embeddings(len(tokenizer))
    saved_llama(base, tmp_path / "whole", "q_proj", embeddings=True)
    tokenizer.save_pretrained(tmp_path / "whole")
    data = _data(tmp_path, [(f"<ask> {at}", f"<reply> {at}") for at in range(12)])
    audit = audit_adapter(tmp_path / "whole", data, within=100, to=tmp_path / "cut")
    assert audit.folder.embedding_rows == len(tokenizer)
    before, after = (load_file(tmp_path / name / WEIGHTS_FILE) for name in ("whole", "cut"))
    embeddings = [name for name in before if "embed_tokens" in name]
    assert embeddings
    assert all(torch.equal(before[name], after[name]) for name in embeddings)
    saved_llama(tiny_llama, tmp_path / "whole", "q_proj")  # without embeddings of its own
    with pytest.raises(ValueError, match=r"pads with token 261, and the model has rows 0 to 258. Save the adapter with"):
        audit_adapter(tmp_path / "whole", data)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"modules_to_save": ["lm_head", "embed_tokens"]}, r"modules_to_save: model\.embed_tokens, lm_head\)"),
        ({"trainable_token_indices": [3, 5]}, r"embed_tokens"),
    ],
)
def test_embeddings_that_train_are_refused_by_name(
    settings: dict[str, Any], said: str, tiny_llama: str, tmp_path: Path
) -> None:
    saved_llama(tiny_llama, tmp_path / "whole", "q_proj", **settings)
    with pytest.raises(ValueError, match=said):
        audit_adapter(tmp_path / "whole", _data(tmp_path, PAIRS))
