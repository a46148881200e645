"""How much a plan does: its trainings, their optimizer steps and the examples that they score, and how long this takes.

    seconds  =  trainings x a start  +  steps x a step  +  examples x a scored example       (`craft.trainer.probe`)

Counted are the trainings that tune if learning rates are transferred, those of the seeds after them, and the cuts of each
adapter with the steps that they are trained on. Further seeds of a front are not known beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from craft.plain_yaml import YamlPath
from craft.spec import RECOVERY
from craft.tasks import find_task
from orchestrator.plan.plan import Plan
from orchestrator.plan.transfer import Family

if TYPE_CHECKING:
    from craft.trainer.probe import Speed


@dataclass(frozen=True)
class Work:
    """Numbers of trainings, of their steps and of the examples that are scored."""

    trainings: float = 0.0
    steps: float = 0.0
    examples: float = 0.0

    def __add__(self, more: Work) -> Work:
        return Work(self.trainings + more.trainings, self.steps + more.steps, self.examples + more.examples)

    def __mul__(self, times: float) -> Work:
        return Work(self.trainings * times, self.steps * times, self.examples * times)

    def seconds(self, speed: Speed) -> float:
        """Returns the time of all of it, one training after another."""
        return self.trainings * speed.start + self.steps * speed.step + self.examples * speed.example


def count_work(plan: Plan) -> dict[YamlPath, Work]:
    """Returns the work of each method block of a plan whose data are on this machine; nothing if it is chosen later."""
    work: dict[YamlPath, Work] = {}
    for family in plan.families:
        candidate = family.groups[0][0]
        each = sum((_of_run(plan, candidate.id, task) for task in plan.sweep.task_names), Work())
        work[candidate.path] = work.get(candidate.path, Work()) + each * _trainings(plan, family)
    return work


def _trainings(plan: Plan, family: Family) -> int:
    """Returns how often a family is trained on each task."""
    sweep = plan.sweep
    if not sweep.tunes:
        return family.candidates * len(sweep.seeds)
    tuning = family.planned * len(sweep.seeds) if family.candidates > 1 else 0
    return tuning + len(family.groups) * len(sweep.reported_seeds)


def _of_run(plan: Plan, configuration: str, task: str) -> Work:
    """Returns the work of one training on a task, its cuts included."""
    from craft.tasks.splits import load_splits
    from craft.trainer.pace import FORWARD
    from craft.trainer.steps import evaluation_steps, total_steps

    sweep, trained = plan.sweep, next(trained for trained in plan.trained if trained.id == configuration)
    training = sweep.training_for(task, trained.training, sweep.block_at(trained.path))
    splits = load_splits(find_task(task, sweep.data), sweep.data, protocol=sweep.protocol)
    rows = min(len(splits.train), training.train_examples or len(splits.train))
    most = training.eval_examples
    reported = sum(min(len(split), most or len(split)) for split in splits.reported.values())
    search = min(len(splits.search), training.search_examples or most or len(splits.search))
    adapts, learns = trained.counts.trainable_parameters, trained.counts.head_parameters
    steps = total_steps(training, rows) if adapts or learns else 0
    evaluations = len(evaluation_steps(training, rows)) if steps else 1
    cuts = sum(cut.source is not None and cut.source.id == configuration for cut in plan.configurations)
    recovery = math.ceil(RECOVERY * steps)
    # The head alone needs no gradients of the base.
    return Work(
        1,
        (steps if adapts else FORWARD * steps) + cuts * recovery,
        search * evaluations + reported + cuts * (search + reported),
    )
