"""Tries whether a tracking store takes what a sweep writes: a run with a metric and an artifact, which is deleted again."""

from __future__ import annotations

import uuid
from contextlib import suppress
from urllib.parse import urlparse

import mlflow
from mlflow.artifacts import get_artifact_repository
from mlflow.exceptions import MlflowException

from orchestrator.record.mlflow_client import quiet_mlflow

FILE = "doctor.txt"


def probe(uri: str) -> str:
    """Writes to the store at `uri` and reads it back; returns where artifacts go, for people.

    Raises:
        MlflowException, OSError: the store does not answer, or refuses the write.
    """
    quiet_mlflow()
    client = mlflow.MlflowClient(uri)
    if not uri.startswith("http"):
        return _write(client, "0", artifact=False)
    # A server with users may let each of them write only to their own experiments. A sweep makes its own too.
    experiment = client.create_experiment(f"doctor-{uuid.uuid4().hex}")
    try:
        return _write(client, experiment, artifact=True)
    finally:
        client.delete_experiment(experiment)


def _write(client: mlflow.MlflowClient, experiment: str, artifact: bool) -> str:
    run = client.create_run(experiment, run_name="doctor", tags={"craft.kind": "doctor"})
    identifier = run.info.run_id
    try:
        client.log_metric(identifier, "probe", 1.0, step=1)
        if client.get_run(identifier).data.metrics.get("probe") != 1.0:
            raise MlflowException("a metric that was written does not come back")
        if artifact:
            client.log_text(identifier, "ok", FILE)
            with suppress(Exception):
                get_artifact_repository(run.info.artifact_uri).delete_artifacts(FILE)
    finally:
        client.delete_run(identifier)
    return urlparse(run.info.artifact_uri or "").scheme or "a local folder"
