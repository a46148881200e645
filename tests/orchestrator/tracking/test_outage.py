"""A tracking store that goes away: a whole sweep with a server, and PostgreSQL by itself; `tests.faults` waits for a minute."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.review.mirror import replay
from tests.orchestrator.logged import SweepLog, entry, history, mirror, runs, step_until_equal
from tests.orchestrator.outage import sweep_through_an_outage
from tests.postgres import Missing, postgres

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_trials_end_while_the_server_is_gone_and_its_password_is_nowhere(tmp_path: Path) -> None:
    *_, outage, _ = sweep_through_an_outage(tmp_path, step_seconds=1.0, over=4, away=0.0)
    assert "4 of 4 trials ended" in outage


def test_postgresql_without_a_server(here: Path) -> None:
    trial, sweep = entry(), SweepLog(here / "runs")
    sweep.begin(trial)
    sweep.report(trial, 10)
    try:
        with postgres() as (backend, restart):
            copy = mirror(sweep.folder, backend)
            subprocess.run(restart, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            sweep.report(trial, 20)
            assert replay(sweep.folder, backend, 120) == 0
            step_until_equal(copy, sweep.folder)
            assert history(backend, runs(backend)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0)]
    except Missing as why:
        pytest.skip(str(why))
