"""Whether a tracking store takes what a sweep will write: a throw-away run with a metric and an artifact, deleted again."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlparse

import mlflow
from mlflow.artifacts import get_artifact_repository
from mlflow.exceptions import MlflowException

from orchestrator.mlflow_writer import quiet_mlflow

FILE = "doctor.txt"


def probe(uri: str) -> str:
    """Writes to the store at `uri` and reads it back; returns where artifacts go, for people.

    Raises:
        MlflowException, OSError: it does not answer, or refuses the write.
    """
    quiet_mlflow()
    client = mlflow.MlflowClient(uri)
    run = client.create_run("0", run_name="doctor", tags={"craft.kind": "doctor"})
    identifier = run.info.run_id
    try:
        client.log_metric(identifier, "probe", 1.0, step=1)
        if client.get_run(identifier).data.metrics.get("probe") != 1.0:
            raise MlflowException("a metric that was written does not come back")
        if uri.startswith("http"):
            client.log_text(identifier, "ok", FILE)
            with suppress(Exception):
                get_artifact_repository(run.info.artifact_uri).delete_artifacts(FILE)
    finally:
        client.delete_run(identifier)
    return urlparse(run.info.artifact_uri or "").scheme or "a local folder"
