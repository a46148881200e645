"""Trains an adapter that was cut, alone, for a tenth of its run's steps: what is left makes up for what was cut off.

The steps are like the run's own: its batches in their order, its learning rate with its whole schedule, its optimizer.
Weight decay is left out. The task head stays as it is: nothing was cut off it, and a few steps from an optimizer's start at a
head's learning rate undo what the whole run taught it. Nothing is scored and no checkpoint is written; a run that breaks off
cuts again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peft import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from craft.methods import find_cutting
from craft.models.adapters import WEIGHTS_FILE
from craft.models.heads import head_names, is_head
from craft.scoring.scorer import Scorer
from craft.spec import RunSpec
from craft.tasks.task import Task
from craft.trainer.checkpoint import rewrite
from craft.trainer.loop import Loop
from craft.trainer.meter import Meter
from craft.trainer.steps import total_steps


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
    steps = math.ceil(spec.cut_from.recovery * total_steps(spec.training, scorer.examples["train_examples"]))
    short = spec.training.model_copy(update={"max_steps": steps, "evaluate_every": "end", "weight_decay": 0.0})
    make_hold = find_cutting(spec.method).hold
    hold = make_hold(model) if make_hold is not None else lambda: None
    heads = head_names(model)
    for weight_name, weight in model.named_parameters():
        weight.requires_grad_(weight.requires_grad and not is_head(weight_name, heads))
    loop = Loop(spec.model_copy(update={"training": short}), task.kind, model, scorer.train, meter, hold=hold)
    with meter.phase("train"):
        for step in loop.train():
            tick(step, steps)
    learnt = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)

    def save(aside: Path) -> None:  # an adapter of a stranger may have embeddings, too, which stay
        stored = load_file(aside / WEIGHTS_FILE)
        recovered = {
            key: learnt.get(key, weight).detach().to("cpu", weight.dtype).contiguous() for key, weight in stored.items()
        }
        save_file(recovered, aside / WEIGHTS_FILE, metadata={"format": "pt"})

    rewrite(folder, save)
