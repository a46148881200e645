"""What the host waits for on a GPU: how often a step, and at which line. A wait keeps it from running ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from craft.spec import RECOVERY, RunSpec
from craft.trainer.cuts import cut_and_score
from craft.trainer.training import train_run
from tests.craft.pretended_gpu.gpu import pretended

STEPS = (4, 8)
"""Of two runs, whose difference is the steps' own."""


def waits_a_step(run: Callable[[int], Any]) -> dict[str, float]:
    """Waits of one step at each line, from runs of fewer and of more steps."""
    counts = []
    for steps in STEPS:
        with pretended() as gpu:
            run(steps)
        counts.append(gpu.waits)
    more = Counter(counts[1])
    more.subtract(counts[0])
    return {f"{why}: {line}": count / (STEPS[1] - STEPS[0]) for (why, line), count in more.items() if count > 0}


def spec_of(model: str, method: str, task: str, steps: int) -> RunSpec:
    parameters: dict[str, Any] = {"craft": {"ranks": ["all", 8, 8]}, "lora": {"rank": 4}}[method]
    training = {"max_steps": steps, "batch_size": 4, "train_examples": 64, "eval_examples": 8, "max_length": 8}
    training |= {"evaluate_every": "end", "head_start": "random", "select": "last"}
    return RunSpec(model=model, task=task, method=method, parameters=parameters, training=training)


@pytest.mark.parametrize("method", ["craft", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_step_waits_where_it_is_logged_alone(method: str, tiny_bert: str, tmp_path: Path) -> None:
    """A run of fewer than a hundred steps logs each of them. Plain Trainer with PEFT's LoRA waits seven times a step."""
    waits = waits_a_step(lambda steps: train_run(spec_of(tiny_bert, method, "toy/sentiment", steps), tmp_path / str(steps)))
    assert {line.rpartition(" ")[2] for line in waits} == {"read_losses"}, waits
    assert sum(waits.values()) <= 2, waits


def test_a_recovering_step_waits_once_for_the_adapter(tiny_bert: str, tmp_path: Path) -> None:
    spec = spec_of(tiny_bert, "craft", "toy/sentiment", 20)
    result = train_run(spec, tmp_path / "run")
    with pretended() as gpu:
        cut_and_score(result.adapter, "parameters:100", tmp_path / "cut", recovery=RECOVERY)
    of_cutting = {why: count for (why, line), count in gpu.waits.items() if "methods/cutting.py" in line}
    assert of_cutting == {"copy from the GPU": 1 + RECOVERY * 20}
    assert not any("svd" in why for why, _ in gpu.waits)
