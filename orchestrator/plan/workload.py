"""How much work a plan is, and on how much it is scored: by the numbers of its tasks' examples, where the data are here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from craft.settings import TrainingSettings
from craft.tasks import find_task
from craft.tasks.metrics import METRICS
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.sweepfile.sweep import Sweep

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


def split_examples(sweep: Sweep) -> dict[str, tuple[int, int]]:
    """Returns, for each task, the number of training examples before `train_examples` cuts them, and of scored examples; empty
    if some data would have to be downloaded first."""
    from craft.tasks.splits import load_splits

    tasks = [find_task(name, sweep.data) for name in sweep.task_names]
    if sweep.data.root is None and any(task.suite not in ("toy", "custom") for task in tasks):
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
    own = sorted({task.removeprefix("custom/") for task in tasks if task.startswith("custom/")})
    if cut or not own:
        return "a larger eval_examples" if cut else ""
    return f"a larger `validation` file, or data.custom.{own[0] if len(own) == 1 else 'NAME'}.reported"


def steps(training: TrainingSettings, examples: int) -> int:
    """Returns the optimizer steps of one run on a task with so many training examples."""
    from craft.trainer.steps import total_steps

    return total_steps(training, min(examples, training.train_examples or examples))
