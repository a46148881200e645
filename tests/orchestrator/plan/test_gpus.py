"""What a plan costs on GPUs, next to operations that were counted by hand, layer by layer, and how trials share them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from craft.spec import RunSpec
from craft.trainer import counting
from orchestrator.commands.api import plan
from orchestrator.plan.gpu_costs import (
    CARDS,
    LAUNCH,
    PRODUCTS,
    READS,
    GpuCost,
    count_operations,
    find_card,
    gpu_cost,
    padded,
    run_of,
    speed_on,
)
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.table import gpu_lines
from orchestrator.plan.ways import CONTEXT_BYTES, Gpu, choose_way, refusal
from orchestrator.sweepfile.resources import Resources
from tests.craft.trainer.test_counting import config_of
from tests.orchestrator.conftest import Cli
from tests.orchestrator.plans import count, toy_sweep

H100 = CARDS["H100"]
SWEEP = """\
model: {model}
tasks: [{task}]
seeds: [0, 1]
protocol: customary
training: {{max_steps: 1000, batch_size: 8, max_length: 128, precision: bfloat16, evaluate_every: end{more}}}
space: [{space}]
resources: {{gpu: 1}}
"""
LORA = "{method: lora, rank: 8, projections: [q, v]}"


def plan_of(folder: Path, shape: str, task: str, space: str = LORA, more: str = "") -> Plan:
    model = config_of(shape.lower(), folder)
    return make_plan(toy_sweep(folder, SWEEP.format(model=model, task=task, space=space, more=more)))


def pass_of(tokens: int, layers: int, width: int, keys: int, inner: int, matrices: int) -> int:
    """A forward pass: per token q and o, k and v, up and down, or a gate too, then the scores of every pair and their sums."""
    products = tokens * layers * (2 * 2 * width * width + 2 * 2 * width * keys + matrices * 2 * width * inner)
    return products + layers * 2 * 2 * tokens * tokens * width


def test_an_encoder_does_the_operations_of_its_layers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "RoBERTa-base", "glue/cola", f"{LORA}, {{method: full}}, {{method: head}}")
    lora, full, head = (count_operations(run_of(plan, row, "glue/cola"), row, 128) for row in plan.trained)
    forward = pass_of(128, layers=12, width=768, keys=768, inner=3072, matrices=2)
    adapter = 6 * 2 * 12 * 2 * 768 * 8 * 128
    assert lora.forward == pytest.approx(forward, rel=0.02)  # the pooler and nothing else may be in it
    assert lora.trained == pytest.approx(2 * forward + adapter / 2, rel=0.02)
    assert full.trained == pytest.approx(3 * forward, rel=0.02)
    assert head.trained / 3 == pytest.approx(forward, rel=0.02)


@pytest.mark.slow
def test_a_decoder_does_a_forward_pass_more_under_checkpointing_and_reads_its_weights_for_each_token(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "LLaMA3-8B", "commonsense", more=", gradient_checkpointing: true, eval_batch_size: 16")
    (row,) = plan.trained
    run = run_of(plan, row, "commonsense")
    forward = pass_of(128, layers=32, width=4096, keys=1024, inner=14336, matrices=3)
    parameters = 32 * 8 * (2 * 4096 + 4096 + 1024)
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


def test_layers_on_several_gpus_hold_all_of_them_while_one_computes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "RoBERTa-base", "glue/cola", "{method: qlora, rank: 8}")

    def cost(resources: Resources) -> GpuCost:
        return gpu_cost(replace(plan, sweep=plan.sweep.model_copy(update={"resources": resources})), H100, 4)

    alone, whole = cost(Resources(gpu=1)), cost(Resources(gpu=4, parallel="replicate"))
    layers = cost(Resources(gpu=4, parallel="layers"))
    assert whole.gpu_hours == alone.gpu_hours
    assert (layers.gpu_hours, layers.scoring_hours) == pytest.approx((4 * alone.gpu_hours, 4 * alone.scoring_hours))
    assert layers.wall_hours == pytest.approx(alone.gpu_hours)


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


GIB = 2**30


def shared(folder: Path, resources: str, estimate: int | None = None) -> Plan:
    """A plan of two blocks; the estimate is a GiB for each example of a micro-batch, unless given."""
    blocks = "  - {method: lora, rank: 2, batch_size: 8}\n  - {method: full, batch_size: 21}\n"
    sweep = toy_sweep(folder, f"resources: {resources}\nspace:\n{blocks}")
    return count(sweep, memory=lambda run: run.training.batch_size * GIB if estimate is None else estimate)


def test_what_does_not_fit_into_its_share_is_named_with_the_share_that_would(tmp_path: Path) -> None:
    cards = [Gpu("A100", 80 * GIB), Gpu("A100", 40 * GIB)]
    (line,) = gpu_lines(shared(tmp_path, "{gpu: 0.25}"), cards)
    assert line.doubt
    assert "about 21.0 GiB each of 10.0 GiB (A100)" in line.value
    assert "too small for Full fine-tuning" in line.value
    assert "LoRA" not in line.value
    assert "(21.0 GiB): resources.gpu 1; 8 at once on 2 GPUs, 0 idle" in line.value
    assert "; 4 at once on 2 GPUs, 0.4 idle" in gpu_lines(shared(tmp_path, "{gpu: 0.4}"), cards)[0].value
    assert not gpu_lines(shared(tmp_path, "{gpu: 1}"), cards)[0].doubt
    (line,) = gpu_lines(shared(tmp_path, "{gpu: 1}"), [Gpu("L4", 20 * GIB)])
    assert "(21.0 GiB): more GPUs or less memory" in line.value
    near = [shared(tmp_path, "{gpu: 1}", 20 * GIB - CONTEXT_BYTES + more) for more in (0, 1)]
    assert [gpu_lines(plan, [Gpu("L4", 20 * GIB)])[0].doubt for plan in near] == [False, True], "the context counts"


def test_the_way_is_the_one_that_fits(tiny_bert: str) -> None:
    run, four = RunSpec(model=tiny_bert, task="toy/sentiment", method="full"), Resources(gpu=4)
    whole, part = (counting.estimated_memory(run, way=way, count=4) for way in ("replicate", "shard"))
    assert part < whole < counting.estimated_memory(run)
    assert choose_way(run, four, whole + CONTEXT_BYTES).way == "replicate"
    assert choose_way(run, four, whole + CONTEXT_BYTES - 1)[:2] == ("shard", part)
    assert choose_way(run, Resources(processes=4), None).way == "replicate"
    assert choose_way(run, Resources(gpu=4, parallel="replicate"), 1).way == "replicate"
    quantized = RunSpec(model=tiny_bert, task="toy/sentiment", method="qlora")
    assert choose_way(quantized, four, 1).way == "layers"
    assert "quantized" in (refusal("qlora", {}, "shard") or "")
    assert refusal("qlora", {}, "layers") is None


def test_the_plan_says_how_processes_share_a_trial_and_what_stays_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "estimated_memory", lambda _run, way, count: 12 * GIB // (count if way == "shard" else 1))
    plan = shared(tmp_path, "{gpu: 3}")
    (line,) = gpu_lines(plan, [Gpu("A100", 80 * GIB)], [8.0])
    assert line.value.startswith("3 processes, each with ")
    assert "about 12.0 GiB each of 80.0 GiB (A100); replicate (the model fits on one GPU)" in line.value
    assert line.value.endswith("2 at once on 8 GPUs, 2 idle")
    assert line.doubt
    (line,) = gpu_lines(plan, [Gpu("L4", 8 * GIB)], [6.0])
    assert "about 4.0 GiB each of 8.0 GiB (L4); " in line.value
    assert "shard (12.0 GiB do not fit on one GPU)" in line.value
    assert not line.doubt
    (line,) = gpu_lines(plan, [Gpu("old", 4 * GIB)], [6.0])
    assert "too small for" in line.value
    (line,) = gpu_lines(plan, [], [6.0])
    assert "shard where a GPU has less than 12.5 GiB, with 4.0 GiB each" in line.value
