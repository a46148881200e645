"""QLoRA: LoRA's count, planned anywhere; refused with its reason, before anything is read, where it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import BertForSequenceClassification

from craft.methods import METHODS
from craft.methods.method import refuse_elsewhere
from craft.models import Base
from craft.models.loading import SPREAD, load_model
from craft.results import ModelUnavailable, RunFailed
from craft.spec import RunSpec
from craft.trainer.counting import estimated_memory, planned_counts
from craft.trainer.training import train_run
from tests.craft.conftest import make_spec
from tests.craft.methods.cases import put
from tests.craft.trainer.test_counting import config_of


def spec_of(model: str, method: str = "qlora", **changes: Any) -> RunSpec:
    training = {"max_steps": 8, "train_examples": 64, "learning_rate": 5e-3} | changes.pop("training", {})
    return make_spec(model=model, method=method, parameters={"rank": 4}, training=training, **changes)


def test_it_is_planned_without_a_gpu_and_counts_as_lora_does(tiny_bert: str) -> None:
    ours, lora = (planned_counts(spec_of(tiny_bert, method)) for method in ("qlora", "lora"))
    assert ours == lora
    bases = [estimated_memory(spec_of(tiny_bert, method)) for method in ("qlora", "lora")]
    linear = 3 * (4 * 32 * 32 + 2 * 32 * 64) + 32 * 32  # embeddings, norms and biases are not quantized
    assert bases[1] - bases[0] == pytest.approx((4 - 0.5 - 1 / 64) * linear, abs=1)


def test_llama3_8b_in_four_bits_has_the_size_that_is_published(tmp_path: Path) -> None:
    """5.7 GB are the safetensors of the hub's Llama-3-8B in bitsandbytes' NF4 with double quantization."""
    llama, training = config_of("llama3-8b", tmp_path), {"precision": "bfloat16", "max_length": 1}
    spec = RunSpec(model=llama, task="commonsense", method="qlora", training=training)
    logits = 16 * 128256 * 8
    assert estimated_memory(spec) - 16 * planned_counts(spec).trainable_parameters - logits == pytest.approx(5.7e9, rel=0.03)


def test_weights_that_are_not_quantized_keep_the_precision_of_the_run(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama", torch.bfloat16)
    built = put(model, "qlora", {}, "FEATURE_EXTRACTION")
    formats = {name: weight.dtype for name, weight in built.named_parameters()}
    assert {kind for name, kind in formats.items() if "lora_" not in name} == {torch.bfloat16}
    assert {kind for name, kind in formats.items() if "lora_" in name} == {torch.float32}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_elsewhere_it_is_refused_before_data_and_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFailed, match="qlora runs on a CUDA GPU only"):
        train_run(spec_of("no/such-model"), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_what_to_install() -> None:
    row = replace(METHODS["qlora"], requires=None, packages=("no_such_package",))
    with pytest.raises(ValueError, match="pip install no_such_package"):
        refuse_elsewhere(row)


def test_under_layers_accelerate_divides_the_quantized_base_among_the_gpus(
    tiny_bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Mock(side_effect=ValueError("read"))
    monkeypatch.setattr(BertForSequenceClassification, "from_pretrained", read)
    for device in (SPREAD, torch.device("cuda", 0)):
        with pytest.raises(ModelUnavailable, match="read"):
            load_model(Base(tiny_bert, "classification", ["a", "b"], quantization={"load_in_4bit": True}), device=device)
    assert [call.kwargs["device_map"] for call in read.call_args_list] == ["auto", {"": torch.device("cuda", 0)}]
