"""The tracking URI of a sweep: made absolute, and checked before anything runs.

Credentials come from the environment (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`, `MLFLOW_TRACKING_TOKEN`,
`PGPASSWORD`) or, for databases, from the URI itself. `redact` removes them from everything that is
shown, logged or written to disk, because each address that a process uses comes through `resolve_uri`.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.tools.secrets import hide_address, redact

SCHEMES = ("sqlite", "http", "https", "postgresql", "postgres", "mysql", "mssql")


class TrackingError(ValueError):
    """A tracking store cannot be used; the message is for people."""


def resolve_uri(uri: str, base: Path | None = None) -> str:
    """Returns an absolute tracking URI. The path of a SQLite file starts at `base`, or at the current folder.

    Raises:
        TrackingError: the scheme or the file name is missing, or the scheme is not supported; the message says what to write.
    """
    scheme, separator, location = hide_address(uri).partition("://")
    kind = scheme.split("+", 1)[0].lower()
    if not separator or kind == "file":
        raise TrackingError(
            f"tracking uri {redact(uri)!r} is a folder; MLflow keeps runs in a database. Write sqlite:///mlflow.db for a file "
            "here, or the address of a server (http://127.0.0.1:5000)"
        )
    if kind not in SCHEMES:
        raise TrackingError(f"tracking uri {redact(uri)!r} has the unknown scheme {scheme!r}. Known: {', '.join(SCHEMES)}")
    if kind != "sqlite":
        if not location.strip("/"):
            raise TrackingError(f"tracking uri {redact(uri)!r} names no host")
        return uri
    name = location.removeprefix("/")
    if not name or name.startswith(":memory:") or not location.startswith("/"):
        raise TrackingError(f"tracking uri {uri!r} names no file. Write sqlite:///mlflow.db, or sqlite:////full/path/mlflow.db")
    return f"sqlite:///{((base or Path.cwd()) / name).resolve()}"


def sqlite_file(uri: str) -> Path | None:
    """Returns the file of a resolved SQLite URI, None for any other."""
    return Path(uri.partition(":///")[2]) if uri.startswith("sqlite") else None
