"""From a point of the search space to a configuration with its exact cost, and from configurations to trials.

point  -->  identity (id, run)  ·  labels (name)  ·  counts, constraints  -->  Configuration  -->  PlannedTrial
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError

from craft.methods import METHODS
from craft.results import Counts, ModelUnavailable, RunFailed
from craft.spec import RunSpec
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


class Planner:
    """Points -> configurations -> trials, for one sweep. Counts parameters and memory on the model without weights.

    Args:
        counter: counts a run; `craft.trainer.counting.planned_counts` if not given, which remembers what it has counted.
        memory: estimates the memory of a run in bytes, with a `counter`.
    """

    def __init__(self, sweep: Sweep, counter: Counter | None = None, memory: MemoryEstimate | None = None) -> None:
        self.sweep, self.counter, self.memory = sweep, counter, memory
        self.identity, self.labels = Identity(sweep, resolves=counter is None), Labels(sweep)

    def of(self, sweep: Sweep) -> Planner:
        return Planner(sweep, self.counter, self.memory)

    def allowed(self, point: Point) -> tuple[list[Configuration], list[Dropped]]:
        """Returns what comes of `point`, and what breaks a constraint and is not among it.

        That is what the adapters of its configuration are cut to, ascending, and the configuration itself last. If this one
        breaks a constraint, nothing is trained and there is nothing to cut.
        """
        trained = self.configuration(point)
        if reason := self.broken_constraint(trained):
            return [], [Dropped(trained, reason)]
        sizes, dropped = self.sizes_of(trained), list[Dropped]()
        self._check_sizes(trained, sizes)
        for size in list(sizes):
            if reason := self.broken_constraint(size):
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
        parameters, where = checked.model_dump(mode="json"), f"{self.sweep.where(path)}: {dotted(path)}"
        way = self.sweep.resources_for(self.sweep.block_at(path)).parallel
        if way and (why := refusal(point.method, parameters, way)):
            raise SweepError([f"{where}: {why}"])
        uncounted = Configuration("", "", point.method, parameters, dict(point.training), path=path)
        label = self.labels.of_point(uncounted)
        try:
            counts, memory = self._count(uncounted)
        except ModelUnavailable as error:  # the same for every configuration, so it is said once
            raise SweepError([f"{self.sweep.where(('model',))}: {error}"]) from error
        except (ValueError, RunFailed) as error:
            raise SweepError([f"{where}: {label} cannot be built on {self.sweep.model}: {error}"]) from error
        name = self.identity.id_of(uncounted)
        return replace(uncounted, id=name, label=label, counts=counts, estimated_memory_bytes=memory)

    def _count(self, configuration: Configuration) -> tuple[Counts, int | None]:
        """Returns the counts and the estimated memory of a configuration, on the tasks that need most."""
        specs, counter, memory = self._specs(configuration), self.counter, self.memory
        if counter is None:
            from craft.trainer.counting import check_room, estimated_memory, planned_counts

            counter, memory = planned_counts, estimated_memory
            for spec in specs:
                check_room(spec)
        # Tasks with a head differ in its outputs alone, so the widest needs most; a model of answers has none.
        widest = {spec.task_row.kind == "generation": spec for spec in specs}
        return counter(specs[-1]), max(map(memory, widest.values())) if memory else None

    def _specs(self, configuration: Configuration) -> list[RunSpec]:
        """Returns the runs of a configuration with the first seed, that with the widest head last."""
        specs = [self.identity.spec(configuration, task, self.sweep.seeds[0]) for task in self.sweep.task_names]
        return sorted(specs, key=lambda spec: len(spec.task_row.labels))

    def sizes_of(self, trained: Configuration) -> list[Configuration]:
        """Returns what its block cuts the adapters of a configuration to, ascending.

        How many parameters a cut leaves is known once the adapter is trained. Until then it counts as its most.
        """
        parameters = trained.counts.trainable_parameters
        sizes = sizes_within(self.sweep.block_at(trained.path).sizes, parameters)
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

    def _check_sizes(self, trained: Configuration, sizes: Sequence[Configuration]) -> None:
        if not sizes or self.counter is not None:
            return
        from craft.trainer.counting import check_sizes

        try:
            check_sizes(self._specs(trained)[-1], [size.counts.trainable_parameters for size in sizes])
        except ValueError as error:
            where = f"{self.sweep.where(trained.path)}: {dotted((*trained.path, SIZES))}"
            raise SweepError([f"{where}: {trained.label}: {error}"]) from None

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
                if (source := configuration.source) is not None and configuration.candidates:
                    run, why = self.identity.run_of(configuration.trained, task, seed), Why("source", source.id)
                    trials.setdefault(run.key, self._planned(run, source, f"{source.label}, to be cut", why))
        return [*trials.values()]

    def _trial(self, configuration: Configuration, task: str, seed: int) -> PlannedTrial:
        run, why = self.identity.run_of(configuration, task, seed), self._why(configuration.source or configuration, task, seed)
        why = Why("cut", run.cut_from.run, why) if run.cut_from is not None else why
        return self._planned(run, configuration, configuration.label, why)

    def _planned(self, run: RunSpec, of: Configuration, label: str, why: Why) -> PlannedTrial:
        return PlannedTrial(run, of.id, label, self.sweep.resources_for(self.sweep.block_at(of.path)), why, of.known)

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
        sizes = list[Configuration]()
        for size in self.sizes_of(tuned):
            if size.counts.trainable_parameters < smallest and self.broken_constraint(size) is None:
                own = {task: candidates[place] for task, place in best_of_size.get(str(size.cut_to), {}).items()}
                sizes.append(replace(size, candidates=chosen | own))
        return [*sizes, tuned]
