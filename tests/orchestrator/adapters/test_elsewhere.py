"""Commands and settings for programs of others, against these programs' own names and scales."""

from __future__ import annotations

from typing import Any

import pytest

from craft.spec import RunSpec
from orchestrator.adapters.elsewhere import served_by

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 12,
    "lora_alpha": 24,
    "lora_dropout": 0.05,
    "target_modules": ["model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"],
    "init_lora_weights": True,
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
}


def record(kind: str = "generation", **training: Any) -> dict[str, Any]:
    settings = {"learning_rate": 2e-4, "batch_size": 4, "gradient_accumulation": 2, "epochs": 2, "precision": "bfloat16"}
    settings |= {"head_learning_rate": None, "schedule": "constant", "warmup_ratio": 0.1, "max_length": 512}
    run = RunSpec(model="org/base", task="toy/sentiment", method="lora", training=settings | training, seed=7)
    return {"kind": kind, "spec": run.model_dump(mode="json")}


@pytest.mark.parametrize(
    ("change", "programs"),
    [
        ({}, ["vllm", "text-generation-launcher", "python"]),
        ({"rank_pattern": {"model.layers.0.self_attn.q_proj": 2}}, ["vllm"]),
        ({"use_rslora": True}, ["vllm", "text-generation-launcher"]),
        ({"use_dora": True}, []),
        ({"modules_to_save": ["lm_head"]}, []),
        ({"peft_type": "VERA"}, []),
    ],
)
def test_a_command_for_each_server_that_computes_the_same(change: dict[str, Any], programs: list[str]) -> None:
    commands = served_by(record(), CONFIG | change, "my folder")
    assert [command.split()[0] for command in commands] == programs
    assert all("'my folder'" in command or "='my folder'" in command for command in commands)
    assert not commands or "--max-lora-rank 16 " in commands[0]


def test_what_is_no_language_model_has_no_server() -> None:
    assert served_by(record("classification"), CONFIG) == []


def test_a_merged_model_is_served_as_it_is() -> None:
    assert [command.split()[0] for command in served_by(record(), None, merged=True)] == [
        "vllm",
        "text-generation-launcher",
        "python",
    ]
