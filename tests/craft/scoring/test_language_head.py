"""A classifier reads text as the language model of its checkpoint does, before training and with what it has learnt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from craft.models.loading import load_model, load_tokenizer
from craft.scoring.forgetting import read_text
from craft.scoring.language_head import FAMILIES, LanguageHead
from craft.settings import ForgettingSettings, MeasureSettings
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.training import train_run

TOKENS = torch.tensor([[5, 9, 7, 33, 60, 2, 41, 8]])


def spec_of(folder: Path, task: str = "toy/sentiment") -> RunSpec:
    return RunSpec(model=str(folder), task=task, method="full")


@pytest.mark.parametrize("name", FAMILIES)
def test_an_untrained_classifier_reads_as_its_language_model(tiny_model: Callable[..., Any], tmp_path: Path, name: str) -> None:
    tiny_model(name, head="causal", seed=3).save_pretrained(tmp_path)
    language: Any = load_model(str(tmp_path), "generation", ()).eval()
    classifier: Any = load_model(str(tmp_path), "classification", ("a", "b"), pad_token_id=0).eval()
    inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    reader = LanguageHead(spec_of(tmp_path)).beside(classifier)
    with torch.no_grad():
        assert torch.equal(reader(**inputs).logits, language(**inputs).logits)
    assert not reader.training
    assert reader.train().classifier.training


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_the_embedding_as_it_is_now(tiny_model: Callable[..., Any], tmp_path: Path, tied: bool) -> None:
    made = tiny_model("llama", head="causal", seed=3)
    made.config.tie_word_embeddings = tied
    if tied:
        made.lm_head.weight = made.model.embed_tokens.weight
    made.save_pretrained(tmp_path)
    language: Any = load_model(str(tmp_path), "generation", ()).eval()
    classifier: Any = load_model(str(tmp_path), "classification", ("a", "b"), pad_token_id=0).eval()
    head = LanguageHead(spec_of(tmp_path))
    assert head.tied is tied
    torch.manual_seed(0)
    with torch.no_grad():  # as full fine-tuning does
        for own, other in zip(classifier.model.parameters(), language.model.parameters(), strict=True):
            own += 0.1 * torch.randn_like(own)
            other.copy_(own)
        inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
        assert torch.equal(head.beside(classifier)(**inputs).logits, language(**inputs).logits)


@pytest.mark.parametrize(
    ("method", "parameters"), [("lora", {"rank": 4}), ("craft", {"ranks": ["all", 8, 8]}), ("lotr", {"rank": 4}), ("full", {})]
)
def test_what_a_classifier_forgets_is_what_its_backbone_does_in_the_language_model(
    tiny_llama: str, tmp_path: Path, method: str, parameters: dict[str, Any]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(read_text(ForgettingSettings())[:700])
    training = {"max_steps": 4, "batch_size": 8, "max_length": 64, "learning_rate": 1e-2, "train_examples": 32}
    spec = RunSpec(
        model=tiny_llama,
        task="toy/sentiment",
        method=method,
        parameters=parameters,
        training={**training, "eval_examples": 16},  # type: ignore[arg-type]
        measure={"forgetting": {"text": str(text)}},  # type: ignore[arg-type]
    )
    result = train_run(spec, tmp_path / "run")
    language: Any = load_model(tiny_llama, "generation", ()).eval()
    tokenizer = load_tokenizer(tiny_llama)
    before = loss(language, tokenizer, text.read_text())
    trained: Any = load_adapter(result.adapter)[0]
    if method == "lotr":  # not merged: the classifier's own backbone, with its hook, in the language model's place
        trained.get_base_model().model.register_forward_pre_hook(lambda *_: trained.base_model.prepare())
        language.model = trained.get_base_model().model
    else:
        whole = trained.merge_and_unload() if isinstance(trained, PeftModel) else trained
        language.model.load_state_dict(whole.model.state_dict())
    after = loss(language, tokenizer, text.read_text())
    assert abs(after - before) > 1e-3
    assert result.metrics["text_loss_before"] == pytest.approx(before, rel=1e-5)
    assert result.metrics["text_loss_after"] == pytest.approx(after, rel=1e-4)
    plain = train_run(spec.model_copy(update={"measure": MeasureSettings()}), tmp_path / "plain")
    assert plain.metrics["score"] == result.metrics["score"]
    assert plain.metrics["search_loss"] == result.metrics["search_loss"]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bfloat16"])
def test_a_base_that_trains_in_mixed_precision_reads_text_before_it(
    tiny_model: Callable[..., Any], tmp_path: Path, precision: str
) -> None:
    made = tiny_model("llama", head="causal", seed=3)
    made.config.tie_word_embeddings = False
    made.save_pretrained(tmp_path)
    options: Any = {"precision": precision, "master_weights": True}
    classifier = load_model(str(tmp_path), "classification", ("a", "b"), pad_token_id=0, **options).eval()
    language: Any = load_model(str(tmp_path), "generation", (), **options).eval()
    spec = spec_of(tmp_path)
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"precision": precision})})
    inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    with torch.no_grad():
        found, expected = LanguageHead(spec).beside(classifier)(**inputs).logits, language(**inputs).logits
    torch.testing.assert_close(found.float(), expected.float(), atol=0.02, rtol=0.02)  # the head's product may be float32


def loss(model: Any, tokenizer: Any, text: str) -> float:
    """transformers' own loss over windows of 383 tokens behind the token that begins a text."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    total = 0.0
    with torch.no_grad():
        for at in range(0, len(tokens), 383):
            window = torch.tensor([[tokenizer.bos_token_id, *tokens[at : at + 383]]])
            total += float(model(input_ids=window, labels=window).loss) * (window.shape[1] - 1)
    return total / len(tokens)
