"""Where a sweep is tracked: addresses made absolute or refused, and passwords in them that reach nothing."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from craft.words import redact
from orchestrator.tracking.client import make_sqlite
from orchestrator.tracking.uri import TrackingError, resolve_uri


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://me:pw@host:5000/x", "http://***@host:5000/x"),
        ("postgresql+psycopg://u:p%40@h/db", "postgresql+psycopg://***@h/db"),
        ("cannot reach postgresql://u:a/b@c@h/db now", "cannot reach postgresql://***@h/db now"),
        ("https://h/x?token=abc&user=b", "https://h/x?token=***&user=b"),
        ("sqlite:////home/me/mlflow.db", "sqlite:////home/me/mlflow.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        # an "@" in a path or a bucket is part of a name, one in a password is not
        ("sqlite:////home/me@example/My Drive/mlflow.db", "sqlite:////home/me@example/My Drive/mlflow.db"),
        ("s3://bucket/me@example/runs", "s3://bucket/me@example/runs"),
        ("postgresql://u:p@ss/w@rd@h/db", "postgresql://***@h/db"),
        ("http://token@h:5000", "http://***@h:5000"),
    ],
)
def test_redaction(given: str, shown: str) -> None:
    assert redact(given) == shown


def test_uris_are_made_absolute_or_refused(tmp_path: Path) -> None:
    assert resolve_uri("sqlite:///mlflow.db", tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_uri(f"sqlite:///{tmp_path}/a.db") == f"sqlite:///{tmp_path}/a.db"
    assert resolve_uri("postgresql://u:p@h/db") == "postgresql://u:p@h/db"
    for wrong, words in [
        ("mlruns", "sqlite:///mlflow.db"),
        ("file:///mlruns", "folder"),
        ("ftp://h", "unknown scheme"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("http://", "names no host"),
    ]:
        with pytest.raises(TrackingError, match=words):
            resolve_uri(wrong, tmp_path)


def test_a_sqlite_store_appears_with_all_its_tables(tmp_path: Path) -> None:
    """A page that opens it in its first moment, or a kill while it is made, meets no half of it."""
    file = tmp_path / "new" / "mlflow.db"

    def tables() -> list[str]:
        with sqlite3.connect(file) as store:
            return [name for (name,) in store.execute("select name from sqlite_master where type = 'table'")]

    making = threading.Thread(target=make_sqlite, args=(file,))
    making.start()
    while making.is_alive() and not file.exists():
        pass
    first = tables()
    making.join()
    assert len(first) > 20
    assert first == tables()
    assert [one.name for one in file.parent.iterdir()] == ["mlflow.db"]
    make_sqlite(file)
    assert first == tables()
