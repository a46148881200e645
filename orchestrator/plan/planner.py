"""From a point of the search space to a configuration with its exact cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS
from craft.methods.whole import BASE_MODEL
from craft.plain_yaml import YamlPath
from craft.results import Counts, ModelUnavailable, RunFailed
from craft.settings import WarmStart, content_hash
from craft.spec import RECOVERY, RunSpec
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration, Dropped
from orchestrator.plan.parameters import text
from orchestrator.plan.trial import Trial
from orchestrator.sweepfile.mistakes import SweepError, dotted, from_pydantic
from orchestrator.sweepfile.space.dimensions import CONFIG, Point
from orchestrator.sweepfile.space.sizes import SIZES, size_labels, sizes_within
from orchestrator.sweepfile.sweep import Sweep

SHORT_NAMES = {"learning_rate": "lr", "head_learning_rate": "head lr", "batch_size": "batch", "weight_decay": "wd"}

AFRESH = "afresh"
"""In the label of a configuration whose trials start from the base model, in a sweep whose others start from an adapter."""

Counter = Callable[[RunSpec], Counts]

MemoryEstimate = Callable[[RunSpec], int]


class Planner:
    """Points -> configurations -> trials, for one sweep.

    `counter` and `memory` are `craft.trainer.counting.planned_counts` and `estimated_memory`, which remember what they
    counted, unless others are given.
    """

    def __init__(self, sweep: Sweep, counter: Counter | None = None, memory: MemoryEstimate | None = None) -> None:
        self.sweep = sweep
        self._resolves = False
        self._meta: Any = None
        self._differ: dict[str, list[str]] = {}
        if counter is None:
            from craft.trainer.counting import estimated_memory, planned_counts

            counter, memory = planned_counts, estimated_memory
            self._resolves = True
        self._counter, self._memory = counter, memory

    def of(self, sweep: Sweep) -> Planner:
        """Returns a planner of another sweep that counts in the same way."""
        return Planner(sweep) if self._resolves else Planner(sweep, self._counter, self._memory)

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
        """Returns the trained configuration of `point`, with its counts."""
        path: YamlPath = ("space", point.block)
        method = METHODS[point.method]
        try:
            checked = method.parameters.model_validate(point.parameters)
        except ValidationError as error:
            lines = [
                f"{self.sweep.where(mistake.path)}: {dotted(mistake.path)}: {mistake.message} (in {_listed(point.parameters)})"
                for mistake in from_pydantic(error, method.parameters, path)
            ]
            raise SweepError(lines) from None
        parameters = checked.model_dump(mode="json")
        identity = {**self._content(point.method, point.training, path), "parameters": parameters}
        label = _joined([*self._name(point.method, parameters, path), *_shown(point.training, point.training)])
        try:
            counts, memory = self._cost(point, parameters, path)
        except ModelUnavailable as error:  # the same for every configuration, so it is said once
            raise SweepError([f"{self.sweep.where(('model',))}: {error}"]) from error
        except (ValueError, RunFailed) as error:
            where = f"{self.sweep.where(path)}: {dotted(path)}"
            raise SweepError([f"{where}: {label} cannot be built on {self.sweep.model}: {error}"]) from error
        names = (content_hash(identity, 10), label, point.method)
        return Configuration(*names, parameters, dict(point.training), counts, memory, path)

    def sizes_of(self, trained: Configuration) -> list[Configuration]:
        """Returns what its block cuts the adapters of a configuration to, ascending.

        How many parameters a cut leaves is known once the adapter is trained. Until then it counts as its most.
        """
        block, parameters = self.sweep.block_at(trained.path), trained.counts.trainable_parameters
        sizes = sizes_within(block.sizes if block else None, parameters)
        return [trained.cut(size, name) for size, name in zip(sizes, size_labels(sizes, parameters), strict=True)]

    def _check_sizes(self, trained: Configuration, sizes: Sequence[Configuration]) -> None:
        if not sizes or not self._resolves:
            return
        from craft.trainer.counting import check_sizes

        widest = self._widest(trained.method, trained.parameters, trained.training, trained.path)
        try:
            check_sizes(widest, [size.counts.trainable_parameters for size in sizes])
        except ValueError as error:
            where = f"{self.sweep.where(trained.path)}: {dotted((*trained.path, SIZES))}"
            raise SweepError([f"{where}: {trained.label}: {error}"]) from None

    def _content(self, method: str, training: dict[str, Any], path: YamlPath) -> dict[str, Any]:
        block = self.sweep.block_at(path)
        overruled = {name for settings in self.sweep.task_training.values() for name in settings}
        return {
            "method": method,
            "training": self.sweep.training_for("", training).model_dump(mode="json", exclude_defaults=True),
            # A choice that equals the file's general setting is the same choice, unless a task would overrule the general one.
            "chosen": sorted(overruled & set(training)),
            **(block.own if block else {}),
        }

    def broken_constraint(self, configuration: Configuration) -> str | None:
        """Returns why the sweep's constraints exclude `configuration`, or None."""
        for name, bounds in self.sweep.constraints.items():
            value = configuration.known.get(name)
            if value is None:
                continue
            if bounds.max is not None and value > bounds.max:
                return f"{name} {value:,.0f} is above max {bounds.max:,.0f}"
            if bounds.min is not None and value < bounds.min:
                return f"{name} {value:,.0f} is below min {bounds.min:,.0f}"
        return None

    def trials(
        self,
        configurations: Sequence[Configuration],
        seeds: Iterable[int] | None = None,
        tasks: Iterable[str] | None = None,
    ) -> list[Trial]:
        """Returns the trials of configurations on every task with every seed, those of the sweep if not given.

        Seeds are outside, so that whole suites finish early.
        """
        seeds, tasks = (self.sweep.seeds if seeds is None else seeds), (self.sweep.task_names if tasks is None else [*tasks])
        return [self._trial(configuration, task, seed) for seed in seeds for task in tasks for configuration in configurations]

    def _trial(self, configuration: Configuration, task: str, seed: int) -> Trial:
        trained = configuration.source or configuration
        tunes = self.sweep.tuned_settings and not trained.candidates and seed in self.sweep.seeds
        return Trial(
            self.run_spec(configuration, task, seed),
            configuration.id,
            configuration.label,
            self.sweep.resources_for(self.sweep.block_at(configuration.path)),
            self.group(trained) if tunes else None,
            None if configuration.source else configuration.carried.get(task),
        )

    def run_spec(self, configuration: Configuration, task: str, seed: int) -> RunSpec:
        """Returns the run of `configuration` on one task with one seed."""
        if configuration.source is not None:
            return self.run_spec(configuration.source, task, seed).cut_to(str(configuration.cut_to), RECOVERY)
        if configuration.candidates:
            run = self.run_spec(configuration.candidates[task], task, seed)
            if run.warm_start is None:
                return run
            source = self.run_spec(configuration, self.sweep.warm_start[task], seed)
            return run.model_copy(update={"warm_start": WarmStart(run=source.key)})
        chosen = configuration.parameters, configuration.training
        return self._spec(configuration.method, *chosen, configuration.path, task, seed)

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
            measure=sweep.measure,
        )

    def meaning(self, configuration: Configuration) -> str:
        """Returns a text that is equal for configurations that mean the same on this model: ranks `all` may be ranks 64."""
        resolve = METHODS[configuration.method].resolve
        if not self._resolves or resolve is None:
            return configuration.id
        if self._meta is None:
            from craft.models.loading import meta_model

            task = find_task(self.sweep.task_names[0], self.sweep.data)
            self._meta = meta_model(self.sweep.model, task.kind, task.labels, revision=self.sweep.revision)
        checked = METHODS[configuration.method].parameters.model_validate(configuration.parameters)
        identity = self._content(configuration.method, configuration.training, configuration.path)
        identity["resolved"] = resolve(self._meta, checked)
        return content_hash(identity, 16)

    def tuned(
        self, candidates: Sequence[Configuration], best: Mapping[str, int], carried: Mapping[str, str]
    ) -> list[Configuration]:
        """Returns the configuration that has on each task the settings of the best candidate there, after what it is cut to.

        Its id is the group's, so that it stays one configuration when more values change the choice.

        Args:
            candidates: a group.
            best: by task, the place of the best one in `candidates`.
            carried: by task, the label of the configuration whose choice it takes, if it is another one's.
        """
        chosen = {task: candidates[place] for task, place in best.items()}
        largest = max(chosen.values(), key=lambda candidate: candidate.counts.trainable_parameters)
        name, label = self.group(candidates[0]), self.label_of(candidates)
        tuned = replace(largest, id=name, label=label, candidates=chosen, carried=carried)
        smallest = min(candidate.counts.trainable_parameters for candidate in chosen.values())
        sizes = [size for size in self.sizes_of(tuned) if self.broken_constraint(size) is None]
        return [*(size for size in sizes if size.counts.trainable_parameters < smallest), tuned]

    def label_of(self, candidates: Sequence[Configuration]) -> str:
        """Returns the parts that the labels of all candidates have."""
        parts = zip(*(self._parts(candidate, self.sweep.tuned_settings) for candidate in candidates), strict=False)
        return _joined([part[0] for part in parts if len(set(part)) == 1])

    def label_apart(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """Returns the configurations with labels that show a setting only where another of the same name differs in it."""
        by_name: dict[str, list[dict[str, Any]]] = {}
        for configuration in configurations:
            by_name.setdefault(self._name_of(configuration), []).append(configuration.parameters | configuration.training)
        for name, rows in by_name.items():
            settings = dict.fromkeys(setting for row in rows for setting in row)
            self._differ[name] = [setting for setting in settings if len({text(row.get(setting)) for row in rows}) > 1]
        return [
            configuration.labelled(_joined(self._parts(configuration.source or configuration)))
            for configuration in configurations
        ]

    def _parts(self, configuration: Configuration, without: Iterable[str] = ()) -> list[str]:
        """Returns the parts of a label: the method, the text of `Method.label`, and the settings in which configurations
        differ."""
        settings = configuration.parameters | configuration.training
        names = [
            setting
            for setting in self._differ.get(self._name_of(configuration), configuration.training)
            if setting not in without
        ]
        return [*self._name(configuration.method, configuration.parameters, configuration.path), *_shown(settings, names)]

    def _name_of(self, configuration: Configuration) -> str:
        return _joined(self._name(configuration.method, configuration.parameters, configuration.path))

    def _name(self, method: str, parameters: Mapping[str, Any], path: YamlPath) -> list[str]:
        row, block = METHODS[method], self.sweep.block_at(path)
        afresh = self.sweep.warm_start and block is not None and block.own.get("warm_start") is False
        if method == "head" and find_task(self.sweep.task_names[0], self.sweep.data).kind == "generation":
            return [BASE_MODEL]
        said = row.label(row.parameters.model_validate(parameters)).split(", ")
        return [row.title, *filter(None, said), *([AFRESH] if afresh else [])]

    def group(self, configuration: Configuration, over: Iterable[str] = ()) -> str:
        """Returns the id of the tuned configuration: equal for configurations that differ only in the dimensions that are tuned
        and in those of `over`. A block's settings for single tasks, its start of the runs and `tuned: false` are differences.
        """
        names = {*self.sweep.tuned_settings, *over}
        identity = self._content(configuration.method, configuration.training, configuration.path)
        identity |= {"parameters": configuration.parameters, "chosen": sorted({*identity["chosen"]} - names)}
        block = self.sweep.block_at(configuration.path)
        identity |= {"tuned": False} if block is not None and not block.tuned else {}
        for part in ("training", "parameters"):
            identity[part] = {name: value for name, value in identity[part].items() if name not in names}
        if inside := identity["parameters"].get(CONFIG):
            identity["parameters"][CONFIG] = {key: value for key, value in inside.items() if f"{CONFIG}.{key}" not in names}
        return content_hash(identity | {"over": sorted(names)}, 10)

    def _cost(self, point: Point, parameters: dict[str, Any], path: YamlPath) -> tuple[Counts, int | None]:
        seed, chosen = self.sweep.seeds[0], (point.method, parameters, point.training, path)
        specs = [self._spec(*chosen, task, seed) for task in self.sweep.task_names]
        if self._resolves:
            from craft.trainer.counting import check_room

            for spec in specs:
                check_room(spec)
        return self._counter(self._widest(*chosen)), max(map(self._memory, specs)) if self._memory else None

    def _widest(self, method: str, parameters: dict[str, Any], training: dict[str, Any], path: YamlPath) -> RunSpec:
        """Returns the run on the task with the widest head."""
        tasks = [find_task(name, self.sweep.data) for name in self.sweep.task_names]
        widest = max(tasks, key=lambda task: len(task.labels))
        return self._spec(method, parameters, training, path, widest.name, self.sweep.seeds[0])


def _shown(settings: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [f"{SHORT_NAMES.get(name, name)} {text(settings[name])}" for name in names if settings.get(name)]


def _joined(parts: Sequence[str]) -> str:
    return f"{parts[0]} {', '.join(parts[1:])}".strip()


def _listed(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in parameters.items())
