"""What a sweep will run, and what each configuration costs, before it costs anything.

`make_plan(sweep)` turns the search space into configurations and those into trials. A configuration is named by a hash of its
effective content (defaults filled in), so writing a default out changes nothing and equal configurations are merged. Its
parameters are counted on the meta device from the model's config.json, which also finds what only the model can tell: a rank
above a dimension, a projection that is not there. Constraints are judged on these counts; a configuration that breaks one is
dropped and named.

`Planner` does this for one point at a time, for searchers that propose points while the sweep runs; the plan of such a sweep
has no trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeVar

from orchestrator.plan.configuration import Configuration, Dropped
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Job, PlannedTrial, jobs_of
from orchestrator.plan.tuning import Family, budget_of, families_of, unequal_tuning
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Point, covering, grid, sample
from orchestrator.sweepfile.sweep import Sweep

T = TypeVar("T")
MAX_TRIALS = 100_000
PROBES = 100
"""How many points are drawn at random, beside those that cover the space, to see whether any meets the constraints."""


MOST_SEEDS, MOST_POINTS = 5, 4
"""With `search.until`: the most seeds of a configuration, and the most sizes and rates that are added."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What a sweep file alone says of the trials. More may come while the sweep runs (`orchestrator.search`).

    Attributes:
        dropped: configurations that break a constraint; of an adaptive plan those of the points tried out beforehand.
        duplicates: labels of points that were merged into a configuration that was there before.
        configurations: those that are known beforehand, each after what its adapters are cut to. A candidate that may not be
            needed (`orchestrator.plan.tuning`) has no trials at first.
        trials: those that run in any case, by configuration, seed and task.
        probed: configurations of points that were tried out beforehand and may be trained; of an adaptive plan only.
    """

    sweep: Sweep
    planner: Planner
    dropped: Sequence[Dropped] = ()
    duplicates: Sequence[str] = ()
    configurations: Sequence[Configuration] = ()
    trials: Sequence[PlannedTrial] = ()
    probed: Sequence[Configuration] = ()

    @property
    def adaptive(self) -> bool:
        """Whether the algorithm chooses configurations while the sweep runs."""
        return self.sweep.search.row.adaptive

    @cached_property
    def jobs(self) -> list[Job]:
        return jobs_of(self.trials)

    @cached_property
    def trained(self) -> list[Configuration]:
        return [configuration for configuration in self.configurations if configuration.source is None]

    @property
    def most_jobs(self) -> int:
        """The most jobs that there will be, within the sweep's budget, as far as that is known beforehand."""
        most = len(self.jobs)
        if self.adaptive:
            most = self.wanted * len(self.sweep.task_names) * len(self.sweep.seeds)
        elif self.sweep.tunes:
            planned, _, measuring = budget_of(self.sweep, self.families)
            most = max(planned, sum(not job.training.trial.is_reported for job in self.jobs)) + measuring
        return most if self.sweep.budget.trials is None else min(most, self.sweep.budget.trials)

    @cached_property
    def families(self) -> list[Family]:
        """Its candidates, where some are tried to choose among them."""
        return families_of(self.planner, self.trained)

    @property
    def wanted(self) -> int:
        """The most configurations that a learning searcher may propose, by `search.configurations` and `budget.trials`, so that
        each may also be reported where `seeds` only tune."""
        budget, each = self.sweep.budget.trials, _trials_of_one(self.sweep)
        wanted = self.sweep.search.configurations or 0
        return wanted if budget is None else min(wanted, budget // each)

    @property
    def largest(self) -> Configuration | None:
        """The largest of the points tried out beforehand, which estimates of an adaptive plan take for every one; else None."""
        return max(self.probed, key=lambda point: point.counts.trainable_parameters, default=None)

    @property
    def examples(self) -> list[PlannedTrial]:
        """Trials of configurations that have none yet: these are prepared and checked before there are any."""
        begun = {trial.configuration for trial in self.trials}
        return self.planner.trials([*self.probed, *(later for later in self.configurations if later.id not in begun)])


def _trials_of_one(sweep: Sweep) -> int:
    return len(sweep.task_names) * (len(sweep.seeds) + (len(sweep.reported_seeds) if sweep.tunes else 0))


def make_plan(sweep: Sweep, planner: Planner | None = None) -> Plan:
    """Returns the plan of `sweep`. It has every configuration and trial if the algorithm knows them before the start (grid,
    random); otherwise it has none, and the space has been checked on a few points."""
    planner, errors = planner or Planner(sweep), list[str]()
    plan = (_probed if sweep.search.row.adaptive else _enumerated)(sweep, planner, errors)
    if errors:
        raise SweepError(errors)
    if not (plan.configurations or plan.probed):
        reasons = "; ".join(f"{drop.configuration.label}: {drop.reason}" for drop in plan.dropped[:5])
        raise SweepError([f"{sweep.where(('constraints',))}: constraints: no configuration meets them ({reasons})"])
    needed, purpose = len(plan.jobs), "the plan needs"
    if plan.adaptive:
        needed, purpose = _trials_of_one(sweep), "one configuration alone needs"
    elif sweep.tunes:
        needed, purpose = sum(budget_of(sweep, plan.families)[1:]), "to tune and measure all takes"
        errors += unequal_tuning(sweep, plan.families, plan.duplicates) if sweep.compare else []
    if sweep.budget.trials is not None and needed > sweep.budget.trials:
        where = sweep.where(("budget", "trials"))
        errors.append(f"{where}: budget.trials: {purpose} {needed} trials; the budget is {sweep.budget.trials}")
    if errors:
        raise SweepError(errors)
    return plan


def _enumerated(sweep: Sweep, planner: Planner, errors: list[str]) -> Plan:
    """Returns the plan of a space whose points are known, all of them or as many as are drawn."""
    most = sweep.search.configurations if sweep.search.row.samples else None
    if most is None:
        _refuse_too_many(sweep, sum(block.size for block in sweep.blocks))
        points = grid(sweep.blocks)
    else:
        # A space of few points, or tight constraints, can have fewer configurations than were asked for: drawing must end.
        points = islice(sample(sweep.blocks, sweep.search.seed), 200 + 20 * most)
    families: dict[str, list[Configuration]] = {}
    dropped: dict[str, Dropped] = {}
    duplicates: list[str] = []
    for allowed, refused in _built(planner.allowed, points, errors):
        labels = []
        for drop in refused:
            same = drop.configuration.id if drop.configuration.source else planner.identity.meaning(drop.configuration)
            labels += [drop.configuration.label] if dropped.setdefault(same, drop) is not drop else []
        if allowed and families.setdefault(planner.identity.meaning(allowed[-1]), allowed) is not allowed:
            labels.append(allowed[-1].label)
        duplicates += [] if most else labels
        if len(families) == most:
            break
    configurations = planner.labels.disambiguate([configuration for family in families.values() for configuration in family])
    seeds, trials = _first_seeds(planner, [family[-1] for family in families.values()]), list[PlannedTrial]()
    for trained, family in itertools.groupby(configurations, key=lambda row: row.trained.id):
        trials += planner.trials([*family], seeds.get(trained))
    return Plan(sweep, planner, list(dropped.values()), duplicates, configurations, trials)


def _first_seeds(planner: Planner, trained: Sequence[Configuration]) -> dict[str, tuple[int, ...]]:
    seeds = dict[str, tuple[int, ...]]()
    if planner.sweep.tunes:
        for family in families_of(planner, trained):
            if family.candidates == 1:  # nothing to choose, so its trials are reported
                seeds[family.groups[0][0].id] = planner.sweep.reported_seeds
            seeds |= {candidate.id: () for candidate in family.later}
    return seeds


def _probed(sweep: Sweep, planner: Planner, errors: list[str]) -> Plan:
    """Returns an empty plan, for an algorithm that chooses later. Every value of the space is built once."""
    _refuse_too_many(sweep, sweep.search.configurations or 0)
    probed: dict[str, Configuration] = {}
    dropped: dict[str, Dropped] = {}
    points = itertools.chain(covering(sweep.blocks), islice(sample(sweep.blocks, sweep.search.seed), PROBES))
    for configuration in _built(planner.configuration, points, errors):
        if reason := planner.broken_constraint(configuration):
            dropped[configuration.id] = Dropped(configuration, reason)
        else:
            probed[configuration.id] = configuration
    return Plan(sweep, planner, list(dropped.values()), probed=list(probed.values()))


def _built(build: Callable[[Point], T], points: Iterable[Point], errors: list[str]) -> Iterator[T]:
    """Yields what comes of the points that can be built; `errors` gets the lines on the others, each once."""
    for point in points:
        try:
            yield build(point)
        except SweepError as error:
            errors += [line for line in error.lines if line not in errors]


def _refuse_too_many(sweep: Sweep, size: int) -> None:
    trials = size * len(sweep.task_names) * len(sweep.seeds)
    if trials > MAX_TRIALS:
        raise SweepError(
            [f"{sweep.where(('space',))}: space: {size:,} combinations make {trials:,} trials; at most {MAX_TRIALS:,} are "
             "planned. Give fewer values, or draw some: search: {algorithm: random, configurations: 64}"]
        )  # fmt: skip
