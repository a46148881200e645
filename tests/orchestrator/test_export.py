"""A sweep's results written for others: as one CSV, and in the format of Hugging Face's comparison of PEFT methods."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from craft.spec import RunSpec
from orchestrator.export import main
from orchestrator.plan.trial import TrialResult
from orchestrator.results.summary import Entry
from orchestrator.review.past_sweep import read_folder
from orchestrator.review.peft_format import Trained, file_name, peft_row
from orchestrator.review.trials_table import read_trials, write_trials
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


def test_trials_are_one_csv_from_which_the_same_trials_are_read(tmp_path: Path) -> None:
    """Of a sweep of an older version, which was cut off: its finished trials alone."""
    folder = shutil.copytree(Path(__file__).parents[1] / "made_before" / "folders" / "tpe", tmp_path / "runs" / "tpe")
    effective = folder / "sweep.yaml"
    effective.write_text(effective.read_text().replace("@HERE@", str(tmp_path)))
    assert main([str(folder), "--format", "trials", "--to", str(tmp_path / "out")]) == 0
    file = tmp_path / "out" / "trials.csv"
    entries = [one for one in read_folder(folder).entries if one.result is not None and one.result.status == "finished"]
    found = read_trials(file)
    assert len(found) == len(entries) > 1
    for one, before in zip(found, entries, strict=True):
        assert replace(one, result=None) == replace(before, result=None)
        assert one.result is not None
        assert before.result is not None
        known = (before.result.metrics, before.result.counts, before.result.steps, before.result.seconds)
        assert (one.result.metrics, one.result.counts, one.result.steps, one.result.seconds) == known
    table = pd.read_csv(file)
    assert table["metric.score"].tolist() == [one.result and one.result.metrics["score"] for one in entries]
    assert "checkpoint_" not in file.read_text(), "where an adapter lay says nothing elsewhere"


@pytest.mark.parametrize(
    "value", ["", "12", "NaN", "all,8,8", '"quoted"', "[1, 2", None, 0.1 + 0.2, True, [1, "a"], {"a": None}]
)
def test_a_parameter_is_read_as_it_was(tmp_path: Path, value: Any) -> None:
    result = TrialResult("1e5", "finished", {"score": 1.0})
    one = Entry("1e5", "c", "label", "lora", "glue/rte", 0, "honest", {} if value is None else {"it": value}, result)
    assert write_trials([one], tmp_path / "t.csv") == 1
    assert read_trials(tmp_path / "t.csv") == [one]


@pytest.mark.parametrize("cut", ["a,b\n1,2\n", "", "row"])
def test_a_table_of_something_else_is_refused(tmp_path: Path, cut: str) -> None:
    file = tmp_path / "t.csv"
    result = TrialResult("k", "finished", {"score": 1.0})
    write_trials([Entry("k", "c", "label", "lora", "glue/rte", 0, "honest", {}, result)], file)
    file.write_text(file.read_text().splitlines()[0] + "\nk,c\n" if cut == "row" else cut)
    with pytest.raises(ValueError, match=r"t\.csv:2: a trial without" if cut == "row" else "has no column"):
        read_trials(file)
