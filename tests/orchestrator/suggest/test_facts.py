"""Facts of a model and of the machine, from which a file is suggested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from craft.spec import RunSpec
from craft.trainer.counting import estimated_memory
from craft.trainer.probe import Speed
from orchestrator.plan.ways import CONTEXT_BYTES, Gpu
from orchestrator.suggest.facts import PROCESS_BYTES, ModelFacts, describe_model, measure_machine

SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 99}
SIZES |= {"num_attention_heads": 2}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 99}
T5 = {"d_model": 64, "num_layers": 2, "num_heads": 2, "d_kv": 32, "d_ff": 128, "vocab_size": 99}


@pytest.mark.parametrize(
    ("config", "projections", "least"),
    [
        ({"model_type": "roberta", **SIZES}, "q k v o up down", 64),
        ({"model_type": "gpt2", **GPT2}, "q k v o up down", 64),  # q, k and v are parts of one module
        ({"model_type": "t5", **T5}, "q k v o up down", 64),  # the first T5 has no gate
        ({"model_type": "mistral", **SIZES, "num_key_value_heads": 1}, "q k v o gate up down", 32),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_facts_of_a_model(config: dict[str, Any], projections: str, least: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = describe_model(str(tmp_path), "classification", ("a", "b"))
    assert facts == ModelFacts(2, 64, facts.parameters, tuple(projections.split()), least)


def test_a_family_that_is_not_in_the_table_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert", **SIZES}))
    with pytest.raises(ValueError, match="has none of the 10 layouts"):
        describe_model(str(tmp_path), "classification", ("a", "b"))


GIB = 2**30


@pytest.fixture
def spec(tiny_bert: str) -> RunSpec:
    training = {"batch_size": 16, "max_length": 128}
    return RunSpec.model_validate({"model": tiny_bert, "task": "toy/sentiment", "method": "lora", "training": training})


def machine_of(monkeypatch: pytest.MonkeyPatch, memory: int, cores: int = 8, gpus: int = 0) -> None:
    monkeypatch.setattr("orchestrator.suggest.facts.usable_gpus", lambda: [Gpu("a GPU", memory)] * gpus)
    monkeypatch.setattr("orchestrator.suggest.facts.cores", lambda: cores)
    monkeypatch.setattr("craft.trainer.probe.device_memory", lambda: memory)
    monkeypatch.setattr("craft.trainer.probe.measure_speed", lambda run, seconds, threads: Speed(1.0, 0.1, 0.01))


@pytest.mark.parametrize(
    ("memory", "cores", "gpus", "expected"),
    [
        (64 * GIB, 2, 0, (1, 0, 2)),
        (64 * GIB, 32, 0, (4, 0, 8)),  # no more than eight at once
        (3 * GIB, 8, 0, (4, 0, 2)),  # memory for two
        (64 * GIB, 8, 2, (4, 1, 2)),  # a GPU each
        (64 * GIB, 32, 16, (2, 1, 16)),
    ],
)
def test_the_share_of_a_training(
    memory: int, cores: int, gpus: int, expected: tuple[int, int, int], spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch, memory, cores, gpus)
    machine = measure_machine(spec)
    assert (machine.cpu, machine.gpu, machine.at_once) == expected
    assert machine.training.precision == ("bf16-mixed" if gpus else "float32")
    assert machine.batch == 16


def test_less_memory_gives_smaller_batches_of_the_same_step_while_there_are_some(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch, estimated_memory(spec) // 2 + PROCESS_BYTES)
    machine = measure_machine(spec)
    assert machine.training.batch_size < 16
    assert machine.batch == 16
    machine_of(monkeypatch, CONTEXT_BYTES + 1000, gpus=1)
    with pytest.raises(ValueError, match="a step of one row needs more than the"):
        measure_machine(spec)
