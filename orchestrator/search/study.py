"""Proposers that learn: an Optuna study beside the sweep chooses configurations from what has run.

    study (runs/NAME/study.db) --results--> sampler --point--> planner --> configuration --> trials
         ^                                                                                   |
         +---------------- tell(values of the configuration, or FAIL) <----------------------+

The study is an Optuna journal file (`optuna-dashboard runs/NAME/study.db` opens it; it holds JSON, never pickled objects). It
holds all the state: the random numbers of a suggestion follow from the seed and the suggestion's number, so a resumed sweep
makes the suggestions that it would have made. Method blocks are conditional parameters: a point has the dimensions of its own
block only.

Not every suggestion is trained. A point that breaks a constraint is told as infeasible, with the amount; a point that equals an
earlier configuration gets the values of that one; a point that cannot be built is told as failed. The next suggestion is then a
new point near that one.
"""

from __future__ import annotations

import json
import logging
import math
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.trial import FixedTrial, FrozenTrial, TrialState

from craft.settings import content_hash
from orchestrator.record.folder import SweepFolder
from orchestrator.search.dimensions import Encoding
from orchestrator.search.study_export import Draw
from orchestrator.search.study_file import StudyFile
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Point, grid, neighbours, sample

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan
    from orchestrator.search.learned import Sampler
    from orchestrator.sweepfile.sweep import Sweep

log = logging.getLogger(__name__)

DRAWS = 500
"""A new point is searched for in at most this many random draws; if all are known, the space counts as used up."""
SO_FAR = "so far"
"""The attribute of a waiting trial that holds its values as far as they are known; a searcher takes them for its result."""


def tpe(plan: Plan, folder: Path | None) -> StudyProposer:
    from orchestrator.search import samplers

    return StudyProposer(plan, folder, samplers.tpe_sampler(plan))


def gp(plan: Plan, folder: Path | None) -> StudyProposer:
    from orchestrator.search import samplers

    return StudyProposer(plan, folder, samplers.gp_sampler(plan))


@dataclass
class _Known:
    """A configuration that the study asked for, with the study's trials that wait for its values, or the values told."""

    configuration: Configuration
    waiting: list[int]
    values: list[float] | None = None
    told: bool = False


class StudyProposer:
    """A proposer (`orchestrator.search.proposers.Proposer`) over an Optuna study.

    A new proposer restores the study: it adds the configurations asked for before to the plan, and never tells their values a
    second time. The runner finds out which of their trials are left.
    """

    def __init__(self, plan: Plan, folder: Path | None, sampler: Sampler) -> None:
        """
        Args:
            folder: gets the study's file; the study is kept in memory if not given.
        """
        self._plan, self._planner, self._sweep = plan, plan.planner, plan.sweep
        self._sampler = sampler
        self._encoding = Encoding(plan.sweep.blocks)
        self._objectives = list(plan.sweep.objectives)
        self._known: dict[str, _Known] = {}
        self._by_id: dict[str, _Known] = {}
        self._used_up = False
        self._file: StudyFile | None = None
        self._study = self._open(folder)
        self._restore()

    @property
    def exhausted(self) -> bool:
        return self._used_up or len(self._known) >= self._plan.wanted

    def advance(self) -> None:
        """Nothing: configurations come from `suggest` alone."""

    def suggest(self) -> Configuration | None:
        point: Point | None = None
        while not self.exhausted:
            if point is not None and (point := self._unseen(point)) is None:
                log.warning("every point of the space is known: %d configurations", len(self._known))
                self._used_up = True
                return None
            configuration, point = self._ask(point)
            if configuration is not None:
                self._settle()
                return configuration
        return None

    def tell(self, configuration: str, values: Mapping[str, float], status: str) -> None:
        """Tells a configuration's values when its trials have ended, or FAIL if a value is missing; once."""
        known = self._by_id.get(configuration)
        if known is None or known.told:
            return
        row = [values.get(name, math.nan) for name in self._objectives]
        known.values, known.told = (row if all(map(math.isfinite, row)) else None), True
        for number in known.waiting:
            self._answer(number, known)
        known.waiting.clear()
        self._settle()

    def tell_partial(self, configuration: str, values: Mapping[str, float]) -> None:
        """Notes what is known of a waiting configuration as an attribute of its trials in the study, which keep running."""
        known = self._by_id.get(configuration)
        row = [values.get(name, math.nan) for name in self._objectives]
        if known is None or known.told or not all(map(math.isfinite, row)):
            return
        trials = self._study.get_trials(deepcopy=False)
        for number in known.waiting:
            optuna.Trial(self._study, trials[number]._trial_id).set_user_attr(SO_FAR, row)
        self._settle()

    def _settle(self) -> None:
        """Waits until the disk has every suggestion and answer so far."""
        if self._file is not None:
            self._file.settle()

    def _open(self, folder: Path | None) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage: BaseStorage
        if folder is None:
            storage = InMemoryStorage()
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = StudyFile(SweepFolder(folder).study)
            storage = JournalStorage(self._file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(
                storage=storage,
                # Optuna's parameters cannot change their values: another space is another study of the same file.
                study_name=f"{self._sweep.name} {content_hash(self._encoding.signature, 6)}",
                directions=list(self._sweep.objectives.values()),
                load_if_exists=True,
            )
            study.set_metric_names(self._objectives)
        return study

    def _restore(self) -> None:
        """Takes up what the study knows; gives up a suggestion for which a crash left no configuration."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state == TrialState.WAITING:
                continue
            content = trial.user_attrs.get("point")
            if content is None:
                self._give_up(trial)
                continue
            try:
                configuration, _ = self._planner.allowed(Point(**json.loads(content)))
            except SweepError:
                configuration = None
            if configuration is None:
                self._give_up(trial)
                continue
            meaning = self._planner.meaning(configuration)
            if meaning not in self._known:
                self._add(meaning, configuration)
            known = self._known[meaning]
            if trial.state == TrialState.RUNNING:
                known.waiting.append(trial.number)
            else:
                known.told, known.values = True, trial.values if trial.state == TrialState.COMPLETE else None
        for known in self._known.values():
            if known.told:
                for number in known.waiting:
                    self._answer(number, known)
                known.waiting.clear()

    def _give_up(self, trial: FrozenTrial) -> None:
        if trial.state == TrialState.RUNNING:
            self._study.tell(trial.number, state=TrialState.FAIL)

    def _add(self, meaning: str, configuration: Configuration) -> _Known:
        known = _Known(configuration, [])
        self._known[meaning] = self._by_id[configuration.id] = known
        self._plan.add(configuration)
        return known

    def _ask(self, point: Point | None) -> tuple[Configuration | None, Point]:
        """One suggestion, or that of `point`; without a configuration if it needs no training: it is answered now, or with an
        equal configuration."""
        trials = self._study.get_trials(deepcopy=False)
        if not any(trial.state == TrialState.WAITING for trial in trials):
            if point is None:
                point = self._sampler([self._draw_of(trial) for trial in trials], self._seed_of("", len(trials)))
            self._study.enqueue_trial(self._encoding.parameters(point))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask()
            point = self._encoding.suggest(trial)
        try:
            allowed, dropped = self._planner.allowed(point)
        except SweepError as error:
            trial.set_user_attr("cannot be built", str(error))
            log.warning("a suggestion cannot be built: %s", error)
            self._study.tell(trial, state=TrialState.FAIL)
            return None, point
        configuration = allowed or dropped[0].configuration
        trial.set_user_attr("label", configuration.label)
        trial.set_user_attr("configuration", configuration.id)
        for name, excess in excesses(self._sweep, configuration).items():
            trial.set_constraint(name, excess)
        if allowed is None:
            trial.set_user_attr("not trained", dropped[0].reason)
            self._plan.refuse(configuration, dropped[0].reason)
            self._study.tell(trial, self._stand_in(configuration))
            return None, point
        # This attribute is set last: a suggestion that has it is complete.
        trial.set_user_attr("point", json.dumps(point.__dict__))
        meaning = self._planner.meaning(configuration)
        if meaning not in self._known:
            self._add(meaning, configuration).waiting.append(trial.number)
            return configuration, point
        known = self._known[meaning]
        if known.told:
            self._answer(trial.number, known)
        else:
            known.waiting.append(trial.number)
        return None, point

    def _draw_of(self, trial: FrozenTrial) -> Draw:
        values = trial.values or trial.user_attrs.get(SO_FAR)
        point = self._encoding.suggest(FixedTrial(trial.params))
        return Draw(point, tuple(values) if values else None, trial.state.is_finished(), trial.constraints, {})

    def _seed_of(self, what: str, number: int) -> int:
        return int(content_hash([*filter(None, [what]), self._sweep.search.seed, number], 8), 16)

    def _answer(self, number: int, known: _Known) -> None:
        if known.values is None:
            self._study.tell(number, state=TrialState.FAIL)
        else:
            self._study.tell(number, known.values)

    def _stand_in(self, configuration: Configuration) -> list[float]:
        """Values for a configuration that is not trained: its counts, and the worst value seen of every other objective.

        Samplers order such suggestions by how much they break a constraint, but demand values of them.
        """
        rows = [known.values for known in self._known.values() if known.values is not None]
        values = []
        for index, (name, direction) in enumerate(self._sweep.objectives.items()):
            seen = [row[index] for row in rows] or [0.0]
            values.append(configuration.known.get(name, min(seen) if direction == "maximize" else max(seen)))
        return [float(value) for value in values]

    def _unseen(self, near: Point) -> Point | None:
        """A point that is not known yet and may be trained, near to `near` if possible; None if no candidate is one."""
        for point in self._candidates(near):
            try:
                configuration = self._planner.configuration(point)
            except SweepError:
                continue
            if (
                self._planner.broken_constraint(configuration) is None
                and self._planner.meaning(configuration) not in self._known
            ):
                return point
        return None

    def _candidates(self, near: Point) -> Iterator[Point]:
        blocks, seed = self._sweep.blocks, self._seed_of("unseen", len(self._study.get_trials(deepcopy=False)))
        around = list(neighbours(blocks, near, seed))
        random.Random(seed).shuffle(around)
        yield from chain(around, islice(sample(blocks, seed), DRAWS))
        if not any(block.ranges for block in blocks) and sum(block.size for block in blocks) <= DRAWS:
            yield from grid(blocks)


def excesses(sweep: Sweep, configuration: Configuration) -> dict[str, float]:
    """By how much a configuration exceeds each bound, as a share of the bound; negative if it keeps to the bound."""
    found = {}
    for name, bounds in sweep.constraints.items():
        value = configuration.known.get(name)
        if value is None:
            continue
        if bounds.max is not None:
            found[f"{name} max"] = (value - bounds.max) / max(abs(bounds.max), 1.0)
        if bounds.min is not None:
            found[f"{name} min"] = (bounds.min - value) / max(abs(bounds.min), 1.0)
    return found
