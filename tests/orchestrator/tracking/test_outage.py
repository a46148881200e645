"""A whole sweep through an outage of its tracking server; `python -m tests.faults` has the same for a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.outage import sweep_through_an_outage
from tests.postgres import Missing

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_trials_end_while_the_server_is_gone_and_its_password_is_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("flask_wtf", reason="MLflow's passwords need mlflow[auth]")
    try:
        said = list(sweep_through_an_outage(tmp_path, step_seconds=1.0, ended=4, away=0.0))
    except Missing as why:
        pytest.skip(str(why))
    assert "4 of 4 trials ended" in said[0]
