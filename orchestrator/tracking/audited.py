"""An audit in the tracking store: the experiment `audits` has a run of each adapter, and inside it one of each size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.results.tags import KIND, NOTE, PARENT
from orchestrator.tracking.artifacts import upload
from orchestrator.tracking.client import open_experiment

EXPERIMENT, AUDIT_KIND = "audits", "audit"
PARAMETERS = ("adapter", "method", "base", "metric", "rows", "trained", "within", "sure")
OF_SIZE = ("score", "difference", "low", "high", "p_within")


def record_audit(report: Mapping[str, Any], smaller: Path | None, uri: str) -> str:
    """Writes a report on an audit, as a program gets it, to the store at `uri`.

    Args:
        smaller: the folder of the smallest adapter that is enough, if one was written.

    Returns:
        The id of its run.
    """
    client, place = open_experiment(uri, EXPERIMENT)

    def write(name: str, tags: Mapping[str, str], values: Mapping[str, Any], numbers: Mapping[str, float | None]) -> str:
        run = str(client.create_run(place, run_name=name, tags={KIND: AUDIT_KIND, **tags}).info.run_id)
        for key, value in values.items():
            client.log_param(run, key, str(value))
        for key, number in numbers.items():
            if number is not None:  # a score that is no number
                client.log_metric(run, key, number)
        return run

    values = {name: report[name] for name in PARAMETERS}
    metrics = {"score": report["score"], "without": report["without"], "trainable_parameters": report["parameters"]}
    run = write(Path(report["adapter"]).name, {NOTE: report["text"]}, values, metrics)
    for size in report["sizes"]:
        metrics = {name: size[name] for name in OF_SIZE} | {"trainable_parameters": size["parameters"]}
        client.set_terminated(write(f"{size['parameters']:,} parameters", {PARENT: run}, values, metrics))
    client.log_dict(run, dict(report), "audit.json")
    if smaller is not None:
        upload(client, run, "adapter", smaller)
    client.set_terminated(run)
    return run
