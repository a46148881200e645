"""How much work a plan is, and on how much it is scored: from the sizes of its tasks' data where those are at hand."""

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


def planned_steps(plan: Plan, sizes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Optimizer steps of all trials of each configuration, by its id; empty without `sizes`."""
    if not sizes:
        return {}

    def seeds(one: Configuration) -> int:
        return len({trial.run.seed for trial in plan.trials_of(one.id)})

    return {
        one.id: seeds(one) * sum(steps(_training(plan, one, task), size) for task, (size, _) in sizes.items())
        if one.counts.trainable_parameters or one.counts.head_parameters
        else 0
        for one in plan.configurations
    }


def remaining_steps(plan: Plan, steps: Mapping[str, int], settled: Collection[str]) -> int:
    """Optimizer steps of the trials without a result; `settled` are the keys of those with one."""
    shares = {one.id: plan.trials_of(one.id) for one in plan.configurations if one.id in steps}
    return round(
        sum(
            steps[name] * sum(any(output.key not in settled for output in trial.outputs) for trial in trials) / len(trials)
            for name, trials in shares.items()
            if trials
        )
    )


def _training(plan: Plan, one: Configuration, task: str) -> TrainingSettings:
    return plan.sweep.training_for(task, one.training, plan.sweep.block_at(one.path))


def split_sizes(sweep: Sweep) -> dict[str, tuple[int, int]]:
    """Training examples of each task before `train_examples` cuts them, and those that its score is of; empty where some data
    would have to be downloaded first.
    """
    from craft.tasks.splits import load_splits

    tasks = [find_task(name, sweep.data) for name in sweep.task_names]
    if sweep.data.root is None and any(task.suite not in ("toy", "custom") for task in tasks):
        return {}
    found = {}
    for task in tasks:
        splits = load_splits(task, sweep.data, protocol=sweep.protocol)
        most = sweep.training_for(task.name, {}).eval_examples
        found[task.name] = len(splits.train), sum(min(len(one), most or len(one)) for one in splits.reported.values())
    return found


def scored_line(sweep: Sweep, sizes: Mapping[str, tuple[int, int]]) -> str:
    """On how many examples each task is scored, with a warning where they are few; empty without sizes.

    A likelihood or chrF is a mean over the tokens of each example, so its error is far smaller than that of right and wrong.
    """
    if not sizes:
        return ""
    line = f"scored on {', '.join(f'{scored:,} examples of {task}' for task, (_, scored) in sizes.items())}"
    judged = [scored for task, (_, scored) in sizes.items() if not METRICS[find_task(task, sweep.data).primary].by_token]
    if min(judged, default=FEW) < FEW:
        few = [task for task, (_, scored) in sizes.items() if scored < FEW]
        ways = more_rows(few, any(sweep.training_for(task, {}).eval_examples == sizes[task][1] for task in few))
        line += f"; fewer than {FEW} leave an error of 7 points or more at 50 % right{ways and f': set {ways}'}"
    return line


def more_rows(tasks: Iterable[str], cut: bool) -> str:
    """What gives more scored rows of these tasks; empty where their data has no more.

    Args:
        cut: whether `eval_examples` cuts them.
    """
    own = sorted({task.removeprefix("custom/") for task in tasks if task.startswith("custom/")})
    if cut or not own:
        return "a larger eval_examples" if cut else ""
    return f"a larger `validation` file, or data.custom.{own[0] if len(own) == 1 else 'NAME'}.reported"


def steps(training: TrainingSettings, examples: int) -> int:
    """Optimizer steps of one run where its task has so many training examples."""
    from craft.trainer.steps import total_steps

    return total_steps(training, min(examples, training.train_examples or examples))
