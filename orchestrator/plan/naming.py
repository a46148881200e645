"""The ids of configurations and runs, hashed from what decides a run's numbers and from nothing else
(`tests/orchestrator/plan/test_keys.py`), and the names of configurations for people: the method, what it says of its
parameters, and what tells it from others.

LoRA r8, q v, lr 3e-4        CRAFT 64·64, q k v o, cut to 1/8        Head alone
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from craft.methods import METHODS
from craft.methods.method import WIDTH, starting_rate
from craft.methods.whole import BASE_MODEL
from craft.settings import TrainingSettings, WarmStart, content_hash
from craft.spec import RECOVERY, RunSpec
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration, text
from orchestrator.sweepfile.mistakes import YamlPath, dotted
from orchestrator.sweepfile.space.dimensions import CONFIG, Block
from orchestrator.sweepfile.sweep import Sweep


class Identity:
    """The ids of a sweep's configurations, and their runs.

    Args:
        resolves: whether the model's configuration is available, which says what ranks `all` are.
    """

    def __init__(self, sweep: Sweep, resolves: bool) -> None:
        self.sweep, self._resolves = sweep, resolves

    def id_of(self, configuration: Configuration) -> str:
        return content_hash(self._content(configuration) | {"parameters": configuration.parameters}, 10)

    def group(self, configuration: Configuration, over: Iterable[str] = ()) -> str:
        """Returns the id of the tuned configuration: equal for configurations that differ only in the dimensions that are tuned
        and in those of `over`. A block's settings for single tasks, its start of the runs and `tuned: false` are differences.
        """
        names = {*self.sweep.tuned_settings, *over}
        identity = self._content(configuration)
        identity |= {"parameters": configuration.parameters, "chosen": sorted({*identity["chosen"]} - names)}
        identity |= {} if self.sweep.block_at(configuration.path).tuned else {"tuned": False}
        for part in ("training", "parameters"):
            identity[part] = {name: value for name, value in identity[part].items() if name not in names}
        if inside := identity["parameters"].get(CONFIG):
            identity["parameters"][CONFIG] = {key: value for key, value in inside.items() if f"{CONFIG}.{key}" not in names}
        return content_hash(identity | {"over": sorted(names)}, 10)

    def meaning(self, configuration: Configuration) -> str:
        """Returns a text that is equal for configurations whose runs are the same on this model.

        Ranks `all` may be ranks 64, an alpha may equal the rank, projections have no order, and a setting may have no effect
        beside others.
        """
        row, seed = METHODS[configuration.method], self.sweep.seeds[0]
        parameters = dict(configuration.parameters)
        if "alpha" in parameters and parameters["alpha"] == parameters.get("init_rank", parameters.get("rank")):
            parameters["alpha"] = None  # what absent means
        if parameters.get("projections"):
            parameters["projections"] = sorted(parameters["projections"])
        identity = self._content(configuration)
        runs = {task: self.spec(configuration, task, seed) for task in self.sweep.task_names}
        every = self.sweep.tunes  # all blocks have equally many candidates, also those whose rate decides nothing
        identity["training"] = {task: _with_effect(run.training, every or run.has_rate) for task, run in runs.items()}
        del identity["chosen"]  # these settings are those that trials have, whatever chose them
        identity["parameters"] = parameters
        if self._resolves and row.resolve is not None:
            identity["parameters"] = row.resolve(self._meta, row.parameters.model_validate(parameters))
        return content_hash(identity, 16)

    @cached_property
    def _meta(self) -> Any:
        from craft.models import Base
        from craft.models.loading import meta_model

        sweep = self.sweep
        task = find_task(sweep.task_names[0], sweep.data)
        base = Base(sweep.model, task.kind, task.labels, revision=sweep.revision, projection_map=sweep.projection_map)
        return meta_model(base)

    def run_of(self, configuration: Configuration, task: str, seed: int) -> RunSpec:
        if configuration.source is not None:
            return self.run_of(configuration.trained, task, seed).cut_to(str(configuration.cut_to), RECOVERY)
        if configuration.candidates:
            run = self.run_of(configuration.candidates[task], task, seed)
            if run.warm_start is None:
                return run
            source = self.run_of(configuration, self.sweep.warm_start[task], seed)
            return run.model_copy(update={"warm_start": WarmStart(run=source.key)})
        return self.spec(configuration, task, seed)

    def spec(self, configuration: Configuration, task: str, seed: int) -> RunSpec:
        sweep, block = self.sweep, self.sweep.block_at(configuration.path)
        own = sweep.data.own(task)
        custom_tasks = {} if own is None else {task.removeprefix("custom/"): own}
        source = sweep.warm_start.get(task) if block.warm_start else None
        begin = WarmStart(run=self.spec(configuration, source, seed).key) if source else None
        run = RunSpec(
            model=sweep.model,
            revision=sweep.revision,
            projection_map=sweep.projection_map,
            task=task,
            method=configuration.method,
            parameters=configuration.parameters,
            training=sweep.training_for(task, configuration.training, block),
            # Other tasks' files are no part of this trial: adding one must not rename it.
            data=sweep.data.model_copy(update={"custom": custom_tasks}),
            protocol=sweep.protocol,
            seed=seed,
            warm_start=begin,
            measure=sweep.measure,
            search_only=bool(sweep.tuned_settings) and seed in sweep.seeds,
        )
        return run.with_rate(lambda: self._width)

    def rate_of(self, configuration: Configuration) -> float:
        rate = configuration.training.get("learning_rate", self.sweep.training.learning_rate)
        return self.own_rate(configuration) if rate is None else float(rate)

    def own_rate(self, configuration: Configuration) -> float:
        row = METHODS[configuration.method]
        return starting_rate(row, row.parameters.model_validate(configuration.parameters), self._width)

    @cached_property
    def _width(self) -> int:
        if not self._resolves:
            return WIDTH
        from craft.trainer.counting import text_config

        return int(text_config(self.sweep.model, self.sweep.revision).hidden_size)

    def _content(self, configuration: Configuration) -> dict[str, Any]:
        training = configuration.training
        overruled = {name for settings in self.sweep.task_training.values() for name in settings}
        return {
            "method": configuration.method,
            "training": self.sweep.training_for("", training).model_dump(mode="json", exclude_defaults=True),
            # A choice that equals the file's general setting is the same choice, unless a task would overrule the general one.
            "chosen": sorted(overruled & set(training)),
            **self.sweep.block_at(configuration.path).own,
        }


def _with_effect(training: TrainingSettings, has_rate: bool) -> dict[str, Any]:
    """Returns the settings without those that change nothing beside the others."""
    settings = training.model_dump(mode="json", exclude=set() if has_rate else {"learning_rate"})
    if training.max_steps is not None:
        del settings["epochs"]
    every, in_epochs = training.evaluate_every, training.max_steps is None and training.epochs.is_integer()
    if every == "end" or (in_epochs and every >= training.epochs):
        del settings["select"], settings["evaluate_every"]  # a single evaluation has the best weights and the last
    if has_rate and training.head_learning_rate == training.learning_rate:
        settings["head_learning_rate"] = None
    if training.search_examples == training.eval_examples:
        settings["search_examples"] = None
    return settings


SHORT_NAMES = {"learning_rate": "lr", "head_learning_rate": "head lr", "batch_size": "batch", "weight_decay": "wd"}

COLD = "no warm start"
"""In the label of a configuration whose trials start from the base model, in a sweep whose others start from an adapter."""


class Labels:
    """The labels of a sweep's configurations; no two have the same."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._differ: dict[str, list[str]] = {}
        self._more: dict[str, list[str]] = {}
        self._planned: dict[str, dict[str, Any]] = {}

    def of_point(self, configuration: Configuration) -> str:
        """Returns the label of a configuration before others are known, with all settings that its point chose; beside the
        plan's own, also with those in which it differs from the one of the same label."""
        settings = configuration.settings
        shown = [*self._unnamed[configuration.path], *configuration.training]
        parts = [*self._name(configuration), *_shown(settings, shown)]
        planned = self._planned.get(_joined(parts), settings)
        return _joined([*parts, *self._differences([settings, planned])[0]])

    @cached_property
    def _unnamed(self) -> dict[YamlPath, list[str]]:
        return {block.path: [*_unnamed(block)] for block in self.sweep.blocks}

    def label_of(self, candidates: Sequence[Configuration]) -> str:
        """Returns the parts that the labels of all candidates have."""
        parts = zip(*(self._parts(candidate, self.sweep.tuned_settings) for candidate in candidates), strict=False)
        return _joined([part[0] for part in parts if len(set(part)) == 1])

    def disambiguate(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """Returns the configurations with labels that show a setting only where another of the same name differs in it."""
        by_name: dict[str, list[dict[str, Any]]] = {}
        for configuration in configurations:
            by_name.setdefault(_joined(self._name(configuration)), []).append(configuration.settings)
        for name, rows in by_name.items():
            settings = dict.fromkeys(setting for row in rows for setting in row)
            self._differ[name] = [setting for setting in settings if len({text(row.get(setting)) for row in rows}) > 1]
        sources = [configuration.source or configuration for configuration in configurations]
        trained = {each.id: each for each in sources}
        self._tell_apart([*trained.values()])
        self._planned = {_joined(self._parts(each)): each.settings for each in trained.values()}
        return [row.labelled(_joined(self._parts(source))) for row, source in zip(configurations, sources, strict=True)]

    def _tell_apart(self, trained: Sequence[Configuration]) -> None:
        """Adds to the labels that several would have: the block, if their blocks say it; the settings, zeros too; the id."""
        self._more = {}
        for same in self._equal(trained, self.sweep.tuned_settings):
            own = [(block.own, block.tuned) for block in (self.sweep.block_at(each.path) for each in same)]
            if any(mine != own[0] for mine in own):
                self._more |= {each.id: [dotted(each.path)] for each in same}
        for same in self._equal(trained):
            for each, parts in zip(same, self._differences([each.settings for each in same]), strict=True):
                self._more[each.id] = [*self._more.get(each.id, ()), *parts]
        for same in self._equal(trained):
            self._more |= {each.id: [*self._more.get(each.id, ()), each.id] for each in same}

    def _equal(self, trained: Sequence[Configuration], without: Collection[str] = ()) -> list[list[Configuration]]:
        groups: dict[str, list[Configuration]] = {}
        for each in trained:
            groups.setdefault(_joined(self._parts(each, without)), []).append(each)
        return [group for group in groups.values() if len(group) > 1]

    def _parts(self, configuration: Configuration, without: Collection[str] = ()) -> list[str]:
        """Returns the parts of a label: the method, the text of `Method.label`, and the settings in which configurations
        differ."""
        name = self._name(configuration)
        names = [each for each in self._differ.get(_joined(name), configuration.training) if each not in without]
        return [*name, *_shown(configuration.settings, names), *self._more.get(configuration.id, ())]

    def _name(self, configuration: Configuration) -> list[str]:
        row = METHODS[configuration.method]
        cold = self.sweep.warm_start and not self.sweep.block_at(configuration.path).warm_start
        if not row.adapts and not self.sweep.has_heads:
            return [BASE_MODEL]
        said = row.text(row.parameters.model_validate(configuration.parameters)).split(", ")
        return [row.title, *filter(None, said), *([COLD] if cold else [])]

    def _differences(self, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        """Returns, for each of several configurations, the settings in which any two differ, zeros and nulls too. One that a
        configuration lacks is the file's."""
        every = dict.fromkeys(name for row in rows for name in row)
        full = [{name: row.get(name, getattr(self.sweep.training, name, None)) for name in every} for row in rows]
        names = [name for name in every if any(row[name] != full[0][name] for row in full)]
        return [[_setting(name, "null" if row[name] is None else row[name]) for name in names] for row in full]


def _unnamed(block: Block) -> Iterator[str]:
    """Yields the method's parameters that have several values in a block, and that `Method.label` does not show."""
    row = METHODS[block.method]
    ends = {name: each.ends for name, each in block.dimensions.items() if name in row.parameters.model_fields}
    first = {name: values[0] for name, values in ends.items()}
    for name, values in ends.items():
        with suppress(ValueError):  # values that do not go together: the plan names them
            labels = {row.text(row.parameters.model_validate({**first, name: value})) for value in values}
            if len(labels) < len({*map(text, values)}):
                yield name


def _shown(settings: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [_setting(name, settings[name]) for name in names if settings.get(name)]


def _setting(name: str, value: Any) -> str:
    return f"{SHORT_NAMES.get(name, name)} {text(value)}"


def _joined(parts: Sequence[str]) -> str:
    return f"{parts[0]} {', '.join(parts[1:])}".strip()
