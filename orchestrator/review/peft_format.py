"""A finished trial in the format of Hugging Face's comparison of PEFT methods, so that it could stand or be proposed there.

The format is what `log_results` in huggingface/peft, method_comparison/MetaMathQA/utils.py, writes: one JSON file for each run,
with `run_info`, `train_info` (its `metrics` are one row for each evaluation, and a last one for the test) and `meta_info`. Here
the source is a trial's own record. What that does not know is null and never made up: the memory that a GPU kept reserved,
times of single evaluations, commits of data sets. Accuracies are shares of 1; a task with another score has null for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from craft.methods import find_method
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.tasks.prompts import PROMPTS
from orchestrator.plan.trial import TrialResult
from orchestrator.tools.folders import slug

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
NUMBER_FORMATS = {"float32": ("float32", False), "bf16-mixed": ("float32", True), "bfloat16": ("bfloat16", False)}
"""Our `precision` as their `dtype` of the weights, and whether products are computed in mixed precision (`use_amp`)."""


@dataclass(frozen=True)
class Trained:
    """A finished trial as its record has it.

    Attributes:
        label: the configuration's, with which no other one's trial shares a name.
        record: `run.json` of its adapter's folder.
        result: how the trial ended.
        evaluations: what it reported of its evaluations, in order; empty where that is not at hand.
        adapter: the adapter's folder.
        began: when the trial began, in seconds since 1970, if that is known.
    """

    label: str
    record: Mapping[str, Any]
    result: TrialResult
    evaluations: Sequence[Mapping[str, Any]]
    adapter: Path
    began: float | None = None

    @property
    def spec(self) -> RunSpec:
        return RunSpec.recorded(self.record["spec"])

    @property
    def words(self) -> bool:
        """Whether the task is answered in words; its score is an accuracy then."""
        return bool(self.record["kind"] == "generation")


def peft_row(trial: Trained) -> dict[str, Any]:
    """The content of the trial's file."""
    return {"run_info": _run_info(trial), "train_info": _train_info(trial), "meta_info": _meta_info(trial)}


def file_name(row: Mapping[str, Any]) -> str:
    """The name of a row's file, as their runs name it: `lora--minilm-r8-qv-glue-mrpc-seed-0.json`."""
    return str(row["run_info"]["experiment_name"]).replace("/", "--") + ".json"


def _run_info(trial: Trained) -> dict[str, Any]:
    spec, config = trial.spec, trial.adapter / CONFIG_FILE
    began = None if trial.began is None else datetime.fromtimestamp(int(trial.began), UTC).isoformat()
    model = spec.model.rstrip("/").rsplit("/", 1)[-1]
    name = "-".join(map(slug, (model, trial.label, spec.task, f"seed {spec.seed}")))
    method = str(spec.parameters.get("peft_type", spec.method)).lower()
    return {
        "created_at": began,
        "total_time": trial.result.seconds,
        "experiment_name": f"{method}/{name}",
        "peft_branch": None,
        "train_config": _train_config(trial, spec),
        "peft_config": json.loads(config.read_text()) if config.is_file() else None,
        "error_msg": "",
    }


def _train_config(trial: Trained, spec: RunSpec) -> dict[str, Any]:
    training, generation, row = spec.training, spec.data.generation, find_method(spec.method)
    dtype, mixed = NUMBER_FORMATS.get(training.precision, (training.precision, False))
    if row.quantization is not None:
        loaded = row.quantization(row.parameters.model_validate(spec.parameters))
        dtype = "int4" if loaded.get("load_in_4bit") else "int8"
    # CRAFT's own optimizer is torch's AdamW unless rates are scaled; records name that setting only where it is used.
    plain = row.optimizer is None or (row.name.startswith("craft") and spec.parameters.get("rate_scaling", "none") == "none")
    rates = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    steps = [one["step"] for one in trial.evaluations]
    return {
        "model_id": spec.model,
        "dtype": dtype,
        "max_seq_length": training.max_length,
        "batch_size": training.batch_size * training.gradient_accumulation,
        "batch_size_eval": training.eval_batch_size,
        "max_steps": trial.result.steps,
        "eval_steps": steps[0] if steps else None,
        "compile": False,
        "use_gc": training.gradient_checkpointing,
        "query_template": PROMPTS[generation.prompt].for_training("{query}", "") if trial.words else None,
        "seed": spec.seed,
        "grad_norm_clip": training.max_grad_norm,
        "optimizer_type": "AdamW" if plain else None,
        "optimizer_kwargs": rates,
        "lr_scheduler": training.schedule,
        "use_amp": mixed,
        "autocast_adapter_dtype": True,
        "generation_kwargs": {"max_new_tokens": generation.max_new_tokens, "num_beams": generation.beams}
        if trial.words
        else {},
        "attn_implementation": None,
        "init_kv_cache_prefix": None,
    }


def _train_info(trial: Trained) -> dict[str, Any]:
    counts, weights = trial.record["counts"], trial.adapter / WEIGHTS_FILE
    return {
        "accelerator_memory_reserved_avg": None,
        "accelerator_memory_max": counts.get("peak_memory_bytes") if _accelerator(trial) else None,
        "accelerator_memory_reserved_99th": None,
        "train_time": None,
        "file_size": weights.stat().st_size if weights.is_file() else None,
        "num_trainable_params": counts["trainable_parameters"] + counts["head_parameters"],
        "num_total_params": counts["total_parameters"],
        "status": "success",
        "metrics": [*(_evaluation(trial, one) for one in trial.evaluations), _test(trial)],
    }


def _evaluation(trial: Trained, told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": told["step"],
        "valid accuracy": _accuracy(trial, told["metrics"], "search_"),
        "train loss": _train_loss(told),
        "train samples": _samples(trial, told["step"]),
        "train time": None,
        "eval time": None,
        "tokens / sec": None,
        "mem allocated avg": None,
        "mem reserved avg": None,
        "elapsed time": None,
    }


def _test(trial: Trained) -> dict[str, Any]:
    metrics = trial.record["metrics"]
    return {
        "step": trial.result.steps,
        "test accuracy": _accuracy(trial, metrics, ""),
        "train loss": _train_loss(trial.evaluations[-1]) if trial.evaluations else None,
        "train samples": _samples(trial, trial.result.steps),
        "train total tokens": None,
        "forgetting": metrics.get("forgetting"),
    }


def _accuracy(trial: Trained, metrics: Mapping[str, Any], prefix: str) -> float | None:
    value = metrics.get(f"{prefix}score" if trial.words else f"{prefix}accuracy")
    return None if value is None else value / 100


def _train_loss(told: Mapping[str, Any]) -> float | None:
    """The mean of the losses that were logged since the evaluation before."""
    losses = [point["train_loss"] for point in told.get("points", ()) if "train_loss" in point]
    return math.fsum(losses) / len(losses) if losses else None


def _samples(trial: Trained, step: int) -> int | None:
    """Examples seen in so many steps: the step at the end of an epoch has the rest of them."""
    examples = trial.record["facts"].get("train_examples")
    if examples is None:
        return None
    training: TrainingSettings = trial.spec.training
    together = training.batch_size * training.gradient_accumulation
    steps = math.ceil(math.ceil(examples / training.batch_size) / training.gradient_accumulation)
    epochs, further = divmod(step, steps)
    return int(epochs * examples + further * together)


def _accelerator(trial: Trained) -> str | None:
    device = str(trial.record["facts"].get("device", ""))
    return None if not device or device.endswith(" CPU") else device


def _meta_info(trial: Trained) -> dict[str, Any]:
    facts, spec = trial.record["facts"], trial.spec
    packages: dict[str, str | None] = {}
    for name in ("transformers", "peft", "datasets", "bitsandbytes", "torch"):
        packages |= {f"{name}-version": facts.get("versions", {}).get(name), f"{name}-commit-hash": None}
    device, accelerator = facts.get("device"), _accelerator(trial)
    machine = str(device).removesuffix(" CPU") if device and not accelerator else None
    return {
        "model_info": {"sha": spec.revision, "created_at": None},
        "dataset_info": {spec.task: {"sha": None, "created_at": None}},
        "package_info": packages,
        "system_info": {
            "system": None,
            "release": None,
            "version": None,
            "machine": machine,
            "processor": None,
            "accelerator": accelerator,
        },
        "pytorch_info": None,
    }
