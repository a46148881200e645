"""`Learned`: the strategy of searchers that learn. A sampler chooses the next configuration from what has run.

    state --draws with their values--> sampler --point--> planner --> configuration --> `Proposed` --> state

What was drawn is an event (`Proposed`), and the random numbers of a draw follow from the sweep's seed and the draw's number.
So equal states lead to the same next draw, in every session. The samplers are Optuna's own, on the space without conditions
(`FlatSpace`); SEARCHERS (`orchestrator.sweepfile.settings`) names `tpe` and `gp`.

Not every draw is trained. A point that breaks a constraint shows the sampler by how much; a point that equals an earlier
configuration has the values of that one; a point that cannot be built has failed. The next draw is then a new point near it.

The search score counts, never the reported score: choosing among many configurations by the reported score would make the best
of them look better than it is. A training whose adapter is cut is worth the area under the scores of its cuts and itself.
"""

from __future__ import annotations

import logging
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from statistics import fmean
from typing import Any

import optuna
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from craft.settings import content_hash
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import PlannedTrial
from orchestrator.record.events import Event, Proposed
from orchestrator.record.state import Entry, State, by_configuration, fold
from orchestrator.results.summary import summarize_entries
from orchestrator.search.flat import FlatSpace, space_of
from orchestrator.search.strategy import SEARCH_SCORE, Strategy, refusal
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.settings import Bounds, Objectives
from orchestrator.sweepfile.space.dimensions import Point, grid, neighbours, sample

logger = logging.getLogger(__name__)

DRAWS = 500
"""A new point is searched for in at most this many random draws; if all are known, the space counts as used up."""


@dataclass(frozen=True)
class Draw:
    """A draw as a sampler sees it.

    Attributes:
        values: on the objectives, in their order; None before they are known, and if the configuration failed.
        ended: whether its configuration has ended, or is never trained.
        excess: by how much it exceeds each bound of the constraints, as a share of the bound; negative if it keeps to it.
    """

    point: Point
    values: tuple[float, ...] | None
    ended: bool
    excess: Mapping[str, float]


@dataclass(frozen=True)
class _Judged:
    """A point as the planner judges it.

    Attributes:
        family: its configuration after what its adapters are cut to; empty if it is not trained.
        configuration: None if it cannot be built.
        meaning: equal for equal configurations.
        reason: why it is not trained.
    """

    family: Sequence[Configuration]
    trials: Sequence[PlannedTrial]
    configuration: Configuration | None
    meaning: str
    reason: str


class Learned(Strategy):
    """The strategy of a plan whose algorithm chooses configurations while the sweep runs, by a sampler of Optuna's.

    `make_sampler` gets the seed of a draw's random numbers.
    """

    def __init__(self, plan: Plan, make_sampler: Callable[[int], BaseSampler]) -> None:
        super().__init__(plan)
        self._planner, self._sweep, self._make_sampler = plan.planner, plan.sweep, make_sampler
        objectives = plan.sweep.objectives
        size = next((name for name, way in objectives.items() if name != "score" and way == "minimize"), "")

        def cost(point: Point) -> float | None:
            try:
                return plan.planner.configuration(point).known.get(size)
            except SweepError:
                return None

        self._flat, self._space = FlatSpace(plan.sweep.blocks, cost), space_of(plan.sweep.blocks)
        self._judgements: dict[str, _Judged] = {}
        self._unseen_at: tuple[tuple[Proposed, ...], Point | None] | None = None

    def configurations(self, state: State) -> list[Configuration]:
        """Returns the configurations that were drawn and are trained, each after what its adapters are cut to."""
        return [configuration for judged in self._drawn(state).values() for configuration in judged.family]

    def wanted(self, state: State) -> list[PlannedTrial]:
        return [trial for judged in self._drawn(state).values() for trial in judged.trials]

    def is_open(self, state: State) -> bool:
        return len(self._drawn(state)) < self._plan.wanted and not self._is_used_up(state)

    def draw(self, state: State) -> list[Event]:
        """Returns the events of the next draws, until one needs training or no more may be drawn."""
        events: list[Event] = []
        while self.is_open(state):
            events += (new := self._draw(state))
            state = fold(new, state)
            if state.proposals[-1].verdict is None:
                break
        return events

    def notes(self, state: State) -> list[str]:
        """Returns what ended the search early, and why a draw could not be built."""
        notes = list[str]()
        if self._is_used_up(state):
            notes.append(f"Every point of the space is known: {len(self._drawn(state))} configurations")
        judgements = [self._judge(proposal.point) for proposal in self._proposals(state)]
        broken = [judged.reason for judged in judgements if judged.configuration is None]
        return notes + [f"A point of the space cannot be built: {reason}" for reason in broken[:1]]

    def draws(self, state: State) -> list[Draw]:
        """Returns all draws from the sweep's space, with their values as the state has them."""
        means = mean_scores(state.entries.values()) if self._pauses else {}
        values = {meaning: self._values(judged, state, means) for meaning, judged in self._drawn(state).items()}
        rows = [row for row, ended in values.values() if row is not None and ended]
        draws = []
        for proposal in self._proposals(state):
            judged = self._judge(proposal.point)
            if judged.configuration is None:
                row, ended = None, True
            elif not judged.family:
                row, ended = _stand_in(judged.configuration, self._sweep.objectives, rows), True
            else:
                row, ended = values.get(judged.meaning, (None, True))
            excess = _excess(judged.configuration, self._sweep.constraints)
            draws.append(Draw(Point(**proposal.point), row, ended, excess))
        return draws

    @property
    def _pauses(self) -> bool:
        return self._sweep.scheduler.name != "none"

    def _proposals(self, state: State) -> list[Proposed]:
        return [proposal for proposal in state.proposals if proposal.space == self._space]

    def _drawn(self, state: State) -> Mapping[str, _Judged]:
        """Returns the points that are trained, by their meaning. A changed constraint may rule out what was trained before."""
        drawn = dict[str, _Judged]()
        for proposal in self._proposals(state):
            if proposal.verdict is None and (judged := self._judge(proposal.point)).family:
                drawn.setdefault(judged.meaning, judged)
        return drawn

    def _judge(self, point: Mapping[str, Any]) -> _Judged:
        if (key := repr(point)) not in self._judgements:
            try:
                allowed, dropped = self._planner.allowed(Point(**point))
            except SweepError as error:
                judged = _Judged((), (), None, "", str(error))
            else:
                configuration = allowed[-1] if allowed else dropped[0].configuration
                trials, reason = self._planner.trials(allowed), "" if allowed else dropped[0].reason
                meaning = self._planner.identity.meaning(configuration)
                judged = _Judged(allowed, trials, configuration, meaning, reason)
            self._judgements[key] = judged
        return self._judgements[key]

    def _values(self, judged: _Judged, state: State, means: Mapping[Group, float]) -> tuple[tuple[float, ...] | None, bool]:
        """Returns the values of a configuration, and whether it has ended.

        Where trials pause, one that has not ended has its values so far, from its first rung on.
        """
        entries = [state.entries[trial.key] for trial in judged.trials if trial.key in state.entries]
        ended = len(entries) == len(judged.trials) and all(entry.ended for entry in entries)
        grace = self._sweep.scheduler.grace
        at_rung = any(entry.ended or (entry.report is not None and entry.report.epoch >= grace) for entry in entries)
        has_failed = any(entry.ended and entry.failed for entry in entries)  # and does not run again in this session
        if has_failed or not (ended or (self._pauses and at_rung)):
            return None, ended
        (summary,) = summarize_entries([entry for entry in entries if not entry.trial.is_cut] or entries)
        score = search_value(entries, means)
        row = tuple(score if name == "score" else summary.value(name) for name in self._sweep.objectives)
        return (row if all(map(math.isfinite, row)) else None), ended

    def _draw(self, state: State) -> list[Event]:
        proposals = self._proposals(state)
        point = self._unseen(state) if proposals and proposals[-1].verdict is not None else None
        if point is None:
            point = self._sample(self.draws(state), self._seed_of(len(proposals)))
        drawn = Proposed(number=len(proposals), space=self._space, point=dict(vars(point)))
        judged = self._judge(drawn.point)
        if judged.configuration is None:
            return [replace(drawn, verdict=f"cannot be built: {judged.reason}")]
        name = judged.configuration.id
        if not judged.family:
            new = [] if name in state.refused else [refusal(judged.configuration, judged.reason, self._sweep.protocol)]
            return [*new, replace(drawn, configuration=name, verdict=judged.reason)]
        if (equal := self._drawn(state).get(judged.meaning)) is not None:
            return [replace(drawn, configuration=equal.family[-1].id, verdict=f"equals {equal.family[-1].label}")]
        return [replace(drawn, configuration=name)]

    def _sample(self, draws: Sequence[Draw], seed: int) -> Point:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            directions = list(self._sweep.objectives.values())
            study = optuna.create_study(directions=directions, sampler=self._make_sampler(seed))
            study.add_trials([self._flatten(draw) for draw in draws if draw.values is not None or not draw.ended])
            return self._flat.point(study.ask(self._flat.distributions).params)

    def _flatten(self, draw: Draw) -> FrozenTrial:
        return create_trial(
            state=TrialState.RUNNING if draw.values is None else TrialState.COMPLETE,
            values=draw.values,
            params=self._flat.parameters(draw.point),
            distributions=self._flat.distributions,
            constraints=None if draw.values is None else dict(draw.excess),
        )

    def _seed_of(self, *parts: str | int) -> int:
        return int(content_hash([*parts[:-1], self._sweep.search.seed, parts[-1]], 8), 16)

    def _is_used_up(self, state: State) -> bool:
        proposals = self._proposals(state)
        return bool(proposals) and proposals[-1].verdict is not None and self._unseen(state) is None

    def _unseen(self, state: State) -> Point | None:
        """Returns a point that may be trained and was not drawn, near to the last draw if possible; None if there is none."""
        if self._unseen_at is None or self._unseen_at[0] != state.proposals:
            drawn, candidates = self._drawn(state), ((point, self._judge(vars(point))) for point in self._candidates(state))
            new = (point for point, judged in candidates if judged.family and judged.meaning not in drawn)
            self._unseen_at = state.proposals, next(new, None)
        return self._unseen_at[1]

    def _candidates(self, state: State) -> Iterator[Point]:
        proposals, blocks = self._proposals(state), self._sweep.blocks
        seed = self._seed_of("unseen", len(proposals))
        around = list(neighbours(blocks, Point(**proposals[-1].point), seed))
        random.Random(seed).shuffle(around)
        yield from chain(around, islice(sample(blocks, seed), DRAWS))
        if not any(block.ranges for block in blocks) and sum(block.size for block in blocks) <= DRAWS:
            yield from grid(blocks)


def _stand_in(configuration: Configuration, objectives: Objectives, rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Returns values for a configuration that is not trained: its counts, and of other objectives the worst value in `rows`.

    Samplers order such draws by how much they break a constraint, but demand values of them.
    """
    values = []
    for index, (name, direction) in enumerate(objectives.items()):
        column = [row[index] for row in rows] or [0.0]
        values.append(float(configuration.known.get(name, min(column) if direction == "maximize" else max(column))))
    return tuple(values)


def _excess(configuration: Configuration | None, constraints: Mapping[str, Bounds]) -> dict[str, float]:
    excess: dict[str, float] = {}
    for name, bounds in constraints.items():
        value = None if configuration is None else configuration.known.get(name)
        if value is not None and bounds.max is not None:
            excess[f"{name} max"] = (value - bounds.max) / max(abs(bounds.max), 1.0)
        if value is not None and bounds.min is not None:
            excess[f"{name} min"] = (bounds.min - value) / max(abs(bounds.min), 1.0)
    return excess


def tpe(plan: Plan) -> Learned:
    return Learned(plan, lambda seed: TPESampler(seed=seed))


def gp(plan: Plan) -> Learned:
    # A configuration that is drawn again keeps its value, so the sampler must not hope that another try gives more.
    return Learned(plan, lambda seed: GPSampler(seed=seed, deterministic_objective=True))


Group = tuple[str, int]
"""A task and a seed."""


def area(points: Iterable[tuple[float, float]]) -> float:
    """Returns the mean score over the logarithm of the parameters, from the smallest to the largest of (parameters, score)."""
    rows = sorted(points)
    total, span = 0.0, math.log(rows[-1][0] / rows[0][0])
    for (small, low), (large, high) in pairwise(rows):
        total += math.log(large / small) * (low + high) / 2
    return total / span if span else fmean(score for _, score in rows)


def latest_score(entry: Entry) -> float | None:
    """Returns the search score of a trial's last evaluation; None before it has one."""
    if entry.ended and entry.result is not None:
        return entry.result.metrics.get(SEARCH_SCORE)
    return None if entry.report is None else entry.report.metrics.get(SEARCH_SCORE)


def mean_scores(trials: Iterable[Entry]) -> dict[Group, float]:
    """Returns the mean latest search score of the trained trials of each task and seed."""
    groups: dict[Group, list[float]] = {}
    for entry in trials:
        if not entry.trial.is_cut and (score := latest_score(entry)) is not None and math.isfinite(score):
            groups.setdefault((entry.trial.task, entry.trial.seed), []).append(score)
    return {group: fmean(scores) for group, scores in groups.items()}


def mean_score(trials: Sequence[Entry], means: Mapping[Group, float]) -> float:
    """Returns the mean search score of a configuration's trials, NaN if it is not known.

    A trial that has none yet, or was stopped before it had any, counts as the mean of its task and seed in `means`.
    """
    scores = []
    for entry in trials:
        score = latest_score(entry)
        average = math.nan if entry.finished else means.get((entry.trial.task, entry.trial.seed), math.nan)
        scores.append(average if score is None else score)
    return fmean(scores)


def search_value(trials: Sequence[Entry], means: Mapping[Group, float]) -> float:
    """Returns the score of a configuration for a searcher, by its trials and those that are cut from their adapters.

    If all of them finished, it is the area under the search scores of the cuts and of the whole adapters; otherwise the search
    score of the trials that are trained. NaN if it is not known.
    """
    outputs = by_configuration(trials)
    if len(outputs) == 1 or not all(entry.finished for entry in trials):
        return mean_score([entry for entry in trials if not entry.trial.is_cut], means)
    points = [(max(map(_size, output)), mean_score(output, {})) for output in outputs.values()]
    return area(points) if all(map(math.isfinite, chain.from_iterable(points))) else math.nan


def _size(entry: Entry) -> float:
    counts = {**entry.trial.planned, **(entry.result.counts if entry.result else {})}
    return counts.get("trainable_parameters", math.nan)
