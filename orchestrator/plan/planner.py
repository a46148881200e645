"""From a point of the search space to a configuration with its exact cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS
from craft.plain_yaml import YamlPath
from craft.results import Counts, RunFailed
from craft.settings import WarmStart, content_hash
from craft.spec import RunSpec
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration, Dropped
from orchestrator.plan.parameters import text
from orchestrator.plan.trial import TrialSpec
from orchestrator.sweepfile.mistakes import SweepError, dotted, from_pydantic
from orchestrator.sweepfile.settings import ReplicationSettings
from orchestrator.sweepfile.space.dimensions import CONFIG, Point
from orchestrator.sweepfile.space.nested import KEY, RANKS, alone, has_nested, slices_of, triples_of
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

    def allowed(self, point: Point) -> tuple[list[Configuration], list[Dropped]]:
        """The configurations of `point` that meet the constraints, and those that do not.

        There is one, or one for each of nested ranks, ascending; the last trains them all. Ranks that break a constraint are
        left out of the training.
        """
        triples = triples_of(point)
        if triples is None:
            block = self.sweep.block_at(("space", point.block))
            made = [self.configuration(alone(point) if block and has_nested(block) else point)]
        else:
            made = self._together(point, triples)
        dropped = [Dropped(one, reason) for one in made if (reason := self.broken_constraint(one))]
        if not dropped:
            return made, []
        out = {one.configuration.id for one in dropped}
        kept = [one.parameters[RANKS] for one in made if one.id not in out]
        return self._together(point, kept) if kept else [], dropped

    def _together(self, point: Point, triples: Sequence[Sequence[int | str]]) -> list[Configuration]:
        made = [self.configuration(one) for one in slices_of(point, triples)]
        if len({self.meaning(one) for one in made}) < len(made):
            path = ("space", point.block, RANKS)
            named = ", ".join(str(list(one)).replace("'", "") for one in triples)
            raise SweepError(
                [f"{self.sweep.where(path)}: {dotted(path)}: two of the nested ranks are the same on this model: {named}"]
            )
        return [*(replace(one, nested_in=made[-1].id) for one in made[:-1]), made[-1]]

    def configuration(self, point: Point) -> Configuration:
        """The configuration of `point`, with its counts."""
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
        label = _joined([*self._name(point.method, parameters, path), *_shown(point.training, point.training)])
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
            "training": self.sweep.training_for("", training).identity(METHODS[method].master_weights),
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
        rule = self.sweep.replication
        group = self.group(configuration) if rule is not None and rule.tuned and not configuration.candidates else None
        return [
            TrialSpec(
                self.run_spec(configuration, task, seed),
                configuration.id,
                configuration.label,
                resources,
                configuration.nested_in,
                group if seed in self.sweep.seeds else None,
            )
            for seed in (self.sweep.seeds if seeds is None else seeds)
            for task in self.sweep.task_names
        ]

    def run_spec(self, configuration: Configuration, task: str, seed: int) -> RunSpec:
        """The run of `configuration` on one task with one seed."""
        if configuration.candidates:
            run = self.run_spec(configuration.candidates[task], task, seed)
            if run.warm_start is None:
                return run
            source = self.run_spec(configuration, self.sweep.warm_start[task], seed)
            return run.model_copy(update={"warm_start": WarmStart(run=source.key)})
        chosen = configuration.parameters, configuration.training
        run = self._spec(configuration.method, *chosen, configuration.path, task, seed)
        if configuration.parent is not None:
            begin = WarmStart(run=self.run_spec(configuration.parent, task, seed).key)
            run = run.model_copy(update={"warm_start": begin})
        if self.sweep.scheduler.row.population:
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
            measure=sweep.measure,
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

    def tuned(self, group: str, candidates: Sequence[Sequence[Configuration]], best: Mapping[str, int]) -> list[Configuration]:
        """The configuration whose trials have on each task the settings of the candidate that was the best there; with nested
        ranks one for each slice, the training's own last.

        Its id is the group's, so that it stays one configuration when more values make the choice fall otherwise. Its label has
        the parts that the labels of all candidates have.

        Args:
            group: of the candidates.
            candidates: each with its slices, itself last.
            best: by task, the place of the best one in `candidates`.
        """
        made = []
        for alike in zip(*candidates, strict=True):
            chosen = {task: alike[place] for task, place in best.items()}
            largest = max(chosen.values(), key=lambda one: one.counts.trainable_parameters)
            nested_in = None if alike[-1].nested_in is None else group
            id = content_hash({"group": group, RANKS: largest.parameters[RANKS]}, 10) if nested_in else group
            parts = zip(*(self._parts(one, _rule(self.sweep).tuned) for one in alike), strict=False)
            label = _joined([part[0] for part in parts if len(set(part)) == 1])
            made.append(replace(largest, id=id, label=label, nested_in=nested_in, candidates=chosen))
        return made

    def label_apart(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """The configurations with labels that show a setting only where another of the same name differs in it."""
        alike: dict[str, list[dict[str, Any]]] = {}
        for one in configurations:
            alike.setdefault(self._name_of(one), []).append(one.parameters | one.training)
        for name, rows in alike.items():
            settings = dict.fromkeys(setting for row in rows for setting in row)
            self._differ[name] = [one for one in settings if len({text(row.get(one)) for row in rows}) > 1]
        return [replace(one, label=_joined(self._parts(one))) for one in configurations]

    def _parts(self, configuration: Configuration, without: Iterable[str] = ()) -> list[str]:
        """What a label is joined from: the method, what `Method.label` says, and the settings that tell it apart."""
        settings = configuration.parameters | configuration.training
        names = [one for one in self._differ.get(self._name_of(configuration), configuration.training) if one not in without]
        return [*self._name(configuration.method, configuration.parameters, configuration.path), *_shown(settings, names)]

    def _name_of(self, configuration: Configuration) -> str:
        return _joined(self._name(configuration.method, configuration.parameters, configuration.path))

    def _name(self, method: str, parameters: Mapping[str, Any], path: YamlPath) -> list[str]:
        row, block = METHODS[method], self.sweep.block_at(path)
        afresh = self.sweep.warm_start and block is not None and block.own.get("warm_start") is False
        said = row.label(row.parameters.model_validate(parameters)).split(", ")
        return [row.title, *filter(None, said), *([AFRESH] if afresh else [])]

    def group(self, configuration: Configuration) -> str:
        """Equal for configurations that differ in nothing but the dimensions that are tuned; what a block says for single
        tasks, or of where its runs start, is a difference, and so is `tuned: false`. Nested ranks are in the group of their
        training. It is the id of the tuned configuration; an earlier version's groups were longer, and no ids."""
        rule = _rule(self.sweep)
        names = {*rule.tuned, *([KEY] if RANKS in rule.tuned else [])}
        content = self._content(configuration.method, configuration.training, configuration.path)
        parameters = configuration.parameters | ({RANKS: chain[-1]} if (chain := configuration.parameters.get(KEY)) else {})
        content |= {"parameters": parameters, "chosen": sorted({*content["chosen"]} - names)}
        block = self.sweep.block_at(configuration.path)
        content |= {"tuned": False} if block is not None and not block.tuned else {}
        for part in ("training", "parameters"):
            content[part] = {name: value for name, value in content[part].items() if name not in names}
        if inside := content["parameters"].get(CONFIG):
            content["parameters"][CONFIG] = {key: value for key, value in inside.items() if f"{CONFIG}.{key}" not in names}
        return content_hash(content | {"over": sorted(names)}, 10) if rule.tunes_apart else content_hash(content, 16)

    def _cost(self, point: Point, parameters: dict[str, Any], path: YamlPath) -> tuple[Counts, int | None]:
        tasks = [find_task(name, self.sweep.data) for name in self.sweep.task_names]
        seed = self.sweep.seeds[0]
        specs = [self._spec(point.method, parameters, point.training, path, task.name, seed) for task in tasks]
        widest = max(range(len(tasks)), key=lambda index: len(tasks[index].labels))
        return self._counter(specs[widest]), max(map(self._memory, specs)) if self._memory else None


def _rule(sweep: Sweep) -> ReplicationSettings:
    assert sweep.replication is not None
    return sweep.replication


def _shown(settings: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [f"{SHORT_NAMES.get(name, name)} {text(settings[name])}" for name in names if settings.get(name)]


def _joined(parts: Sequence[str]) -> str:
    return f"{parts[0]} {', '.join(parts[1:])}".strip()


def _listed(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in parameters.items())
