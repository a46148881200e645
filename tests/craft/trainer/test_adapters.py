"""Adapters as scored: what a run has saved gives the very same outputs, moved and in PEFT's hands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from craft.spec import RunSpec
from craft.tasks import TASKS
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.training import train_run
from tests.craft.trainer.same import same_weights, score_saved

MakeSpec = Callable[..., RunSpec]


@pytest.mark.parametrize(
    ("method", "precision"),
    [
        ("craft", "float32"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (("craft", "bfloat16"), ("lora", "bf16-mixed"), ("full", "bfloat16"))
        ),
    ],
)
def test_a_saved_adapter_gives_the_very_logits_that_were_scored(
    tiny_spec: MakeSpec, tmp_path: Path, method: str, precision: str
) -> None:
    spec = tiny_spec(method=method, training={"precision": precision, "select": "last"})
    result = train_run(spec, tmp_path / "run")
    moved = shutil.copytree(result.adapter, tmp_path / "moved")
    (tmp_path / "again").mkdir()
    assert score_saved(moved, tmp_path / "again").items() <= result.metrics.items()
    assert same_weights(*(tmp_path / name / "predictions.safetensors" for name in ("run", "again")))
    model, _ = load_adapter(moved)
    assert tuple(model.config.id2label.values()) == TASKS[spec.task].labels
    heads = ("classifier.modules_to_save", "classifier.weight", "classifier.bias")
    trained = {name: weight.dtype for name, weight in model.named_parameters() if any(head in name for head in heads)}
    assert trained
    assert set(trained.values()) == {torch.float32}
    (weights,) = moved.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"safetensors is damaged"):
        load_adapter(moved)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("craft", {"ranks": ["all", 8, 8]}),
        pytest.param("lora", {"rank": 2}, marks=pytest.mark.slow),
        pytest.param("peft", {"peft_type": "LILY", "config": {"r": 4, "num_B": 2}}, marks=pytest.mark.slow),
    ],
)
def test_the_folder_loads_with_plain_transformers_and_peft(
    tiny_spec: MakeSpec, tmp_path: Path, method: str, parameters: dict[str, object]
) -> None:
    from peft import PeftModel

    spec = tiny_spec(method=method, parameters=parameters, training={"select": "last"})
    folder = train_run(spec, tmp_path).adapter
    ours, _ = load_adapter(folder)
    config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    base = AutoModelForSequenceClassification.from_pretrained(spec.model, config=config)
    theirs = PeftModel.from_pretrained(base, str(folder)).eval()
    batch = tokenizer(["a plain line", "and quite another one"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(ours(**batch).logits, theirs(**batch).logits)
    assert tuple(theirs.config.id2label.values()) == TASKS[spec.task].labels
    assert theirs.config.problem_type == "single_label_classification"
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == spec.model
