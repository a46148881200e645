"""`UntilAnswered` (`search.until: answered`): when a strategy wants nothing more, what the answer needs is run, step by step.

    trials that have ended  -->  decided?  -- no -->  the step that is likeliest to decide for its time  -->  `Decided`

A step is more seeds of the configurations whose scores decide, a size beyond the ends of what was tried, or the next learning
rate where the best one is at the end of three or more. Before it gives up, each configuration that may be enough has three
seeds. It ends when one configuration is enough and no smaller one may be, when no step that the budget allows decides with a
probability of LEAST_PROBABILITY, or when nothing is above random guessing.

What was decided is an event, so every session has the same steps. The next one follows from the trials that have ended, all of
them, and not from the order in which they did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from craft.words import percent, plural
from orchestrator.judging.control import above_guessing
from orchestrator.judging.experiments import another_size, beyond_rates, describe_price, describe_seeds, further, pace_of
from orchestrator.judging.front import SEEDS, enough_of, mark_front
from orchestrator.judging.next_step import LEAST_PROBABILITY, Action, soonest
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import MOST_POINTS, MOST_SEEDS, Plan
from orchestrator.plan.trial import PlannedTrial
from orchestrator.results.metrics import EXPECTED, P_ENOUGH, SIZE
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.results.table import full_label
from orchestrator.search.strategy import Added, Stages, build, entries_of
from orchestrator.state.events import Decided
from orchestrator.state.state import State
from orchestrator.sweepfile.fair import RATE
from orchestrator.sweepfile.space.dimensions import Point


class UntilAnswered(Added):
    """A strategy after another one."""

    def _advance(self, state: State, trials: list[PlannedTrial], configurations: list[Configuration]) -> Stages:
        added = super()._advance(state, trials, configurations)
        trials, configurations, notes = added.trials, added.configurations, added.notes
        if not self._has_ended(state, trials):
            return Stages(trials, configurations, False, notes)
        step = self._decide(state, trials, configurations)
        if isinstance(step, str):
            return Stages(trials, configurations, True, [*notes, step])
        return Stages(trials, configurations, False, notes, step)

    def _decide(self, state: State, trials: Sequence[PlannedTrial], configurations: Sequence[Configuration]) -> Decided | str:
        """Returns the next step after trials that have all ended, or why there is none."""
        sweep = self._plan.sweep
        summaries = mark_front(summarize_entries(entries_of(trials, state)), sweep.objectives, sweep.enough)
        complete = [row for row in summaries if row.complete and math.isfinite(row.score.mean)]
        if not complete or not above_guessing(complete):
            return "Not answered: nothing is above random guessing, and more seeds or sizes do not change that"
        points = sum(decision.point is not None and not decision.request for decision in state.decisions)
        steps = _Steps(self._plan, configurations, trials, complete, points < MOST_POINTS)

        def fits(step: Decided) -> bool:
            return self._is_affordable(self._after(step, trials, configurations)[0])

        if not all(P_ENOUGH in row.counts for row in complete):
            step = steps.another_seed(complete, 2, "one seed gives no probabilities")
            exact = "Not answered: there are probabilities only where every objective but the score is exact"
            return exact if step is None else step if fits(step) else "Not answered: budget.trials allows no more"
        p_enough = {row.configuration: row.counts[P_ENOUGH] for row in complete}
        best = max(complete, key=lambda row: (row.counts[EXPECTED], -row.value(SIZE)))
        if (step := steps.rate(best)) is not None and fits(step):
            return step
        name = enough_of(complete, sweep.enough)
        candidate = max(complete, key=lambda row: (row.configuration == name, p_enough[row.configuration], -row.value(SIZE)))
        smaller = [row for row in complete if row.value(SIZE) < candidate.value(SIZE)]
        decided = name is not None and all(p_enough[row.configuration] <= 1 - sweep.enough.sure for row in smaller)
        actions, _, observed = further(
            complete, candidate, best, sweep, lambda row: steps.size(row.kind, complete[row.base]) is not None
        )
        possible = {}
        for action in actions:
            step = steps.of(action, best if action.kind == "larger" else candidate)
            few = all(have + more <= MOST_SEEDS for have, more in zip(observed.seeds, action.more, strict=False) if more)
            # What is decided is so among what was tried: a larger size may be better than all of it.
            if few and (action.kind == "larger" or not decided) and fits(step):
                possible[action] = step
        chosen = soonest([*possible], self._seconds_left(state))
        if chosen is not None:
            return possible[chosen]
        if decided:
            return f"Answered: {full_label(candidate)} is enough, and it is decided"
        likely = [row for row in complete if p_enough[row.configuration] > 1 - sweep.enough.sure]
        step = steps.another_seed(likely, SEEDS, f"{SEEDS - 1} seeds do not show how seeds spread") if name is None else None
        seconds = {row.configuration: row.value("seconds") * len(row.tasks) for row in complete}
        if step is not None and fits(step) and sum(seconds.get(name, 0.0) for name in step.seeds) <= self._seconds_left(state):
            return step
        allowed = " that the budget allows" if sweep.budget.trials or sweep.budget.wall_clock else ""
        no_step = f"no step{allowed} decides with a probability of {percent(LEAST_PROBABILITY)}"
        if name is not None:
            return f"Answered: {full_label(candidate)} is enough; {no_step} whether a smaller one is too"
        return f"Not answered: {no_step} which one is enough"

    def _seconds_left(self, state: State) -> float:
        """Returns the seconds of training for which the session has time, by the events that there are."""
        limit, started = self._plan.sweep.budget.wall_clock_seconds, state.started
        if limit is None or started is None:
            return math.inf
        passed = max((entry.changed for entry in state.entries.values()), default=started.time) - started.time
        return (limit - max(0.0, passed)) * pace_of(state)


class _Steps:
    """What may be run next.

    Args:
        configurations: those that are known.
        trials: those that are wanted.
        complete: the judged configurations.
        grows: whether configurations may be added.
    """

    def __init__(
        self,
        plan: Plan,
        configurations: Sequence[Configuration],
        trials: Sequence[PlannedTrial],
        complete: Sequence[Summary],
        grows: bool,
    ) -> None:
        self._plan, self._complete, self._grows = plan, complete, grows
        self._by_id = {configuration.id: configuration for configuration in configurations}
        self._seeds: dict[str, list[int]] = {}
        for trial in trials:
            seeds = self._seeds.setdefault(trial.configuration, [])
            seeds += [trial.run.seed] if trial.run.seed not in seeds else []

    def another_seed(self, rows: Sequence[Summary], count: int, why: str) -> Decided | None:
        """Returns the step that gives a seed to each of these configurations that has fewer than `count`; None if none has."""
        few = [row for row in rows if row.score.n < count]
        seeds = {_trained(row): self._new(_trained(row), 1) for row in few}
        why = f"one more seed of {len(few)} {plural(len(few), 'configuration')}, because {why}"
        return Decided(why=why, seeds=seeds) if few else None

    def rate(self, best: Summary) -> Decided | None:
        """Returns the step that tries the next learning rate beyond those that were tried, where the best is at their end."""
        end, rate = beyond_rates(best, self._complete)
        why = f"because {full_label(best)}, the best, has the {end} tried"
        return self._added(best, {}, {RATE: rate}, why) if end and best.tuning is None else None

    def size(self, kind: str, base: Summary, says: str = "") -> Decided | None:
        """Returns the step that adds a size; None if there is no such size."""
        configuration = self._by_id.get(base.configuration)
        parameters = another_size(configuration.parameters, base, 2 if kind == "larger" else 0.5) if configuration else {}
        return self._added(base, parameters, {}, f"a {kind} size: {says}") if parameters else None

    def of(self, action: Action, base: Summary) -> Decided:
        """Returns the step of an action."""
        says = f"{percent(action.decides)} to decide{describe_price(action.seconds)}"
        if action.kind != "seeds":
            step = self.size(action.kind, base, says)
            assert step is not None
            return step
        rows = [row for row, more in zip(self._complete, action.more, strict=False) if more]
        seeds = {_trained(row): self._new(_trained(row), max(action.more)) for row in rows}
        return Decided(why=f"{describe_seeds(action, self._complete)}: {says}", seeds=seeds)

    def _new(self, name: str, count: int) -> list[int]:
        used = {*self._plan.sweep.seeds, *self._seeds.get(name, ())}
        return [seed for seed in range(len(used) + count) if seed not in used][:count]

    def _added(self, base: Summary, parameters: dict[str, Any], training: dict[str, Any], why: str) -> Decided | None:
        """Returns the step that adds a configuration with other settings, with the seeds of its base; None if it is not allowed
        or known already."""
        old = self._by_id.get(base.configuration)
        if not self._grows or old is None or old.source is not None or old.candidates:
            return None
        block = old.path[-1]
        point = Point(
            block if isinstance(block, int) else None, old.method, old.parameters | parameters, old.training | training
        )
        family = build(self._plan, point)
        if not family or family[-1].id in self._by_id:
            return None
        return Decided(why=f"{family[-1].label}, {why}", seeds={family[-1].id: self._seeds[old.id]}, point=dict(vars(point)))


def _trained(row: Summary) -> str:
    return row.source or row.configuration
