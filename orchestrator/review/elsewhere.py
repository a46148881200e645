"""Language models outside this project: commands that serve an adapter, and its run's settings for programs that train LoRA.

Sources: vLLM 0.30 `vllm/lora/peft_helper.py` (one scale, alpha / r, for all modules; no DoRA, no whole modules), llama.cpp's
`llama_adapter_lora_weight` (alpha over the rank of each tensor; no rsLoRA), text-generation-inference's guide to LoRA; the keys
of trl 1.16 (`SFTConfig`, `ModelConfig`), axolotl 0.19 (`axolotl.utils.schemas`) and llamafactory 0.9.5 (`hparams`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from craft.models.cached import base_name

CONFIG_FILE = "adapter_config.json"
TRAINERS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "TRL": (
        "trl sft --config FILE",
        {"use_peft": True},
        {
            "model": "model_name_or_path",
            "rank": "lora_r",
            "modules": "lora_target_modules",
            "rslora": "use_rslora",
            "dora": "use_dora",
            "epochs": "num_train_epochs",
            "batch": "per_device_train_batch_size",
            "length": "max_length",
            "schedule": "lr_scheduler_type",
            "warmup": "warmup_steps",
        },
    ),
    "axolotl": (
        "axolotl train FILE",
        {"adapter": "lora"},
        {
            "model": "base_model",
            "rank": "lora_r",
            "modules": "lora_target_modules",
            "rslora": "peft_use_rslora",
            "dora": "peft_use_dora",
            "epochs": "num_epochs",
            "batch": "micro_batch_size",
            "length": "sequence_len",
            "schedule": "lr_scheduler",
            "warmup": "warmup_ratio",
        },
    ),
    "LLaMA-Factory": (
        "llamafactory-cli train FILE",
        {"stage": "sft", "do_train": True, "finetuning_type": "lora"},
        {
            "model": "model_name_or_path",
            "rank": "lora_rank",
            "modules": "lora_target",
            "rslora": "use_rslora",
            "dora": "use_dora",
            "epochs": "num_train_epochs",
            "batch": "per_device_train_batch_size",
            "length": "cutoff_len",
            "schedule": "lr_scheduler_type",
            "warmup": "warmup_ratio",
        },
    ),
}
"""Name -> its command, what it needs always, and its keys where they are not those of `_settings`."""


def peft_config(folder: Path) -> dict[str, Any] | None:
    """Returns the content of an adapter's adapter_config.json; None if PEFT does not load the folder."""
    file = folder / CONFIG_FILE
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def served_by(
    record: Mapping[str, Any], config: Mapping[str, Any] | None, folder: str = ".", *, merged: bool = False
) -> list[str]:
    """Returns the commands that serve a language model; none for other models, nor where a server would compute another scale.

    Args:
        config: PEFT's configuration of the adapter in `folder`.
    """
    from craft.audit.verdict import served_rank

    if record["kind"] != "generation":
        return []
    base, place = shlex.quote(base_name(str(record["spec"]["model"]))), shlex.quote(folder)
    if merged:
        return [
            f"vllm serve {place}",
            f"text-generation-launcher --model-id {place}",
            f"python convert_hf_to_gguf.py {place} --outfile model.gguf && llama-server -m model.gguf",
        ]
    if not _is_lora(config) or config.get("use_dora") or config.get("modules_to_save"):
        return []
    commands = [f"vllm serve {base} --enable-lora --max-lora-rank {served_rank(config['r'])} --lora-modules adapter={place}"]
    if not config.get("rank_pattern"):
        commands.append(f"text-generation-launcher --model-id {base} --lora-adapters adapter={place}")
        if not config.get("use_rslora"):
            commands.append(
                f"python convert_lora_to_gguf.py --base {base} --outfile adapter.gguf {place} && llama-server -m BASE.gguf "
                "--lora adapter.gguf"
            )
    return commands


def trained_by(record: Mapping[str, Any], config: Mapping[str, Any] | None) -> str:
    """Returns Markdown with the run's settings for TRL, axolotl and LLaMA-Factory; empty where they cannot train the same.

    Args:
        config: PEFT's configuration of the adapter as it was trained.
    """
    spec = record["spec"]
    if (
        record["kind"] != "generation"
        or spec.get("cut_from")
        or not _is_lora(config)
        or config.get("init_lora_weights") is not True
    ):
        return ""
    ours = _settings(spec, config)
    parts = []
    for name, (command, always, keys) in TRAINERS.items():
        settings = always | {keys.get(key, key): value for key, value in ours.items()}
        if name == "LLaMA-Factory":
            settings[keys["modules"]] = ",".join(ours["modules"])
        parts.append(f"{name}, `{command}`:\n\n```yaml\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}```")
    return "\n\n".join(parts)


def _is_lora(config: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    return config is not None and config["peft_type"] == "LORA"


def _settings(spec: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the programs share. A switch that is off is left out."""
    training = spec["training"]
    length = {"max_steps": training["max_steps"]} if training["max_steps"] else {"epochs": training["epochs"]}
    schedule = training["schedule"]
    if schedule == "constant" and training["warmup_ratio"]:
        schedule = "constant_with_warmup"
    switches = {
        "rslora": config.get("use_rslora"),
        "dora": config.get("use_dora"),
        "bf16": training["precision"] != "float32",
        "gradient_checkpointing": training["gradient_checkpointing"],
    }
    return {
        "model": base_name(str(spec["model"])),
        "rank": config["r"],
        "lora_alpha": config["lora_alpha"],
        "lora_dropout": config["lora_dropout"],
        "modules": sorted({module.rpartition(".")[2] for module in config["target_modules"]}),
        "learning_rate": training["learning_rate"],
        **length,
        "batch": training["batch_size"],
        "gradient_accumulation_steps": training["gradient_accumulation"],
        "length": training["max_length"],
        "schedule": schedule,
        "warmup": training["warmup_ratio"],
        "weight_decay": training["weight_decay"],
        "max_grad_norm": training["max_grad_norm"],
        "seed": spec["seed"],
        **{name: True for name, on in switches.items() if on},
    }
