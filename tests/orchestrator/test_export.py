"""Results in the format of Hugging Face's comparison of PEFT methods, against the shape of its own files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from craft.spec import RunSpec
from orchestrator.export import main
from orchestrator.plan.trial import TrialResult
from orchestrator.review.peft_format import Trained, file_name, peft_row
from tests.orchestrator.conftest import SmallSweep

SHAPE: dict[str, Any] = {
    "run_info": {
        "created_at": str,
        "total_time": float,
        "experiment_name": str,
        "peft_branch": str,
        "train_config": {
            "model_id": str,
            "dtype": str,
            "max_seq_length": int,
            "batch_size": int,
            "batch_size_eval": int,
            "max_steps": int,
            "eval_steps": int,
            "compile": bool,
            "use_gc": bool,
            "query_template": str,
            "seed": int,
            "grad_norm_clip": float,
            "optimizer_type": str,
            "optimizer_kwargs": dict,
            "lr_scheduler": str,
            "use_amp": bool,
            "autocast_adapter_dtype": bool,
            "generation_kwargs": dict,
            "attn_implementation": str,
            "init_kv_cache_prefix": str,
        },
        "peft_config": dict,
        "error_msg": str,
    },
    "train_info": {
        "accelerator_memory_reserved_avg": int,
        "accelerator_memory_max": int,
        "accelerator_memory_reserved_99th": int,
        "train_time": float,
        "file_size": int,
        "num_trainable_params": int,
        "num_total_params": int,
        "status": str,
        "metrics": list,
    },
    "meta_info": {
        "model_info": {"sha": str, "created_at": str},
        "dataset_info": dict,
        "package_info": {
            f"{package}-{what}": str
            for package in ("transformers", "peft", "datasets", "bitsandbytes", "torch")
            for what in ("version", "commit-hash")
        },
        "system_info": dict.fromkeys(("system", "release", "version", "machine", "processor", "accelerator"), str),
        "pytorch_info": str,
    },
}
EVALUATION = {
    "step": int,
    "valid accuracy": float,
    "train loss": float,
    "train samples": int,
    "train time": float,
    "eval time": float,
    "tokens / sec": float,
    "mem allocated avg": float,
    "mem reserved avg": float,
    "elapsed time": float,
}
TEST = {
    "step": int,
    "test accuracy": float,
    "train loss": float,
    "train samples": int,
    "train total tokens": int,
    "forgetting": float,
}
REFERENCE = Path(os.environ.get("CRAFT_TEST_DATA", "absent")).parent / "reference" / "peft_method_comparison"


def check(value: Any, shape: Any, at: str = "row") -> None:
    """Fails unless `value` has the keys of `shape`, all of them and in its order, with its types; null stands for unknown."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), at
        assert list(value) == list(shape), at
        for name, inner in shape.items():
            check(value[name], inner, f"{at}.{name}")
    elif value is not None:
        assert type(value) is shape, f"{at} is {value!r}"


def check_row(row: dict[str, Any]) -> None:
    check(row, SHAPE)
    *evaluations, test = row["train_info"]["metrics"]
    for one in evaluations:
        check(one, EVALUATION, "evaluation")
    check(test, TEST, "test")
    for one in row["meta_info"]["dataset_info"].values():
        check(one, {"sha": str, "created_at": str})


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the published rows are not here")
def test_the_shape_is_that_of_every_published_row() -> None:
    files = sorted(REFERENCE.glob("*.json"))
    assert len(files) == 63
    for file in files:
        row = json.loads(file.read_text())
        check_row(row)
        assert file.name == file_name(row)


def trained(folder: Path, task: str = "glue/mrpc", device: str = "NVIDIA L40S", **metrics: float) -> Trained:
    training = {"batch_size": 8, "gradient_accumulation": 2, "epochs": 2, "learning_rate": 3e-4, "precision": "bf16-mixed"}
    spec = RunSpec(model="models/all-MiniLM-L6-v2", task=task, method="lora", parameters={"rank": 8}, training=training, seed=3)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    (folder / "adapter_model.safetensors").write_bytes(bytes(1234))
    record = {
        "spec": spec.model_dump(mode="json"),
        "kind": "classification",
        "metrics": {"score": 71.0, **metrics},
        "counts": {
            "trainable_parameters": 73_728,
            "head_parameters": 770,
            "total_parameters": 22_000_000,
            "adapter_bytes": 294_912,
            "peak_memory_bytes": 5_000_000,
        },
        "facts": {"train_examples": 100, "device": device, "versions": {"torch": "2.9.0", "peft": "0.19.1"}},
    }
    points = [{"step": 3, "train_loss": 0.75}, {"step": 6, "train_loss": 0.25}, {"step": 6, "cpu_percent": 90.0}]
    told = [
        {"step": 7, "metrics": {"search_score": 70.0, "search_accuracy": 70.0}, "points": points},
        {"step": 14, "metrics": {"search_score": 72.0, "search_accuracy": 72.0}, "points": []},
    ]
    result = TrialResult(spec.key, "finished", record["metrics"], steps=14, seconds=61.5)  # type: ignore[arg-type]
    return Trained("LoRA r8 qv", record, result, told, folder, began=1_750_000_000.25)


def test_what_the_record_knows_is_there_and_what_it_does_not_is_null(tmp_path: Path) -> None:
    row = peft_row(trained(tmp_path / "a", accuracy=71.0, forgetting=0.03))
    check_row(row)
    run, train, meta = row["run_info"], row["train_info"], row["meta_info"]
    assert run["created_at"] == "2025-06-15T15:06:40+00:00"
    assert file_name(row) == "lora--all-MiniLM-L6-v2-LoRA-r8-qv-glue-mrpc-seed-3.json"
    config = run["train_config"]
    assert (config["batch_size"], config["max_steps"], config["eval_steps"], config["seed"]) == (16, 14, 7, 3)
    assert (config["dtype"], config["use_amp"], config["optimizer_kwargs"]["lr"]) == ("float32", True, 3e-4)
    assert (train["num_trainable_params"], train["file_size"]) == (74_498, 1234)
    assert train["accelerator_memory_max"] == 5_000_000
    first, second, test = train["metrics"]
    assert (first["valid accuracy"], first["train loss"]) == (0.70, 0.5)
    # 13 micro-batches of 8 make 7 steps of two of them, the last of each epoch smaller.
    assert (first["train samples"], second["train samples"]) == (100, 200)
    assert second["train loss"] is None
    assert (test["test accuracy"], test["forgetting"]) == (0.71, 0.03)
    assert run["peft_config"] == {"peft_type": "LORA", "r": 8}
    assert meta["package_info"]["torch-version"] == "2.9.0"
    unknown = (
        train["train_time"],
        first["eval time"],
        meta["system_info"]["processor"],
        meta["dataset_info"]["glue/mrpc"]["sha"],
    )
    assert unknown == (None, None, None, None)


def test_a_score_that_is_no_accuracy_and_memory_that_is_no_gpus_are_left_open(tmp_path: Path) -> None:
    row = peft_row(trained(tmp_path / "a", task="glue/cola", device="x86_64 CPU", matthews=55.0))
    check_row(row)
    assert row["train_info"]["metrics"][-1]["test accuracy"] is None
    assert row["train_info"]["accelerator_memory_max"] is None
    assert (row["meta_info"]["system_info"]["machine"], row["meta_info"]["system_info"]["accelerator"]) == ("x86_64", None)


@pytest.mark.slow
def test_a_sweep_is_written_as_one_file_for_each_trial(small_sweep: SmallSweep, tmp_path: Path) -> None:
    from orchestrator.review.past_sweep import read_folder

    to = tmp_path / "results"
    assert main([str(small_sweep.folder), "--format", "peft", "--to", str(to)]) == 0
    entries = [one for one in read_folder(small_sweep.folder).entries if one.result is not None]
    rows = [json.loads(file.read_text()) for file in sorted(to.iterdir())]
    assert len(rows) == len(entries)
    for row in rows:
        check_row(row)
        *evaluations, _ = row["train_info"]["metrics"]
        assert evaluations
        assert row["run_info"]["created_at"].startswith("20")
    known = sorted(one.result.metrics["accuracy"] / 100 for one in entries if one.result and "accuracy" in one.result.metrics)
    told = [row["train_info"]["metrics"][-1]["test accuracy"] for row in rows]
    assert sorted(one for one in told if one is not None) == known
    assert main([str(small_sweep.folder), "--format", "peft", "--to", str(to)]) == 2, "nothing is written over"
