"""MLflow as this project uses it: quiet, without retries of its own, and with errors that say what to do next."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from orchestrator.tools.secrets import redact
from orchestrator.tracking.private import ARTIFACTS, EXPERIMENT_TAGS, delete_artifact, keep_artifacts_near
from orchestrator.tracking.tags import KIND, SWEEP_ID, SWEEP_KIND
from orchestrator.tracking.uri import TrackingError, sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE", "MALFORMED_REQUEST")
MISSING = "RESOURCE_DOES_NOT_EXIST"


def quiet_mlflow() -> None:
    """Keeps the messages of MLflow and Alembic off the screen and telemetry off the network; turns MLflow's retries off.

    MLflow repeats a request whose answer was lost although the store may have done it.
    `orchestrator.tracking.mirror` repeats instead, after it has looked what the store has.
    """
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def open_experiment(uri: str, name: str, sweep_id: str | None = None) -> tuple[MlflowClient, str]:
    """Returns a client of the store at `uri` and the id of an experiment in it. Both are made if absent.

    Where no server keeps artifacts, they go into `mlartifacts` next to the SQLite file, or in the current folder.

    Args:
        sweep_id: of the sweep whose runs the experiment has; it may have been renamed in the store.
    """
    client, file = open_store(uri), sqlite_file(uri)
    if sweep_id is not None and (place := find_experiment(client, sweep_id)) is not None:
        return client, place
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        location = None
        if not uri.startswith("http"):
            home = file.parent if file is not None else Path.cwd()
            location = ((home / ARTIFACTS).resolve() / (re.sub(r"[^\w\-]", "_", name) or "_")).as_uri()
        return client, client.create_experiment(name, artifact_location=location, tags=EXPERIMENT_TAGS)
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return client, str(experiment.experiment_id)


def open_store(uri: str) -> MlflowClient:
    """Returns a client of the store at `uri`, which is made if it is a SQLite file that is absent."""
    quiet_mlflow()
    from mlflow import MlflowClient

    file = sqlite_file(uri)
    if file is not None:
        make_sqlite(file)
        keep_artifacts_near(file)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def find_experiment(client: MlflowClient, sweep_id: str) -> str | None:
    """Returns the id of the experiment that has the sweep's own run; None if no run is there yet."""
    query = f"tags.`{SWEEP_ID}` = '{sweep_id}' and tags.`{KIND}` = '{SWEEP_KIND}'"
    places = [experiment.experiment_id for experiment in client.search_experiments()]
    return next((str(run.info.experiment_id) for run in find_runs(client, places, query)), None)


def make_sqlite(file: Path) -> None:
    """Makes a SQLite store, unless it exists; other processes see all of its tables or no file.

    MLflow makes its tables in dozens of steps. A page that opens the file between two of them takes the store for an empty one
    and makes the same tables, and a killed process leaves a file that no version of MLflow can open.
    """
    from mlflow import MlflowClient

    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        MlflowClient(f"sqlite:///{aside}").search_experiments(max_results=1)
        with suppress(FileExistsError):  # another sweep was sooner
            os.link(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def find_runs(client: MlflowClient, experiments: Sequence[str], query: str) -> Iterator[Run]:
    """Yields the runs of experiments that match, oldest first."""
    token: str | None = None
    while True:
        page = client.search_runs(
            [*experiments], query, max_results=1000, order_by=["attributes.start_time ASC"], page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def is_refusal(error: Exception) -> bool:
    """Returns whether trying again cannot help: the store understood the request and refused it, or a value is unfit."""
    code = getattr(error, "error_code", None)
    return code in REFUSALS or isinstance(error, KeyError | TypeError | ValueError | FileNotFoundError)


def is_missing(error: Exception) -> bool:
    """Returns whether a run that was in the store is gone: the store lost it, or somebody deleted it."""
    return getattr(error, "error_code", None) == MISSING


LOGIN = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
"""The variables by which MLflow's client logs in."""


def describe_refusal(uri: str, error: BaseException) -> str | None:
    """Returns what to do if the server at `uri` asks for a login or does not allow a request; None for any other error."""
    status, seen = None, error
    while status is None and seen is not None:
        answer = getattr(seen, "response", None)
        status = seen.get_http_status_code() if hasattr(seen, "get_http_status_code") else getattr(answer, "status_code", None)
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    name = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    user = f"the user {name!r}" if name else "the login that it got"
    given = name or os.environ.get("MLFLOW_TRACKING_TOKEN") or redact(uri) != uri
    if status == HTTPStatus.FORBIDDEN:
        return (
            f"the tracking store {redact(uri)} does not allow this to {user} (403): give that user the permission to make "
            f"experiments, or set {LOGIN} of another one"
        )
    if status != HTTPStatus.UNAUTHORIZED:
        return None
    if given:
        return f"the tracking store {redact(uri)} does not accept {user} (401): check {LOGIN} in the environment"
    return f"the tracking store {redact(uri)} asks for a login (401): set {LOGIN} in the environment"


def check_store(uri: str) -> None:
    """Raises TrackingError if the store at `uri` does not answer. A SQLite file need not be there, but must be one."""
    file = sqlite_file(uri)
    if file is not None:
        with suppress(FileNotFoundError), file.open("rb") as stream:
            if stream.read(15) not in (b"", b"SQLite format 3"):
                raise TrackingError(f"{file} is no SQLite database; give --tracking-uri of another file, or of a server")
        return
    quiet_mlflow()
    from mlflow import MlflowClient

    try:
        MlflowClient(uri).search_experiments(max_results=1)
    except Exception as error:  # stores, their drivers and the network have errors of their own
        if refusal := describe_refusal(uri, error):
            raise TrackingError(refusal) from error
        reason = redact((str(error).strip() or type(error).__name__).splitlines()[0])[:200]
        raise TrackingError(
            f"the tracking store {redact(uri)} does not answer ({reason}); check --tracking-uri, and that the server runs"
        ) from error


def probe(uri: str) -> str:
    """Writes a run to the store at `uri`, reads it back and deletes it; returns where artifacts go, for people."""
    quiet_mlflow()
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    if not uri.startswith("http"):
        return _write_and_read(client, "0", artifact=False)
    # A server with users may let each of them write only to their own experiments. A sweep makes its own too.
    experiment = client.create_experiment(f"check-{uuid.uuid4().hex}")
    try:
        return _write_and_read(client, experiment, artifact=True)
    finally:
        client.delete_experiment(experiment)


def _write_and_read(client: MlflowClient, experiment: str, artifact: bool) -> str:
    run = client.create_run(experiment, run_name="check", tags={KIND: "check"})
    identifier = run.info.run_id
    try:
        client.log_metric(identifier, "probe", 1.0, step=1)
        if client.get_run(identifier).data.metrics.get("probe") != 1.0:
            raise OSError("a metric that was written does not come back")
        if artifact:
            client.log_text(identifier, "ok", "check.txt")
            with suppress(Exception):
                delete_artifact(run.info.artifact_uri, "check.txt")
    finally:
        client.delete_run(identifier)
    return urlparse(run.info.artifact_uri or "").scheme or "a local folder"
