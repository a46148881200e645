"""Adaptive replication: after every configuration has run with the sweep's `seeds`, chosen ones get further seeds.

    proposer ... exhausted, all its trials ended --> chosen configurations --> their trials with a further seed --> chosen again

- `choose: front` adds one seed after another, each time to the configurations of which it is not known whether they are on the
  front: P(front) of the search score is 0.05 or more, and is 0.95 or less or stands on one seed. It ends when all is known.
- `choose: best` decides once, for each task. Configurations that differ only in the dimensions `tuned` are candidates; those
  with the best search score on a task make up one tuned configuration, which runs with `replication.seeds`. Of equal ones it is
  the first. The trials that chose are not reported. `compare: fair` sets this up.

A training whose adapter is cut to sizes gets further seeds under `front` if one of its outputs does. Under `best` it is worth
the area under the search scores of its outputs (`orchestrator.results.search_values`).

The search score decides, never the reported score. The choice is not stored: it follows from the results of the seeds before,
so that a resumed sweep chooses the same configurations again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.plan.carrying import Family, choose, to_try
from orchestrator.plan.tuning import rates_words
from orchestrator.results.chances import front_chances
from orchestrator.results.front import POSSIBLE
from orchestrator.results.search_values import area
from orchestrator.results.summary import Summary

if TYPE_CHECKING:
    from orchestrator.driver.recorder import Recorder
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan
    from orchestrator.plan.trial import Trial, TrialResult
    from orchestrator.search.proposers import ConfigurationStatus, Proposer
    from orchestrator.sweepfile.settings import ReplicationSettings

SEARCH_SCORE = "search_score"


def chosen(
    plan: Plan, results: Mapping[str, TrialResult], summaries: Mapping[str, Summary], rule: ReplicationSettings
) -> list[Configuration]:
    """Returns the trained configurations that get another seed under `choose: front`, by their results so far, sizes included.
    Those with an incomplete output never do."""
    whole = [
        one
        for one in plan.configurations
        if all(output.id in summaries and _judged(plan, summaries[output.id]) for output in one.outputs)
    ]
    outputs = [output for one in whole for output in one.outputs]
    seeds = [_search_scores(plan, results, one) for one in outputs]
    chances = _front_chances(plan, [summaries[one.id] for one in outputs], seeds, rule.margin)
    deserving = {
        one.id
        for one, scores, chance in zip(outputs, seeds, chances, strict=True)
        if chance >= POSSIBLE and (chance <= 1 - POSSIBLE or len(scores) == 1)
    }
    return [one for one in whole if any(output.id in deserving for output in one.outputs)]


def tuned(plan: Plan, results: Mapping[str, TrialResult]) -> list[Configuration]:
    """The tuned configuration of each group that has a candidate with a score on every task."""
    found = []
    for family in plan.families:
        first = family.groups[family.start]
        if not any(trial.tunes for trial in plan.trials_of(first[0].id)):
            continue  # it has no other candidates, and its trials are reported
        label, by_task = plan.planner.label_of(first), _rates(plan, results, family)
        for rank, group in enumerate(family.groups):
            best = {task: place for task, rows in by_task.items() if (place := rows[rank][0]) is not None}
            if len(best) == len(by_task):
                carried = {task: label for task, rows in by_task.items() if rows[rank][1]}
                found.append(plan.planner.tuned(group, best, carried))
    return found


def rates_line(plan: Plan, results: Mapping[str, TrialResult]) -> str:
    """What carrying learning rates over ranks saved, and where they did not carry; empty where none may."""
    families, far = [family for family in plan.families if family.later], list[str]()
    for family in families:
        for task, rows in _rates(plan, results, family).items():
            carried = rows[family.start][0]
            for end in family.ends:
                own = rows[end][0]
                if own is None or carried is None or abs(own - carried) > 1:
                    far.append(f"{plan.planner.label_of(family.groups[end])} ({task})")
    if not families:
        return ""
    words = rates_words(plan.sweep, plan.families, sum(trial.tunes is not None for trial in plan.trials))
    return f"{words}: " + (f"tuned at more ranks, because {', '.join(far)} needs another" if far else "one serves all ranks")


def _rates(plan: Plan, results: Mapping[str, TrialResult], family: Family) -> dict[str, list[tuple[int | None, bool]]]:
    first = family.groups[family.start]
    return {task: choose(_tried(plan, results, family, task), len(first), family.start) for task in plan.sweep.task_names}


def _tried(plan: Plan, results: Mapping[str, TrialResult], family: Family, task: str) -> list[dict[int, float]]:
    return [
        {
            place: _mean_search_score(plan, results, one, task)
            for place, one in enumerate(group)
            if any(trial.run.task == task for trial in plan.trials_of(one.id))
        }
        for group in family.groups
    ]


def _mean_search_score(plan: Plan, results: Mapping[str, TrialResult], one: Configuration, task: str) -> float:
    """What its trainings are worth on one task, the mean over seeds; minus infinity unless all finished with a score."""
    worth = []
    for trial in plan.trials_of(one.id):
        ended = [results.get(output.key) for output in trial.outputs]
        points = [
            (result.counts.get("trainable_parameters", math.nan), result.metrics.get(SEARCH_SCORE, math.nan))
            for result in ended
            if result is not None and result.status == "finished"
        ]
        if trial.run.task == task:
            single = points[0][1] if len(ended) == len(points) == 1 else math.nan
            worth.append(area(points) if len(ended) == len(points) > 1 else single)
    return fmean(worth) if worth and all(map(math.isfinite, worth)) else -math.inf


class Replicating:
    """A proposer around another one: when that is exhausted and all trials have ended, it suggests the chosen configurations,
    with more trials. A new one takes up the results on record."""

    def __init__(self, proposer: Proposer, plan: Plan, recorder: Recorder) -> None:
        """
        Args:
            recorder: knows how the plan's trials stand, and takes in those with further seeds.
        """
        assert plan.sweep.replication is not None
        self._proposer, self._plan, self._recorder, self._rule = proposer, plan, recorder, plan.sweep.replication
        self._rounds: list[tuple[int, ...]] = (
            [self._rule.seeds] if self._rule.choose == "best" else [(seed,) for seed in self._rule.seeds]
        )
        self._waiting: list[Configuration] = []
        self._known = False
        self.advance()

    @property
    def exhausted(self) -> bool:
        return self._first_over and not self._waiting and not self._rounds

    @property
    def _first_over(self) -> bool:
        """Whether every configuration has been proposed for the sweep's own seeds. A plan made beforehand lists all."""
        return not self._plan.adaptive or self._proposer.exhausted

    def suggest(self) -> Configuration | None:
        if not self._proposer.exhausted:
            found = self._proposer.suggest()
            if found is not None:
                return found
        self.advance()
        return self._waiting.pop(0) if self._waiting else None

    def tell(self, configuration: str, values: Mapping[str, float], status: ConfigurationStatus) -> None:
        self._proposer.tell(configuration, values, status)

    def tell_partial(self, configuration: str, values: Mapping[str, float]) -> None:
        pass

    def advance(self) -> None:
        """Goes on to the next round, and the next, as far as all that came before is on record."""
        while self._rounds and self._first_over and not self._waiting and not self._recorder.standing.remaining:
            new = self._more_rates() if self._rule.tunes else []
            if not new:
                seeds, more = self._rounds.pop(0), self._plan.add if self._rule.tunes else self._plan.replicate
                for configuration in self._chosen(seeds):
                    if not self._affordable(len(seeds)):
                        self._rounds.clear()
                        break
                    new += more(configuration, seeds)
                    self._waiting.append(configuration)
            self._recorder.grow(new)
            if self._rule.choose == "front" and not self._rounds and new:
                self._recorder.say("The seeds of `replication` are spent with this round; more would decide more of the front")
            settled = self._recorder.standing.is_settled
            self._waiting = [
                one for one in self._waiting if not all(settled(trial.key) for trial in self._plan.trials_of(one.id))
            ]

    def _more_rates(self) -> list[Trial]:
        """Adds the trials of the candidates that are needed by what is known now; returns them."""
        plan, standing = self._plan, self._recorder.standing
        new: list[Trial] = []
        for family in (family for family in plan.families if family.later):
            for task in plan.sweep.task_names:
                tried = _tried(plan, standing.results, family, task)
                wanted = to_try(tried, len(family.groups[family.start]), family.start)
                for rank, group in enumerate(family.groups):
                    for place, one in enumerate(group):
                        if place not in tried[rank] and place in wanted[rank]:
                            new += plan.replicate(one, plan.sweep.seeds, (task,))
                            self._waiting += [] if one in self._waiting else [one]
        return new

    def _chosen(self, seeds: tuple[int, ...]) -> list[Configuration]:
        """The configurations that get trials now."""
        results = self._recorder.standing.results
        if self._rule.tunes:
            self._recorder.notes += filter(None, [rates_line(self._plan, results)])
            return tuned(self._plan, results)
        summaries = {one.configuration: one for one in self._recorder.standing.summaries()}
        deserving = chosen(self._plan, results, summaries, self._rule)
        if not deserving and not self._known and any(one.complete for one in summaries.values()):
            self._known = True
            self._recorder.say(f"Which configurations are on the front is known: seed {seeds[0]} is not needed")
        return deserving

    def _affordable(self, seeds: int) -> bool:
        allowed = self._plan.sweep.budget.trials
        return allowed is None or len(self._plan.trials) + seeds * len(self._plan.sweep.task_names) <= allowed


def _judged(plan: Plan, summary: Summary) -> bool:
    return summary.complete and all(math.isfinite(_value(summary, name)) for name in plan.sweep.objectives)


def _search_scores(plan: Plan, results: Mapping[str, TrialResult], one: Configuration) -> list[float]:
    """The mean search score over tasks of each seed."""
    seeds: dict[int, list[float]] = {}
    for trial in plan.trials_of(one.id):
        seeds.setdefault(trial.run.seed, []).append(results[trial.key].metrics[SEARCH_SCORE])
    return [fmean(scores) for scores in seeds.values()]


def _front_chances(plan: Plan, summaries: list[Summary], seeds: list[list[float]], margin: float) -> list[float]:
    """P(front) of each; the means of the objectives beside the score are taken as exact."""
    if not summaries:
        return []
    signs = {name: -1.0 if way == "maximize" else 1.0 for name, way in plan.sweep.objectives.items() if name != "score"}
    costs = [[sign * one.value(name) for name, sign in signs.items()] for one in summaries]
    size = [one.value("trainable_parameters") for one in summaries]
    table = np.array(costs, dtype=float).reshape(len(costs), len(signs))
    return [float(chance) for chance in front_chances(seeds, table, np.nan_to_num(size), margin)]


def _value(summary: Summary, objective: str) -> float:
    return summary.value(SEARCH_SCORE if objective == "score" else objective)
