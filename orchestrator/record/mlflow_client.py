"""MLflow as this project uses it: quiet, without retries of its own, and with errors that say what to do next."""

from __future__ import annotations

import logging
import os

REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE", "MALFORMED_REQUEST")
MISSING = "RESOURCE_DOES_NOT_EXIST"


def quiet_mlflow() -> None:
    """Keeps the messages of MLflow and Alembic off the screen and telemetry off the network; turns MLflow's retries off.

    MLflow repeats a request whose answer was lost although the store may have carried it out.
    `orchestrator.record.shipper` repeats instead, after it has looked what the store has.
    """
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def is_refusal(error: Exception) -> bool:
    """Whether trying again cannot help: the store understood the request and refused it, or the event itself is unfit."""
    code = getattr(error, "error_code", None)
    return code in REFUSALS or isinstance(error, KeyError | TypeError | ValueError | FileNotFoundError)


def is_lost(error: BaseException) -> bool:
    """Whether the request or its answer was lost on the way, so that the error is not the server's answer."""
    from requests import RequestException

    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, RequestException):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def is_missing(error: Exception) -> bool:
    """Whether a run that was in the store is gone: the store lost it, or somebody deleted it."""
    return getattr(error, "error_code", None) == MISSING
