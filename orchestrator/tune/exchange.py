"""What passes between the searcher and the record: configurations one way, their values the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from orchestrator.driver.recorder import Recorder
from orchestrator.plan.trial import TrialSpec
from orchestrator.results.search_values import SearchValues, of_training
from orchestrator.results.summary import Summary
from orchestrator.search.budget import Watch
from orchestrator.search.proposers import Proposer

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan


class Exchange:
    """Gives the recorder the trials of each proposed configuration; tells the searcher and the budget what came of them."""

    def __init__(self, plan: Plan, recorder: Recorder, searcher: Proposer, watch: Watch) -> None:
        self._plan, self._recorder, self._searcher, self._watch = plan, recorder, searcher, watch
        self._values = SearchValues(plan.sweep.objectives)
        self._handed_out: dict[str, list[TrialSpec]] = {}
        if plan.adaptive:
            # The searcher proposed these in an earlier session and does not propose them again.
            for configuration in list(plan.configurations):
                self.trials_of(configuration)

    def trials_of(self, configuration: Configuration) -> list[TrialSpec]:
        """The trials of a proposed configuration. The searcher is told at once where all of them are on record."""
        trials = self._handed_out[configuration.id] = self._plan.trials_of(configuration.id)
        self._recorder.add(trials)
        standing = self._recorder.standing
        if all(standing.is_settled(trial.key) for trial in trials):
            self.configuration_ended(*standing.summaries([configuration.id]))
        return trials

    @property
    def handed_out(self) -> list[TrialSpec]:
        """The trials of all configurations proposed so far, as they were when each was last proposed."""
        return [trial for trials in self._handed_out.values() for trial in trials]

    def recall(self) -> None:
        """Tells of every configuration that is complete on record: an earlier session may have ended before it did so."""
        for summary in self._recorder.standing.summaries():
            if summary.all_finished:
                self.configuration_ended(summary)

    def configuration_ended(self, summary: Summary) -> None:
        """All trials of a configuration have ended. The searcher is told once a training's sizes and the whole have."""
        standing, configuration = self._recorder.standing, self._plan.configuration(summary.configuration)
        values = self._values.of(summary, standing.results, standing.spec)
        if summary.complete:
            self._watch.finished(summary.label, values)
        if configuration.cut_to is None:
            worth = of_training(standing.summaries([one.id for one in configuration.outputs]))
            values |= {"score": worth} if configuration.sizes and math.isfinite(worth) else {}
            self._searcher.tell(summary.configuration, values, "complete" if summary.all_finished else "incomplete")

    def configuration_waits(self, configuration: str, score: float) -> None:
        """A configuration was paused with this mean search score, and may never go on."""
        self._searcher.tell_partial(configuration, {**self._plan.configuration(configuration).known, "score": score})
