"""The names of MLflow that are not public, all of them: with another MLflow, tests/orchestrator/test_private_names.py
fails first.

pyproject.toml admits only versions of MLflow with which these names were tried. The state of its page's saved views is in
`orchestrator.review.saved_views`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

VIEW = "mlflow.sharedViewState."
"""Begins the tag of an experiment that holds a saved view of MLflow's page."""
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""MLflow's page shows parameters and metrics of such an experiment, instead of traces."""
ARTIFACTS = "mlartifacts"
ARTIFACT_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""The columns of MLflow's tables that say where artifacts are; the first decides it for new runs."""


def keep_artifacts_near(file: Path) -> None:
    """Corrects the places of artifacts in a SQLite store that was moved or copied together with them.

    MLflow writes them down as absolute paths, so a copy would write into the folder of the original.
    """
    home = (file.parent / ARTIFACTS).resolve()
    # What cannot be read or written here is refused in MLflow's words when it is used.
    with suppress(sqlite3.Error), closing(sqlite3.connect(file, timeout=60)) as store, store:
        places = {url2pathname(urlparse(place).path) for (place,) in store.execute("SELECT artifact_location FROM experiments")}
        for old in {Path(place).parent for place in places}:
            if old.name != ARTIFACTS or old == home or (old.exists() and not (old.parent / file.name).exists()):
                continue  # the last is the place of somebody else, and no store was moved from there
            columns = ARTIFACT_COLUMNS if home.exists() or not old.exists() else ARTIFACT_COLUMNS[:1]
            old_prefix, new_prefix = f"{old.as_uri()}/", f"{home.as_uri()}/"
            for table, column in columns:
                change = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
                store.execute(change, (new_prefix, len(old_prefix) + 1, len(old_prefix), old_prefix))


def artifact_storage(artifact_uri: str, tracking_uri: str) -> Any:
    """Returns the place of artifacts of a run or experiment: it takes files, and deletes what is below it.

    Each kind of storage raises errors of its own. The server at `tracking_uri` is asked for artifacts that it passes on.
    """
    from mlflow.artifacts import get_artifact_repository

    return get_artifact_repository(artifact_uri, tracking_uri=tracking_uri)
