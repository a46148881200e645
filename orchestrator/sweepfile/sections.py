"""Checks of the sections of a sweep file together: how it chooses, stops and replicates configurations; its tasks by name; and
what trials need: resources that fit together, a GPU, tasks for a warm start.

What `search.algorithm: auto` stands for is chosen here when the file is read, by the rules of docs/search.md, and
is written to the effective file. A resumed sweep keeps it if it draws (gp, tpe).

    warm_start: {glue/mrpc: glue/mnli}

lets a trial on MRPC start from the adapter, without the task head, of the MNLI trial with the same configuration and seed, as
LoRA's published runs of MRPC, RTE and STS-B do. The MRPC trial waits until the MNLI trial has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS
from craft.settings import DataSettings, TrainingSettings
from craft.tasks import TASKS, find_task, suite_names
from craft.tasks.glue import WARM_START
from craft.words import nearest
from orchestrator.sweepfile.fair import check_fair
from orchestrator.sweepfile.mistakes import Mistake, YamlPath, find_mistakes, shown, unknown
from orchestrator.sweepfile.resources import Resources
from orchestrator.sweepfile.settings import AUTO
from orchestrator.sweepfile.space.dimensions import Choice, Range, is_fixed, is_ordered
from orchestrator.sweepfile.sweep import NAME, Sweep

FEW = 250
"""Up to so many configurations a suggestion of `gp` is quick in comparison with a training."""


def replace_auto(sweep: Sweep) -> Sweep:
    """Returns the sweep with `auto` replaced, if it says how many configurations; its `chosen` says by what and why."""
    configurations = sweep.search.configurations
    if sweep.search.algorithm != AUTO or configurations is None:
        return sweep
    name, reason = _choose_searcher(sweep, configurations)
    changed = {"algorithm": name, "configurations": None if name == "grid" else configurations}
    sweep = sweep.model_copy(update={"search": sweep.search.model_copy(update=changed)})
    sweep._chosen = f"{name}, {reason}"
    return sweep


def _choose_searcher(sweep: Sweep, configurations: int) -> tuple[str, str]:
    size = sum(block.size for block in sweep.blocks)
    if size <= configurations and not any(block.ranges for block in sweep.blocks):
        return "grid", f"because the space has {size} combinations and search.configurations is {configurations}"
    if configurations > FEW:
        return "tpe", f"because search.configurations is above {FEW}"
    searched = [dimension for block in sweep.blocks for dimension in block.dimensions.values() if not is_fixed(dimension)]
    if not any(map(is_ordered, searched)):
        return "tpe", "because what is searched are names alone, which have no order"
    return "gp", f"because search.configurations is at most {FEW}"


def check_sections(sweep: Sweep) -> Iterator[Mistake]:
    """Yields what does not go together in a sweep each of whose sections is right."""
    checks = (_check_algorithm, _check_objectives, _check_stopping, _check_replication, check_fair)
    for check in (*checks, _check_trials, _check_warm_start):
        yield from check(sweep)


def _check_algorithm(sweep: Sweep) -> Iterator[Mistake]:
    search = sweep.search
    if search.configurations is None and (search.algorithm == AUTO or search.row.samples):
        message = f"{search.algorithm} needs the number of configurations to draw, as in configurations: 64"
        yield Mistake(("search",), message)
    if search.algorithm != "grid":
        return
    if search.configurations is not None:
        message = "grid runs every combination; drop this, or use algorithm: auto"
        yield Mistake(("search", "configurations"), message)
    advice = "" if sweep.compare else ", or search: {algorithm: auto, configurations: 64}"
    for path in [(*block.path, name) for block in sweep.blocks for name in block.ranges]:
        yield Mistake(path, f"a range has no end of values for grid to run; give values{advice}")


def _check_objectives(sweep: Sweep) -> Iterator[Mistake]:
    """Yields an objective that trials do not measure, and what decides by a score that is no objective."""
    if sweep.objectives.get("score") == "minimize":
        yield Mistake(("objectives", "score"), "got 'minimize'; a larger score is better in every task: write maximize")
    if "forgetting" in sweep.objectives and sweep.measure.forgetting is None:
        message = "is measured only where the file asks for it; add measure: {forgetting: true}"
        yield Mistake(("objectives", "forgetting"), message)
    if "score" in sweep.objectives:
        return
    if sweep.search.until is not None:
        yield Mistake(("objectives",), "search.until: answered decides by the score; give score: maximize too")
    if sweep.scheduler.name != "none":
        message = f"{sweep.scheduler.name} stops by the score, so objectives must have score: maximize"
        yield Mistake(("scheduler",), message)
    if sweep.replication is not None:
        reason = "compare: fair" if sweep.compare else "replication"
        yield Mistake(("objectives",), f"{reason} chooses by the score; give score: maximize too")


def _check_stopping(sweep: Sweep) -> Iterator[Mistake]:
    """Yields what does not go with trials that wait, or are stopped, for others."""
    scheduler = sweep.scheduler
    if scheduler.name == "none":
        return
    waiting: dict[YamlPath, bool] = {
        ("search", "until"): sweep.search.until is not None,
        ("replication",): sweep.replication is not None and not sweep.compare,
        ("warm_start",): bool(sweep.warm_start),
    }
    never = f"with scheduler.name: {scheduler.name} some never do; drop it, or take none"
    yield from (Mistake(path, f"waits for trials to end, and {never}") for path, waits in waiting.items() if waits)
    sections: dict[YamlPath, dict[str, Any]] = {("training",): sweep.training.model_dump(exclude_none=True)}
    sections |= {("task_training", task): settings for task, settings in sweep.task_training.items()}
    for block in sweep.blocks:
        sections |= {(*block.path, "task_training", task): settings for task, settings in block.task_training.items()}
        every = block.dimensions.get("evaluate_every")
        sections[block.path] = {"evaluate_every": "end"} if isinstance(every, Choice) and "end" in every.values else {}
    for path, settings in sections.items():
        if settings.get("evaluate_every") == "end":
            message = f"{scheduler.name} judges trials while they train, and with end there is one evaluation; give epochs"
            yield Mistake((*path, "evaluate_every"), message)
    # With several trials of a configuration it also decides between them, whatever the grace.
    several = len(sweep.task_names) * len(sweep.seeds) > 1
    searched = any({"epochs", "max_steps"} & block.dimensions.keys() for block in sweep.blocks)
    if several or searched or any("max_steps" in settings for settings in sections.values()):
        return
    epochs = max(settings.get("epochs", 0) for settings in sections.values())
    if scheduler.grace >= epochs:
        message = f"grace is {scheduler.grace:g} epochs and training has {epochs:g}, so nothing would ever be stopped"
        yield Mistake(("scheduler", "grace"), message)


def _check_replication(sweep: Sweep) -> Iterator[Mistake]:
    rule = sweep.replication
    if rule is None:
        return
    if twice := sorted(set(rule.seeds) & set(sweep.seeds)):
        yield Mistake(("replication", "seeds"), f"{twice} tune, and what tunes is not reported; give further ones")
    names = sorted({name for block in sweep.blocks for name in block.dimensions})
    for index, name in enumerate(() if sweep.compare else rule.tuned):
        if name not in names:
            yield Mistake(("replication", "tuned", index), unknown("dimension", name, names))


def _check_trials(sweep: Sweep) -> Iterator[Mistake]:
    """Yields mistakes in what trials need: resources, a GPU, a text; and tasks of blocks that the sweep lacks."""
    shares: dict[YamlPath, Resources] = {("resources",): sweep.resources}
    shares |= {(*block.path, "resources"): sweep.resources_for(block) for block in sweep.blocks if block.resources}
    yield from (Mistake(path, share.contradiction) for path, share in shares.items() if share.contradiction)
    names = [*sweep.task_names, *dict.fromkeys(name.split("/")[0] for name in sweep.task_names)]
    for block in sweep.blocks:
        if METHODS[block.method].requires == "cuda" and not sweep.resources_for(block).gpu:
            message = f"{block.method} runs on a CUDA GPU only, and a trial gets none (resources.gpu is 0)"
            yield Mistake((*block.path, "method"), f"{message}; give resources: {{gpu: 1}}, or take another method")
        for task in block.task_training:
            if task not in names:
                message = f"no such task here.{nearest(task, names)} Tasks: {', '.join(names)}"
                yield Mistake((*block.path, "task_training", task), message)
    forgetting = sweep.measure.forgetting
    if forgetting and forgetting.text and not Path(forgetting.text).expanduser().is_file():
        message = f"{forgetting.text} is no file here; give a text file in UTF-8, or forgetting: true"
        yield Mistake(("measure", "forgetting", "text"), message)


def _check_warm_start(sweep: Sweep) -> Iterator[Mistake]:
    starts, names = sweep.warm_start, sweep.task_names
    for task, source in starts.items():
        message = None
        if stranger := next((name for name in (task, source) if name not in names), None):
            published = ", ".join(f"{name}: {start}" for name, start in WARM_START.items())
            message = (
                f"{shown(stranger)} is not among this sweep's tasks.{nearest(stranger, names)} Tasks: {', '.join(names)}. "
                f"As published: {{{published}}}"
            )
        elif source in starts:
            message = f"{source} itself starts from {starts[source]}; name a task that starts from the model"
        elif "generation" in (find_task(task, sweep.data).kind, find_task(source, sweep.data).kind):
            message = "tasks that are answered in words start from the model itself"
        if message:
            yield Mistake(("warm_start", task), message)


def check_tasks(document: dict[str, Any]) -> Iterator[Mistake]:
    """Yields unknown or repeated tasks, custom tasks whose files do not fit, and wrong settings in `task_training`."""
    try:
        data = DataSettings.model_validate(document.get("data", {}))
    except ValidationError:
        return  # the names of custom tasks are only known if `data` is right
    for name in data.custom:
        if not NAME.fullmatch(name):
            yield Mistake(("data", "custom", name), "a task's name: up to 64 letters, digits, - _ or .")
            continue
        try:
            find_task(f"custom/{name}", data)  # opens the file, so that a missing one, or a missing column, is found
        except ValueError as error:
            yield Mistake(("data", "custom", name), str(error))
    suites = suite_names(data.custom)
    names = [*TASKS, *(f"custom/{name}" for name in data.custom), *suites]

    def unknown_task(name: str) -> str:
        hint = nearest(name, names) or nearest(f"glue/{name}", names)
        tasks = ", ".join(task for task in names if "/" in task)
        return f"unknown task {shown(name)}.{hint} Suites: {', '.join(suites)}. Tasks: {tasks}"

    tasks = document.get("tasks")
    for index, name in enumerate(tasks if isinstance(tasks, list) else []):
        if isinstance(name, str) and name not in names:
            yield Mistake(("tasks", index), unknown_task(name))
        elif isinstance(name, str) and name in document["tasks"][:index]:
            yield Mistake(("tasks", index), f"{shown(name)} is given twice")
    by_task = document.get("task_training")
    for name, settings in by_task.items() if isinstance(by_task, dict) else ():
        if name not in names:
            yield Mistake(("task_training", name), unknown_task(name))
        elif isinstance(settings, dict):
            yield from find_mistakes(TrainingSettings, settings, ("task_training", name))


def check_lengths(sweep: Sweep) -> Iterator[Mistake]:
    """Yields each `epochs` of a file that has no effect, because `max_steps` says how long those runs are."""
    message = "has no effect, because max_steps says how long these runs are; keep one of the two"
    general = sweep.training.max_steps
    if general is not None and "epochs" in sweep.training.model_fields_set:
        yield Mistake(("training", "epochs"), message)
    sections: list[tuple[YamlPath, dict[str, Any], Any]] = [((), sweep.task_training, general)]
    for block in sweep.blocks:
        steps = block.dimensions.get("max_steps", Choice((general,)))
        limited = isinstance(steps, Range) or None not in steps.values
        if limited and "epochs" in block.dimensions:
            yield Mistake((*block.path, "epochs"), message)
        sections.append((block.path, block.task_training, steps if limited else None))
    for path, by_task, inherited in sections:
        for task, settings in by_task.items():
            suite = by_task.get(task.split("/", 1)[0], {})
            if "epochs" in settings and settings.get("max_steps", suite.get("max_steps", inherited)) is not None:
                yield Mistake((*path, "task_training", task, "epochs"), message)
