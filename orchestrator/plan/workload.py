"""How much work a plan is: optimizer steps, from the sizes of its tasks' data where those are at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from craft.methods.nested import stages
from craft.settings import TrainingSettings
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.sweepfile.sweep import Sweep


def planned_steps(plan: Plan) -> dict[str, int]:
    """Optimizer steps of all trials of each configuration that is trained itself, by its id; empty where the data would have
    to be downloaded first.

    Raises:
        ValueError: the data are missing or wrong.
    """
    sizes = train_sizes(plan.sweep)
    if sizes is None:
        return {}

    def seeds(one: Configuration) -> int:
        return len({trial.run.seed for trial in plan.trials_of(one.id)})

    return {
        one.id: seeds(one) * sum(steps(_training(plan, one, task), size, one.parameters) for task, size in sizes.items())
        for one in plan.configurations
        if one.nested_in is None
    }


def _training(plan: Plan, one: Configuration, task: str) -> TrainingSettings:
    return plan.sweep.training_for(task, one.training, plan.sweep.block_at(one.path))


def train_sizes(sweep: Sweep) -> dict[str, int] | None:
    """Training examples of each task before `train_examples` cuts them; None where some would come from the hub."""
    from craft.tasks.splits import load_splits

    tasks = [find_task(name, sweep.data) for name in sweep.task_names]
    if sweep.data.root is None and any(task.suite not in ("toy", "custom") for task in tasks):
        return None
    return {task.name: len(load_splits(task, sweep.data, protocol=sweep.protocol).train) for task in tasks}


def steps(training: TrainingSettings, examples: int, parameters: Mapping[str, Any]) -> int:
    """Optimizer steps of one run of a method with these parameters where its task has so many training examples."""
    from craft.trainer.steps import total_steps

    return total_steps(training, min(examples, training.train_examples or examples), stages(parameters))
