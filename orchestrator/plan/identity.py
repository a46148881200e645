"""The identity of configurations and runs: what is hashed into their keys, and the run of a configuration on a task.

A key changes with the content that decides a run's numbers and with nothing else (`tests/orchestrator/plan/test_keys.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from craft.methods import METHODS
from craft.settings import TrainingSettings, WarmStart, content_hash
from craft.spec import RECOVERY, RunSpec
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.space.dimensions import CONFIG
from orchestrator.sweepfile.sweep import Sweep


class Identity:
    """The ids of a sweep's configurations, and their runs.

    Args:
        resolves: whether the model's configuration is available, which says what ranks `all` are.
    """

    def __init__(self, sweep: Sweep, resolves: bool) -> None:
        self.sweep, self._resolves = sweep, resolves

    def id_of(self, method: str, parameters: dict[str, Any], training: dict[str, Any], path: YamlPath) -> str:
        """Returns the id of a configuration that is trained."""
        return content_hash({**self._content(method, training, path), "parameters": parameters}, 10)

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

    def meaning(self, configuration: Configuration) -> str:
        """Returns a text that is equal for configurations whose runs are the same on this model.

        Ranks `all` may be ranks 64, an alpha may equal the rank, projections have no order, and a setting may have no effect
        beside others.
        """
        row, block = METHODS[configuration.method], self.sweep.block_at(configuration.path)
        parameters = dict(configuration.parameters)
        if "alpha" in parameters and parameters["alpha"] == parameters.get("init_rank", parameters.get("rank")):
            parameters["alpha"] = None  # what absent means
        if parameters.get("projections"):
            parameters["projections"] = sorted(parameters["projections"])
        identity = self._content(configuration.method, configuration.training, configuration.path)
        tasks = {task: self.sweep.training_for(task, configuration.training, block) for task in self.sweep.task_names}
        identity["training"] = {task: _with_effect(training) for task, training in tasks.items()}
        del identity["chosen"]  # these settings are those that trials have, whoever chose them
        identity["parameters"] = parameters
        if self._resolves and row.resolve is not None:
            identity["parameters"] = row.resolve(self._meta, row.parameters.model_validate(parameters))
        return content_hash(identity, 16)

    @cached_property
    def _meta(self) -> Any:
        from craft.models import Base
        from craft.models.loading import meta_model

        task = find_task(self.sweep.task_names[0], self.sweep.data)
        sweep = self.sweep
        return meta_model(
            Base(sweep.model, task.kind, task.labels, revision=sweep.revision, projection_map=sweep.projection_map)
        )

    def run_of(self, configuration: Configuration, task: str, seed: int) -> RunSpec:
        """Returns the run of `configuration` on one task with one seed."""
        if configuration.source is not None:
            return self.run_of(configuration.trained, task, seed).cut_to(str(configuration.cut_to), RECOVERY)
        if configuration.candidates:
            run = self.run_of(configuration.candidates[task], task, seed)
            if run.warm_start is None:
                return run
            source = self.run_of(configuration, self.sweep.warm_start[task], seed)
            return run.model_copy(update={"warm_start": WarmStart(run=source.key)})
        chosen = configuration.parameters, configuration.training
        return self.spec(configuration.method, *chosen, configuration.path, task, seed)

    def spec(
        self, method: str, parameters: dict[str, Any], training: dict[str, Any], path: YamlPath, task: str, seed: int
    ) -> RunSpec:
        """Returns the run of a method with these settings on one task with one seed."""
        sweep, block = self.sweep, self.sweep.block_at(path)
        custom = task.removeprefix("custom/")
        custom_tasks = {custom: sweep.data.custom[custom]} if task.startswith("custom/") else {}
        source = sweep.warm_start.get(task) if block is None or block.warm_start else None
        begin = WarmStart(run=self.spec(method, parameters, training, path, source, seed).key) if source else None
        return RunSpec(
            model=sweep.model,
            revision=sweep.revision,
            projection_map=sweep.projection_map,
            task=task,
            method=method,
            parameters=parameters,
            training=sweep.training_for(task, training, block),
            # Other tasks' files are no part of this trial: adding one must not rename it.
            data=sweep.data.model_copy(update={"custom": custom_tasks}),
            protocol=sweep.protocol,
            seed=seed,
            warm_start=begin,
            measure=sweep.measure,
        )

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


def _with_effect(training: TrainingSettings) -> dict[str, Any]:
    """Returns the settings without those that change nothing beside the others."""
    settings = training.model_dump(mode="json")
    if training.max_steps is not None:
        del settings["epochs"]
    every, whole = training.evaluate_every, training.max_steps is None and training.epochs.is_integer()
    if every == "end" or (whole and every >= training.epochs):
        del settings["select"], settings["evaluate_every"]  # a single evaluation has the best weights and the last
    if training.head_learning_rate == training.learning_rate:
        settings["head_learning_rate"] = None
    if training.search_examples == training.eval_examples:
        settings["search_examples"] = None
    return settings
