"""The parts of a session: `assemble` makes each of them from those that are there already.

    searcher --> recorder --> exchange --> proposer --> scheduler
                    |            ^                          |
                    +-- ended ---+-------- waits -----------+

The arrows back are listeners, added once both ends exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.driver.common_cause import CommonCause
from orchestrator.driver.display import Display
from orchestrator.driver.options import RunOptions
from orchestrator.driver.recorder import Recorder
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.results.search_values import SearchValues, of_training
from orchestrator.search.budget import Watch
from orchestrator.search.proposers import Proposer, propose
from orchestrator.search.replication import Replicating
from orchestrator.tools.signals import Stop
from orchestrator.tune.schedulers import Promoting, scheduler_of

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan
    from orchestrator.plan.trial import Trial
    from orchestrator.record.tracker import Tracker
    from orchestrator.results.summary import Summary


class Exchange:
    """Gives the recorder the trials of each proposed configuration; tells the searcher and the budget what came of them."""

    def __init__(self, plan: Plan, recorder: Recorder, searcher: Proposer, watch: Watch) -> None:
        self._plan, self._recorder, self._searcher, self._watch = plan, recorder, searcher, watch
        self._values = SearchValues(plan.sweep.objectives)
        self._handed_out: dict[str, list[Trial]] = {}
        if plan.adaptive:
            # The searcher proposed these in an earlier session and does not propose them again.
            for configuration in list(plan.configurations):
                self.trials_of(configuration)

    def trials_of(self, configuration: Configuration) -> list[Trial]:
        """The trials of a proposed configuration. The searcher gets its values at once where all of them are on record."""
        trials = self._handed_out[configuration.id] = self._plan.trials_of(configuration.id)
        self._recorder.add(trials)
        standing = self._recorder.standing
        if all(standing.is_settled(trial.key) for trial in trials):
            self.configuration_ended(*standing.summaries([configuration.id]))
        return trials

    @property
    def handed_out(self) -> list[Trial]:
        """The trials of all configurations proposed so far, as they were when each was last proposed."""
        return [trial for trials in self._handed_out.values() for trial in trials]

    def recall(self) -> None:
        """Tells of every configuration that is complete on record: an earlier session may have ended before it did so."""
        for summary in self._recorder.standing.summaries():
            if summary.all_finished:
                self.configuration_ended(summary)

    def configuration_ended(self, summary: Summary) -> None:
        """All trials of a configuration have ended. The searcher gets its values once a training's sizes and the whole have."""
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


@dataclass(frozen=True, eq=False)
class Parts:
    """What a session consists of.

    Attributes:
        storage: where checkpoints and adapters go: an absolute path or a URI.
        proposer: chooses configurations: the searcher, or what gives more trials after it.
        scheduler: judges trials after each evaluation; None lets every trial run to its end.
    """

    plan: Plan
    options: RunOptions
    folder: SweepFolder
    storage: str
    display: Display
    recorder: Recorder
    watch: Watch
    exchange: Exchange
    proposer: Proposer
    scheduler: Promoting | None
    stop: Stop
    common_cause: CommonCause = field(default_factory=CommonCause)

    @property
    def ending(self) -> bool:
        """Whether no trial may start any more: by a signal, a used-up budget, or a fault that all trials meet."""
        return self.stop.asked or self.watch.spent is not None or self.common_cause.trouble is not None

    def more_to_run(self) -> bool:
        """Lets the proposer take up what has ended; whether there are trials to run then, or may be."""
        self.proposer.advance()
        return bool(self.recorder.standing.remaining) or self.more_to_propose

    @property
    def more_to_propose(self) -> bool:
        """Whether the plan may still get configurations or trials, as of the last time that the proposer advanced."""
        return self.plan.grows and not self.proposer.exhausted


def assemble(
    plan: Plan, options: RunOptions, folder: Path, storage: str, ledger: Ledger, display: Display, tracker: Tracker | None
) -> Parts:
    """The parts of a session of `plan`, with what earlier sessions recorded in `folder` taken up."""
    watch = Watch(plan.sweep.budget, plan.sweep.objectives)
    # A searcher that learns adds to the plan what it proposed in earlier sessions; the recorder then finds the results.
    searcher = propose(plan, folder)
    recorder = Recorder(plan, ledger, display, tracker)
    # It knows the trials that the searcher proposed, so it comes before whatever makes the plan grow beyond these.
    exchange = Exchange(plan, recorder, searcher, watch)
    recorder.listeners.append(exchange.configuration_ended)
    proposer = searcher if plan.sweep.replication is None else Replicating(searcher, plan, recorder)
    scheduler = scheduler_of(plan, folder)
    if scheduler is not None:
        scheduler.listeners.append(exchange.configuration_waits)
    stop = Stop(display.say)
    return Parts(plan, options, SweepFolder(folder), storage, display, recorder, watch, exchange, proposer, scheduler, stop)
