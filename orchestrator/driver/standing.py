"""How the trials of a plan stand: what came of each, which of them are settled and which are still to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.plan.trial import Trial
from orchestrator.results.summary import Summary, summarize
from orchestrator.state.entry import TrialResult

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan


class Standing:
    """The trials that the driver knows of, with their results. Only `Recorder` changes it.

    Attributes:
        results: by key, of every trial that has ended or was interrupted, in this session or an earlier one.
    """

    def __init__(self, plan: Plan, recorded: Mapping[str, TrialResult]) -> None:
        self.results: dict[str, TrialResult] = {}
        self._plan, self._recorded = plan, recorded
        self._specs: dict[str, Trial] = {}
        self._tuned_with: dict[str, dict[str, None]] = {}
        self._settled: set[str] = set()

    def take_in(self, trials: Iterable[Trial]) -> list[Trial]:
        """Adds trainings, with the results that are on record for their outputs; returns those that were not known.

        The outputs of a training are settled together: where some are on record and others are not, because a driver died in
        between or a size is new, it runs again from its last checkpoint.
        """
        new = [trial for trial in trials if trial.key not in self._specs]
        for trial in new:
            settled = all(map(self.is_on_record, trial.outputs))
            for one in trial.outputs:
                self._specs[one.key] = one
                result = self._recorded.get(one.key)
                if result is not None:
                    self.note(result, settled)
            if trial.tunes is not None:
                self._tuned_with.setdefault(trial.tunes, {})[trial.configuration] = None
        return new

    def is_on_record(self, trial: Trial) -> bool:
        """Whether an earlier session has settled the trial, planned or not."""
        result = self._recorded.get(trial.key)
        return result is not None and result.settled

    def note(self, result: TrialResult, settled: bool) -> None:
        """Keeps a result; a `settled` trial does not run again in this session, not even after a failure."""
        self.results[result.key] = result
        if settled:
            self._settled.add(result.key)

    def is_settled(self, key: str) -> bool:
        """Whether the trial needs no run: a result that holds is on record, or it ended in this session."""
        return key in self._settled

    @property
    def trainings(self) -> list[str]:
        """Keys of the trials that Ray schedules, in the plan's order."""
        return [trial.key for trial in self._plan.trials]

    @property
    def remaining(self) -> list[str]:
        """Keys of trainings to run, in the plan's order: those that are not settled."""
        return [key for key in self.trainings if key not in self._settled]

    @property
    def settled_results(self) -> dict[str, TrialResult]:
        """Results of the settled trials, by key."""
        return {key: self.results[key] for key in self._settled}

    def spec(self, key: str) -> Trial:
        """The trial of a key."""
        return self._specs[key]

    def summaries(self, configurations: Sequence[str] | None = None) -> list[Summary]:
        """The configurations as their trials stand now: all of them, or those of the given ids."""
        every = (one.configuration for one in self._plan.outputs)
        chosen = dict.fromkeys(every if configurations is None else configurations)
        needed = dict.fromkeys(other for name in chosen for other in (name, *self._companions(name)))
        trials = [trial for name in needed for trial in self._plan.trials_of(name)]
        found = summarize(trials, self.results, {name: self._plan.configuration(name).known for name in needed})
        return [summary for summary in found if summary.configuration in chosen]

    def _companions(self, configuration: str) -> Iterable[str]:
        """The one that it is cut from, and those that it is tuned with: its summary says what all of them took."""
        trial = self._plan.trials_of(configuration)[0]
        cut = trial.run.cut_from
        trained = self._specs[cut.run].configuration if cut else configuration
        return (trained, *self._tuned_with.get(trial.tunes or trained, ()))
