"""`make_strategy`, and the stages that come after a strategy.

`tune_then_measure` is that of `replication`, which `compare: fair` sets up: tuning seeds choose what others report.

Configurations that differ only in the dimensions `tuned` are candidates; those that are the best on a task
(`orchestrator.plan.tuning.best_of`) make up one tuned configuration, which runs with `replication.seeds`. Each size that is cut
from them chooses by its own score. The trials that chose are not reported.

The search score decides, never the reported score. A choice is made again from the trials before it whenever it is asked for,
so a resumed sweep chooses the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any, TypeGuard

from craft.words import percent, plural
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import MOST_POINTS, MOST_SEEDS, Plan
from orchestrator.plan.trial import PlannedTrial, jobs_of
from orchestrator.plan.tuning import Family, Tried, best_of, budget_of, choose, families_of, to_try
from orchestrator.record.events import Decided
from orchestrator.record.state import Entry, State
from orchestrator.results.front import SEEDS, above_guessing, leaders, mark_front
from orchestrator.results.metrics import P_ENOUGH, SIZE, full_label
from orchestrator.results.proposal import another_size, rate_end
from orchestrator.results.step import FACTORS, LEAST_PROBABILITY, Step, describe_price, describe_seeds, steps
from orchestrator.results.step import best as best_step
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.results.tuning import read_tried
from orchestrator.search.strategy import Staged, Stages, Strategy, added, after, build, entries_of
from orchestrator.sweepfile.fair import RATE
from orchestrator.sweepfile.settings import Enough
from orchestrator.sweepfile.space.dimensions import Point


def tune_then_measure(plan: Plan, state: State, stages: Stages) -> Stages:
    """The stage of `replication`."""
    trained = [configuration for configuration in stages.configurations if configuration.source is None]
    cuts = [configuration for configuration in stages.configurations if configuration.source is not None]
    families = families_of(plan.planner, trained)
    while True:
        if not stages.has_ended(state):
            return replace(stages, over=False)
        tried = _Tried(plan, families, stages.trials, state)
        more = tried.more_rates(_families(stages.configurations))
        if not more:
            break
        stages = replace(stages, trials=[*stages.trials, *more])
    for tuned in tried.tuned(cuts):
        trials = [*stages.trials, *plan.planner.trials(tuned, plan.sweep.reported_seeds)]
        stages = replace(stages, trials=trials, configurations=[*stages.configurations, *tuned])
    return replace(stages, notes=[line for line in [tried.rates_line()] if line])


def make_strategy(plan: Plan) -> Strategy:
    first: Strategy = resolve_name(plan.sweep.search.row.make)(plan)
    tuning = [tune_then_measure] if plan.sweep.tunes else []
    return Staged(first, plan, [*tuning, until_answered if plan.sweep.search.until else added])


def _families(configurations: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    """Returns by its id each trained configuration, after what its adapters are cut to."""
    families: dict[str, list[Configuration]] = {}
    for configuration in configurations:
        families.setdefault(configuration.trained.id, []).append(configuration)
    return families


class _Tried:
    """What the families' candidates, and what is cut from their adapters, have on each task, from trials that have ended."""

    def __init__(self, plan: Plan, families: Sequence[Family], trials: Sequence[PlannedTrial], state: State) -> None:
        self._plan, self._families = plan, families
        self._tuning = sum(job.training.trial.group is not None for job in jobs_of(trials))
        self._tunes = {trial.configuration for trial in trials if trial.trial.group is not None}
        places: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries_of(trials, state):
            places.setdefault((entry.trial.configuration, entry.trial.task), []).append(entry)
        self._tried = {place: read_tried(entries) for place, entries in places.items()}

    def more_rates(self, with_cuts: Mapping[str, Sequence[Configuration]]) -> list[PlannedTrial]:
        """Returns the trials of candidates that are needed by what is known, and were not run."""
        planner, more = self._plan.planner, list[PlannedTrial]()
        for family in (family for family in self._families if family.later):
            for task in self._plan.sweep.task_names:
                tried = self._by_rank(family, task)
                wanted = to_try(tried, family)
                for rank, group in enumerate(family.groups):
                    places = [place for place in range(len(group)) if place in wanted[rank] and place not in tried[rank]]
                    more += [trial for place in places for trial in planner.trials(with_cuts[group[place].id], tasks=[task])]
        return more

    def tuned(self, cuts: Sequence[Configuration]) -> list[list[Configuration]]:
        """Returns the tuned configuration of each group that has a candidate with a score on every task, after its cuts."""
        tuned: list[list[Configuration]] = []
        for family in self._families:
            first = family.groups[family.start]
            if not any(candidate.id in self._tunes for candidate in first):
                continue  # it has no other candidates, and its trials are reported
            source, by_task = self._plan.planner.identity.group(first[0]), self._rates(family)
            for rank, group in enumerate(family.groups):
                best = {task: place for task, rows in by_task.items() if (place := rows[rank][0]) is not None}
                if len(best) == len(by_task):
                    transferred = {task: source for task, rows in by_task.items() if rows[rank][1]}
                    sizes = self._sizes(group, cuts, {task: best[task] for task in transferred})
                    tuned.append(self._plan.planner.tuned(group, best, sizes, transferred))
        return tuned

    def _sizes(
        self, group: Sequence[Configuration], cuts: Sequence[Configuration], transferred: Mapping[str, int]
    ) -> dict[str, dict[str, int]]:
        """Returns by `cut_to` and task the place of the candidate from whose adapter a size is cut.

        Args:
            transferred: the places on the tasks on which the group was not tuned itself.
        """
        places = {candidate.id: place for place, candidate in enumerate(group)}
        rows: dict[str, dict[str, dict[int, Tried]]] = {}
        for cut in cuts:
            if cut.source is not None and cut.source.id in places:
                for task in self._plan.sweep.task_names:
                    if (cut.id, task) in self._tried:
                        of_task = rows.setdefault(str(cut.cut_to), {}).setdefault(task, {})
                        of_task[places[cut.source.id]] = self._tried[cut.id, task]
        own: dict[str, dict[str, int]] = {}
        for size, by_task in rows.items():
            best = {task: transferred.get(task, best_of(tried)) for task, tried in by_task.items()}
            own[size] = {task: place for task, place in best.items() if place is not None}
        return own

    def rates_line(self) -> str:
        """Returns how many trainings looked for rates, and where ranks need different ones; empty if all were tried."""
        if not any(family.later for family in self._families):
            return ""
        every, far = budget_of(self._plan.sweep, self._families)[1], list[str]()
        line = f"rates: {self._tuning} trainings instead of {every}"
        families = [family for family in self._families if family.ends]
        for family in families:
            for task, rows in self._rates(family).items():
                transferred = rows[family.start][0]
                for end in family.ends:
                    end_rate = rows[end][0]
                    if end_rate is None or transferred is None or abs(end_rate - transferred) > 1:
                        far.append(f"{self._plan.planner.labels.label_of(family.groups[end])} ({task})")
        if not families:
            return line
        return f"{line}: " + (f"tuned at more ranks, because {', '.join(far)} needs another" if far else "one serves all ranks")

    def _rates(self, family: Family) -> dict[str, list[tuple[int | None, bool]]]:
        rates = len(family.groups[family.start])
        return {task: choose(self._by_rank(family, task), rates, family.start) for task in self._plan.sweep.task_names}

    def _by_rank(self, family: Family, task: str) -> list[dict[int, Tried]]:
        return [
            {place: self._tried[row.id, task] for place, row in enumerate(group) if (row.id, task) in self._tried}
            for group in family.groups
        ]


SPREAD, PRIVATE, CLEAR = 1.0, 0.6, 3.5
"""Before seeds show it: the standard deviation of a score over seeds, in points; the part of the error by the examples that two
configurations do not share; and the standard errors by which one is clearly behind."""


def until_answered(plan: Plan, state: State, stages: Stages) -> Stages:
    """The stage of `search.until: answered`: when a strategy wants nothing more, what the answer needs is run, step by step.

    trials that have ended  -->  decided?  -- no -->  the step that is likeliest to decide for its time  -->  `Decided`

    After one seed of all, those that one seed leaves in doubt get a second (`contenders`). A further step is more seeds of the
    configurations whose scores decide, a size beyond the ends of what was tried, or the next learning rate where the best one
    is at the end of three or more. No step starts that does not fit into what is left of the budget. Before it gives up, each
    configuration that may be enough has three seeds. It ends when one configuration is enough and no smaller one may be, when
    no step decides with a probability of LEAST_PROBABILITY, or when nothing is above random guessing. What has failed gets no
    more seeds.

    What was decided is an event, so every session has the same steps. The next one follows from the trials that have ended, all
    of them, and not from the order in which they did.
    """
    stages = added(plan, state, stages)
    if not stages.has_ended(state):
        return replace(stages, over=False)
    step = _decide(plan, state, stages)
    if isinstance(step, str):
        return replace(stages, notes=[*stages.notes, step])
    return replace(stages, over=False, step=step)


def _decide(plan: Plan, state: State, stages: Stages) -> Decided | str:
    """Returns the next step after trials that have all ended, or why there is none."""
    sweep = plan.sweep
    entries = entries_of(stages.trials, state)
    summaries = mark_front(summarize_entries(entries), sweep.objectives, sweep.enough)
    complete = [row for row in summaries if row.complete and math.isfinite(row.score.mean)]
    failed = failures(entries)
    if not complete:
        return f"Not answered: {failed or 'no configuration is complete'}"
    if not above_guessing(complete):
        return "Not answered: nothing is above random guessing, and more seeds or sizes do not change that"
    failed = f"; {failed}: --retry-failed runs them again" if failed else ""
    decisions = _Decisions(plan, state, stages, complete)
    if not any(P_ENOUGH in row.counts for row in complete):
        if max(row.score.n for row in complete) > 1:
            return "Not answered: there are probabilities only where every objective but the score is exact"
        rows = contenders(complete, sweep.enough)
        for many in range(len(rows), len(rows) > 1, -1):  # where time is short, those that are likeliest to be the best
            if decisions.fits(step := decisions.another_seed(rows[:many], 2, "one seed gives no probabilities")):
                return step
        open_end = "no second seed fits into what the budget leaves" if any(not row.lost for row in rows) else ""
        return f"Not answered: {'; '.join(filter(None, (open_end, failed.lstrip('; '))))}"
    p_enough = {row.configuration: row.counts[P_ENOUGH] for row in complete}
    best, candidate = leaders(complete)
    if decisions.fits(step := decisions.rate(best), best):
        return step
    smaller = [row for row in complete if row.value(SIZE) < candidate.value(SIZE)]
    decided = candidate.enough and all(p_enough[row.configuration] <= 1 - sweep.enough.sure for row in smaller)
    summary_of = {row.configuration: row for row in complete}
    proposed, _, _ = steps(complete, sweep, lambda step: decisions.of(step) is not None)
    possible = {}
    for each in proposed:
        base = None if each.kind == "seeds" else summary_of[each.configurations[0]]
        seeds = [row.score.n for row in complete if row.trained in each.configurations]
        few = base is not None or max(seeds) + each.seeds <= MOST_SEEDS
        # What is decided is so among what was tried: a larger size may be better than all of it.
        if few and (each.kind == "larger" or not decided) and decisions.fits(step := decisions.of(each), base):
            possible[each] = step
    if (chosen := best_step([*possible])) is not None:
        return possible[chosen]
    if decided:
        return f"Answered: {full_label(candidate)} is enough{failed or ', and it is decided'}"
    likely = [row for row in complete if p_enough[row.configuration] > 1 - sweep.enough.sure]
    why = f"{SEEDS - 1} seeds do not show how seeds spread"
    if not candidate.enough and decisions.fits(step := decisions.another_seed(likely, SEEDS, why)):
        return step
    allowed = " that the budget allows" if sweep.budget.trials or sweep.budget.wall_clock else ""
    no_step = f"no step to at most {MOST_SEEDS} seeds{allowed} decides with a probability of {percent(LEAST_PROBABILITY)}"
    if candidate.enough:
        return f"Answered: {full_label(candidate)} is enough; {no_step} whether a smaller one is too{failed}"
    return f"Not answered: {no_step} which one is enough{failed}"


def contenders(complete: Sequence[Summary], rule: Enough) -> list[Summary]:
    """Returns the configurations that one seed leaves in doubt, the best first: those that are behind the best by no more than
    is allowed and what luck of seeds and examples may do. There are three at least, because they show how seeds spread."""
    best = max(complete, key=lambda row: row.score.mean)

    def noise(row: Summary) -> float:
        return math.hypot(SPREAD, PRIVATE * max(row.sampling) / 1.96)

    ordered = sorted(complete, key=lambda row: (-row.score.mean, row.value(SIZE)))
    reach = [rule.within + CLEAR * math.hypot(noise(row), noise(best)) for row in ordered]
    return [row for place, row in enumerate(ordered) if place < SEEDS or row.score.mean >= best.score.mean - reach[place]]


def failures(entries: Sequence[Entry]) -> str:
    """Returns how many trainings have failed, with a reason; empty if none has."""
    trained = [entry for entry in entries if not entry.trial.is_cut]
    failed = [(entry, result) for entry in trained if (result := entry.failed)]
    if not failed:
        return ""
    be, have = ("was", "has") if len(failed) == 1 else ("were", "have")
    added = f" that {be} added" if all(entry.trial.added for entry, _ in failed) else ""
    reason = failed[0][1].error or "no reason is on record"
    return f"{len(failed)} {plural(len(failed), 'trial')}{added} {have} failed ({reason.splitlines()[0][:100]})"


class _Decisions:
    """What may be decided next, with `complete`, the judged configurations."""

    def __init__(self, plan: Plan, state: State, stages: Stages, complete: Sequence[Summary]) -> None:
        self._plan, self._state, self._stages, self._complete = plan, state, stages, complete
        self._grows = sum(decision.point is not None for decision in state.decisions) < MOST_POINTS
        self._by_id = {configuration.id: configuration for configuration in stages.configurations}
        self._seeds: dict[str, list[int]] = {}
        for trial in stages.trials:
            seeds = self._seeds.setdefault(trial.configuration, [])
            seeds += [trial.run.seed] if trial.run.seed not in seeds else []

    def fits(self, step: Decided | None, base: Summary | None = None) -> TypeGuard[Decided]:
        """Returns whether there is a step that keeps to what the budget leaves of trials and, by the events that there are, of
        time.

        Args:
            base: the configuration whose training takes as long as that of one that is added.
        """
        if step is None or not step.seeds:
            return False
        state, complete = self._state, self._complete
        trials, _ = after(self._plan, step, self._stages.trials, self._stages.configurations)
        budget = self._plan.sweep.budget
        if budget.trials is not None and len(jobs_of(trials)) > budget.trials:
            return False
        limit, started = budget.wall_clock_seconds, state.started
        if limit is None or started is None:
            return True
        passed = max((entry.changed for entry in state.entries.values()), default=started.time) - started.time
        left, rows = limit - max(0.0, passed), {row.configuration: row for row in complete}
        usual = {name: row.value("seconds") for name in step.seeds if (row := rows.get(name) or base) is not None}
        wanted, most = {trial.key for trial in self._stages.trials}, max(usual.values(), default=0.0)
        new = [job.training for job in jobs_of(trials) if job.key not in wanted]
        # A size that is cut at a rate of its own needs the training with this rate, which is in no row.
        seconds = [usual.get(training.configuration, most) for training in new]
        return not max(seconds, default=0.0) > left and not sum(seconds) > left * state.pace

    def another_seed(self, rows: Sequence[Summary], count: int, why: str) -> Decided | None:
        """Returns the decision that gives a seed to each of these configurations that has fewer than `count`; None if none
        has."""
        few = [row for row in rows if row.score.n < count and not row.lost]
        why = f"one more seed of {len(few)} {plural(len(few), 'configuration')}, because {why}"
        return Decided(why=why, seeds={row.trained: self._new(row.trained, 1) for row in few}) if few else None

    def rate(self, best: Summary) -> Decided | None:
        """Returns the decision for the next learning rate beyond those that were tried, where the best is at their end."""
        end, rate = rate_end(best, self._complete)
        why = f"because {full_label(best)}, the best, has the {end} tried"
        return self._added(best.configuration, {}, {RATE: rate}, why) if end and not best.tuning.candidates else None

    def of(self, step: Step) -> Decided | None:
        """Returns the decision for a step, without seeds of what has failed; None if there is no such size."""
        why = f"{percent(step.settles)} to decide{describe_price(step.seconds / self._state.pace)}"
        if step.kind == "seeds":
            names = {row.trained for row in self._complete if not row.lost} & {*step.configurations}
            seeds = {name: self._new(name, step.seeds) for name in step.configurations if name in names}
            return Decided(why=f"{describe_seeds(step, self._complete)}: {why}", seeds=seeds)
        (name,) = step.configurations
        base = next(row for row in self._complete if row.configuration == name)
        old = self._by_id.get(name)
        parameters = another_size(old.parameters, base, FACTORS[step.kind]) if old else {}
        return self._added(name, parameters, {}, f"a {step.kind} size: {why}") if parameters else None

    def _new(self, name: str, count: int) -> list[int]:
        used = {*self._plan.sweep.seeds, *self._seeds.get(name, ())}
        return [seed for seed in range(len(used) + count) if seed not in used][:count]

    def _added(self, base: str, parameters: dict[str, Any], training: dict[str, Any], why: str) -> Decided | None:
        """Returns the step that adds a configuration with other settings, with the seeds of its base; None if it is not allowed
        or known already."""
        old = self._by_id.get(base)
        if not self._grows or old is None or old.source is not None or old.candidates:
            return None
        point = Point(int(old.path[-1]), old.method, old.parameters | parameters, old.training | training)
        family = build(self._plan, point)
        if not family or family[-1].id in self._by_id:
            return None
        return Decided(why=f"{family[-1].label}, {why}", seeds={family[-1].id: self._seeds[old.id]}, point=dict(vars(point)))
