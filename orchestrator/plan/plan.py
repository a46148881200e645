"""What a sweep will run, and what each configuration costs, before it costs anything.

`make_plan(sweep)` turns the search space into configurations and those into trials. A configuration is named by a hash of its
effective content (defaults filled in), so writing a default out changes nothing and equal configurations are merged. Its
parameters are counted on the meta device from the model's config.json, which also finds what only the model can tell: a rank
above a dimension, a projection that is not there. Constraints are judged on these counts; what breaks one is dropped and named.

`Planner` does this for one point at a time, for searchers that propose points while the sweep runs; the plan of such a sweep
starts empty and grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from orchestrator.plan.configuration import Configuration, Dropped, Earlier
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import TrialSpec
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space import Point, covering, grid, sample
from orchestrator.sweepfile.sweep import Sweep

MAX_TRIALS = 100_000
PROBES = 100
"""Points drawn at random, beside those that cover the space, to see whether anything meets the constraints."""


@dataclass(frozen=True)
class Plan:
    """All that will run. `duplicates` are labels of points merged into a configuration that was there before.

    A plan of an adaptive algorithm starts without configurations and gets them by `add` while the sweep runs; any plan may get
    more seeds by `replicate`. Its `planner` judges what an algorithm proposes; `probed` are points of its space that were tried
    out beforehand and may be trained, and `examples` are their trials, for what is prepared before. `earlier` are results of
    other sweeps that its algorithm begins with. `refused` are proposals that broke a constraint; `on_refused` hears of each.
    """

    sweep: Sweep
    configurations: list[Configuration]
    trials: list[TrialSpec]
    dropped: list[Dropped] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    planner: Planner | None = None
    examples: list[TrialSpec] = field(default_factory=list)
    probed: list[Configuration] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)
    refused: list[Dropped] = field(default_factory=list)
    on_refused: list[Callable[[Dropped], None]] = field(default_factory=list)
    _by_configuration: dict[str, list[TrialSpec]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def adaptive(self) -> bool:
        return self.sweep.search.row.adaptive

    @property
    def grows(self) -> bool:
        """Whether it may get configurations or trials while it runs."""
        return self.adaptive or self.sweep.replication is not None or bool(self.sweep.scheduler.row.population)

    @property
    def expected_trials(self) -> int:
        """How many trials there will be: known, or at most, where they are chosen while the sweep runs."""
        if self.sweep.scheduler.row.population:
            epochs, interval = self.sweep.training.epochs, self.sweep.scheduler.interval
            first = len(self.sweep.task_names) * len(self.sweep.seeds) * sum(one.parent is None for one in self.configurations)
            return first * max(1, round(epochs / interval))
        if not self.adaptive:
            return len(self.trials)
        return max(len(self.trials), self.wanted * len(self.sweep.task_names) * len(self.sweep.seeds))

    @property
    def wanted(self) -> int:
        """How many configurations a learning searcher may propose: `search.trials`, or as many as `budget.trials` allows."""
        budget, each = self.sweep.budget.trials, len(self.sweep.task_names) * len(self.sweep.seeds)
        wanted = self.sweep.search.trials or 0
        return wanted if budget is None else min(wanted, budget // each)

    def add(self, configuration: Configuration) -> None:
        """Takes in a configuration that was proposed, with its trials."""
        assert self.planner is not None, "a plan without a planner does not grow"
        self.configurations.append(configuration)
        self.trials.extend(self.planner.trials(configuration))

    def refuse(self, configuration: Configuration, reason: str) -> None:
        """Notes a proposal that breaks a constraint and is not trained."""
        if all(configuration.id != one.configuration.id for one in self.refused):
            self.refused.append(Dropped(configuration, reason))
            for hear in self.on_refused:
                hear(self.refused[-1])

    def replicate(self, configuration: Configuration, seeds: Iterable[int]) -> list[TrialSpec]:
        """Gives a configuration of the plan further seeds; returns its new trials."""
        assert self.planner is not None, "a plan without a planner does not grow"
        known = {trial.key for trial in self.trials_of(configuration.id)}
        new = [trial for trial in self.planner.trials(configuration, seeds) if trial.key not in known]
        self.trials.extend(new)
        return new

    def trials_of(self, configuration: str) -> list[TrialSpec]:
        """The trials of a configuration that is in the plan."""
        for trial in self.trials[sum(map(len, self._by_configuration.values())) :]:
            self._by_configuration.setdefault(trial.configuration, []).append(trial)
        return list(self._by_configuration.get(configuration, ()))

    @property
    def counts(self) -> dict[str, dict[str, float]]:
        """Planned counts by configuration id, for summaries."""
        return {one.id: one.known for one in self.configurations}


def make_plan(sweep: Sweep, planner: Planner | None = None) -> Plan:
    """Every configuration and trial of `sweep`, where its algorithm knows them beforehand (grid, random); otherwise a plan
    without any, whose space is checked as far as it can be.

    Raises:
        SweepError: configurations that cannot be built, every one named; nothing left to run; too much to run.
    """
    planner = planner or Planner(sweep)
    algorithm = sweep.search.row
    if algorithm.adaptive:
        return _open_plan(sweep, planner)
    wanted = sweep.search.trials if algorithm.samples else None
    points = sample(sweep.blocks, sweep.search.seed) if algorithm.samples else grid(sweep.blocks)
    if not algorithm.samples:
        _refuse_too_many(sweep, sum(block.size for block in sweep.blocks))

    kept: dict[str, Configuration] = {}
    dropped: dict[str, Dropped] = {}
    duplicates: list[str] = []
    errors: list[str] = []
    for point in _bounded(points, wanted):
        if wanted is not None and len(kept) >= wanted:
            break
        try:
            configuration = planner.configuration(point)
        except SweepError as error:
            errors += [line for line in error.lines if line not in errors]
            continue
        reason, meaning = planner.broken_constraint(configuration), planner.meaning(configuration)
        if meaning in kept or meaning in dropped:
            duplicates += [] if wanted else [configuration.label]
        elif reason:
            dropped[meaning] = Dropped(configuration, reason)
        else:
            kept[meaning] = configuration
    if errors:
        raise SweepError(errors)
    configurations = list(kept.values())
    plan = Plan(
        sweep=sweep,
        configurations=configurations,
        trials=[trial for configuration in configurations for trial in planner.trials(configuration)],
        dropped=list(dropped.values()),
        duplicates=duplicates,
        planner=planner,
    )
    _refuse_nothing_or_too_much(plan)
    return plan


def _open_plan(sweep: Sweep, planner: Planner) -> Plan:
    """A plan for an algorithm that chooses later: every value of the space is built once, and one point must be allowed."""
    _refuse_too_many(sweep, sweep.search.trials or 0)
    allowed: list[Configuration] = []
    dropped: dict[str, Dropped] = {}
    errors: list[str] = []
    for point in itertools.chain(covering(sweep.blocks), islice(sample(sweep.blocks, sweep.search.seed), PROBES)):
        try:
            configuration = planner.configuration(point)
        except SweepError as error:
            errors += [line for line in error.lines if line not in errors]
            continue
        if reason := planner.broken_constraint(configuration):
            dropped[configuration.id] = Dropped(configuration, reason)
        else:
            allowed.append(configuration)
    if errors:
        raise SweepError(errors)
    if not allowed:
        _refuse_nothing_or_too_much(Plan(sweep, [], [], list(dropped.values())))
    each = len(sweep.task_names) * len(sweep.seeds)
    if sweep.budget.trials is not None and sweep.budget.trials < each:
        where = sweep.where(("budget", "trials"))
        raise SweepError(
            [f"{where}: budget.trials: one configuration alone needs {each} trials; the budget is {sweep.budget.trials}"]
        )
    probed = list({one.id: one for one in allowed}.values())
    return Plan(
        sweep,
        [],
        [],
        dropped=list(dropped.values()),
        planner=planner,
        examples=[trial for one in probed for trial in planner.trials(one)],
        probed=probed,
    )


def _bounded(points: Iterator[Point], wanted: int | None) -> Iterator[Point]:
    # A space of few points, or tight constraints, can have fewer configurations than were asked for: drawing must end.
    return points if wanted is None else islice(points, 200 + 20 * wanted)


def _refuse_too_many(sweep: Sweep, size: int) -> None:
    trials = size * len(sweep.task_names) * len(sweep.seeds)
    if trials > MAX_TRIALS:
        raise SweepError(
            [f"{sweep.where(('space',))}: space: {size:,} combinations make {trials:,} trials; at most {MAX_TRIALS:,} are "
             "planned. Give fewer values, or draw some: search: {algorithm: random, trials: 64}"]
        )  # fmt: skip


def _refuse_nothing_or_too_much(plan: Plan) -> None:
    sweep = plan.sweep
    if not plan.configurations:
        reasons = "; ".join(f"{one.configuration.label}: {one.reason}" for one in plan.dropped[:5])
        raise SweepError([f"{sweep.where(('constraints',))}: constraints: no configuration meets them ({reasons})"])
    if sweep.budget.trials is not None and len(plan.trials) > sweep.budget.trials:
        where = sweep.where(("budget", "trials"))
        raise SweepError(
            [f"{where}: budget.trials: the plan needs {len(plan.trials)} trials; the budget is {sweep.budget.trials}"]
        )
