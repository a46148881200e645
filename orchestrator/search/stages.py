"""`tune_then_measure`, the stage of `replication`, which `compare: fair` sets up: tuning seeds choose what others report.

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
from statistics import fmean
from typing import TYPE_CHECKING, cast

import numpy as np

from craft.scoring.predictions import SEARCH_CREDITS, read_credits
from orchestrator.plan.trial import PlannedTrial, jobs_of
from orchestrator.plan.tuning import Family, Tried, best_of, choose, families_of, rates_words, to_try
from orchestrator.record.state import Entry, State
from orchestrator.search.strategy import Staged, Stages, Strategy, added, entries_of, is_affordable
from orchestrator.search.until import until_answered

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan

SEARCH_SCORE, SEARCH_LOSS = "search_score", "search_loss"


def tune_then_measure(plan: Plan, state: State, stages: Stages) -> Stages:
    """The stage of `replication`."""
    trained = [configuration for configuration in stages.configurations if configuration.source is None]
    cuts = [configuration for configuration in stages.configurations if configuration.source is not None]
    families = families_of(plan.planner, trained, transfer=not plan.adaptive)
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
        if not is_affordable(plan, trials):
            break
        stages = replace(stages, trials=trials, configurations=[*stages.configurations, *tuned])
    return replace(stages, notes=[line for line in [tried.rates_line()] if line])


def make_strategy(plan: Plan) -> Strategy:
    """Returns the strategy of a plan's sweep file."""
    first = cast(Strategy, resolve_name(plan.sweep.search.row.make)(plan))
    tuning = [tune_then_measure] if plan.sweep.tunes else []
    return Staged(first, plan, [*tuning, until_answered if plan.sweep.search.until else added])


def _families(configurations: Sequence[Configuration]) -> list[list[Configuration]]:
    """Returns each trained configuration after what its adapters are cut to."""
    families: dict[str, list[Configuration]] = {}
    for configuration in configurations:
        families.setdefault((configuration.source or configuration).id, []).append(configuration)
    return [*families.values()]


class _Tried:
    """What the families' candidates, and what is cut from their adapters, have on each task, from trials that have ended."""

    def __init__(self, plan: Plan, families: Sequence[Family], trials: Sequence[PlannedTrial], state: State) -> None:
        self._plan, self._families = plan, families
        self._tuning = sum(job.training.trial.group is not None for job in jobs_of(trials))
        self._tunes = {trial.configuration for trial in trials if trial.trial.group is not None}
        places: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries_of(trials, state):
            places.setdefault((entry.trial.configuration, entry.trial.task), []).append(entry)
        self._tried = {place: _tried(entries) for place, entries in places.items()}

    def more_rates(self, families: Sequence[Sequence[Configuration]]) -> list[PlannedTrial]:
        """Returns the trials of candidates that are needed by what is known, and were not run."""
        planner, more = self._plan.planner, list[PlannedTrial]()
        with_cuts = {family[-1].id: family for family in families}
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
        line, far = f"rates: {rates_words(self._plan.sweep, self._families, self._tuning)}", list[str]()
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


def _tried(entries: Sequence[Entry]) -> Tried:
    """Returns what a candidate has on a task, by its trials with the seeds that tune; a failure unless all finished."""
    results = [entry.finished for entry in entries if entry.finished is not None]
    scores = [result.metrics.get(SEARCH_SCORE, math.nan) for result in results]
    if len(results) < len(entries) or not all(map(math.isfinite, scores)):
        return Tried(-math.inf)
    losses = [result.metrics.get(SEARCH_LOSS, math.nan) for result in results]
    credits = [read_credits(result.facts[SEARCH_CREDITS]) for result in results if SEARCH_CREDITS in result.facts]
    return Tried(
        fmean(scores),
        fmean(losses) if all(map(math.isfinite, losses)) else math.inf,
        np.mean(credits, axis=0) if len(credits) == len(results) else None,
    )
