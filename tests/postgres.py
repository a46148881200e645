"""PostgreSQL from the system's packages, as a database cluster of a test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.mlflow_server import free_port

INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


class Missing(RuntimeError):
    """There is no PostgreSQL here."""


@contextmanager
def postgres() -> Iterator[tuple[str, list[str]]]:
    """Gives its URI and the command that restarts it without grace; runs as a user that is not root.

    Raises:
        Missing: it cannot be had here; the message says why.
    """
    if find_spec("psycopg") is None:
        raise Missing("psycopg is not installed")
    if not INSTALLED:
        raise Missing("PostgreSQL is not installed")
    bin_folder, port = INSTALLED[-1].parent, free_port()
    home = Path(f"/tmp/craft-postgres-{os.getpid()}")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    as_user: list[str] = []
    if os.geteuid() == 0:
        if subprocess.run(["id", "postgres"], capture_output=True, check=False).returncode:
            raise Missing("PostgreSQL refuses root, and there is no user postgres")
        shutil.chown(home, "postgres", "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    control = [*as_user, str(bin_folder / "pg_ctl"), "-D", str(home / "data"), "-w"]
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={home} -c fsync=off"
    started = [*control, "-o", options, "-l", str(home / "log"), "start"]
    made = [*as_user, str(bin_folder / "initdb"), "-D", str(home / "data"), "-A", "trust", "-U", "craft"]
    subprocess.run(made, check=True, capture_output=True)
    subprocess.run(started, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"postgresql://craft@127.0.0.1:{port}/postgres", [*control, "-m", "immediate", "restart"]
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)
