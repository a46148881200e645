"""Checks of tasks and metrics by name, and of what trials need: resources that fit together, a GPU, tasks for a warm start.

    warm_start: {glue/mrpc: glue/mnli}

lets a trial on MRPC start from the adapter, without the task head, of the MNLI trial with the same configuration and seed, as
LoRA's published runs of MRPC, RTE and STS-B do. The MRPC trial waits until the MNLI trial has ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from craft.methods import METHODS
from craft.plain_yaml import YamlPath
from craft.results import Counts
from craft.settings import DataSettings, TrainingSettings
from craft.tasks import TASKS, find_task, suite_names
from craft.tasks.glue import WARM_START
from craft.words import nearest
from orchestrator.sweepfile.mistakes import Mistake, from_pydantic, section_of, shown, unknown
from orchestrator.sweepfile.resources import Resources
from orchestrator.sweepfile.sweep import NAME, PLANNED_METRICS

if TYPE_CHECKING:
    from orchestrator.sweepfile.sweep import Sweep


def check_prerequisites(sweep: Sweep) -> list[Mistake]:
    """Mistakes in the resources, methods, task settings and warm starts of a sweep whose file is otherwise right."""
    wrong = _check_shares(sweep)
    if wrong:
        return wrong  # the checks below ask for each block's resources
    mistakes = [
        Mistake(
            (*block.path, "method"),
            f"{block.method} runs on a CUDA GPU only, and a trial gets none (resources.gpu is 0); "
            "give resources: {gpu: 1}, or take another method",
        )
        for block in sweep.blocks
        if METHODS[block.method].requires == "cuda" and not sweep.resources_for(block).gpu
    ]
    mistakes += [
        Mistake((*block.path, "task_training", task), f"no such task here.{nearest(task, known)} Tasks: {', '.join(known)}")
        for block in sweep.blocks
        for known in [[*sweep.task_names, *dict.fromkeys(name.split("/")[0] for name in sweep.task_names)]]
        for task in block.task_training
        if task not in known
    ]
    return mistakes + _check_warm_start(sweep)


def _check_shares(sweep: Sweep) -> list[Mistake]:
    """Mistakes in blocks whose resources contradict the sweep's."""
    mistakes: list[Mistake] = []
    for block in sweep.blocks:
        try:
            sweep.resources_for(block)
        except ValidationError as error:
            mistakes += from_pydantic(error, Resources, (*block.path, "resources"))
    return mistakes


def _check_warm_start(sweep: Sweep) -> list[Mistake]:
    mistakes = []
    for task, source in sweep.warm_start.items():
        path: YamlPath = ("warm_start", task)
        wrong = _misplaced(sweep, task) or _misplaced(sweep, source)
        if not wrong and source in sweep.warm_start:
            wrong = f"{source} itself starts from {sweep.warm_start[source]}; a run starts from one that starts afresh"
        if not wrong and "generation" in (find_task(task, sweep.data).kind, find_task(source, sweep.data).kind):
            wrong = "tasks that are answered in words start from the model itself"
        if wrong:
            mistakes.append(Mistake(path, wrong))
    return mistakes


def _misplaced(sweep: Sweep, task: str) -> str | None:
    """The reason why `task` cannot stand in `warm_start`, or None."""
    if task in sweep.task_names:
        return None
    published = ", ".join(f"{one}: {source}" for one, source in WARM_START.items())
    return (
        f"{shown(task)} is not among this sweep's tasks.{nearest(task, sweep.task_names)} Tasks: "
        f"{', '.join(sweep.task_names)}. As published: {{{published}}}"
    )


def metric_names() -> list[str]:
    """Metrics that can be objectives: the score, the costs that are known of a finished run, and what `measure` adds."""
    return ["score", *Counts.__dataclass_fields__, "seconds", "forgetting"]


def check_names(content: dict[str, Any]) -> list[Mistake]:
    """Unknown metrics in `objectives` and `constraints`."""
    known = {"objectives": metric_names(), "constraints": list(PLANNED_METRICS)}
    return [
        Mistake((section, name), unknown("metric", name, names))
        for section, names in known.items()
        for name in section_of(content, section)
        if name not in names
    ]


def check_tasks(content: dict[str, Any]) -> list[Mistake]:
    """Unknown or repeated tasks, custom tasks whose files do not fit, and wrong settings in `task_training`."""
    try:
        data = DataSettings.model_validate(content.get("data", {}))
    except ValidationError:
        return []  # the names of custom tasks are known only if `data` is right
    known = [*TASKS, *(f"custom/{given}" for given in data.custom), *suite_names(data.custom)]
    mistakes = []
    for given in data.custom:
        if not NAME.fullmatch(given):
            mistakes.append(Mistake(("data", "custom", given), "a task's name: up to 64 letters, digits, - _ or ."))
            continue
        try:
            find_task(f"custom/{given}", data)  # opens the file: a missing one, or a missing column, shows now
        except ValueError as error:
            mistakes.append(Mistake(("data", "custom", given), str(error)))
    tasks = content.get("tasks")
    given_tasks: list[Any] = tasks if isinstance(tasks, list) else []
    for index, name in enumerate(given_tasks):
        if isinstance(name, str) and name not in known:
            mistakes.append(Mistake(("tasks", index), _unknown_task(name, known, data)))
        elif isinstance(name, str) and name in given_tasks[:index]:
            mistakes.append(Mistake(("tasks", index), f"{shown(name)} is given twice"))
    for name, settings in section_of(content, "task_training").items():
        if name not in known:
            mistakes.append(Mistake(("task_training", name), _unknown_task(name, known, data)))
        elif isinstance(settings, dict):
            try:
                TrainingSettings.model_validate(settings)
            except ValidationError as error:
                mistakes += from_pydantic(error, TrainingSettings, ("task_training", name))
    return mistakes


def _unknown_task(name: str, known: list[str], data: DataSettings) -> str:
    hint = nearest(name, known) or nearest(f"glue/{name}", known)
    tasks = ", ".join(one for one in known if "/" in one)
    return f"unknown task {shown(name)}.{hint} Suites: {', '.join(suite_names(data.custom))}. Tasks: {tasks}"


def check_measures(sweep: Sweep) -> list[Mistake]:
    """Mistakes in the measurements of a sweep whose file is otherwise right."""
    forgetting = sweep.measure.forgetting
    if forgetting is None and "forgetting" in sweep.objectives:
        words = "is measured only where the file asks for it; add measure: {forgetting: true}"
        return [Mistake(("objectives", "forgetting"), words)]
    text = forgetting.text if forgetting else None
    if text is None or Path(text).expanduser().is_file():
        return []
    words = f"{text} is no file here; give a text file in UTF-8, or forgetting: true"
    return [Mistake(("measure", "forgetting", "text"), words)]
