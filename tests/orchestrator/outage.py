"""A whole sweep whose tracking server goes away in the middle: MLflow on PostgreSQL with a password, or else on SQLite."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from tests.mlflow_server import Server
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import check_runs, ended, start_driver, steps, wait_for
from tests.postgres import Missing, postgres


def sweep_through_an_outage(folder: Path, step_seconds: float, over: int, away: float) -> Iterator[str]:
    """Runs four trials of three steps and takes the server away after the first steps.

    Asserts that trials end while nothing records them, that the store then has one run for each with each evaluation once and
    its adapter, and that the password is in no file, in no row of the database and on no screen. Yields lines on what happened.

    Args:
        over: how many trials must have ended before the server comes back.
        away: for how many seconds it is gone at least.
    """
    password = secrets.token_hex(16) if find_spec("flask_wtf") else None  # MLflow's passwords need mlflow[auth]
    (folder / "server").mkdir(parents=True)
    (folder / "sweep").mkdir()
    login = {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": password} if password else {}
    with ExitStack() as stack:
        restart: list[str] = []
        try:
            backend, restart = stack.enter_context(postgres())
        except Missing as why:
            yield f"without PostgreSQL: {why}"
            backend = f"sqlite:///{folder / 'server' / 'mlflow.db'}"
        stack.enter_context(patch.dict(os.environ, login))
        server = stack.enter_context(closing(Server(backend, folder / "server", password)))
        server.start()
        settings = {"ranks": [1, 2], "seeds": [0, 1], "seconds": step_seconds, "session": True}
        process = start_driver(folder / "sweep", **settings, tracking=server.uri)  # type: ignore[arg-type]
        log, sweep = folder / "sweep" / "log", folder / "sweep" / "test"
        wait_for(lambda: steps(log).total() >= 2, process)
        server.kill()
        gone, before = time.monotonic(), steps(log).total()
        if restart:
            subprocess.run(restart, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: len(results_of(sweep)) >= over and time.monotonic() - gone >= away, process, away + 240)
        done = len(results_of(sweep))
        yield (
            f"the server was gone for {time.monotonic() - gone:.0f} s; meanwhile {steps(log).total() - before} steps were "
            f"done and {done} of 4 trials ended"
        )
        server.start()
        shown, results = ended(process), results_of(sweep)
        assert sorted(result.metrics["score"] for result in results.values()) == [61.0, 62.0, 62.0, 63.0]
        check_runs(server.uri, set(results), configurations=2)
        places = {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        places |= {"the screen": shown.encode()} | ({"the database": _rows(backend).encode()} if restart else {})
        assert not [place for place, content in places.items() if password and password.encode() in content]
        yield f"4 trials, each with one run and each evaluation once; the password is in none of {len(places)} places"


def _rows(backend: str) -> str:
    import psycopg

    with psycopg.connect(backend) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        assert len(tables) > 10
        found = [connection.execute(f'SELECT * FROM "{table}"').fetchall() for (table,) in tables]  # type: ignore[call-overload]
        return "\n".join(str(row) for rows in found for row in rows)
