"""`Scorer`: what a run asks of its kind of task, whatever answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.utils.data import Dataset

PREDICTIONS_FILE = "predictions.safetensors"

Keep = Callable[[dict[str, float]], None]
"""Told, while the reported splits are scored, what is known so far: a run that breaks off then goes on from there."""


@dataclass(frozen=True)
class Reported:
    """`score` and its companions on the reported splits, and what a reader must know of them."""

    metrics: dict[str, float]
    notes: list[str] = field(default_factory=list)


class Scorer(Protocol):
    """One run's data, ready for its model. `sizes` goes into the run's facts; `notes` into its notes."""

    train: Dataset[Any]
    sizes: dict[str, int]
    notes: list[str]
    facts: dict[str, Any]

    def search(self, model: nn.Module) -> dict[str, float]:
        """`search_score` and its companions. Raises ValueError if the model's outputs are not finite."""
        ...

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        """The reported splits' scores; the outputs behind them are written into `directory`, where those that are there
        already (from the same run and the same weights) are taken as they are. Raises ValueError as `search` does."""
        ...
