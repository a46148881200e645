"""`Scorer`: what a run asks for its scores, whether a task head or a language model answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.utils.data import Dataset

PREDICTIONS_FILE = "predictions.safetensors"

Keep = Callable[[dict[str, float]], None]
"""Called with the metrics known so far while the reported splits are scored, so that a run that breaks off can go on there."""


@dataclass(frozen=True)
class Reported:
    """`score` and the other metrics of the reported splits, with notes for readers and with facts (`craft.scoring.credits`)."""

    metrics: dict[str, float]
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


class Scorer(Protocol):
    """One run's data, ready for its model. `sizes` and `facts` go into the run's facts, `notes` into its notes.

    `passes` holds the number of examples of each split, by the name that its ticks give: `search`, and the reported ones.
    """

    train: Dataset[Any]
    sizes: dict[str, int]
    passes: dict[str, int]
    notes: list[str]
    facts: dict[str, Any]

    def search(self, model: nn.Module) -> dict[str, float]:
        """`search_score` and the other metrics of the search split. Raises ValueError if an output is not finite."""
        ...

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        """The reported splits' scores.

        Writes the outputs behind them into `directory`; outputs of the same run and weights that lie there already are read.
        Raises ValueError as `search` does.
        """
        ...
