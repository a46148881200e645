"""What a sweep will run, and what each configuration costs, before it costs anything.

`make_plan(sweep)` turns the search space into configurations and those into trials. A configuration is named by a hash of its
effective content (defaults filled in), so writing a default out changes nothing and equal configurations are merged. Its
parameters are counted on the meta device from the model's config.json, which also finds what only the model can tell: a rank
above a dimension, a projection that is not there. Constraints are judged on these counts; a configuration that breaks one is
dropped and named.

`Planner` does this for one point at a time, for searchers that propose points while the sweep runs; the plan of such a sweep
starts empty and grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from orchestrator.plan.carrying import Family, families_of
from orchestrator.plan.configuration import Configuration, Dropped
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Trial
from orchestrator.plan.tuning import budget_of, check_equal_budgets
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Point, covering, grid, sample
from orchestrator.sweepfile.sweep import Sweep

MAX_TRIALS = 100_000
PROBES = 100
"""How many points are drawn at random, beside those that cover the space, to see whether any meets the constraints."""


@dataclass(eq=False)
class Plan:
    """All that will run. It grows while an adaptive sweep runs, by its methods alone: `add`, `replicate` and `refuse`.

    Whoever makes a plan grow gets the new trials as the answer and hands them on. `on_refusal` registers a listener for
    proposals that are not trained. Readers look up by name (`configuration`, `trials_of`) and change nothing.

    Attributes:
        planner: turns what an algorithm proposes into configurations, and judges them.
        dropped: configurations that break a constraint; of an adaptive plan those of the points tried out beforehand.
        duplicates: labels of points that were merged into a configuration that was there before.
        probed: configurations of points that were tried out beforehand and may be trained; of an adaptive plan only.
        configurations: those that are trained, in the order in which they were added; each has its sizes. A candidate that may
            not be needed (`orchestrator.plan.carrying`) has no trials at first.
        trials: the trainings, in the order in which they were added; each has the trials of its sizes.
    """

    sweep: Sweep
    planner: Planner
    dropped: list[Dropped] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    probed: list[Configuration] = field(default_factory=list)
    configurations: list[Configuration] = field(default_factory=list, init=False)
    trials: list[Trial] = field(default_factory=list, init=False)
    _by_id: dict[str, Configuration] = field(default_factory=dict, init=False, repr=False)
    _trials_of: dict[str, list[Trial]] = field(default_factory=dict, init=False, repr=False)
    _refused: set[str] = field(default_factory=set, init=False, repr=False)
    _refusal_listeners: list[Callable[[Dropped], None]] = field(default_factory=list, init=False, repr=False)

    def add(self, configuration: Configuration, seeds: Iterable[int] | None = None) -> list[Trial]:
        """Takes in a configuration with its trials on every task with every seed, the sweep's own unless others are given;
        returns these."""
        self.configurations.append(configuration)
        self._by_id |= {one.id: one for one in configuration.outputs}
        return self._extend(self.planner.trials(configuration, seeds))

    def replicate(self, configuration: Configuration, seeds: Iterable[int], tasks: Iterable[str] | None = None) -> list[Trial]:
        """Gives a configuration of the plan further seeds, on all tasks unless some are given; returns its new trials."""
        known = {trial.key for trial in self.trials_of(configuration.id)}
        wanted = [trial for trial in self.planner.trials(configuration, seeds) if trial.key not in known]
        return self._extend([trial for trial in wanted if tasks is None or trial.run.task in tasks])

    def refuse(self, configuration: Configuration, reason: str) -> None:
        """Tells the listeners of a proposal that breaks a constraint and is not trained, once for each configuration."""
        if configuration.id not in self._refused:
            self._refused.add(configuration.id)
            for listener in self._refusal_listeners:
                listener(Dropped(configuration, reason))

    def on_refusal(self, listener: Callable[[Dropped], None]) -> None:
        """Registers who is told of the configurations that are refused from now on."""
        self._refusal_listeners.append(listener)

    def configuration(self, name: str) -> Configuration:
        """The configuration of the plan with that id, trained or a size."""
        return self._by_id[name]

    def trials_of(self, name: str) -> list[Trial]:
        """All trials, as of now, of the configuration with that id, trained or a size."""
        return list(self._trials_of.get(name, ()))

    @property
    def outputs(self) -> list[Trial]:
        """The trials that get a result, those of sizes included."""
        return [one for trial in self.trials for one in trial.outputs]

    def _extend(self, trials: list[Trial]) -> list[Trial]:
        self.trials.extend(trials)
        for one in (output for trial in trials for output in trial.outputs):
            self._trials_of.setdefault(one.configuration, []).append(one)
        return trials

    @property
    def adaptive(self) -> bool:
        """Whether the algorithm chooses configurations while the sweep runs."""
        return self.sweep.search.row.adaptive

    @property
    def grows(self) -> bool:
        """Whether it may get configurations or trials while it runs."""
        return self.adaptive or self.sweep.replication is not None

    @property
    def expected_trials(self) -> int:
        """The number of trials there will be; where they are chosen while the sweep runs, the most there can be."""
        if not self.adaptive:
            return len(self.trials)
        return max(len(self.trials), self.wanted * len(self.sweep.task_names) * len(self.sweep.seeds))

    @property
    def most_trials(self) -> int:
        """`expected_trials` and, where the best of each group gets further seeds, these, within the sweep's budget. What
        `choose: front` will choose is not known beforehand."""
        rule, most = self.sweep.replication, self.expected_trials
        if rule is not None and rule.choose == "best" and not self.adaptive:
            planned, _, measuring = budget_of(self.sweep, self.families)
            most = max(planned, sum(trial.tunes is not None for trial in self.trials)) + measuring
        return most if self.sweep.budget.trials is None else min(most, self.sweep.budget.trials)

    @property
    def families(self) -> list[Family]:
        """Its candidates, where some are tried to choose among them. A searcher that learns chooses its rates itself."""
        return families_of(self.planner, self.configurations, carry=not self.adaptive)

    @property
    def wanted(self) -> int:
        """The most configurations that a learning searcher may propose, by `search.configurations` and `budget.trials`."""
        budget, each = self.sweep.budget.trials, len(self.sweep.task_names) * len(self.sweep.seeds)
        wanted = self.sweep.search.configurations or 0
        return wanted if budget is None else min(wanted, budget // each)

    @property
    def examples(self) -> list[Trial]:
        """Trials of configurations that have none yet: what is prepared and checked before a plan grows."""
        later = [one for one in self.configurations if one.id not in self._trials_of]
        return [trial for one in (*self.probed, *later) for trial in self.planner.trials(one)]

    @property
    def counts(self) -> dict[str, dict[str, float]]:
        """Planned counts by configuration id, for summaries."""
        return {name: one.known for name, one in self._by_id.items()}


def make_plan(sweep: Sweep, planner: Planner | None = None) -> Plan:
    """The plan of `sweep`: with every configuration and trial if its algorithm knows them beforehand (grid, random), otherwise
    without any, after its space has been checked on points tried out.
    """
    planner = planner or Planner(sweep)
    algorithm = sweep.search.row
    if algorithm.adaptive:
        return _open_plan(sweep, planner)
    wanted = sweep.search.configurations if algorithm.samples else None
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
            allowed, refused = planner.allowed(point)
        except SweepError as error:
            errors += [line for line in error.lines if line not in errors]
            continue
        labels = []
        for one in refused:
            same = one.configuration.id if one.configuration.cut_to else planner.meaning(one.configuration)
            labels += [one.configuration.label] if dropped.setdefault(same, one) is not one else []
        if allowed and kept.setdefault(planner.meaning(allowed), allowed) is not allowed:
            labels.append(allowed.label)
        duplicates += [] if wanted else labels
    if errors:
        raise SweepError(errors)
    plan = Plan(sweep, planner, list(dropped.values()), duplicates)
    rule = sweep.replication
    seeds: dict[str, tuple[int, ...]] = {}
    if rule is not None and rule.tunes:
        for family in families_of(planner, kept.values()):
            if family.candidates == 1:  # nothing to choose, so its trials are reported
                seeds[family.groups[0][0].id] = rule.seeds
            seeds |= {one.id: () for group in family.later for one in group}
    for configuration in planner.label_apart(list(kept.values())):
        plan.add(configuration, seeds.get(configuration.id))
    if not kept:
        raise _nothing_allowed(sweep, plan.dropped)
    needed = len(plan.trials)
    if sweep.budget.trials is not None and needed > sweep.budget.trials:
        where = sweep.where(("budget", "trials"))
        raise SweepError([f"{where}: budget.trials: the plan needs {needed} trials; the budget is {sweep.budget.trials}"])
    if sweep.compare:
        check_equal_budgets(sweep, plan.families, duplicates)
    return plan


def _open_plan(sweep: Sweep, planner: Planner) -> Plan:
    """An empty plan for an algorithm that chooses later. Every value of the space is built once; one point must be allowed."""
    _refuse_too_many(sweep, sweep.search.configurations or 0)
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
        raise _nothing_allowed(sweep, list(dropped.values()))
    each = len(sweep.task_names) * len(sweep.seeds)
    if sweep.budget.trials is not None and sweep.budget.trials < each:
        where = sweep.where(("budget", "trials"))
        raise SweepError(
            [f"{where}: budget.trials: one configuration alone needs {each} trials; the budget is {sweep.budget.trials}"]
        )
    probed = list({one.id: one for one in allowed}.values())
    return Plan(sweep, planner, list(dropped.values()), probed=probed)


def _bounded(points: Iterator[Point], wanted: int | None) -> Iterator[Point]:
    # A space of few points, or tight constraints, can have fewer configurations than were asked for: drawing must end.
    return points if wanted is None else islice(points, 200 + 20 * wanted)


def _refuse_too_many(sweep: Sweep, size: int) -> None:
    trials = size * len(sweep.task_names) * len(sweep.seeds)
    if trials > MAX_TRIALS:
        raise SweepError(
            [f"{sweep.where(('space',))}: space: {size:,} combinations make {trials:,} trials; at most {MAX_TRIALS:,} are "
             "planned. Give fewer values, or draw some: search: {algorithm: random, configurations: 64}"]
        )  # fmt: skip


def _nothing_allowed(sweep: Sweep, dropped: Sequence[Dropped]) -> SweepError:
    reasons = "; ".join(f"{one.configuration.label}: {one.reason}" for one in dropped[:5])
    return SweepError([f"{sweep.where(('constraints',))}: constraints: no configuration meets them ({reasons})"])
