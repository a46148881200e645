"""The parts of a session: `assemble` makes each of them from those that are there already.

    searcher --> recorder --> exchange --> proposer --> scheduler
                    |            ^                          |
                    +-- ended ---+-------- waits -----------+

The arrows back are listeners, added once both ends exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.driver.common_cause import CommonCause
from orchestrator.driver.display import Display
from orchestrator.driver.options import RunOptions
from orchestrator.driver.recorder import Recorder, Tracker
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.search.budget import Watch
from orchestrator.search.proposers import Proposer, propose
from orchestrator.search.replication import Replicating
from orchestrator.tools.signals import Stop
from orchestrator.tune.exchange import Exchange
from orchestrator.tune.schedulers import Pausing, Stopping, scheduler_of

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan


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
    scheduler: Stopping | None
    stop: Stop
    common_cause: CommonCause = field(default_factory=CommonCause)

    @property
    def ending(self) -> bool:
        """Whether no trial may start any more: somebody asked for it, the budget is used up, or all trials fail alike."""
        return self.stop.asked or self.watch.spent is not None or self.common_cause.trouble is not None

    @property
    def pausing(self) -> Pausing | None:
        """The scheduler, if it is one under which a trial that Tune ends without a result waits for its turn."""
        return self.scheduler if isinstance(self.scheduler, Pausing) else None

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
    if isinstance(scheduler, Pausing):
        scheduler.listeners.append(exchange.configuration_waits)
    stop = Stop(display.say)
    return Parts(plan, options, SweepFolder(folder), storage, display, recorder, watch, exchange, proposer, scheduler, stop)
