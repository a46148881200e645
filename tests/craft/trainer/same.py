"""Whether two runs ended the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from craft.results import RunResult


def same_weights(one: Path, two: Path) -> bool:
    left, right = load_file(one), load_file(two)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def same_run(one: RunResult, two: RunResult) -> bool:
    return (
        one.metrics == two.metrics
        and one.best_step == two.best_step
        and same_weights(one.adapter / "adapter_model.safetensors", two.adapter / "adapter_model.safetensors")
        and same_weights(one.adapter.parent / "predictions.safetensors", two.adapter.parent / "predictions.safetensors")
    )
