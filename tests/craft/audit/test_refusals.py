"""What an audit refuses: folders that are damaged or hold more than it can count, and wrong rows."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from craft.audit.audit import audit_adapter
from craft.audit.folder import Data
from craft.models.adapters import CONFIG_FILE, WEIGHTS_FILE, read_config, read_shapes
from tests.craft.audit.plain_folders import BOTH, CONFIGS, rows, saved


@pytest.fixture(scope="module")
def plain(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter of rank 4 that can be audited."""
    folder = tmp_path_factory.mktemp("plain") / "whole"
    saved(tiny_bert, peft.LoraConfig(r=4, target_modules=BOTH), folder)
    return folder


def test_a_control_token_in_a_held_out_text_is_refused_with_its_line(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    token = AutoTokenizer.from_pretrained(tiny_bert).sep_token
    (tmp_path / "marks.csv").write_text(f"text,label\nfine,0\nan {token} inside,1\n")
    with pytest.raises(ValueError, match=r"marks\.csv, line 3: column 'text' holds .*; the tokenizer reads it as a control"):
        audit_adapter(tmp_path / "whole", Data(str(tmp_path / "marks.csv"), label="label"))


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [("within", (math.nan, math.inf, -1, 0), "above 0 and at most 100"), ("sure", (math.nan, 0, 1), "above 0 and below 1")],
)
def test_numbers_that_are_no_points_or_no_probability_are_refused_at_once(
    name: str, values: tuple[float, ...], said: str, tmp_path: Path
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=said):
            audit_adapter(tmp_path, Data("rows.csv"), **{name: value})


def test_what_is_more_than_a_change_of_weights_is_refused(
    tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    forward, bias = peft.tuners.lora.Linear.forward, torch.linspace(0, 1, 32)

    def forward_and_more(layer: Any, *args: Any) -> torch.Tensor:
        return forward(layer, *args) + layer.lora_alpha["default"] * bias

    monkeypatch.setattr(peft.tuners.lora.Linear, "forward", forward_and_more)
    with pytest.raises(ValueError, match="more than a change of weights of linear layers"):
        audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"))


@pytest.mark.parametrize(
    ("whole", "named"),
    [
        (["word_embeddings"], "bert.embeddings.word_embeddings"),
        (["classifier", "pooler"], "bert.pooler"),
        (["LayerNorm"], "bert.embeddings.LayerNorm, .* and 4 more"),
    ],
)
def test_modules_that_are_trained_whole_are_refused_by_name(
    whole: list[str], named: str, tiny_bert: str, tmp_path: Path
) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole", whole)
    with pytest.raises(ValueError, match=rf"trains whole modules of its base \(modules_to_save: {named}\)"):
        audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"))


def _config(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def _weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Any:
    return lambda folder: save_file(change(load_file(folder / WEIGHTS_FILE)), folder / WEIGHTS_FILE)


def _rename(part: str, to: str) -> Any:
    return _weights(lambda weights: {name.replace(part, to): weight for name, weight in weights.items()})


QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight"


def _merged(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()
    (folder / WEIGHTS_FILE).rename(folder / "model.safetensors")
    (folder / "config.json").write_text("{}")


def _nested(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "inner")
    for file in [*folder.iterdir()]:
        file.unlink()
    shutil.move(folder.parent / "inner", folder / "checkpoint-9")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_merged, "it is a whole model"),
        (_nested, "adapters are in checkpoint-9"),
        (lambda folder: (folder / WEIGHTS_FILE).unlink(), "copy it from where the adapter was trained"),
        (lambda folder: (folder / WEIGHTS_FILE).rename(folder / "adapter_model.bin"), "its weights are pickled"),
        (lambda folder: os.truncate(folder / WEIGHTS_FILE, 200), "is damaged"),
        (_weights(lambda held: {name: held[name] for name in held if "classifier" not in name}), "holds no task head"),
        (_config(base_model_name_or_path=None), "give it as --base"),
        (_config(base_model_name_or_path="./nowhere"), "does not exist"),
        (_config(bias="all"), "trains biases too"),
        (_config(lora_bias=True), "trains biases too"),
        (_config(task_type="TOKEN_CLS"), "is for TOKEN_CLS"),
        (_config(layer_replication=[[0, 2], [1, 3]]), "repeats layers"),
        (_weights(lambda held: held | {QUERY: held[QUERY] * torch.nan}), "are no numbers"),
        (_config(peft_type="PROMPT_TUNING"), "puts vectors before the text"),
        (_config(peft_type="CARTRIDGE"), "puts vectors before the text"),
        (_config(peft_type="NEW"), "no configuration of PEFT"),
        (_config(r=5), "does not fit"),
        (_config(target_modules=["query", "value", "key"]), "has no weights for 6 parts"),
        (_config(target_modules=["query"]), "has 6 weights for modules that .* does not name: bert.encoder.layer.0.*value"),
        (_config(r="8"), 'r is "8"'),
        (_config(r=None), "r is null"),
        (_config(r=10**8), "r is 100,000,000, which is more than adapter_model.safetensors holds"),
        (_config(peft_type="BOTTLENECK", bottleneck=10**5), "bottleneck is 100,000"),
        (_config(peft_type="LORETTA", bottleneck=10**6), "bottleneck is 1,000,000"),
        (_config(peft_type="SUPERLORA", groups=1000), "groups is 1,000"),
        (_config(peft_type="SUPERLORA", order=9), "order is 9"),
        (_config(lora_alpha=1e308), "not a number up to"),
        (_config(rank_pattern={"query": "4"}), "not a number for each pattern"),
        (_config(target_modules="(["), "is no regular expression"),
        (_config(target_modules=r"(\w+\.?)+!"), "take over 0.3 s"),
        (_config(rank_pattern={r"(\w+\.?)+!": 4}), "take over 0.3 s"),
        (_config(layers_to_transform=[0], layers_pattern=r"(\w+\.?)+!"), "take over 0.3 s"),
        (_config(peft_type="CRAFT", projections=["q"], projection_map={"q": r"(\w+\.?)+!"}), "take over 0.3 s"),
        (lambda folder: (folder / CONFIG_FILE).write_text("[" * 100_000), "maximum recursion depth"),
        (lambda folder: os.truncate(folder / CONFIG_FILE, 200 * 2**30), "it has 200"),
        (_rename("lora_A.", "lora_A.sft."), "names of a training state and not PEFT's: they hold `sft`"),
        (_rename("base_model.", "module.base_model."), "they hold `module`"),
        (_rename("model.bert", "model._orig_mod.bert"), "they hold `_orig_mod`"),
        (_rename("classifier.", "classifier.modules_to_save.default."), "they hold `modules_to_save`"),
    ],
)
def test_folders_that_cannot_be_audited_are_refused_in_words(
    change: Any, said: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("craft.models.adapters.PATTERN_SECONDS", 0.3)
    shutil.copytree(plain, tmp_path / "whole")
    change(tmp_path / "whole")
    with pytest.raises(ValueError, match=said):
        audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"))


@pytest.mark.slow
def test_classes_in_another_order_are_noticed(tiny_bert: str, tmp_path: Path) -> None:
    model = saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole").eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    texts = [f"{word} {at}" for at in range(20) for word in ("good", "bad")]
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    gap = logits[:, 1] - logits[:, 0]
    weights = load_file(tmp_path / "whole" / WEIGHTS_FILE)
    weights["base_model.model.classifier.bias"][0] += gap.median()
    save_file(weights, tmp_path / "whole" / WEIGHTS_FILE)
    file = tmp_path / "rows.csv"
    lines = [f"{text},{'no' if other else 'yes'}" for text, other in zip(texts, gap > gap.median(), strict=True)]
    file.write_text("\n".join(["text,label", *lines]) + "\n")
    with pytest.raises(ValueError, match=r"with `yes no` it is in (9\d|100) %"):
        audit_adapter(tmp_path / "whole", Data(str(file), label="label"))
    assert audit_adapter(tmp_path / "whole", Data(str(file), label="label", labels=("yes", "no"))).score >= 95


def test_a_type_that_checkers_alone_know_stops_no_reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    annotations = peft.LoraConfig.__annotations__ | {"use_rslora": "Nowhere"}
    monkeypatch.setattr(peft.LoraConfig, "__annotations__", annotations)
    peft.LoraConfig(r=4, use_rslora=True).save_pretrained(tmp_path)
    assert read_config(tmp_path / "adapter_config.json")["r"] == 4


def test_a_sparse_file_of_200_gb_is_refused_in_words(tmp_path: Path) -> None:
    size, head = 200 * 10**9, {"dtype": "F32", "shape": [50 * 10**9], "data_offsets": [0, 200 * 10**9]}
    text = json.dumps({"base_model.model.q.lora_A.weight": head}).encode()
    with (tmp_path / WEIGHTS_FILE).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + size)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 * 2**30, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"has 186\.3 GiB, for which there is no memory here"):
            read_shapes(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
