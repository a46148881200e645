"""What is known of a plan's work before it runs: steps, what has ended already, its data, how likely it has an answer, its time
on this machine; and the report of `plan --json`, which has it.

The lines on the data have the rows of each class, doubts about labels, and the lengths of inputs in tokens:

    custom/t: 5 classes: knowledge 130, household 120, ...
    custom/t: 18 tokens in the median, 61 at most (a sample of 300 of 405 training rows); max_length 32 cuts 4 %

Data that would have to be downloaded first are left out, as is the line on tokens where the model's tokenizer is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from craft.results import Unavailable
from craft.tasks import custom
from craft.tasks.splits import Splits, load_splits, take_sample
from craft.tasks.task import Task
from craft.words import format_forecast, plural
from orchestrator.plan.configuration import Configuration, flatten, text
from orchestrator.plan.gpu_costs import Card, GpuCost, gpu_cost
from orchestrator.plan.plan import Plan
from orchestrator.plan.table import Line, choices, gpu_lines
from orchestrator.plan.trial import jobs_of
from orchestrator.plan.ways import usable_gpus
from orchestrator.plan.work import Work, absent_lines, count_work, planned_steps, rows_of, scored_line, split_examples
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.record.manifest import cores
from orchestrator.record.resume import check_name
from orchestrator.record.state import State
from orchestrator.results.power import power_lines
from orchestrator.results.report import Count, Number, Part, Report
from orchestrator.review.own_data import LONGEST, describe_classes, describe_skipped, doubt_reading, token_lengths
from orchestrator.sweepfile.settings import Direction
from orchestrator.sweepfile.sweep import Sweep

if TYPE_CHECKING:
    from craft.trainer.probe import Speed

TIMING = ("batch_size", "gradient_accumulation", "max_length", "precision")
"""Settings on which the time of a step depends most."""
PROBE_SECONDS = 20.0
"""The most time for steps that are timed."""
SAMPLE = 300
"""Training rows of a task whose tokens are counted."""
BESIDE = 1.15
"""How much longer a training takes if another one runs at the same time on other cores of the machine."""


def past_states(sweep: Sweep) -> list[State]:
    """Returns the states of the sweeps of the same model in the storage of a sweep."""
    states = []
    for folder in sorted(Path(sweep.storage).glob("*/")):
        with suppress(OSError, ValueError):  # a damaged one
            state = read_state(SweepFolder(folder).record)
            states += [state] if state.started is not None and state.sweep.model == sweep.model else []
    return states


def forecast(plan: Plan, share: float, past: Iterable[State]) -> tuple[float | None, str]:
    """Returns the seconds of a share of the plan on this machine, None if they are not known, and a sentence about that.

    The sentence is empty if the work of the plan is not known. The seconds of recorded trials hold their scoring, so a plan
    with other evaluations takes another time: it is an estimate.
    """
    work, storage = sum(count_work(plan).values(), Work()), Path(plan.sweep.storage)
    at_once = trainings_at_once(plan)
    if not work.steps or not at_once:
        return None, ""
    mine = plan.sweep.training
    same = [state for state in past if all(getattr(state.sweep.training, name) == getattr(mine, name) for name in TIMING)]
    ended = [entry.result for state in same for entry in state.entries.values() if entry.result is not None]
    trained = [result for result in ended if result.status == "finished" and result.steps]
    if trained:
        a_step = sum(result.seconds for result in trained) / sum(result.steps for result in trained)
        seconds, source = (
            work.steps * a_step / at_once,
            f"the {len(trained)} {plural(len(trained), 'trial')} recorded in {storage}",
        )
    else:
        speed = probe_plan(plan)
        if speed is None:
            missing = f"not known before a trial of this model and batch is recorded in {storage}"
            return None, f"how long: {missing}; a running sweep shows it, and plan --gpu NAME or --tflops N estimates it"
        seconds, source = seconds_of(work, speed, at_once), "a few steps that were timed here"
    bound = "if each configuration is as long as the longest, " if plan.adaptive else ""
    mac = " on the CPU" if sys.platform == "darwin" else ""  # its GPU is not used
    return share * seconds, f"{bound}about {format_forecast(share * seconds)} with {at_once} at once{mac}, by {source}"


def seconds_of(work: Work, speed: Speed, at_once: int) -> float:
    return work.seconds(speed) / at_once * (BESIDE if at_once > 1 else 1.0)


def trainings_at_once(plan: Plan) -> int:
    """Returns how many trainings this machine runs at the same time; 0 if it cannot run any."""
    from craft.trainer.probe import machine_memory

    machine = {"CPU": cores(), "GPU": len(usable_gpus()), "memory": machine_memory()}
    # What the machine has of custom resources is not known.
    fit = min(share.model_copy(update={"custom": {}}).slots(machine) for share in plan.sweep.shares)
    return min(fit, plan.most_jobs if plan.adaptive else len(plan.jobs))


def probe_plan(plan: Plan) -> Speed | None:
    """Times a few steps of the plan's first trial, or of its largest probed point; None where that is not possible here."""
    from craft.results import OutOfMemory, RunFailed
    from craft.trainer.probe import measure_speed

    share, sweep = plan.sweep.resources, plan.sweep
    if bool(share.gpu) != bool(usable_gpus()) or not all(rows.here for rows in rows_of(sweep).values()):
        return None
    first = plan.trials or plan.planner.trials([plan.largest] if plan.largest else [])
    with suppress(RunFailed, OutOfMemory, ValueError, OSError):
        return measure_speed(jobs_of(first)[0].training.run, PROBE_SECONDS, max(1, int(share.cpu)))
    return None


def look_ahead(
    plan: Plan, *, resume: bool = False, elsewhere: bool = False, card: Card | None = None, gpus: int = 1
) -> PlanReport:
    """Returns the report on a plan and its work.

    Args:
        resume: whether trials that have ended in earlier sessions count as done.
        elsewhere: whether it runs on a cluster, so that this machine says nothing about its time.
        card: a GPU whose costs are estimated, for so many of them.
    """
    state = read_state(SweepFolder(plan.sweep.folder).record) if resume else State()
    check_name(plan.sweep.folder, state, plan.sweep.name)
    settled = {key for key, entry in state.entries.items() if entry.result is not None and entry.result.settled}
    rows, steps = rows_of(plan.sweep), planned_steps(plan)
    examples = split_examples(plan.sweep, rows)
    lines = [*choices(plan), *gpu_lines(plan, [] if elsewhere else usable_gpus()), *data_lines(plan)]
    sentences = absent_lines(rows.values(), plan.sweep)
    ended = sum(settled.issuperset(job.keys) for job in plan.jobs)
    if settled:
        sentences.append(f"{ended} of {len(plan.jobs)} trainings have ended already")
    steps_left = sum(planned_steps(plan, settled).values())
    share = steps_left / sum(steps.values()) if steps_left else 0.0
    if plan.adaptive:
        trained = sum(key in settled for key, entry in state.entries.items() if not entry.trial.is_cut)
        share = max(0.0, 1 - trained / plan.most_jobs)
    past = past_states(plan.sweep)
    seconds, sentence = forecast(plan, share, past) if share and not elsewhere else (None, "")
    sentences += filter(None, (scored_line(plan.sweep, examples), *power_lines(plan, examples, past), sentence))
    cost = None
    if card is not None:
        cost = gpu_cost(plan, card, gpus, lengths=sampled_lengths(plan), left=share if settled else 1.0)
        sentences += cost.lines
    lines += [Line("", sentence) for sentence in sentences]
    trials = Counter(trial.configuration for trial in plan.trials)
    return PlanReport.fill(
        plan.sweep,
        sweep=plan.sweep.name,
        folder=str(plan.sweep.folder),
        tasks=list(plan.sweep.task_names),
        seeds=list(plan.sweep.reported_seeds),
        algorithm=plan.sweep.search.algorithm,
        adaptive=plan.adaptive,
        configurations=[_planned(row, trials[row.id], steps.get(row.id)) for row in plan.configurations],
        dropped=[DroppedPart(label=drop.configuration.label, reason=drop.reason) for drop in plan.dropped],
        merged=list(plan.duplicates),
        most_configurations=plan.wanted if plan.adaptive else len(plan.configurations),
        trainings=len(plan.jobs),
        most_trainings=plan.most_jobs,
        ended=ended,
        optimizer_steps=sum(steps.values()) if steps else None,
        optimizer_steps_left=steps_left if steps else None,
        seconds=seconds,
        gpu=cost,
        notes=[*map(str, lines)],
        steps=steps,
        lines=lines,
    )


def sampled_lengths(plan: Plan) -> dict[str, np.ndarray]:
    """Returns the tokens of a sample of each task's training texts, where its data and the model's tokenizer are here."""
    if (tokenizer := _tokenizer(plan)) is None:
        return {}
    return {name: _sample(plan, rows.task, tokenizer)[1] for name, rows in rows_of(plan.sweep).items() if rows.here}


def _sample(plan: Plan, task: Task, tokenizer: Any) -> tuple[Any, np.ndarray]:
    """Returns a sample of a task's training rows and the tokens of each, (n,)."""
    sample = take_sample(load_splits(task, plan.sweep.data, protocol=plan.sweep.protocol).train, SAMPLE)
    return sample, token_lengths(task, sample, tokenizer, plan.sweep.data.generation)


def data_lines(plan: Plan) -> Iterator[Line]:
    """Yields lines on each task's data. Raises DataError for a mistake in the data."""
    data, tokenizer = plan.sweep.data, _tokenizer(plan)
    for task in (rows.task for rows in rows_of(plan.sweep).values() if rows.here):
        own, doubts = data.own(task.name), list[str]()
        if own is not None and task.labels:
            classes, *doubts = describe_classes(task, own)
            yield Line(task.name, classes)
        splits = load_splits(task, data, protocol=plan.sweep.protocol)
        doubts += [*(describe_skipped(own) if own is not None else ()), *splits.notes]
        yield from (Line(task.name, doubt, True) for doubt in doubts)
        if own is not None:
            yield _rows_line(task, splits)
        if tokenizer is not None:
            if own is not None:
                custom.check_texts(own, tokenizer, data.generation)
            yield from _token_lines(plan, task, splits, tokenizer)


def _rows_line(task: Task, splits: Splits) -> Line:
    """Returns how many rows of own data train, with the reason where they are fewer than three of four."""
    train, search, reported = len(splits.train), len(splits.search), sum(map(len, splits.reported.values()))
    shared = any(splits.search is split for split in splits.reported.values())
    total = train + reported + (0 if shared else search)
    parts = f"{train:,} of {total:,} rows train, {search:,} choose, {reported:,} are scored"
    few = 4 * train < 3 * total
    reason = "; each class and each group of equal texts gives whole rows to every part, so small ones give a third"
    return Line(task.name, parts + (reason if few and task.kind == "classification" and not shared else ""), few)


def _tokenizer(plan: Plan) -> Any:
    from craft.models.loading import load_tokenizer

    try:
        return load_tokenizer(plan.sweep.model, revision=plan.sweep.revision)
    except Unavailable:
        return None


def _token_lines(plan: Plan, task: Task, splits: Splits, tokenizer: Any) -> Iterator[Line]:
    from craft.models import Base
    from craft.models.loading import meta_model
    from craft.scoring.encoding import longest_input

    sweep, (sample, lengths) = plan.sweep, _sample(plan, task, tokenizer)
    model = meta_model(Base(sweep.model, task.kind, task.labels, revision=sweep.revision))
    runs = [trial.run for trial in (*plan.trials, *plan.examples) if trial.run.task == task.name]
    shares, limit = [], 0
    for most in sorted({run.training.max_length for run in runs}):
        limit = longest_input(most, tokenizer, model)
        share = 100 * float(np.mean(lengths > limit))
        bound = f" ({limit} is the most that the model takes)" if limit < most else ""
        cut = "none" if not share else "under 1 %" if share < 1 else f"{share:.0f} %"
        shares.append(f"max_length {most}{bound} cuts {cut}")
    part = "all" if len(sample) == len(splits.train) else f"a sample of {len(sample)} of"
    more = " or more" if max(lengths) == LONGEST else ""
    most_tokens = f"{np.median(lengths):.0f} tokens in the median, {max(lengths)}{more} at most"
    yield Line(task.name, f"{most_tokens} ({part} {len(splits.train):,} training rows); {', '.join(shares)}")
    if task.suite == "custom":
        yield from (Line(task.name, doubt, True) for doubt in doubt_reading(task, splits, tokenizer, limit))


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
    steps: Mapping[str, int] = Field(exclude=True, description="Steps of all trainings by configuration, where data are here.")
    lines: Sequence[Line] = Field(exclude=True, description="The notes, with the doubtful ones marked.")


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
