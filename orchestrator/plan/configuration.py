"""A configuration: one point of a sweep's search space, or what its adapters are cut to, with its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from craft.results import Counts
from craft.settings import content_hash
from craft.spec import BUDGET, RECOVERY
from orchestrator.sweepfile.plain_yaml import YamlPath

CUT = ", cut to "
"""Stands in a label between that of the trained configuration and what its adapter is cut to."""


@dataclass(frozen=True)
class Configuration:
    """One point of the search space, or what the adapters of another configuration are cut to. Its content names it.

    Attributes:
        id: 10 hexadecimal digits, a hash of method, parameters and training settings.
        parameters: the method's, defaults filled in.
        training: the training settings that the point itself chose; they win over the file's other ones.
        counts: its parameters and bytes, counted on the meta device, with the widest of its tasks' heads.
        estimated_memory_bytes: the estimated memory of a training step, on the task that needs most.
        path: the method block it came from.
        source: the configuration from whose adapters it is cut; None if it is trained.
        cut_to: what these are cut to (`craft.trainer.cuts.read_size`).
        candidates: of a tuned configuration, by task the candidate that was chosen there, whose settings its trials have; of
            what is cut from it, the candidate from whose adapter it is cut.
        transferred: by task, the id of the configuration whose learning rate it has, where it was not tuned itself.
    """

    id: str
    label: str
    method: str
    parameters: dict[str, Any]
    training: dict[str, Any]
    counts: Counts
    estimated_memory_bytes: int | None = None
    path: YamlPath = ()
    source: Configuration | None = field(default=None, repr=False)
    cut_to: str | None = None
    candidates: Mapping[str, Configuration] = field(default_factory=dict, repr=False)
    transferred: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def known(self) -> dict[str, float]:
        """Its metrics known before training."""
        memory = {} if self.estimated_memory_bytes is None else {"estimated_memory_bytes": self.estimated_memory_bytes}
        return {**self.counts.known(), **memory}

    @property
    def trained(self) -> Configuration:
        """What is trained for it: itself, or what its adapters are cut from, with the candidates that were chosen for it."""
        return self if self.source is None else replace(self.source, candidates=self.candidates)

    def cut(self, size: int, name: str) -> Configuration:
        """Returns what its adapters are cut to.

        Args:
            size: at most so many parameters.
            name: of the size, for the label.
        """
        to = f"{BUDGET}{size}"
        return replace(
            self,
            id=content_hash(["cut", self.id, to, RECOVERY], 10),
            label=f"{self.label}{CUT}{name}",
            counts=self.counts.cut_to(size),
            estimated_memory_bytes=None,
            source=self,
            cut_to=to,
        )

    def labelled(self, label: str) -> Configuration:
        """Returns the configuration with another label; one that is cut keeps the name of its size."""
        if self.source is None:
            return replace(self, label=label)
        return replace(self, source=self.source.labelled(label), label=label + CUT + self.label.rpartition(CUT)[2])


@dataclass(frozen=True)
class Dropped:
    """A configuration that breaks a constraint and is never trained."""

    configuration: Configuration
    reason: str
