"""Whether two runs ended equal, bit for bit or close."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from craft.results import RunResult


def same_weights(*files: Path) -> bool:
    left, right = map(load_file, files)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def close_weights(*runs: RunResult, atol: float) -> bool:
    left, right = (load_file(run.adapter / "adapter_model.safetensors") for run in runs)
    return all(torch.allclose(left[name], right[name], atol=atol) for name in left)


def same_run(*runs: RunResult) -> bool:
    left, right = runs
    return (left.metrics, left.best_step) == (right.metrics, right.best_step) and all(
        same_weights(*(run.adapter.parent / file for run in runs))
        for file in ("adapter/adapter_model.safetensors", "predictions.safetensors")
    )
