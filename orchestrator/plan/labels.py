"""The names of configurations for people: the method, what it says of its parameters, and what tells it from others.

LoRA r8, q v, lr 3e-4        CRAFT 64·64, q k v o, cut to 1/8        Head alone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from craft.methods import METHODS
from craft.methods.whole import BASE_MODEL
from craft.tasks import find_task
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.parameters import text
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.sweep import Sweep

SHORT_NAMES = {"learning_rate": "lr", "head_learning_rate": "head lr", "batch_size": "batch", "weight_decay": "wd"}

AFRESH = "afresh"
"""In the label of a configuration whose trials start from the base model, in a sweep whose others start from an adapter."""


class Labels:
    """The labels of a sweep's configurations."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._differ: dict[str, list[str]] = {}

    def of_point(self, method: str, parameters: Mapping[str, Any], training: Mapping[str, Any], path: YamlPath) -> str:
        """Returns the label of a configuration before others are known: with all settings that its point chose."""
        return _joined([*self._name(method, parameters, path), *_shown(training, training)])

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


def _shown(settings: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [f"{SHORT_NAMES.get(name, name)} {text(settings[name])}" for name in names if settings.get(name)]


def _joined(parts: Sequence[str]) -> str:
    return f"{parts[0]} {', '.join(parts[1:])}".strip()
