"""Population based training: configurations change while they train, in generations, each of which goes on from the last.

    generation 0 ... of random configurations, each for `interval` epochs
         all ended --> the worst take over a better one's adapter, with its hyper-parameters moved a step; the others go on
    generation 1 ... each begins from the adapter of its parent, for `interval` epochs

A member is a configuration with a parent. Its trials are like all others: recorded, resumable, with an adapter that loads. A
move changes training settings, dropout and ranks, because J grows by identity padding and shrinks by slicing
(`craft.trainer.resizing`); projections stay. Members are ordered by non-dominated sorting of their search scores and costs: a
large adapter does not replace a small one that it does not compete with. Nothing is stored: every generation follows from the
seed and the results of the one before, so that a resumed sweep makes the same members again. A member leaves the population if
each of its moves is taken or breaks a constraint.

Source: Jaderberg et al. 2017, Population Based Training of Neural Networks (arXiv 1711.09846); synchronous here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from craft.settings import TrainingSettings, content_hash
from craft.trainer.resizing import RESIZABLE
from orchestrator.results import pareto
from orchestrator.results.summary import Summary, summarize
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Choice, Dimension, Point, Range
from orchestrator.sweepfile.space.ordering import has_order, ordered

if TYPE_CHECKING:
    from orchestrator.driver.recorder import Recorder
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan
    from orchestrator.search.proposers import ConfigurationStatus

STRIDE = 1.25
"""A move multiplies or divides a number by this factor."""
DRAWS = 20
"""How often a move is drawn again if its result breaks a constraint or cannot be built."""


class Population:
    """A proposer of members, generation by generation. A new one takes up the results on record."""

    def __init__(self, plan: Plan, recorder: Recorder) -> None:
        """
        Args:
            plan: holds the first generation.
            recorder: knows how its trials stand, and takes in those of later generations.
        """
        self._plan, self._planner, self._recorder = plan, plan.planner, recorder
        self._settings, self._seed = plan.sweep.scheduler, plan.sweep.search.seed
        self._members = list(plan.configurations)
        self._waiting = list(plan.configurations)
        self._left = generations(plan.sweep.training.epochs, self._settings.interval) - 1
        self._number = 0
        self.advance()

    @property
    def exhausted(self) -> bool:
        return not self._waiting and not self._left

    def suggest(self) -> Configuration | None:
        self.advance()
        return self._waiting.pop(0) if self._waiting else None

    def tell(self, configuration: str, values: Mapping[str, float], status: ConfigurationStatus) -> None:
        """Nothing: results are read from the record when a generation has ended."""

    def tell_partial(self, configuration: str, values: Mapping[str, float]) -> None:
        pass

    def advance(self) -> None:
        """Makes the next generation, and the next, as far as all trials of the one before have ended."""
        while self._left and not self._recorder.standing.remaining:
            self._left -= 1
            self._number += 1
            self._members = self._descend(self._members)
            if not self._members:
                self._left = 0
            self._recorder.grow([trial for member in self._members for trial in self._plan.add(member)])
            self._waiting += self._members

    def _descend(self, members: Sequence[Configuration]) -> list[Configuration]:
        """The next generation, one member for each, in the same order."""
        names = {one.id for one in members}
        trials = [trial for trial in self._plan.trials if trial.configuration in names]
        summaries = {one.configuration: one for one in summarize(trials, self._recorder.standing.results, self._plan.counts)}
        order = ranking([summaries[one.id] for one in members], self._plan.sweep.objectives)
        if not summaries[members[order[0]].id].complete:
            return []  # no member has finished, so there is nothing to go on from
        replaced = math.floor(self._settings.share * len(members)) or int(len(members) > 1)
        best = [index for index in order[: max(1, replaced)] if summaries[members[index].id].complete]
        worst = set(order[len(order) - replaced :])
        worst |= {index for index in order if not summaries[members[index].id].complete}
        found: dict[int, Configuration] = {}
        taken: set[tuple[str, str]] = set()
        # Members that stay as they are come first, so that a moved member cannot become equal to one of them.
        for index in sorted(range(len(members)), key=lambda index: index in worst):
            draw = random.Random(content_hash(["pbt", self._seed, self._number, index], 16))
            parent = members[draw.choice(best)] if index in worst else members[index]
            made = self._made(parent, draw if index in worst else None, taken)
            if made is not None:
                taken.add((made.id, parent.id))
                name = content_hash([made.id, parent.id, self._number], 10)
                label = f"{made.label} · generation {self._number}"
                found[index] = replace(made, id=name, label=label, parent=parent)
        return [found[index] for index in sorted(found)]

    def _made(self, parent: Configuration, draw: random.Random | None, taken: set[tuple[str, str]]) -> Configuration | None:
        """What follows `parent`: the same, or a move by `draw` that is not `taken`; None if there is no such move."""
        start = point_of(parent)
        if draw is None:
            return self._planner.configuration(start)
        for _ in range(DRAWS):
            try:
                candidate = self._planner.configuration(moved(start, self._plan.sweep.blocks[start.block].dimensions, draw))
            except SweepError:
                continue
            if self._planner.broken_constraint(candidate) is None and (candidate.id, parent.id) not in taken:
                return candidate
        return None


def generations(epochs: float, interval: float) -> int:
    """How many generations of `interval` epochs make up `epochs`."""
    return max(1, round(epochs / interval))


def ranking(summaries: Sequence[Summary], objectives: Mapping[str, pareto.Direction]) -> list[int]:
    """Indices from the best to the worst: front after front, by search score within a front; incomplete summaries last."""
    names, directions = list(objectives), list(objectives.values())
    rows = [[one.value("search_score" if name == "score" else name) for name in names] for one in summaries]
    left = [index for index, row in enumerate(rows) if summaries[index].complete and all(map(math.isfinite, row))]
    found: list[int] = []
    while left:
        marks = pareto.front([rows[index] for index in left], directions)
        layer = [index for index, mark in zip(left, marks, strict=True) if mark]
        found += sorted(layer, key=lambda index: -summaries[index].value("search_score"))
        left = [index for index in left if index not in set(layer)]
    return found + [index for index in range(len(rows)) if index not in set(found)]


def point_of(configuration: Configuration) -> Point:
    """The point that a configuration of the plan came from."""
    return Point(int(configuration.path[1]), configuration.method, dict(configuration.parameters), dict(configuration.training))


def moved(start: Point, dimensions: Mapping[str, Dimension], draw: random.Random) -> Point:
    """`start` with each dimension that may change moved one step up or down, within its bounds."""
    parameters, training = dict(start.parameters), dict(start.training)
    for name, dimension in dimensions.items():
        if name in parameters and name in RESIZABLE:
            parameters[name] = step(dimension, parameters[name], draw)
        elif name in training and name in TrainingSettings.model_fields:
            training[name] = step(dimension, training[name], draw)
    return Point(start.block, start.method, parameters, training)


def step(dimension: Dimension, value: Any, draw: random.Random) -> Any:
    """A neighbour of `value`: the next place of an ordered choice, or a number a quarter more or a fifth less."""
    up = draw.random() < 0.5
    if isinstance(dimension, Choice):
        if not has_order(dimension.values) or value not in dimension.values:
            return value
        order = ordered(dimension.values)
        place = order.index(dimension.values.index(value)) + (1 if up else -1)
        return dimension.values[order[min(max(place, 0), len(order) - 1)]]
    return _scaled(dimension, value, up)


def _scaled(dimension: Range, value: float, up: bool) -> float | int:
    number = value * STRIDE if up else value / STRIDE
    if dimension.distribution.startswith("int_"):
        # A small whole number must move too.
        number = max(round(number), int(value) + 1) if up else min(round(number), int(value) - 1)
        return min(max(int(number), int(dimension.low)), int(dimension.high))
    return min(max(number, dimension.low), dimension.high)
