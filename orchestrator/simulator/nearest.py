"""Curves for trials that were not recorded, made up only on request (`--surrogate nearest`).

`nearest` answers with the curve of the nearest recorded trial of the same method, task and seed. Only dimensions of the space
may differ; every other setting, and all settings that decide how long a curve is, must be as recorded. The distance of two
numbers is that of their logarithms, as a share of the range in the record; two words differ by 1. A configuration's costs are
never made up but counted on the model. A replay reports how many of its trials were made up; a denser record makes it more
trustworthy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.planner import Counter
from orchestrator.simulator.curves import Curve, MissingCurve, RecordedCurves, asked

LENGTH = ("epochs", "max_steps", "batch_size", "train_examples", "evaluate_every")
"""Settings that decide how long a curve is; a curve of another length cannot stand in."""
SURROGATES = ("nearest",)


class Nearest(RecordedCurves):
    """A record that answers for trials near its own. `made_up` holds the keys of the trials it made up so far."""

    def __init__(self, record: RecordedCurves, dimensions: Iterable[str], counter: Counter) -> None:
        """
        Args:
            dimensions: names of the space's dimensions.
            counter: counts configurations that the record does not hold, such as `craft.trainer.counting.planned_counts`.
        """
        super().__init__(record.curves)
        self.made_up: set[str] = set()
        self._counter = counter
        wide = {*dimensions} - {*LENGTH}
        self._free = wide | ({"r1", "r2", "r3"} if "ranks" in wide else set())
        self._axes = {name: _Axis.of(curve.parameters.get(name) for curve in self.curves) for name in self._free}

    def curve(self, run: RunSpec) -> Curve:
        try:
            return super().curve(run)
        except MissingCurve:
            wanted = asked(flat_parameters(run))
            near = [
                curve
                for curve in self.curves
                if (curve.task, curve.seed) == (run.task, run.seed) and self._fixed(curve.parameters) == self._fixed(wanted)
            ]
            if not near:
                raise
            self.made_up.add(run.key)
            return min(near, key=lambda curve: self._distance(curve.parameters, wanted))

    def counts(self, run: RunSpec) -> Counts:
        try:
            return super().counts(run)
        except MissingCurve:
            return self._counter(run)

    def _fixed(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in parameters.items() if name not in self._free}

    def _distance(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
        return math.fsum(
            axis.gap(one.get(name), other.get(name)) for name, axis in self._axes.items() if one.get(name) != other.get(name)
        )


@dataclass(frozen=True)
class _Axis:
    """A dimension's scale in the record: logarithmic where every number is positive."""

    log: bool
    span: float

    @classmethod
    def of(cls, values: Iterable[Any]) -> _Axis:
        numbers = [value for value in values if _is_number(value)]
        log = all(number > 0 for number in numbers)
        scaled = [math.log(number) if log else number for number in numbers]
        return cls(log, (max(scaled) - min(scaled) if scaled else 0.0) or 1.0)

    def gap(self, one: Any, other: Any) -> float:
        """How far two different values lie apart: 1 for words, for numbers a share of the span."""
        if not (_is_number(one) and _is_number(other)):
            return 1.0
        if self.log and min(one, other) > 0:
            return abs(math.log(one / other)) / self.span
        return abs(one - other) / self.span


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
