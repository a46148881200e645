"""`run_sweep`: a session on real Ray from its begin to its end, without a tracking store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.commands import session
from orchestrator.driver.display import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Train
from orchestrator.record.events import SessionEnded
from orchestrator.record.folder import SweepFolder
from orchestrator.record.options import Options
from orchestrator.worker.preparation import Shared

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster


@contextmanager
def ray_cluster(*nodes: dict[str, Any], **head: Any) -> Iterator[Cluster]:
    """A cluster of Ray nodes on this machine; what is not said of the head is that it has no cores."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0} | head)
    try:
        for node in nodes:
            cluster.add_node(**node)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def run_sweep(
    plan: Plan, folder: Path, *, train: Train | None = None, shared: Shared | None = None, **options: Any
) -> SweepOutcome:
    """Runs what remains of a plan in `folder`; see `drive` and `Options`."""
    with session.open_session(plan, SweepFolder(folder.absolute()), Options(**options)) as (driver, stop):
        driver.begin()
        outcome = session.drive(driver, stop, train, shared)
        driver.record(SessionEnded(status=outcome.status, seconds=outcome.seconds))
    return outcome
