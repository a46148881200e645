"""What `plan --json` writes, and Python's `plan` returns: a plan with its prospect."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field

from orchestrator.plan.configuration import Configuration, flatten, text
from orchestrator.plan.gpu_costs import GpuCost
from orchestrator.plan.plan import Plan
from orchestrator.plan.table import choices, gpu_lines
from orchestrator.results.report import Count, Number, Part, Report
from orchestrator.review.prospect import Prospect
from orchestrator.sweepfile.settings import Direction


class PlannedPart(Part):
    """One configuration, before any training."""

    configuration: str = Field(description="Its id: 10 hexadecimal digits, a hash of its content.")
    label: str = Field(description="Its name for people.")
    method: str = Field(description="Its method, such as `craft` or `lora`.")
    parameters: dict[str, str] = Field(description="The settings of its point, with defaults of the method, flat, as text.")
    cut_from: str | None = Field(description="The id of the configuration from whose adapters its own are cut.")
    trainable_parameters: int = Field(description="Trainable parameters of the adapter. Of a cut: at most so many.")
    head_parameters: int = Field(description="Parameters of the task head, which are trained with them.")
    adapter_bytes: int = Field(description="Bytes that a saved adapter takes, with its task head.")
    memory_bytes: Count = Field(description="Estimated memory of a training step, in bytes. Null where it is not estimated.")
    trials: int = Field(description="Trials that run in any case. 0 if it may turn out that none is needed.")
    optimizer_steps: Count = Field(description="Optimizer steps of all of these. Null for cuts.")


class DroppedPart(Part):
    """A configuration that is not trained."""

    label: str = Field(description="Its name for people.")
    reason: str = Field(description="The constraint that it breaks.")


class PlanReport(Report):
    """What a sweep file would run. Nothing is trained."""

    report: Literal["plan"] = Field("plan", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    folder: str = Field(description="The folder that gets its results.")
    model: str = Field(description="The base model.")
    tasks: list[str] = Field(description="The tasks.")
    seeds: list[int] = Field(description="The seeds whose scores are reported.")
    protocol: str = Field(description="`honest`: the data of the reported score choose nothing. `customary`: they do.")
    objectives: dict[str, Direction] = Field(description="The metrics over which the front is, in order, with their direction.")
    algorithm: str = Field(description="How configurations are chosen, such as `grid` or `tpe`.")
    adaptive: bool = Field(description="Whether they are chosen while the sweep runs. Then `configurations` is empty.")
    configurations: list[PlannedPart] = Field(description="The configurations that are known beforehand.")
    dropped: list[DroppedPart] = Field(description="Configurations that break a constraint, and are not trained.")
    merged: list[str] = Field(description="The names of configurations that equal another one.")
    most_configurations: int = Field(description="The most configurations that are trained or cut.")
    trainings: int = Field(description="Trainings that run in any case.")
    most_trainings: int = Field(description="The most trainings that there will be, within the budget, as far as known.")
    ended: int = Field(description="Trainings of these that have ended in earlier sessions.")
    optimizer_steps: Count = Field(
        description="Optimizer steps of all trainings, without the data by their published numbers of rows."
    )
    optimizer_steps_left: Count = Field(description="Optimizer steps of the trainings that have not ended. Null as above.")
    seconds: Number = Field(description="The estimated time of these on this machine, in seconds. Null if not known.")
    gpu: GpuCost | None = Field(description="What is left on the GPU of `--gpu` or `--tflops`. Null if neither was given.")
    notes: list[str] = Field(description="What the terminal says below its table: of data, memory, GPUs and time.")


def plan_report(plan: Plan, prospect: Prospect) -> PlanReport:
    """Returns the report on a plan and its work (`look_ahead`)."""
    sweep, trials, steps = plan.sweep, Counter(trial.configuration for trial in plan.trials), prospect.steps
    lines = [line for line, _ in prospect.lines]
    return PlanReport(
        sweep=sweep.name,
        folder=str(sweep.folder),
        model=sweep.model,
        tasks=list(sweep.task_names),
        seeds=list(sweep.reported_seeds),
        protocol=sweep.protocol,
        objectives=dict(sweep.objectives),
        algorithm=sweep.search.algorithm,
        adaptive=plan.adaptive,
        configurations=[_planned(row, trials[row.id], steps.get(row.id)) for row in plan.configurations],
        dropped=[DroppedPart(label=drop.configuration.label, reason=drop.reason) for drop in plan.dropped],
        merged=list(plan.duplicates),
        most_configurations=plan.wanted if plan.adaptive else len(plan.configurations),
        trainings=len(plan.jobs),
        most_trainings=plan.most_jobs,
        ended=prospect.ended,
        optimizer_steps=sum(steps.values()) if steps else None,
        optimizer_steps_left=prospect.steps_left if steps else None,
        seconds=prospect.seconds,
        gpu=prospect.cost,
        notes=[*map(str, (*choices(plan), *gpu_lines(plan, prospect.gpus))), *lines],
    )


def _planned(configuration: Configuration, trials: int, steps: int | None) -> PlannedPart:
    settings = flatten({**configuration.parameters, **configuration.training})
    return PlannedPart.fill(
        configuration.counts,
        configuration=configuration.id,
        label=configuration.label,
        method=configuration.method,
        parameters={name: text(value) for name, value in settings.items()},
        cut_from=configuration.source.id if configuration.source else None,
        memory_bytes=configuration.estimated_memory_bytes,
        trials=trials,
        optimizer_steps=steps,
    )
