"""What a sweep will run, and what each configuration costs, before it costs anything.

`make_plan(sweep)` turns the search space into configurations and those into trials. A configuration is named by a hash of its
effective content (defaults filled in), so writing a default out changes nothing and equal configurations are merged. Its
parameters are counted on the meta device from the model's config.json, which also finds what only the model can tell: a rank
above a dimension, a projection that is not there. Constraints are judged on these counts; what breaks one is dropped and named.

`Planner` does this for one point at a time, for searchers that propose points while the sweep runs; the plan of such a sweep
starts empty and grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS
from craft.results import Counts, RunFailed
from craft.settings import WarmStart, content_hash
from craft.spec import RunSpec
from craft.tasks import find_task
from orchestrator.configuration import Configuration, Dropped
from orchestrator.earlier import Earlier, earlier_results
from orchestrator.parameters import text
from orchestrator.sweepfile.algorithms import ALGORITHMS
from orchestrator.sweepfile.mistakes import SweepError, YamlPath, dotted, from_pydantic
from orchestrator.sweepfile.space import Point, covering, grid, sample
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.trial import TrialSpec

__all__ = ["Configuration", "Dropped", "Plan", "Planner", "make_plan"]

MAX_TRIALS = 100_000
PROBES = 100
"""Points drawn at random, beside those that cover the space, to see whether anything meets the constraints."""
SHORT_NAMES = {"learning_rate": "lr", "head_learning_rate": "head lr", "batch_size": "batch", "weight_decay": "wd"}

Counter = Callable[[RunSpec], Counts]
MemoryEstimate = Callable[[RunSpec], int]


@dataclass(frozen=True)
class Plan:
    """All that will run. `duplicates` are labels of points merged into a configuration that was there before.

    A plan of an adaptive algorithm starts without configurations and gets them by `add` while the sweep runs; any plan may get
    more seeds by `replicate`. Its `planner` judges what an algorithm proposes; `probed` are points of its space that were tried
    out beforehand and may be trained, and `examples` are their trials, for what is prepared before. `earlier` are results of
    other sweeps that its algorithm begins with. `refused` are proposals that broke a constraint; `on_refused` hears of each.
    """

    sweep: Sweep
    configurations: list[Configuration]
    trials: list[TrialSpec]
    dropped: list[Dropped] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    planner: Planner | None = None
    examples: list[TrialSpec] = field(default_factory=list)
    probed: list[Configuration] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)
    refused: list[Dropped] = field(default_factory=list)
    on_refused: list[Callable[[Dropped], None]] = field(default_factory=list)
    _by_configuration: dict[str, list[TrialSpec]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def adaptive(self) -> bool:
        return ALGORITHMS[self.sweep.search.algorithm].adaptive

    @property
    def grows(self) -> bool:
        """Whether it may get configurations or trials while it runs."""
        return self.adaptive or self.sweep.replication is not None or self.sweep.scheduler.name == "pbt"

    @property
    def expected_trials(self) -> int:
        """How many trials there will be: known, or at most, where they are chosen while the sweep runs."""
        if self.sweep.scheduler.name == "pbt":
            epochs, interval = self.sweep.training.epochs, self.sweep.scheduler.interval
            first = len(self.sweep.task_names) * len(self.sweep.seeds) * sum(one.parent is None for one in self.configurations)
            return first * max(1, round(epochs / interval))
        if not self.adaptive:
            return len(self.trials)
        return max(len(self.trials), self.wanted * len(self.sweep.task_names) * len(self.sweep.seeds))

    @property
    def wanted(self) -> int:
        """How many configurations a learning searcher may propose: `search.trials`, or as many as `budget.trials` allows."""
        budget, each = self.sweep.budget.trials, len(self.sweep.task_names) * len(self.sweep.seeds)
        wanted = self.sweep.search.trials or 0
        return wanted if budget is None else min(wanted, budget // each)

    def add(self, configuration: Configuration) -> None:
        """Takes in a configuration that was proposed, with its trials."""
        assert self.planner is not None, "a plan without a planner does not grow"
        self.configurations.append(configuration)
        self.trials.extend(self.planner.trials(configuration))

    def refuse(self, configuration: Configuration, reason: str) -> None:
        """Notes a proposal that breaks a constraint and is not trained."""
        if all(configuration.id != one.configuration.id for one in self.refused):
            self.refused.append(Dropped(configuration, reason))
            for hear in self.on_refused:
                hear(self.refused[-1])

    def replicate(self, configuration: Configuration, seeds: Iterable[int]) -> list[TrialSpec]:
        """Gives a configuration of the plan further seeds; returns its new trials."""
        assert self.planner is not None, "a plan without a planner does not grow"
        known = {trial.key for trial in self.trials_of(configuration.id)}
        new = [trial for trial in self.planner.trials(configuration, seeds) if trial.key not in known]
        self.trials.extend(new)
        return new

    def trials_of(self, configuration: str) -> list[TrialSpec]:
        """The trials of a configuration that is in the plan."""
        for trial in self.trials[sum(map(len, self._by_configuration.values())) :]:
            self._by_configuration.setdefault(trial.configuration, []).append(trial)
        return list(self._by_configuration.get(configuration, ()))

    @property
    def counts(self) -> dict[str, dict[str, float]]:
        """Planned counts by configuration id, for summaries."""
        return {one.id: one.known for one in self.configurations}


class Planner:
    """Points -> configurations -> trials, for one sweep.

    `counter` and `memory` are `craft.trainer.counting.planned_counts` and `estimated_memory`, which remember what they
    counted, or what stands in for them.
    """

    def __init__(self, sweep: Sweep, counter: Counter | None = None, memory: MemoryEstimate | None = None) -> None:
        self.sweep = sweep
        self._resolves = False
        self._meta: Any = None
        if counter is None:
            from craft.trainer.counting import estimated_memory, planned_counts

            counter, memory = planned_counts, estimated_memory
            self._resolves = True
        self._counter, self._memory = counter, memory

    def configuration(self, point: Point) -> Configuration:
        """The configuration that `point` means, counted.

        Raises:
            SweepError: parameters that do not go together, or that the model cannot have; names the block's place in the file.
        """
        path: YamlPath = ("space", point.block)
        method = METHODS[point.method]
        try:
            checked = method.parameters.model_validate(point.parameters)
        except ValidationError as error:
            lines = [
                f"{self.sweep.where(one.path)}: {dotted(one.path)}: {one.message} (in {_listed(point.parameters)})"
                for one in from_pydantic(error, method.parameters, path)
            ]
            raise SweepError(lines) from None
        parameters = checked.model_dump(mode="json")
        content = {**self._content(point.method, point.training, path), "parameters": parameters}
        label = _label(method.title, method.label(checked), point.training)
        if self.sweep.warm_start and content.get("warm_start") is False:
            label += " afresh"
        try:
            counts, memory = self._cost(point, parameters, path)
        except (ValueError, RunFailed) as error:
            where = f"{self.sweep.where(path)}: {dotted(path)}"
            raise SweepError([f"{where}: {label} cannot be built on {self.sweep.model}: {error}"]) from error
        return Configuration(
            content_hash(content, 10), label, point.method, parameters, dict(point.training), counts, memory, path
        )

    def _content(self, method: str, training: dict[str, Any], path: YamlPath) -> dict[str, Any]:
        block = self.sweep.block_at(path)
        overruled = {name for settings in self.sweep.task_training.values() for name in settings}
        return {
            "method": method,
            "training": self.sweep.training_for("", training).identity(),
            # A choice that equals the file's general setting is the same choice, unless a task would overrule the general one.
            "chosen": sorted(overruled & set(training)),
            **(block.own if block else {}),
        }

    def broken_constraint(self, configuration: Configuration) -> str | None:
        """Why the sweep's constraints rule `configuration` out, or None."""
        for name, bounds in self.sweep.constraints.items():
            value = configuration.known.get(name)
            if value is None:
                continue
            if bounds.max is not None and value > bounds.max:
                return f"{name} {value:,.0f} is above max {bounds.max:,.0f}"
            if bounds.min is not None and value < bounds.min:
                return f"{name} {value:,.0f} is below min {bounds.min:,.0f}"
        return None

    def trials(self, configuration: Configuration, seeds: Iterable[int] | None = None) -> list[TrialSpec]:
        """The configuration on every task with every seed, the sweep's unless others are given; seeds outside, so that whole
        suites finish early."""
        resources = self.sweep.resources_for(self.sweep.block_at(configuration.path))
        return [
            TrialSpec(self.run_spec(configuration, task, seed), configuration.id, configuration.label, resources)
            for seed in (self.sweep.seeds if seeds is None else seeds)
            for task in self.sweep.task_names
        ]

    def run_spec(self, configuration: Configuration, task: str, seed: int) -> RunSpec:
        """The run of `configuration` on one task with one seed."""
        chosen = configuration.parameters, configuration.training
        run = self._spec(configuration.method, *chosen, configuration.path, task, seed)
        if configuration.parent is not None:
            begin = WarmStart(run=self.run_spec(configuration.parent, task, seed).key)
            run = run.model_copy(update={"warm_start": begin})
        if self.sweep.scheduler.name == "pbt":
            run = run.model_copy(update={"training": run.training.model_copy(update={"epochs": self.sweep.scheduler.interval})})
        return run

    def _spec(
        self, method: str, parameters: dict[str, Any], training: dict[str, Any], path: YamlPath, task: str, seed: int
    ) -> RunSpec:
        sweep, block = self.sweep, self.sweep.block_at(path)
        custom = task.removeprefix("custom/")
        own = {custom: sweep.data.custom[custom]} if task.startswith("custom/") else {}
        source = sweep.warm_start.get(task) if block is None or block.warm_start else None
        begin = WarmStart(run=self._spec(method, parameters, training, path, source, seed).key) if source else None
        return RunSpec(
            model=sweep.model,
            revision=sweep.revision,
            task=task,
            method=method,
            parameters=parameters,
            training=sweep.training_for(task, training, block),
            # Other tasks' files are no part of this trial: adding one must not rename it.
            data=sweep.data.model_copy(update={"custom": own}),
            protocol=sweep.protocol,
            seed=seed,
            warm_start=begin,
        )

    def meaning(self, configuration: Configuration) -> str:
        """Equal for configurations that are the same on this model, such as ranks `all` and the number it stands for."""
        resolve = METHODS[configuration.method].resolve
        if not self._resolves or resolve is None:
            return configuration.id
        if self._meta is None:
            from craft.models.loading import meta_model

            task = find_task(self.sweep.task_names[0], self.sweep.data)
            self._meta = meta_model(self.sweep.model, task.kind, task.labels, revision=self.sweep.revision)
        checked = METHODS[configuration.method].parameters.model_validate(configuration.parameters)
        content = self._content(configuration.method, configuration.training, configuration.path)
        content["resolved"] = resolve(self._meta, checked)
        return content_hash(content, 16)

    def group(self, configuration: Configuration, apart: Iterable[str]) -> str:
        """Equal for configurations that differ in nothing but the dimensions `apart`; what a block says for single tasks, or
        of where its runs start, is a difference."""
        names = {*apart}
        content = self._content(configuration.method, configuration.training, configuration.path)
        content |= {"parameters": configuration.parameters, "chosen": sorted({*content["chosen"]} - names)}
        for part in ("training", "parameters"):
            content[part] = {name: value for name, value in content[part].items() if name not in names}
        return content_hash(content, 16)

    def _cost(self, point: Point, parameters: dict[str, Any], path: YamlPath) -> tuple[Counts, int | None]:
        tasks = [find_task(name, self.sweep.data) for name in self.sweep.task_names]
        seed = self.sweep.seeds[0]
        specs = [self._spec(point.method, parameters, point.training, path, task.name, seed) for task in tasks]
        widest = max(range(len(tasks)), key=lambda index: len(tasks[index].labels))
        return self._counter(specs[widest]), max(map(self._memory, specs)) if self._memory else None


def make_plan(sweep: Sweep, planner: Planner | None = None) -> Plan:
    """Every configuration and trial of `sweep`, where its algorithm knows them beforehand (grid, random); otherwise a plan
    without any, whose space is checked as far as it can be.

    Raises:
        SweepError: configurations that cannot be built, every one named; nothing left to run; too much to run.
    """
    planner = planner or Planner(sweep)
    algorithm = ALGORITHMS[sweep.search.algorithm]
    if algorithm.adaptive:
        return _open_plan(sweep, planner)
    wanted = sweep.search.trials if algorithm.samples else None
    points = sample(sweep.blocks, sweep.search.seed) if algorithm.samples else grid(sweep.blocks)
    if not algorithm.samples:
        _refuse_too_many(sweep, sum(block.size for block in sweep.blocks))

    kept: dict[str, Configuration] = {}
    dropped: dict[str, Dropped] = {}
    duplicates: list[str] = []
    errors: list[str] = []
    for point in _bounded(points, wanted):
        if wanted is not None and len(kept) >= wanted:
            break
        try:
            configuration = planner.configuration(point)
        except SweepError as error:
            errors += [line for line in error.lines if line not in errors]
            continue
        reason, meaning = planner.broken_constraint(configuration), planner.meaning(configuration)
        if meaning in kept or meaning in dropped:
            duplicates += [] if wanted else [configuration.label]
        elif reason:
            dropped[meaning] = Dropped(configuration, reason)
        else:
            kept[meaning] = configuration
    if errors:
        raise SweepError(errors)
    configurations = list(kept.values())
    plan = Plan(
        sweep=sweep,
        configurations=configurations,
        trials=[trial for configuration in configurations for trial in planner.trials(configuration)],
        dropped=list(dropped.values()),
        duplicates=duplicates,
        planner=planner,
    )
    _refuse_nothing_or_too_much(plan)
    return plan


def _open_plan(sweep: Sweep, planner: Planner) -> Plan:
    """A plan for an algorithm that chooses later: every value of the space is built once, and one point must be allowed."""
    _refuse_too_many(sweep, sweep.search.trials or 0)
    allowed: list[Configuration] = []
    dropped: dict[str, Dropped] = {}
    errors: list[str] = []
    for point in itertools.chain(covering(sweep.blocks), islice(sample(sweep.blocks, sweep.search.seed), PROBES)):
        try:
            configuration = planner.configuration(point)
        except SweepError as error:
            errors += [line for line in error.lines if line not in errors]
            continue
        if reason := planner.broken_constraint(configuration):
            dropped[configuration.id] = Dropped(configuration, reason)
        else:
            allowed.append(configuration)
    if errors:
        raise SweepError(errors)
    if not allowed:
        _refuse_nothing_or_too_much(Plan(sweep, [], [], list(dropped.values())))
    each = len(sweep.task_names) * len(sweep.seeds)
    if sweep.budget.trials is not None and sweep.budget.trials < each:
        where = sweep.where(("budget", "trials"))
        raise SweepError(
            [f"{where}: budget.trials: one configuration alone needs {each} trials; the budget is {sweep.budget.trials}"]
        )
    probed = list({one.id: one for one in allowed}.values())
    return Plan(
        sweep,
        [],
        [],
        dropped=list(dropped.values()),
        planner=planner,
        examples=[trial for one in probed for trial in planner.trials(one)],
        probed=probed,
        earlier=earlier_results(sweep, planner) if sweep.search.warm_start else [],
    )


def _bounded(points: Iterator[Point], wanted: int | None) -> Iterator[Point]:
    # A space of few points, or tight constraints, can have fewer configurations than were asked for: drawing must end.
    return points if wanted is None else islice(points, 200 + 20 * wanted)


def _refuse_too_many(sweep: Sweep, size: int) -> None:
    trials = size * len(sweep.task_names) * len(sweep.seeds)
    if trials > MAX_TRIALS:
        raise SweepError(
            [f"{sweep.where(('space',))}: space: {size:,} combinations make {trials:,} trials; at most {MAX_TRIALS:,} are "
             "planned. Give fewer values, or draw some: search: {algorithm: random, trials: 64}"]
        )  # fmt: skip


def _refuse_nothing_or_too_much(plan: Plan) -> None:
    sweep = plan.sweep
    if not plan.configurations:
        reasons = "; ".join(f"{one.configuration.label}: {one.reason}" for one in plan.dropped[:5])
        raise SweepError([f"{sweep.where(('constraints',))}: constraints: no configuration meets them ({reasons})"])
    if sweep.budget.trials is not None and len(plan.trials) > sweep.budget.trials:
        where = sweep.where(("budget", "trials"))
        raise SweepError(
            [f"{where}: budget.trials: the plan needs {len(plan.trials)} trials; the budget is {sweep.budget.trials}"]
        )


def _label(title: str, parameters: str, training: dict[str, Any]) -> str:
    chosen = [f"{SHORT_NAMES.get(name, name)} {text(value)}" for name, value in training.items()]
    return " ".join([title, parameters, *chosen]).strip()


def _listed(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in parameters.items())
