"""What a plan costs on a GPU, next to operations that were counted by hand, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from orchestrator.commands.api import plan
from orchestrator.plan.gpu_costs import (
    CARDS,
    LAUNCH,
    PRODUCTS,
    READS,
    START,
    count_operations,
    find_card,
    gpu_cost,
    padded,
    run_of,
    speed_on,
)
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.sweepfile.load import load_sweep
from tests.orchestrator.conftest import Cli
from tests.orchestrator.sweepfile.test_paper_sweeps import CONFIGS

H100 = CARDS["H100"]
SWEEP = """
name: costs
model: {model}
tasks: [{task}]
seeds: [0, 1]
protocol: customary
training: {{max_steps: 1000, batch_size: 8, max_length: 128, precision: bfloat16, evaluate_every: end{more}}}
space: [{space}]
resources: {{gpu: 1}}
"""
LORA = "{method: lora, rank: 8, projections: [q, v]}"


def plan_of(folder: Path, shape: str, task: str, space: str = LORA, more: str = "", changes: Sequence[str] = ()) -> Plan:
    (folder / "config.json").write_text(json.dumps(CONFIGS[shape]))
    file = folder / "sweep.yaml"
    file.write_text(SWEEP.format(model=folder, task=task, space=space, more=more))
    return make_plan(load_sweep(file, changes))


def encoder(tokens: int, layers: int = 12, width: int = 768, inner: int = 3072) -> int:
    """A forward pass of RoBERTa: per token q, k, v, o, up and down, then the scores of every pair and their sums of values."""
    products = tokens * layers * (4 * 2 * width * width + 2 * 2 * width * inner)
    return products + layers * 2 * 2 * tokens * tokens * width


def decoder(tokens: int, layers: int = 32, width: int = 4096, inner: int = 14336, keys: int = 1024) -> int:
    """A forward pass of LLaMA3-8B: q and o, the smaller k and v, gate, up and down; attention as above."""
    products = tokens * layers * (2 * 2 * width * width + 2 * 2 * width * keys + 3 * 2 * width * inner)
    return products + layers * 2 * 2 * tokens * tokens * width


def test_an_encoder_does_the_operations_of_its_layers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "RoBERTa-base", "glue/cola", f"{LORA}, {{method: full}}, {{method: head}}")
    lora, full, head = (count_operations(run_of(plan, row, "glue/cola"), row, 128) for row in plan.trained)
    forward, adapter = encoder(128), 6 * 2 * 12 * 2 * 768 * 8 * 128
    assert lora.forward == pytest.approx(forward, rel=0.02)  # the pooler and nothing else may be in it
    assert lora.trained == pytest.approx(2 * forward + adapter / 2, rel=0.02)
    assert full.trained == pytest.approx(3 * forward, rel=0.02)
    assert head.trained / 3 == pytest.approx(forward, rel=0.02)


@pytest.mark.slow
def test_a_decoder_does_a_forward_pass_more_under_checkpointing_and_reads_its_weights_for_each_token(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "LLaMA3-8B", "commonsense", more=", gradient_checkpointing: true, eval_batch_size: 16")
    (row,) = plan.trained
    run = run_of(plan, row, "commonsense")
    forward, parameters = decoder(128), 32 * 8 * (2 * 4096 + 4096 + 1024)
    assert row.counts.trainable_parameters == parameters
    counted = count_operations(run, row, 128)
    assert counted.forward == pytest.approx(forward, rel=1e-6)
    assert counted.trained == pytest.approx(3 * forward + 6 * parameters * 128, rel=1e-6)
    seconds, rate = speed_on(H100, run, row, None), PRODUCTS * 989.4e12
    assert seconds.step == pytest.approx(max(8 * counted.trained / rate, 3 * 32 * LAUNCH), rel=1e-6)
    read = 2 * 6_979_321_856 / (READS * 3.35e12)
    host = 32 * LAUNCH
    assert seconds.example == pytest.approx(
        4 * forward / rate + 32 * max(read, host, 16 * 4 * 2 * 6_979_321_856 / rate) / 16, rel=1e-3
    )


def test_hours_are_those_of_all_trainings_and_share_a_gpu(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "RoBERTa-base", "glue/cola")
    (row,) = plan.trained
    seconds = speed_on(H100, run_of(plan, row, "glue/cola"), row, None)
    once = START + 1000 * seconds.step + 2 * 1043 * seconds.example
    cost = gpu_cost(plan, H100, 2)
    assert (3600 * cost.gpu_hours, 3600 * cost.wall_hours) == pytest.approx((2 * once, once))
    assert gpu_cost(plan, H100, 8).wall_hours == pytest.approx(cost.wall_hours), "two trainings use two of eight GPUs"
    assert cost.longest_texts
    quarter = gpu_cost(plan_of(tmp_path, "RoBERTa-base", "glue/cola", changes=["resources.gpu=0.25"]), H100, 2)
    assert cost.gpu_hours / 4 <= quarter.gpu_hours < cost.gpu_hours


def test_a_batch_is_as_long_as_its_longest_text(tmp_path: Path) -> None:
    training = plan_of(tmp_path, "RoBERTa-base", "glue/cola").sweep.training
    lengths = np.array([10, 20, 500])
    draws = np.minimum(np.random.default_rng(0).choice(lengths, (20_000, 8)), 128).max(axis=1).mean()
    assert padded(lengths, training) == pytest.approx((draws, 158 / 3), rel=0.01)
    assert padded(lengths, training.model_copy(update={"group_by_length": True})) == pytest.approx((158 / 3, 158 / 3))


def test_the_micro_batch_that_fits_depends_on_the_memory(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "RoBERTa-base", "glue/cola", more=", gradient_accumulation: 8")
    costs = [gpu_cost(plan, find_card("L4", memory=memory)) for memory in ("100MiB", "2GiB", "1TiB")]
    assert all("of its 64 examples a step" in cost.lines[-1] for cost in costs)
    (none, some, all_) = ((cost.micro_batch, cost.micro_batch_checkpointed) for cost in costs)
    assert (none, all_) == ((0, 0), (64, 64))
    assert 1 <= some[0] < some[1] <= 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu", "rtx4091"], "no GPU 'rtx4091' in the table. Did you mean 'RTX 4090'?"),
        (["--gpu", "TPU"], "describe another one with --tflops N --memory SIZE"),
        (["--gpus", "8"], "go with --gpu NAME"),
        (["--tflops", "0"], "--tflops: got 0; a number above 0"),
        (["--tflops", "1", "--memory", "lots"], "--memory: got 'lots'; give a size above 0"),
    ],
)
def test_a_wrong_gpu_is_refused_before_anything_is_planned(options: list[str], message: str, cli: Cli) -> None:
    assert message in " ".join(cli("plan", "absent.yaml", *options, status=2).err.split())
    assert (find_card("rtx4090"), find_card("h100", tflops=500.0).bfloat16) == (CARDS["RTX 4090"], 500.0)


def test_without_data_the_plan_has_steps_and_its_report_and_python_the_cost(tmp_path: Path, cli: Cli) -> None:
    plan_of(tmp_path, "RoBERTa-base", "glue/cola")
    file = str(tmp_path / "sweep.yaml")
    out = " ".join(cli("plan", file, "--gpu", "L4", "--set", "training.max_steps=null").out.split())
    assert f" {2 * 3 * -(-8551 // 8):,} " in out
    assert "?" not in out
    assert "the data of glue/cola are not here. They are in the hub's nyu-mll/glue" in out
    assert "--set data.root=FOLDER" in out
    assert "L4: " in out
    part = cli("plan", file, "--gpu", "L4", "--gpus", "2", "--json").report["gpu"]
    cost = plan(file).cost("L4", 2)
    assert cost.longest_texts
    assert part == {name: value for name, value in vars(cost).items() if name != "lines"}
    assert cli("plan", file, "--json").report["gpu"] is None
