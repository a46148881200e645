"""How much a plan does: its trainings, their optimizer steps and the examples that they score, and how long this takes.

    seconds  =  trainings x a start  +  steps x a step  +  examples x a scored example       (`craft.trainer.probe`)

Counted are the trainings that tune if learning rates are transferred, those of the seeds after them, and the cuts of each
adapter with the steps that they are trained on. Further seeds of a front, and trainings from which alone a size is cut, are not
known beforehand. Rows of published data that are not on this machine are counted by their published numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from craft.settings import TrainingSettings
from craft.spec import RECOVERY
from craft.tasks import find_task
from craft.tasks.metrics import METRICS
from craft.tasks.task import Task
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.plan.tuning import Family
from orchestrator.sweepfile.mistakes import YamlPath
from orchestrator.sweepfile.sweep import Sweep

if TYPE_CHECKING:
    from craft.trainer.probe import Speed


FEW = 200
"""Below so many scored examples the sampling error alone reaches 7 points to either side of 50 % right answers."""


class Rows(NamedTuple):
    """Numbers of rows of a task's splits before settings cut them; `here` if the data are on this machine."""

    task: Task
    here: bool
    train: int
    search: int
    reported: tuple[int, ...]


def at_hand(task: Task, root: str | None) -> bool:
    return root is not None or task.suite in ("toy", "custom")


def rows_of(sweep: Sweep) -> dict[str, Rows]:
    """Returns the rows of each task, of data that are not on this machine those that are published."""
    from craft.tasks.splits import load_splits

    every: dict[str, Rows] = {}
    for task in (find_task(name, sweep.data) for name in sweep.task_names):
        here = at_hand(task, sweep.data.root)
        if task.published is None or here:
            splits = load_splits(task, sweep.data, protocol=sweep.protocol)
            train, search, reported = len(splits.train), len(splits.search), tuple(map(len, splits.reported.values()))
        else:
            train, reported, _ = task.published(sweep.data)
            customary = sweep.protocol == "customary"
            search = sum(reported) if customary else round(sweep.data.search_fraction * train)
            train -= 0 if customary else search
        every[task.name] = Rows(task, here, train, search, reported)
    return every


def planned_steps(plan: Plan, ended: Collection[str] = ()) -> dict[str, int]:
    """Returns the optimizer steps of each trained configuration, by its id; `ended` are the keys of trials, and jobs all of
    whose trials are among them do not count."""
    rows, planned_by_id = rows_of(plan.sweep), dict.fromkeys((trained.id for trained in plan.trained), 0)
    for job in plan.jobs:
        run, planned = job.training.run, job.training.planned
        trains = planned["trainable_parameters"] or planned["head_parameters"]
        if trains and any(key not in ended for key in job.keys):
            planned_by_id[job.training.configuration] += steps(run.training, rows[run.task].train)
    return planned_by_id


def _training(plan: Plan, configuration: Configuration, task: str) -> TrainingSettings:
    return plan.sweep.training_for(task, configuration.training, plan.sweep.block_at(configuration.path))


def absent_lines(rows: Iterable[Rows], sweep: Sweep) -> list[str]:
    """Returns sentences on data that are not on this machine: what the plan takes instead, and how to get them."""
    absent: dict[str, list[str]] = {}
    for task in (of_task.task for of_task in rows if not of_task.here):
        if task.published is not None:
            absent.setdefault(task.published(sweep.data).source, []).append(task.name)
    return [
        f"steps by the published numbers of rows: the data of {', '.join(names)} are not here. They are in {source}; "
        "count a folder of them with --set data.root=FOLDER (docs/methods.md)"
        for source, names in absent.items()
    ]


def split_examples(sweep: Sweep, rows: Mapping[str, Rows]) -> dict[str, tuple[int, int]]:
    """Returns, for each task, the number of training examples before `train_examples` cuts them, and of scored examples; empty
    if some data would have to be downloaded first."""
    most = {name: sweep.training_for(name, {}).eval_examples for name in rows}
    every = {name: (one.train, sum(min(size, most[name] or size) for size in one.reported)) for name, one in rows.items()}
    return every if all(of_task.here for of_task in rows.values()) else {}


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
    from craft.trainer.loop import total_steps

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
    """Returns the work of each method block of a plan.

    Of an adaptive plan it is the most that there may be, under ("space",): every configuration like the longest probed one.
    """
    work: dict[YamlPath, Work] = {}
    for trained, _, part in work_parts(plan):
        path = ("space",) if plan.adaptive else trained.path
        work[path] = work.get(path, Work()) + part
    return work


def work_parts(plan: Plan) -> Iterator[tuple[Configuration, str, Work]]:
    """Yields a configuration, a task, and the work on it of all trainings like this one."""
    rows = rows_of(plan.sweep)
    if plan.adaptive:

        def length(point: Configuration) -> tuple[int, int]:
            every = sum(steps(_training(plan, point, task), one.train) for task, one in rows.items())
            return every, point.counts.trainable_parameters

        repeated = [(max(plan.probed, key=length), 0, plan.wanted * len(plan.sweep.seeds))]
    else:
        repeated = [(family.groups[0][0], *_trainings(plan, family)) for family in plan.families]
    for configuration, tuning, measuring in repeated:
        for task, one in rows.items():
            work = _of_run(plan, configuration, one, search_only=True) * tuning + _of_run(plan, configuration, one) * measuring
            yield configuration, task, work


def _trainings(plan: Plan, family: Family) -> tuple[int, int]:
    """Returns the numbers of trainings that tune, and of those that are reported."""
    sweep = plan.sweep
    if not sweep.tunes:
        return 0, family.candidates * len(sweep.seeds)
    tuning = family.planned * len(sweep.seeds) if family.candidates > 1 else 0
    return tuning, len(family.groups) * len(sweep.reported_seeds)


def _of_run(plan: Plan, trained: Configuration, rows: Rows, *, search_only: bool = False) -> Work:
    from craft.trainer.loop import evaluation_steps, total_steps
    from craft.trainer.pace import FORWARD

    training = _training(plan, trained, rows.task.name)
    examples, most = min(rows.train, training.train_examples or rows.train), training.eval_examples
    search = min(rows.search, training.search_examples or most or rows.search)
    reported = 0 if search_only else sum(min(size, most or size) for size in rows.reported)
    adapts, learns = trained.counts.trainable_parameters, trained.counts.head_parameters
    steps = total_steps(training, examples) if adapts or learns else 0
    evaluations = len(evaluation_steps(training, examples)) if steps else 1
    sizes = plan.planner.sizes_of(trained) if plan.adaptive else plan.configurations
    cuts = sum(cut.source is not None and cut.source.id == trained.id for cut in sizes)
    recovery = math.ceil(RECOVERY * steps)
    # The head alone needs no gradients of the base.
    return Work(
        1,
        (steps if adapts else FORWARD * steps) + cuts * recovery,
        search * evaluations + reported + cuts * (search + reported),
    )
