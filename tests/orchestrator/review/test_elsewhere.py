"""Commands and settings for programs of others, against these programs' own names and scales."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from craft.spec import RunSpec
from orchestrator.review.elsewhere import served_by, trained_by

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
    assert trained_by(record("classification"), CONFIG) == ""


def test_a_merged_model_is_served_as_it_is() -> None:
    assert [command.split()[0] for command in served_by(record(), None, merged=True)] == [
        "vllm",
        "text-generation-launcher",
        "python",
    ]


def recipes(**training: Any) -> dict[str, dict[str, Any]]:
    text = trained_by(record(**training), CONFIG | {"use_dora": True})
    parts = re.findall(r"^([\w-]+), `[^`]+`:\n\n```yaml\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    return {name: yaml.safe_load(content) for name, content in parts}


def test_all_programs_get_the_same_settings() -> None:
    recipe = recipes()
    assert recipe["TRL"] == {
        "use_peft": True,
        "model_name_or_path": "org/base",
        "lora_r": 12,
        "lora_alpha": 24,
        "lora_dropout": 0.05,
        "lora_target_modules": ["q_proj", "v_proj"],
        "learning_rate": 2e-4,
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_length": 512,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 0.1,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "seed": 7,
        "use_dora": True,
        "bf16": True,
    }
    assert recipe["LLaMA-Factory"]["lora_target"] == "q_proj,v_proj"
    assert {name: len(settings) for name, settings in recipe.items()} == {
        "TRL": 18,
        "axolotl": 18,
        "LLaMA-Factory": 20,
    }


def test_other_starts_and_cuts_have_no_recipe() -> None:
    assert trained_by(record(), CONFIG | {"init_lora_weights": "pissa"}) == ""
    run = record()
    run["spec"]["cut_from"] = {"run": "abc"}
    assert trained_by(run, CONFIG) == ""


@pytest.mark.slow
def test_trl_knows_the_keys() -> None:
    trl = pytest.importorskip("trl", reason="no trl: pip install -e '.[trl]'")
    known = {field.name for kind in (trl.SFTConfig, trl.ModelConfig) for field in dataclasses.fields(kind)}
    assert {*recipes()["TRL"], *recipes(max_steps=9)["TRL"]} <= known
    trl.SFTConfig(**{key: value for key, value in recipes()["TRL"].items() if key in trl.SFTConfig.__annotations__}, bf16=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "package", "folder"),
    [
        ("axolotl", "axolotl==0.19.0", "axolotl/utils/schemas/"),
        ("LLaMA-Factory", "llamafactory==0.9.5", "llamafactory/hparams/"),
    ],
)
def test_their_sources_know_the_keys(program: str, package: str, folder: str, tmp_path: Path) -> None:
    """The packages want GPUs, so their wheels are read."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), package]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{package} cannot be downloaded here")
    from transformers import TrainingArguments

    known = {field.name for field in dataclasses.fields(TrainingArguments)} | {
        "warmup_ratio"
    }  # of transformers 4 and 5.2, theirs
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        for name in wheel.namelist():
            if name.startswith(folder) and name.endswith(".py"):
                nodes = ast.walk(ast.parse(wheel.read(name)))
                known |= {
                    node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
                }
    assert {*recipes()[program], *recipes(max_steps=9)[program]} <= known
