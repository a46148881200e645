"""The names of configurations for people: the method, what it says of its parameters, and what tells it from others.

LoRA r8, q v, lr 3e-4        CRAFT 64·64, q k v o, cut to 1/8        Head alone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from craft.methods import METHODS
from craft.methods.whole import BASE_MODEL
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration, text
from orchestrator.sweepfile.mistakes import dotted
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.space.dimensions import Choice
from orchestrator.sweepfile.sweep import Sweep

SHORT_NAMES = {"learning_rate": "lr", "head_learning_rate": "head lr", "batch_size": "batch", "weight_decay": "wd"}

AFRESH = "afresh"
"""In the label of a configuration whose trials start from the base model, in a sweep whose others start from an adapter."""


class Labels:
    """The labels of a sweep's configurations; no two have the same."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._differ: dict[str, list[str]] = {}
        self._more: dict[str, list[str]] = {}
        self._planned: dict[str, dict[str, Any]] = {}
        self._silent: dict[YamlPath, list[str]] = {}

    def of_point(self, method: str, parameters: Mapping[str, Any], training: Mapping[str, Any], path: YamlPath) -> str:
        """Returns the label of a configuration before others are known, with all settings that its point chose; beside the
        plan's own, also with those in which it differs from the one of the same label."""
        settings = {**parameters, **training}
        parts = [*self._name(method, parameters, path), *_shown(settings, [*self._unnamed(path), *training])]
        planned = self._planned.get(_joined(parts), settings)
        return _joined([*parts, *_differences(self._filled([settings, planned]))[0]])

    def _unnamed(self, path: YamlPath) -> list[str]:
        """Returns the method's parameters that have several values in a block, and that `Method.label` does not show."""
        block = self.sweep.block_at(path)
        if block is None:
            return []
        if path not in self._silent:
            row, ends = METHODS[block.method], dict[str, tuple[Any, ...]]()
            for name, dimension in block.dimensions.items():
                if name in row.parameters.model_fields:
                    ends[name] = dimension.values if isinstance(dimension, Choice) else dimension.ends
            first = {name: values[0] for name, values in ends.items()}
            self._silent[path] = []
            for name, values in ends.items():
                with suppress(ValueError):  # values that do not go together: the plan names them
                    labels = {row.label(row.parameters.model_validate({**first, name: value})) for value in values}
                    self._silent[path] += [name] if len(labels) < len({*map(text, values)}) else []
        return self._silent[path]

    def _filled(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the settings of configurations; one that did not choose a training setting has the file's."""
        names = dict.fromkeys(name for row in rows for name in row)
        return [{name: row.get(name, getattr(self.sweep.training, name, None)) for name in names} for row in rows]

    def label_of(self, candidates: Sequence[Configuration]) -> str:
        """Returns the parts that the labels of all candidates have."""
        parts = zip(*(self._parts(candidate, self.sweep.tuned_settings) for candidate in candidates), strict=False)
        return _joined([part[0] for part in parts if len(set(part)) == 1])

    def disambiguate(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """Returns the configurations with labels that show a setting only where another of the same name differs in it."""
        by_name: dict[str, list[dict[str, Any]]] = {}
        for configuration in configurations:
            by_name.setdefault(self._name_of(configuration), []).append(configuration.parameters | configuration.training)
        for name, rows in by_name.items():
            settings = dict.fromkeys(setting for row in rows for setting in row)
            self._differ[name] = [setting for setting in settings if len({text(row.get(setting)) for row in rows}) > 1]
        trained = {each.id: each for each in (configuration.source or configuration for configuration in configurations)}
        self._tell_apart([*trained.values()])
        self._planned = {_joined(self._parts(each)): each.parameters | each.training for each in trained.values()}
        return [
            configuration.labelled(_joined(self._parts(configuration.source or configuration)))
            for configuration in configurations
        ]

    def _tell_apart(self, trained: Sequence[Configuration]) -> None:
        """Adds to the labels that several would have: the block, if their blocks say it; the settings, zeros too; the id."""
        self._more = {}
        for same in self._equal(trained, self.sweep.tuned_settings):
            blocks = {each.path: self.sweep.block_at(each.path) for each in same}
            own = [(block.own, block.tuned) for block in blocks.values() if block is not None]
            if any(mine != own[0] for mine in own):
                self._more |= {each.id: [dotted(each.path)] for each in same}
        for same in self._equal(trained):
            differences = _differences(self._filled([each.parameters | each.training for each in same]))
            for each, parts in zip(same, differences, strict=True):
                self._more[each.id] = [*self._more.get(each.id, ()), *parts]
        for same in self._equal(trained):
            self._more |= {each.id: [*self._more.get(each.id, ()), each.id] for each in same}

    def _equal(self, trained: Sequence[Configuration], without: Iterable[str] = ()) -> list[list[Configuration]]:
        groups: dict[str, list[Configuration]] = {}
        for each in trained:
            groups.setdefault(_joined(self._parts(each, without)), []).append(each)
        return [group for group in groups.values() if len(group) > 1]

    def _parts(self, configuration: Configuration, without: Iterable[str] = ()) -> list[str]:
        """Returns the parts of a label: the method, the text of `Method.label`, and the settings in which configurations
        differ."""
        settings = configuration.parameters | configuration.training
        names = [
            setting
            for setting in self._differ.get(self._name_of(configuration), configuration.training)
            if setting not in without
        ]
        name = self._name(configuration.method, configuration.parameters, configuration.path)
        return [*name, *_shown(settings, names), *self._more.get(configuration.id, ())]

    def _name_of(self, configuration: Configuration) -> str:
        return _joined(self._name(configuration.method, configuration.parameters, configuration.path))

    def _name(self, method: str, parameters: Mapping[str, Any], path: YamlPath) -> list[str]:
        row, block = METHODS[method], self.sweep.block_at(path)
        afresh = self.sweep.warm_start and block is not None and block.own.get("warm_start") is False
        if method == "head" and find_task(self.sweep.task_names[0], self.sweep.data).kind == "generation":
            return [BASE_MODEL]
        said = row.label(row.parameters.model_validate(parameters)).split(", ")
        return [row.title, *filter(None, said), *([AFRESH] if afresh else [])]


def _shown(settings: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [f"{SHORT_NAMES.get(name, name)} {text(settings[name])}" for name in names if settings.get(name)]


def _differences(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns, for each of several configurations, the settings in which any two differ, zeros and nulls too."""
    names = [name for name in rows[0] if any(row[name] != rows[0][name] for row in rows)]
    return [
        [f"{SHORT_NAMES.get(name, name)} {'null' if row[name] is None else text(row[name])}" for name in names] for row in rows
    ]


def _joined(parts: Sequence[str]) -> str:
    return f"{parts[0]} {', '.join(parts[1:])}".strip()
