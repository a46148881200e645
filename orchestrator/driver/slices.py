"""What becomes of the slices of nested ranks, as told of their training: Ray knows the training alone.

training   started   an evaluation     finished             failed       stopped, interrupted
slice      started   its own numbers   its own, or failed   as it does   with its own last evaluation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.plan.trial import TrialResult


@dataclass(frozen=True)
class EndedSlice:
    """A slice of a training that finished, and its adapter where the driver can read it."""

    result: TrialResult
    adapter: Path | None = None


def progress_of(key: str, progress: Mapping[str, Any]) -> dict[str, Any] | None:
    """The slice's own part of its training's evaluation; None if the training scored it not."""
    metrics = progress.get("slices", {}).get(key)
    own = {name: value for name, value in progress.items() if name not in ("slices", "points")}
    return None if metrics is None else {**own, "metrics": metrics}


def result_of(
    key: str, training: TrialResult, given: Sequence[TrialResult], last: Mapping[str, Any], before: TrialResult | None
) -> TrialResult:
    """How the slice ended when its training ended so.

    Args:
        given: results that the training gave its slices.
        last: the training's last evaluation.
        before: what is on record for the slice.
    """
    own = next((one for one in given if one.key == key), None)
    if own is not None:
        return own
    if training.status == "finished":
        error = "its training finished and told nothing of these ranks"
        return TrialResult(key, "failed", seconds=training.seconds, error=error)
    if training.status == "failed":
        return replace(training, key=key)
    told = progress_of(key, last)
    metrics = told["metrics"] if told else before.metrics if before else {}
    return replace(training, key=key, metrics=dict(metrics))
