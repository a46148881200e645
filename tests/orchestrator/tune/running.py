"""`run_sweep`: a session on real Ray from its begin to its end, without a tracking store."""

from __future__ import annotations

from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.driver.preparation import Shared
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Train
from orchestrator.state.events import SessionEnded
from orchestrator.tune.runner import open_session


def run_sweep(plan: Plan, options: RunOptions, *, train: Train | None = None, shared: Shared | None = None) -> SweepOutcome:
    """Runs what remains of a plan; see `Session.run`."""
    with open_session(plan, options) as session:
        session.driver.begin()
        outcome = session.run(train, shared)
        session.driver.record(SessionEnded(status=outcome.status, seconds=outcome.seconds))
    return outcome
