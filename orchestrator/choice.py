"""`Choice`: a configuration that was picked from a sweep, whose adapters can be written and loaded."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from orchestrator.adapters.taking import Form
    from orchestrator.review.past_sweep import PastSweep
    from orchestrator.review.pick import Pick


@dataclass(frozen=True)
class Choice:
    """A configuration of a sweep that was picked.

    Attributes:
        record: the sweep.
        pick: the configuration with the reason.
    """

    record: PastSweep
    pick: Pick

    @property
    def label(self) -> str:
        """The name of the configuration."""
        from orchestrator.results.table import full_label

        return full_label(self.pick.summary)

    @property
    def reason(self) -> str:
        """The sentence that says why it is this one."""
        return self.pick.reason

    def save(self, to: str | Path, *, task: str | None = None, seed: int | None = None, form: Form = "adapter") -> list[Path]:
        """Writes its adapter with a model card, for each task, and returns the folders: `craft-sweeps take`.

        Args:
            to: a folder that is not there yet.
            task: the only task to write.
            seed: the seed of the trial, instead of the best by the search score.
            form: `lora`: the same change of weights as a LoRA; `merged`: a full model in float32.

        Raises:
            ValueError: `to` is there, or no trial has finished.
        """
        from orchestrator.adapters.taking import take_adapters

        if Path(to).exists():
            raise ValueError(f"{to} is there already; nothing is written over")
        with take_adapters(self.record, self.pick, Path(to), task=task, seed=seed, form=form) as adapters:
            pass
        return [adapter.folder for adapter in adapters]

    def load(self, task: str | None = None, seed: int | None = None) -> tuple[nn.Module, PreTrainedTokenizerBase]:
        """Loads the model with its adapter, in evaluation mode on the CPU, and its tokenizer.

        Raises:
            ValueError: the sweep has several tasks and `task` names none, or the adapter or its base cannot be loaded.
        """
        from craft import load_adapter

        tasks = self.record.sweep.task_names
        if task is None and len(tasks) > 1:
            raise ValueError(f"say which task: load(task=...), one of {', '.join(tasks)}")
        with tempfile.TemporaryDirectory() as folder:
            (adapter,) = self.save(Path(folder) / "adapter", task=task, seed=seed)
            return load_adapter(adapter)
