"""A configuration: one point of a sweep's search space, or what its adapters are cut to, with its cost; and
a run's parameters as flat rows of text, as the tracking store, the tables and the run names show them.

`ranks: [all, 64, 64]` becomes `ranks = all,64,64` with `r1`, `r2`, `r3`, and numbers are written as a person writes them
(`3e-4`). A name never depends on where in the sweep file the value stood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from craft.methods import shown_method
from craft.results import Counts
from craft.settings import content_hash
from craft.spec import BUDGET, RECOVERY, RunSpec
from orchestrator.sweepfile.mistakes import YamlPath


def flat_parameters(run: RunSpec) -> dict[str, Any]:
    """Returns everything that decides `run`, flat: method parameters and training settings under their own names, without
    those that are unset or decide nothing.

    Where a method has a parameter of the same name as a training setting, the method's is the one called by the plain name
    and the setting is `training.NAME`. Values are str, int, float or bool.
    """
    cut = run.cut_from
    flat = flatten(
        {
            "method": shown_method(run.method, run.parameters),
            "model": run.model,
            "task": run.task,
            "seed": run.seed,
            "revision": run.revision or None,
            "protocol": run.protocol,
            "generation": run.data.generation.model_dump(mode="json") if run.task == "commonsense" else None,
            "warm_start": run.warm_start.run if run.warm_start else None,
            "cut_from": cut.run if cut else None,
            "cut_to": cut.to if cut else None,
            **run.parameters,
        }
    )
    training = run.training.model_dump(mode="json", exclude=set() if run.has_rate else {"learning_rate"})
    for name, value in flatten(training).items():
        flat[name if name not in flat else f"training.{name}"] = value
    return flat


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns mappings inside others by dotted names, lists as `a,b`, lists of lists as `a,b; c,d`, None left out;
    `ranks` of three also as r1, r2, r3."""
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        elif isinstance(value, list | tuple):
            between = "; " if any(isinstance(item, list | tuple) for item in value) else ","
            flat[f"{prefix}{name}"] = between.join(text(item) for item in value)
            if name == "ranks" and len(value) == 3:
                flat.update({f"{prefix}r{mode}": rank for mode, rank in enumerate(value, start=1)})
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def text(value: Any) -> str:
    """Returns a value as people write it: 0.0003 is 3e-4, 1e-3 is 0.001, True is true."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if value != 0 and abs(value) < 1e-3:
            digits, power = f"{value:.6e}".split("e")
            return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        return ",".join(text(item) for item in value)
    return str(value)


CUT = ", cut to "
"""Stands in a label between that of the trained configuration and what its adapter is cut to."""


UNCOUNTED = Counts(0, 0, 0, 0)


@dataclass(frozen=True)
class Configuration:
    """One point of the search space, or what the adapters of another configuration are cut to. Its content names it.

    Attributes:
        id: 10 hexadecimal digits, a hash of method, parameters and training settings; with the label empty until it is counted.
        parameters: the method's, defaults filled in.
        training: the training settings that the point itself chose; they win over the file's other ones.
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
    counts: Counts = UNCOUNTED
    estimated_memory_bytes: int | None = None
    path: YamlPath = ()
    source: Configuration | None = field(default=None, repr=False)
    cut_to: str | None = None
    candidates: Mapping[str, Configuration] = field(default_factory=dict, repr=False)
    transferred: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """All that its point says, by name."""
        return self.parameters | self.training

    @property
    def known(self) -> dict[str, float]:
        memory = {} if self.estimated_memory_bytes is None else {"estimated_memory_bytes": self.estimated_memory_bytes}
        return {**self.counts.known(), **memory}

    @property
    def trained(self) -> Configuration:
        """What is trained for it: itself, or what its adapters are cut from, with the candidates that were chosen for it."""
        return self if self.source is None else replace(self.source, candidates=self.candidates)

    def cut(self, size: int, name: str) -> Configuration:
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
