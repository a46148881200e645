"""Trains an adapter that was cut, alone, for a tenth of its run's steps: what is left makes up for what was cut off.

The steps are like the run's own: its batches in their order, its learning rates with their whole schedule, its optimizer.
Weight decay is left out. Nothing is scored and no checkpoint is written; a run that breaks off cuts again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from peft import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from craft.methods import find_cutting, find_method
from craft.methods.method import BuildContext
from craft.models.compute import adamw
from craft.models.heads import TASK_TYPES
from craft.scoring.encoding import Collator
from craft.scoring.scorer import Scorer
from craft.spec import RunSpec
from craft.tasks.task import Task
from craft.trainer.checkpoint import rewrite
from craft.trainer.hf_trainer import RunTrainer
from craft.trainer.meter import Meter
from craft.trainer.steps import total_steps

_ADAPTER_FILE = "adapter_model.safetensors"


def recover(
    model: Any,
    name: str,
    folder: Path,
    spec: RunSpec,
    task: Task,
    scorer: Scorer,
    meter: Meter,
    tick: Callable[[int, int], None] = lambda _step, _steps: None,
) -> None:
    """Trains the adapter called `name` of `model`, and saves it in `folder`, from which it was loaded.

    Args:
        spec: its run, which says of what it is cut and how much longer it is trained.
        tick: called after every step with its number and their number; may raise `Leave`.
    """
    assert spec.cut_from is not None
    steps = math.ceil(spec.cut_from.recovery * total_steps(spec.training, scorer.sizes["train_examples"]))
    short = spec.training.model_copy(update={"max_steps": steps, "evaluate_every": "end", "weight_decay": 0.0})
    parts = {"task": task, "model": model, "scorer": scorer, "directory": folder.parent, "meter": meter}
    does = {"listener": SimpleNamespace(stepped=tick), "evaluate": lambda: None, "leave": lambda: None}
    run: Any = SimpleNamespace(spec=spec.model_copy(update={"training": short}), **parts, **does)
    method = find_method(spec.method)
    context = BuildContext(TASK_TYPES[task.kind], seed=spec.seed, total_steps=steps)

    def make_optimizer(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        parameters = method.parameters.model_validate(spec.parameters)
        return adamw(groups) if method.optimizer is None else method.optimizer(model, groups, parameters, context)

    transformers.set_seed(spec.seed)
    trainer = RunTrainer(run, Collator(int(model.config.pad_token_id)), make_optimizer, None)
    hold = find_cutting(spec.method).hold
    if hold is not None:
        trainer.add_callback(_Holding(hold(model)))
    with meter.phase("train"):
        trainer.train()
    learnt = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)

    def save(aside: Path) -> None:
        before = load_file(aside / _ADAPTER_FILE)
        now = {key: learnt[key].detach().to("cpu", one.dtype).contiguous() for key, one in before.items()}
        save_file(now, aside / _ADAPTER_FILE, metadata={"format": "pt"})

    rewrite(folder, save)


class _Holding(TrainerCallback):
    def __init__(self, put_back: Callable[[], None]) -> None:
        self._put_back = put_back

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self._put_back()
