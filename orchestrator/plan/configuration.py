"""A configuration: one point of a sweep's search space with its cost, and what its adapters are cut to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from craft.plain_yaml import YamlPath
from craft.results import Counts
from craft.settings import content_hash

CUT = ", cut to "
"""Stands in a label between that of the trained configuration and what its adapter is cut to."""


@dataclass(frozen=True)
class Configuration:
    """One point of the search space, named by its effective content.

    Attributes:
        id: 10 hexadecimal digits, a hash of method, parameters and training settings.
        parameters: the method's, defaults filled in.
        training: the training settings that the point itself chose; they win over the file's other ones.
        counts: its parameters and bytes, counted on the meta device, with the widest of its tasks' heads.
        estimated_memory_bytes: the estimated memory of a training step, on the task that needs most.
        path: the method block it came from.
        sizes: what its trained adapter is cut to, ascending, each a configuration of its own.
        cut_to: what its adapter is cut to, where it is not trained itself.
        candidates: of a tuned configuration, by task the candidate that was the best there, whose settings its trials have.
        carried: by task, the label of the configuration whose learning rate it has, where it was not tuned itself.
    """

    id: str
    label: str
    method: str
    parameters: dict[str, Any]
    training: dict[str, Any]
    counts: Counts
    estimated_memory_bytes: int | None = None
    path: YamlPath = ()
    sizes: tuple[Configuration, ...] = field(default=(), repr=False)
    cut_to: str | None = None
    candidates: Mapping[str, Configuration] = field(default_factory=dict, repr=False)
    carried: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def outputs(self) -> tuple[Configuration, ...]:
        """The configurations that its training gives: its sizes, and itself last."""
        return (*self.sizes, self)

    @property
    def known(self) -> dict[str, float]:
        """Its metrics known before training."""
        memory = {} if self.estimated_memory_bytes is None else {"estimated_memory_bytes": self.estimated_memory_bytes}
        return {**self.counts.known(), **memory}


def cut_id(configuration: str, cut: str, recovery: float) -> str:
    """The id of what the adapters of a configuration are cut to, in its sweep or afterwards."""
    return content_hash(["cut", configuration, cut, *([recovery] if recovery else [])], 10)


@dataclass(frozen=True)
class Dropped:
    """A configuration that breaks a constraint and is never trained."""

    configuration: Configuration
    reason: str
