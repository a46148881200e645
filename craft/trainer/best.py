"""`Best`: the evaluation that a run has selected so far, with its weights; and how a checkpoint holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from craft.trainer.adapter_folder import trainable_state


@dataclass
class Best:
    """The evaluation selected so far, with its trainable weights in CPU memory."""

    score: float = float("-inf")
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    weights: dict[str, Tensor] | None = None

    def wants(self, metrics: dict[str, float], select: Literal["best", "last"]) -> bool:
        """Whether an evaluation with `metrics` is to be selected instead."""
        return select == "last" or metrics["search_score"] > self.score

    def take(self, step: int, metrics: dict[str, float], model: nn.Module) -> None:
        """Selects the evaluation of `step`, with the weights that `model` has now."""
        self.score, self.step, self.metrics, self.weights = metrics["search_score"], step, metrics, trainable_state(model)

    def save(self, file: Path, step: int) -> dict[str, Any] | None:
        """Writes the weights, unless they are those of `step`, which a checkpoint holds anyway.

        Returns:
            What `load` needs beside them; None before the first evaluation.
        """
        if self.weights is None:
            return None
        if self.step != step:
            save_file(self.weights, file)
        return {"score": self.score, "step": self.step, "metrics": self.metrics}

    def load(self, content: dict[str, Any] | None, file: Path, step: int, model: nn.Module) -> None:
        """Takes over what `save` made. `model` has the weights of `step`."""
        if content is None:
            return
        self.score, self.step, self.metrics = content["score"], content["step"], content["metrics"]
        self.weights = load_file(file) if self.step != step else trainable_state(model)
