"""The tracking URI of a sweep: made absolute, and checked before anything runs.

Credentials come from the environment (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`, `MLFLOW_TRACKING_TOKEN`,
`PGPASSWORD`) or, for databases, from the URI itself. `redact` removes them from everything that is
shown, logged or written to disk, because each address that a process uses comes through `resolve_uri`.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.tools.secrets import hide_address, redact

SCHEMES = ("sqlite", "http", "https", "postgresql", "postgres", "mysql", "mssql", "databricks")


DATABRICKS = "databricks"
"""Without a scheme: the workspace of the default profile, or of DATABRICKS_HOST and DATABRICKS_TOKEN."""


class TrackingError(ValueError):
    """A tracking store cannot be used; the message is for people."""


def resolve_uri(uri: str) -> str:
    """Returns an absolute tracking URI. The path of a SQLite file starts at the current folder.

    Raises:
        TrackingError: the scheme or the file name is missing, or the scheme is not supported; the message says what to write.
    """
    scheme, separator, location = hide_address(uri).partition("://")
    kind = scheme.split("+", 1)[0].lower()
    if uri == DATABRICKS:
        return uri
    which = "MLFLOW_TRACKING_URI" if uri == os.environ.get("MLFLOW_TRACKING_URI") else "tracking uri"
    if not separator or kind == "file":
        raise TrackingError(
            f"{which} {redact(uri)!r} is a folder; MLflow keeps runs in a database. Write sqlite:///mlflow.db for a file "
            "here, or the address of a server (http://127.0.0.1:5000)"
        )
    if kind not in SCHEMES:
        raise TrackingError(f"{which} {redact(uri)!r} has the unknown scheme {scheme!r}. Known: {', '.join(SCHEMES)}")
    if kind != "sqlite":
        if not location.strip("/"):
            missing = "profile" if kind == DATABRICKS else "host"
            raise TrackingError(f"{which} {redact(uri)!r} names no {missing}")
        return uri
    name = location.removeprefix("/")
    if not name or name.startswith(":memory:") or not location.startswith("/"):
        raise TrackingError(f"{which} {uri!r} names no file. Write sqlite:///mlflow.db, or sqlite:////full/path/mlflow.db")
    return f"sqlite:///{Path(name).resolve()}"


def sqlite_file(uri: str) -> Path | None:
    """Returns the file of a resolved SQLite URI, None for any other."""
    return Path(uri.partition(":///")[2]) if uri.startswith("sqlite") else None


def has_server(uri: str) -> bool:
    """Returns whether a server keeps the runs of a resolved URI, and their artifacts; else this process writes both."""
    return uri.startswith(("http", DATABRICKS))
