"""GPUs that stay idle, and estimates held against shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.spec import RunSpec
from craft.trainer import counting
from orchestrator.plan.plan import Plan
from orchestrator.plan.table import gpu_lines
from orchestrator.plan.ways import CONTEXT_BYTES, Gpu, choose_way, refusal
from orchestrator.sweepfile.resources import Resources
from tests.orchestrator.plans import count, toy_sweep

GIB = 2**30


EIGHT = {"CPU": 64.0, "GPU": 8.0}


@pytest.mark.parametrize(
    ("resources", "machines", "slots"),
    [
        (Resources(gpu=0.6), [{"CPU": 8, "GPU": 2}], 2),  # a share lies on one GPU
        (Resources(gpu=0.3), [{"CPU": 8, "GPU": 2}], 6),
        (Resources(gpu=3), [EIGHT], 2),  # a trial lies on one machine
        (Resources(gpu=3), [EIGHT, EIGHT], 4),
        (Resources(gpu=4, cpu=20), [EIGHT], 0),
        (Resources(processes=2, cpu=0.5), [{"CPU": 2}], 2),
    ],
)
def test_slots_count_whole_trials(resources: Resources, machines: list[dict[str, float]], slots: int) -> None:
    assert resources.slots(*machines) == slots


def test_a_block_says_how_the_gpus_of_the_file_are_shared(tmp_path: Path) -> None:
    sweep = toy_sweep(tmp_path, "resources: {gpu: 2}\nspace: [{method: lora, rank: 1, resources: {parallel: shard}}]\n")
    assert sweep.shares == [Resources(gpu=2, parallel="shard")]


def plan_of(folder: Path, resources: str, estimate: int | None = None) -> Plan:
    """A plan of two blocks; the estimate is a GiB for each example of a micro-batch, unless given."""
    blocks = "  - {method: lora, rank: 2, batch_size: 8}\n  - {method: full, batch_size: 21}\n"
    sweep = toy_sweep(folder, f"resources: {resources}\nspace:\n{blocks}")
    return count(sweep, memory=lambda run: run.training.batch_size * GIB if estimate is None else estimate)


def test_what_does_not_fit_into_its_share_is_named_with_the_share_that_would(tmp_path: Path) -> None:
    cards = [Gpu("A100", 80 * GIB), Gpu("A100", 40 * GIB)]
    (line,) = gpu_lines(plan_of(tmp_path, "{gpu: 0.25}"), cards)
    assert line.doubt
    assert "about 21.0 GiB each of 10.0 GiB (A100)" in line.value
    assert "too small for Full fine-tuning" in line.value
    assert "LoRA" not in line.value
    assert "(21.0 GiB): resources.gpu 1; 8 at once on 2 GPUs, 0 idle" in line.value
    assert "; 4 at once on 2 GPUs, 0.4 idle" in gpu_lines(plan_of(tmp_path, "{gpu: 0.4}"), cards)[0].value
    assert not gpu_lines(plan_of(tmp_path, "{gpu: 1}"), cards)[0].doubt
    (line,) = gpu_lines(plan_of(tmp_path, "{gpu: 1}"), [Gpu("L4", 20 * GIB)])
    assert "(21.0 GiB): more GPUs or less memory" in line.value


def test_the_context_counts(tmp_path: Path) -> None:
    card = [Gpu("L4", 20 * GIB)]
    doubts = [gpu_lines(plan_of(tmp_path, "{gpu: 1}", 20 * GIB - CONTEXT_BYTES + more), card)[0].doubt for more in (0, 1)]
    assert doubts == [False, True]


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
    plan = plan_of(tmp_path, "{gpu: 3}")
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
