"""From a point of the search space to a configuration with its exact cost, and from configurations to trials.

point  -->  identity (id, run)  ·  labels (name)  ·  cost (counts, constraints)  -->  Configuration  -->  PlannedTrial
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS
from craft.results import Counts, ModelUnavailable, RunFailed
from craft.spec import RunSpec
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration, Dropped, text
from orchestrator.plan.naming import Identity, Labels
from orchestrator.plan.trial import PlannedTrial, Why
from orchestrator.plan.ways import refusal
from orchestrator.sweepfile.mistakes import SweepError, YamlPath, dotted, from_pydantic
from orchestrator.sweepfile.space.blocks import SIZES, size_labels, sizes_within
from orchestrator.sweepfile.space.dimensions import Point
from orchestrator.sweepfile.sweep import Sweep

Counter = Callable[[RunSpec], Counts]

MemoryEstimate = Callable[[RunSpec], int]


class Cost:
    """Counts parameters and memory of configurations, on the model without weights.

    Args:
        counter: counts a run; `craft.trainer.counting.planned_counts` if not given, which remembers what it has counted.
        memory: estimates the memory of a run in bytes, with a `counter`.
    """

    def __init__(self, identity: Identity, counter: Counter | None = None, memory: MemoryEstimate | None = None) -> None:
        self.sweep, self._identity, self.checks_model = identity.sweep, identity, counter is None
        if counter is None:
            from craft.trainer.counting import estimated_memory, planned_counts

            counter, memory = planned_counts, estimated_memory
        self.counter, self.memory = counter, memory

    def count(
        self, method: str, parameters: dict[str, Any], training: dict[str, Any], path: YamlPath
    ) -> tuple[Counts, int | None]:
        """Returns the counts and the estimated memory of a configuration, on the tasks that need most."""
        chosen, seed = (method, parameters, training, path), self.sweep.seeds[0]
        specs = [self._identity.spec(*chosen, task, seed) for task in self.sweep.task_names]
        if self.checks_model:
            from craft.trainer.counting import check_room

            for spec in specs:
                check_room(spec)
        # Tasks with a head differ in its outputs alone, so the widest needs most; a model of answers has none.
        widest = {
            spec.task_row.kind == "generation": spec for spec in sorted(specs, key=lambda spec: len(spec.task_row.labels))
        }
        return self.counter(self._widest(*chosen)), max(map(self.memory, widest.values())) if self.memory else None

    def sizes_of(self, trained: Configuration) -> list[Configuration]:
        """Returns what its block cuts the adapters of a configuration to, ascending.

        How many parameters a cut leaves is known once the adapter is trained. Until then it counts as its most.
        """
        block, parameters = self.sweep.block_at(trained.path), trained.counts.trainable_parameters
        sizes = sizes_within(block.sizes if block else None, parameters)
        return [trained.cut(size, name) for size, name in zip(sizes, size_labels(sizes, parameters), strict=True)]

    def broken_constraint(self, configuration: Configuration) -> str | None:
        for name, bounds in self.sweep.constraints.items():
            value = configuration.known.get(name)
            if value is None:
                continue
            if bounds.max is not None and value > bounds.max:
                return f"{name} {value:,.0f} is above max {bounds.max:,.0f}"
            if bounds.min is not None and value < bounds.min:
                return f"{name} {value:,.0f} is below min {bounds.min:,.0f}"
        return None

    def check_sizes(self, trained: Configuration, sizes: Sequence[Configuration]) -> None:
        """Raises SweepError if the adapters of a configuration cannot be cut to these sizes."""
        if not sizes or not self.checks_model:
            return
        from craft.trainer.counting import check_sizes

        widest = self._widest(trained.method, trained.parameters, trained.training, trained.path)
        try:
            check_sizes(widest, [size.counts.trainable_parameters for size in sizes])
        except ValueError as error:
            where = f"{self.sweep.where(trained.path)}: {dotted((*trained.path, SIZES))}"
            raise SweepError([f"{where}: {trained.label}: {error}"]) from None

    def _widest(self, method: str, parameters: dict[str, Any], training: dict[str, Any], path: YamlPath) -> RunSpec:
        tasks = [find_task(name, self.sweep.data) for name in self.sweep.task_names]
        widest = max(tasks, key=lambda task: len(task.labels))
        return self._identity.spec(method, parameters, training, path, widest.name, self.sweep.seeds[0])


class Planner:
    """Points -> configurations -> trials, for one sweep; `counter` and `memory` are those of `Cost`."""

    def __init__(self, sweep: Sweep, counter: Counter | None = None, memory: MemoryEstimate | None = None) -> None:
        self.sweep = sweep
        self.identity, self.labels = Identity(sweep, resolves=counter is None), Labels(sweep)
        self.cost = Cost(self.identity, counter, memory)

    def of(self, sweep: Sweep) -> Planner:
        return Planner(sweep) if self.cost.checks_model else Planner(sweep, self.cost.counter, self.cost.memory)

    def allowed(self, point: Point) -> tuple[list[Configuration], list[Dropped]]:
        """Returns what comes of `point`, and what breaks a constraint and is not among it.

        That is what the adapters of its configuration are cut to, ascending, and the configuration itself last. If this one
        breaks a constraint, nothing is trained and there is nothing to cut.
        """
        trained = self.configuration(point)
        if reason := self.cost.broken_constraint(trained):
            return [], [Dropped(trained, reason)]
        sizes, dropped = self.cost.sizes_of(trained), list[Dropped]()
        self.cost.check_sizes(trained, sizes)
        for size in list(sizes):
            if reason := self.cost.broken_constraint(size):
                dropped.append(Dropped(size, reason))
                sizes.remove(size)
        return [*sizes, trained], dropped

    def configuration(self, point: Point) -> Configuration:
        path: YamlPath = ("space", point.block)
        method = METHODS[point.method]
        try:
            checked = method.parameters.model_validate(point.parameters)
        except ValidationError as error:
            point_text = ", ".join(f"{name} {text(value)}" for name, value in point.parameters.items())
            lines = [
                f"{self.sweep.where(mistake.path)}: {dotted(mistake.path)}: {mistake.message} (in {point_text})"
                for mistake in from_pydantic(error, method.parameters, path)
            ]
            raise SweepError(lines) from None
        parameters = checked.model_dump(mode="json")
        way = self.sweep.resources_for(self.sweep.block_at(path)).parallel
        if way and (why := refusal(point.method, parameters, way)):
            raise SweepError([f"{self.sweep.where(path)}: {dotted(path)}: {why}"])
        chosen = point.method, parameters, point.training, path
        label = self.labels.of_point(*chosen)
        try:
            counts, memory = self.cost.count(*chosen)
        except ModelUnavailable as error:  # the same for every configuration, so it is said once
            raise SweepError([f"{self.sweep.where(('model',))}: {error}"]) from error
        except (ValueError, RunFailed) as error:
            where = f"{self.sweep.where(path)}: {dotted(path)}"
            raise SweepError([f"{where}: {label} cannot be built on {self.sweep.model}: {error}"]) from error
        names = (self.identity.id_of(*chosen), label, point.method)
        return Configuration(*names, parameters, dict(point.training), counts, memory, path)

    def trials(
        self,
        configurations: Sequence[Configuration],
        seeds: Iterable[int] | None = None,
        tasks: Iterable[str] | None = None,
    ) -> list[PlannedTrial]:
        """Returns the trials of configurations on every task with every seed, those of the sweep if not given, with the
        trainings from whose adapters alone something is cut.

        Seeds are outside, so that whole suites finish early.
        """
        seeds, tasks = (self.sweep.seeds if seeds is None else seeds), (self.sweep.task_names if tasks is None else [*tasks])
        trials: dict[str, PlannedTrial] = {}
        for seed, task in itertools.product(seeds, tasks):
            rows = [self._trial(configuration, task, seed) for configuration in configurations]
            trials |= {trial.key: trial for trial in rows}
            for configuration in configurations:
                if configuration.source is not None and configuration.candidates:
                    training = self._source(configuration, task, seed)
                    trials.setdefault(training.key, training)
        return [*trials.values()]

    def _source(self, cut: Configuration, task: str, seed: int) -> PlannedTrial:
        assert cut.source is not None
        run, resources = self.identity.run_of(cut.trained, task, seed), self.sweep.resources_for(self.sweep.block_at(cut.path))
        return PlannedTrial(
            run, cut.source.id, f"{cut.source.label}, to be cut", resources, Why("source", cut.source.id), cut.source.known
        )

    def _trial(self, configuration: Configuration, task: str, seed: int) -> PlannedTrial:
        run, path = self.identity.run_of(configuration, task, seed), configuration.path
        resources = self.sweep.resources_for(self.sweep.block_at(path))
        why = self._why(configuration.source or configuration, task, seed)
        if run.cut_from is not None:
            why = Why("cut", run.cut_from.run, why)
        return PlannedTrial(run, configuration.id, configuration.label, resources, why, configuration.known)

    def _why(self, trained: Configuration, task: str, seed: int) -> Why:
        if self.sweep.tuned_settings and not trained.candidates and seed in self.sweep.seeds:
            return Why("candidate", self.identity.group(trained))
        if task in trained.transferred:
            return Why("transferred", trained.transferred[task])
        return Why("replicated" if trained.candidates or seed not in self.sweep.reported_seeds else "listed")

    def tuned(
        self,
        candidates: Sequence[Configuration],
        best: Mapping[str, int],
        best_of_size: Mapping[str, Mapping[str, int]],
        transferred: Mapping[str, str],
    ) -> list[Configuration]:
        """Returns the configuration that has on each task the settings of the best candidate there, after what it is cut to.

        Its id is the group's, so that it stays one configuration when more values change the choice.

        Args:
            best: by task, the place of the best one in `candidates`.
            best_of_size: the same for what the adapters are cut to, by `cut_to`; a size that is absent has `best`.
            transferred: by task, the id of the configuration whose choice it takes, if it is another one's.
        """
        chosen = {task: candidates[place] for task, place in best.items()}
        largest = max(chosen.values(), key=lambda candidate: candidate.counts.trainable_parameters)
        name, label = self.identity.group(candidates[0]), self.labels.label_of(candidates)
        tuned = replace(largest, id=name, label=label, candidates=chosen, transferred=transferred)
        smallest = min(candidate.counts.trainable_parameters for candidate in chosen.values())
        sizes = [size for size in self.cost.sizes_of(tuned) if self.cost.broken_constraint(size) is None]
        return [
            *(
                replace(size, candidates=chosen | {task: candidates[place] for task, place in own.items()})
                for size in sizes
                if size.counts.trainable_parameters < smallest
                for own in [best_of_size.get(str(size.cut_to), {})]
            ),
            tuned,
        ]
