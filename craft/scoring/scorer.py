"""`Scorer`: what a run asks for its scores, whether a task head or a language model answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from craft.scoring.encoding import Encoded

PREDICTIONS_FILE = "predictions.safetensors"

Keep = Callable[[dict[str, float]], None]
"""Called with the metrics so far while the reported splits are scored, so that a run that breaks off can continue there."""


@dataclass(frozen=True)
class Reported:
    """`score` and the other metrics of the reported splits, with notes for readers and with facts (`craft.scoring.credits`)."""

    metrics: dict[str, float]
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


class Scorer(Protocol):
    """One run's data, ready for its model. `examples` and `facts` go into the run's facts, `notes` into its notes.

    `passes` holds the number of examples of each split, by the name that watchers get: `search`, and the reported ones.
    `searched` has the fact SEARCH_CREDITS of the last call of `search`.
    """

    train: Encoded
    examples: dict[str, int]
    passes: dict[str, int]
    notes: list[str]
    facts: dict[str, Any]
    searched: dict[str, str]

    def search(self, model: nn.Module) -> dict[str, float]:
        """Computes `search_score` and the other metrics of the search split. Raises ValueError if an output is not finite."""
        ...

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        """Scores the reported splits, and writes the outputs behind the scores into `directory`, or reads those there."""
        ...


def split_name(suffix: str) -> str:
    """Returns the name of a reported split for watchers and in files: `reported`, or MNLI's `matched` and `mismatched`."""
    return suffix.removeprefix("_") or "reported"


def count_examples(train: int, search: int, reported: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Makes a scorer's `examples` and `passes` from the numbers of its examples."""
    examples = {"train_examples": train, "search_examples": search, "reported_examples": sum(reported.values())}
    return examples, {"search": search, **reported}
