"""Models: where they are found, which part of them is the head, how a head is made, and what is said when there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, BertConfig, BertModel
from transformers.utils import logging as transformers_logging

from craft.models import Base
from craft.models import files as models
from craft.models.files import MINILM
from craft.models.loading import head_names, load_model, load_tokenizer, meta_model, refuse_other_words
from craft.results import ModelUnavailable, ModelUnsuited
from craft.scoring.encoding import refuse_words_without_rows
from craft.tasks.splits import Splits

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64}


def test_the_head_is_found_by_structure_in_every_family(family: str, tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    tiny_model(family).config.save_pretrained(tmp_path)
    model = meta_model(Base(str(tmp_path), "classification", ("a", "b", "c")))
    heads = dict.fromkeys(("bert", "roberta", "electra"), ("classifier",)) | {"distilbert": ("pre_classifier", "classifier")}
    assert head_names(model) == heads.get(family, ("score",))
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert meta_model(Base(str(tmp_path), "regression", ())).config.num_labels == 1
    if family == "llama":
        assert head_names(meta_model(Base(str(tmp_path), "generation", ()))) == ()


def test_the_packaged_minilm_is_found_by_its_hub_id() -> None:
    assert load_model(Base(MINILM, "classification", ("a", "b"))).config._name_or_path == MINILM


def test_a_packaged_model_with_other_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MINILM_SHA256", "0" * 64)
    monkeypatch.setattr(models, "_packaged_minilm", models._packaged_minilm.__wrapped__)  # nothing is remembered
    with pytest.raises(ModelUnavailable, match="Reinstall"):
        models.resolve_model(MINILM)


def test_the_seed_decides_the_head_and_nothing_else(tiny_bert: str) -> None:
    one, again, other = (load_model(Base(tiny_bert, "classification", ("a", "b")), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.classifier.weight, again.classifier.weight)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    body, same = one.bert.state_dict(), other.bert.state_dict()
    assert all(torch.equal(body[name], same[name]) for name in body)


def test_a_decoder_without_padding_token_gets_one(stories: str) -> None:
    tokenizer = load_tokenizer(stories)
    assert tokenizer.pad_token_id is not None
    model = load_model(Base(stories, "classification", ("a", "b"), pad_token_id=tokenizer.pad_token_id)).eval()
    alone = tokenizer(["Once upon a time"], return_tensors="pt")
    padded = tokenizer(
        ["Once upon a time", "There was a little girl who liked to play outside"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        assert torch.allclose(model(**padded).logits[0], model(**alone).logits[0], atol=1e-5)


@pytest.mark.parametrize(("value", "reason"), [("1", "HF_HUB_OFFLINE is set"), ("false", "the hub did not give it")])
def test_a_hub_that_may_not_be_asked_is_said_and_what_to_do(monkeypatch: pytest.MonkeyPatch, value: str, reason: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match=rf"'nobody/nothing'.*{reason}.*hf download nobody/nothing"):
        meta_model(Base("nobody/nothing", "classification", ("a", "b")))


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_path_that_is_no_folder_is_not_asked_of_the_hub(name: str) -> None:
    with pytest.raises(ModelUnavailable, match="does not exist"):
        load_tokenizer(name)


def test_a_folder_without_weights_or_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no config\.json"):
        meta_model(Base(str(tmp_path), "classification", ("a", "b")))
    BertConfig(**SMALL).save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match="safetensors"):
        load_model(Base(str(tmp_path), "classification", ("a", "b")))
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(ModelUnavailable, match="pickled weights are never read"):
        load_model(Base(str(tmp_path), "classification", ("a", "b")))


def test_a_broken_config_names_its_folder_and_code_that_comes_with_a_model_never_runs(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    for config in ("{", json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}})):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(ModelUnavailable, match=tmp_path.name):
            meta_model(Base(str(tmp_path), "classification", ("a", "b")))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The weights of a small BERT, with its configuration next to them."""
    BertModel(BertConfig(**SMALL)).save_pretrained(tmp_path)
    return tmp_path / "model.safetensors"


def test_base_weights_missing_in_a_checkpoint_are_noted(file: Path) -> None:
    save_file({name: weight for name, weight in load_file(file).items() if "pooler" not in name}, file, {"format": "pt"})
    model = load_model(Base(str(file.parent), "classification", ("a", "b")))
    assert model.craft_missing_weights == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("layer", "its files lack 16 weights of the base model .*layer.1"),
        ("nan", "its weight bert.embeddings.word_embeddings.weight holds NaN or infinite numbers"),
        ("width", "its weights have other shapes than its config.json says"),
        ("shard", "lacks model-00002-of-00002.safetensors, which its model.safetensors.index.json names"),
    ],
)
def test_damaged_weights_are_refused_before_training(file: Path, tmp_path: Path, damage: str, message: str) -> None:
    weights = load_file(file)
    if damage == "layer":
        weights = {name: weight for name, weight in weights.items() if "layer.1." not in name}
    elif damage == "nan":
        weights["embeddings.word_embeddings.weight"][3, 2] = float("nan")
    elif damage == "width":
        BertConfig(**(SMALL | {"hidden_size": 32})).save_pretrained(tmp_path)
    save_file(weights, file, {"format": "pt"})
    if damage == "shard":
        names = dict.fromkeys(weights, "model-00002-of-00002.safetensors")
        file.with_name("model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
        file.unlink()
    with pytest.raises(ModelUnavailable, match=message):
        load_model(Base(str(tmp_path), "classification", ("a", "b")))


def test_a_tokenizer_that_is_missing_or_of_another_model_is_refused(tmp_path: Path) -> None:
    BertConfig(**SMALL).save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match=r"has no tokenizer; it needs tokenizer\.json or vocab\.txt"):
        load_tokenizer(str(tmp_path))
    tokenizer = load_tokenizer(MINILM)  # of 30,522 words
    for rows, fits in ((100, False), (30_522, True), (40_000, True), (128_000, False)):
        model = meta_model(Base(str(tmp_path), "classification", ("a", "b")))
        model.resize_token_embeddings(rows, mean_resizing=False)
        if fits:
            refuse_other_words("m", tokenizer, model)
            continue
        with pytest.raises(ModelUnsuited, match=f"its tokenizer has 30,522 words and the model {rows:,}"):
            refuse_other_words("m", tokenizer, model)
    model.resize_token_embeddings(30_522, mean_resizing=False)
    tokenizer.add_tokens(["<image>"])  # Gemma's rows end before it
    refuse_other_words("m", tokenizer, model)
    texts, more = (Dataset.from_dict({"text": [text], "label": [0]}) for text in ("an image", "look: an <image> of a cat"))
    refuse_words_without_rows(Splits(texts, texts, {"": texts}, "", {}), tokenizer, model)
    with pytest.raises(ValueError, match=r"a text holds '<image>', .* no row for: 'look: an <image> of a cat'"):
        refuse_words_without_rows(Splits(texts, texts, {"": more}, "", {}), tokenizer, model)
    tokenizer.add_special_tokens({"pad_token": "[MORE]"})
    with pytest.raises(ModelUnsuited, match=r"the pad_token '\[MORE\]' .* 30,523, and the model has rows 0 to 30,521"):
        refuse_other_words("m", tokenizer, model)


def test_loading_prints_nothing_and_leaves_the_libraries_logging_alone(capfd: pytest.CaptureFixture[str]) -> None:
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    load_model(Base(MINILM, "classification", ("a", "b")))
    load_tokenizer(MINILM)
    out, err = capfd.readouterr()
    assert out == err == ""
    assert before == (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())


@pytest.mark.parametrize(
    ("architecture", "changes", "said"),
    [
        *[
            (architecture, {}, "in both directions")
            for architecture in ("bert", "roberta", "camembert", "electra", "big_bird", "megatron-bert", "rembert", "xlm")
        ],
        ("xlnet", {"d_head": 8}, "in both directions"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "in both directions"),
        ("modernbert", {}, "transformers has no language model for this kind of model"),
        ("distilbert", {}, "transformers has no language model for this kind of model"),
        ("t5", {}, "reads with an encoder"),
        ("bart", {}, "reads with an encoder"),
        ("pegasus", {}, "reads with an encoder"),
        ("bert", {"is_decoder": True}, None),
        ("llama", {}, None),
        ("gpt2", {}, None),
        ("gpt_neox", {}, None),
        ("opt", {}, None),
        ("gemma3_text", {}, None),
        ("mamba", {}, None),
        ("bloom", {}, None),
    ],
)
def test_what_would_read_its_own_answer_is_refused(
    architecture: str, changes: dict[str, object], said: str | None, tmp_path: Path
) -> None:
    AutoConfig.for_model(architecture, **SMALL | {"vocab_size": 128, "pad_token_id": 0} | changes).save_pretrained(tmp_path)
    if said is None:
        meta_model(Base(str(tmp_path), "generation", ()))
    else:
        with pytest.raises(ModelUnsuited, match=f"model {tmp_path}.*{said}"):
            meta_model(Base(str(tmp_path), "generation", ()))
