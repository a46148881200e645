"""The job itself on its worker: `trainable` gives Tune the function that runs it.

worker   trainable  -->  work(key, job, report)  -->  tune.report(metrics, checkpoint)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

from orchestrator.sweepfile.resources import Resources
from orchestrator.tune.cluster import share
from orchestrator.tune.crew import drain_notice, gathered
from orchestrator.worker.surroundings import WorkerSettings
from orchestrator.worker.worker import work

INSIDE = ("progress", "results", "outlook")
"""The parts of a report with an inside, which Tune gets as JSON."""


def trainable(settings: WorkerSettings) -> Callable[[dict[str, Any]], None]:
    """Returns the function that runs a job, given `config_of(job)`, on a worker."""

    def run(config: dict[str, Any]) -> None:
        def report(metrics: dict[str, Any], folder: Path | None) -> None:
            tune.report(as_text(metrics), checkpoint=tune.Checkpoint.from_directory(str(folder)) if folder else None)

        logging.getLogger("ray").setLevel(logging.WARNING)
        with gathered(config["key"], settings, _resources(config)) as shared, drain_notice() as must_leave:
            work(config["key"], config["job"], shared, report, must_leave)

    return run


def as_text(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns a report of `orchestrator.worker.worker` as Tune gets it: the parts with an inside as JSON.

    Of every number in a report, also inside others, Tune keeps statistics for each trial, and writes them into snapshots of the
    experiment.
    """
    return {name: json.dumps(value) if name in INSIDE else value for name, value in metrics.items()}


def share_of(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Returns what Tune places a job by."""
    return share(_resources(config))


def _resources(config: dict[str, Any]) -> Resources:
    return Resources.model_validate_json(config["resources"])
