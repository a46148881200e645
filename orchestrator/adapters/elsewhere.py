"""Commands that serve the adapter of a language model.

Sources: vLLM 0.30 `vllm/lora/peft_helper.py` (one scale, alpha / r, for all modules; no DoRA, no whole modules), llama.cpp's
`llama_adapter_lora_weight` (alpha over the rank of each tensor; no rsLoRA), text-generation-inference's guide to LoRA.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from craft.models.cached import base_name

CONFIG_FILE = "adapter_config.json"


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
    if record["kind"] != "generation":
        return []
    from craft.audit.verdict import served_rank

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


def _is_lora(config: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    return config is not None and config["peft_type"] == "LORA"
