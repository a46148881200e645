"""`run_sweep`: a session on real Ray from its begin to its end, without a tracking store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.commands.session import open_session
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Train
from orchestrator.record.events import SessionEnded
from orchestrator.record.folder import SweepFolder
from orchestrator.record.options import Options
from orchestrator.worker.preparation import Shared


def run_sweep(
    plan: Plan, folder: Path, *, train: Train | None = None, shared: Shared | None = None, **options: Any
) -> SweepOutcome:
    """Runs what remains of a plan in `folder`; see `Session.run` and `Options`."""
    with open_session(plan, SweepFolder(folder.absolute()), Options(**options)) as session:
        session.driver.begin()
        outcome = session.run(train, shared)
        session.driver.record(SessionEnded(status=outcome.status, seconds=outcome.seconds))
    return outcome
