"""How much a plan does: its trainings, their optimizer steps and the examples that they score, and how long this takes.

    seconds  =  trainings x a start  +  steps x a step  +  examples x a scored example       (`craft.trainer.probe`)

Counted are the trainings that tune if learning rates are transferred, those of the seeds after them, and the cuts of each
adapter with the steps that they are trained on. Further seeds of a front are not known beforehand. Examples are counted where
the data are on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from craft.settings import TrainingSettings
from craft.spec import RECOVERY
from craft.tasks import find_task
from craft.tasks.metrics import METRICS
from craft.tasks.task import Task
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.plan.tuning import Family
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.sweep import Sweep

if TYPE_CHECKING:
    from craft.trainer.probe import Speed


FEW = 200
"""Below so many scored examples the sampling error alone reaches 7 points to either side of 50 % right answers."""


def planned_steps(plan: Plan, examples: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Returns optimizer steps of all trainings of each configuration, by its id; empty without `examples`."""
    if not examples:
        return {}
    seeds: dict[str, set[int]] = {}
    for job in plan.jobs:
        seeds.setdefault(job.training.configuration, set()).add(job.training.run.seed)

    def steps_of(trained: Configuration) -> int:
        if not (trained.counts.trainable_parameters or trained.counts.head_parameters):
            return 0
        each = sum(steps(_training(plan, trained, task), count) for task, (count, _) in examples.items())
        return len(seeds.get(trained.id, ())) * each

    return {trained.id: steps_of(trained) for trained in plan.trained}


def remaining_steps(plan: Plan, steps: Mapping[str, int], ended: Collection[str]) -> int:
    """Returns optimizer steps of the jobs with a trial that has not ended; `ended` are the keys of those that have."""
    shares: dict[str, list[bool]] = {}
    for job in plan.jobs:
        shares.setdefault(job.training.configuration, []).append(any(key not in ended for key in job.keys))
    return round(sum(steps[name] * sum(open_jobs) / len(open_jobs) for name, open_jobs in shares.items() if name in steps))


def _training(plan: Plan, configuration: Configuration, task: str) -> TrainingSettings:
    return plan.sweep.training_for(task, configuration.training, plan.sweep.block_at(configuration.path))


def at_hand(task: Task, root: str | None) -> bool:
    """Returns whether the task's data are on this machine."""
    return root is not None or task.suite in ("toy", "custom")


def split_examples(sweep: Sweep) -> dict[str, tuple[int, int]]:
    """Returns, for each task, the number of training examples before `train_examples` cuts them, and of scored examples; empty
    if some data would have to be downloaded first."""
    from craft.tasks.splits import load_splits

    tasks = [find_task(name, sweep.data) for name in sweep.task_names]
    if not all(at_hand(task, sweep.data.root) for task in tasks):
        return {}
    examples = {}
    for task in tasks:
        splits = load_splits(task, sweep.data, protocol=sweep.protocol)
        most = sweep.training_for(task.name, {}).eval_examples
        examples[task.name] = len(splits.train), sum(min(len(split), most or len(split)) for split in splits.reported.values())
    return examples


def scored_line(sweep: Sweep, examples: Mapping[str, tuple[int, int]]) -> str:
    """Returns how many examples each task is scored on, with a warning if they are few; empty without examples.

    A likelihood or chrF is a mean over the tokens of each example, so its error is far smaller than that of right and wrong.
    """
    if not examples:
        return ""
    line = f"scored on {', '.join(f'{scored:,} examples of {task}' for task, (_, scored) in examples.items())}"
    judged = [scored for task, (_, scored) in examples.items() if not METRICS[find_task(task, sweep.data).primary].by_token]
    if min(judged, default=FEW) < FEW:
        few = [task for task, (_, scored) in examples.items() if scored < FEW]
        ways = more_rows(few, any(sweep.training_for(task, {}).eval_examples == examples[task][1] for task in few))
        line += f"; fewer than {FEW} leave an error of 7 points or more at 50 % right{ways and f': set {ways}'}"
    return line


def more_rows(tasks: Iterable[str], cut: bool) -> str:
    """Returns how to get more scored rows of these tasks; empty if their data has no more.

    Args:
        cut: whether `eval_examples` cuts them.
    """
    custom_names = sorted({task.removeprefix("custom/") for task in tasks if task.startswith("custom/")})
    if cut or not custom_names:
        return "a larger eval_examples" if cut else ""
    return f"a larger `validation` file, or data.custom.{custom_names[0] if len(custom_names) == 1 else 'NAME'}.reported"


def steps(training: TrainingSettings, examples: int) -> int:
    """Returns the optimizer steps of one run on a task with so many training examples."""
    from craft.trainer.steps import total_steps

    return total_steps(training, min(examples, training.train_examples or examples))


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
    """Returns the work of each method block of a plan whose data are on this machine.

    Of an adaptive plan it is the most that there may be, under ("space",): every configuration like the longest probed one.
    """
    work: dict[YamlPath, Work] = {}
    if plan.adaptive:
        tasks = split_examples(plan.sweep)
        longest = max(
            plan.probed,
            key=lambda point: (
                sum(steps(_training(plan, point, task), count) for task, (count, _) in tasks.items()),
                point.counts.trainable_parameters,
            ),
        )
        once = sum((_of_run(plan, longest, task) for task in tasks), Work())
        return {("space",): once * (plan.wanted * len(plan.sweep.seeds))}
    for family in plan.families:
        candidate = family.groups[0][0]
        each = sum((_of_run(plan, candidate, task) for task in plan.sweep.task_names), Work())
        work[candidate.path] = work.get(candidate.path, Work()) + each * _trainings(plan, family)
    return work


def _trainings(plan: Plan, family: Family) -> int:
    """Returns how often a family is trained on each task."""
    sweep = plan.sweep
    if not sweep.tunes:
        return family.candidates * len(sweep.seeds)
    tuning = family.planned * len(sweep.seeds) if family.candidates > 1 else 0
    return tuning + len(family.groups) * len(sweep.reported_seeds)


def _of_run(plan: Plan, trained: Configuration, task: str) -> Work:
    """Returns the work of one training on a task, its cuts included."""
    from craft.tasks.splits import load_splits
    from craft.trainer.pace import FORWARD
    from craft.trainer.steps import evaluation_steps, total_steps

    sweep = plan.sweep
    training = _training(plan, trained, task)
    splits = load_splits(find_task(task, sweep.data), sweep.data, protocol=sweep.protocol)
    rows = min(len(splits.train), training.train_examples or len(splits.train))
    most = training.eval_examples
    reported = sum(min(len(split), most or len(split)) for split in splits.reported.values())
    search = min(len(splits.search), training.search_examples or most or len(splits.search))
    adapts, learns = trained.counts.trainable_parameters, trained.counts.head_parameters
    steps = total_steps(training, rows) if adapts or learns else 0
    evaluations = len(evaluation_steps(training, rows)) if steps else 1
    sizes = plan.planner.cost.sizes_of(trained) if plan.adaptive else plan.configurations
    cuts = sum(cut.source is not None and cut.source.id == trained.id for cut in sizes)
    recovery = math.ceil(RECOVERY * steps)
    # The head alone needs no gradients of the base.
    return Work(
        1,
        (steps if adapts else FORWARD * steps) + cuts * recovery,
        search * evaluations + reported + cuts * (search + reported),
    )
