"""What the driver makes of a running job's messages: an outlook, an evaluation, or the results of its trials.

The engine that runs the job brings each message (`orchestrator.worker.worker`) with the name of the checkpoint that it has
stored, and takes the job back where `receive` says so.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Mapping
from typing import Any

from orchestrator.driver.driver import Driver
from orchestrator.plan.trial import Outcome
from orchestrator.record.checkpoints import ADAPTER_FOLDER, CUTS_FOLDER, local_adapter, within
from orchestrator.state.entry import TrialResult

log = logging.getLogger(__name__)


def receive(driver: Driver, attempt: int, key: str, message: Mapping[str, Any], checkpoint: str | None) -> bool:
    """Gives the driver a job's message; returns whether the job must leave its place.

    Args:
        checkpoint: the name of the stored checkpoint that came with the message.
    """
    if "outlook" in message:
        driver.show_outlook(key, message["outlook"])
    elif "results" in message:
        driver.common_cause.works()
        results = map(TrialResult.from_json, message["results"])
        driver.record_end(key, [_outcome(driver, attempt, result, key, checkpoint) for result in results])
    elif "progress" in message and driver.record_report(key, message["progress"]):
        return True
    return driver.must_leave(key)


def _outcome(driver: Driver, attempt: int, result: TrialResult, job: str, checkpoint: str | None) -> Outcome:
    """Returns a result with its adapter, which is in the job's last checkpoint."""
    adapter = None
    if result.status != "finished" or checkpoint is None:
        return Outcome(result)
    folder = [f"attempt-{attempt}", job, checkpoint]
    place = [*folder, *([] if result.key == job else [CUTS_FOLDER, result.key]), ADAPTER_FOLDER]
    try:
        adapter = local_adapter(driver.storage, posixpath.join(*place), driver.folder.adapters / result.key)
    except OSError:
        log.exception("the adapter of trial %s cannot be read back from %s; its result counts", result.key, driver.storage)
    return Outcome(result.with_facts(adapter=within(driver.storage, *place)), adapter)
