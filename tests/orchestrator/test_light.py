"""Heavy libraries are imported only by what needs them: each test asks a fresh process what it has loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.test_run_cli import CONFIG, SWEEP

ROOT = Path(__file__).parents[2]


def loaded(program: str, folder: Path) -> set[str]:
    """The heavy libraries in `sys.modules` after a program, whose own output is swallowed."""
    heavy = "{'optuna', 'torch', 'transformers', 'peft', 'datasets', 'ray', 'mlflow', 'sklearn'}"
    program = (
        "import contextlib, io, json, sys\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    {program}\n"
        f"print(json.dumps(sorted({heavy} & {{*sys.modules}})))"
    )
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder, env=environment
    )
    return {*json.loads(done.stdout)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("MODEL", str(tmp_path / "tiny")))
    return tmp_path


@pytest.mark.parametrize("modules", ["orchestrator.run", "orchestrator.search.stages, orchestrator.search.promotion"])
def test_importing_loads_nothing_heavy(folder: Path, modules: str) -> None:
    assert loaded(f"import {modules}", folder) == set()


def test_a_grid_and_a_mistaken_file_are_checked_with_nothing_heavy(folder: Path) -> None:
    check = "from orchestrator.sweepfile.load import load_sweep; load_sweep('sweep.yaml')"
    assert loaded(check, folder) == set()
    mistaken = "from orchestrator.run import main; assert main(['sweep.yaml', '--set', 'trainin.epochs=1']) == 2"
    assert loaded(mistaken, folder) == set()


def test_a_sweep_is_planned_without_optuna_and_driven_without_torch(folder: Path) -> None:
    overrides = "'--set', 'search={algorithm: tpe, configurations: 4}'"
    plan = f"from orchestrator.run import main; assert main(['sweep.yaml', '--plan', {overrides}]) == 0"
    assert not loaded(plan, folder) & {"optuna", "ray", "mlflow"}
    driver = loaded("import orchestrator.session, orchestrator.tune.runner", folder)
    assert not driver & {"optuna", "torch", "transformers", "peft"}
