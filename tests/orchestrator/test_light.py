"""Heavy libraries are imported only by what needs them: each test asks a fresh process what it has loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.plans import config_alone
from tests.orchestrator.recorded import over_seeds, record, write_adapter
from tests.orchestrator.test_run_cli import SWEEP

ROOT = Path(__file__).parents[2]
HEAVY = {"optuna", "torch", "transformers", "peft", "datasets", "ray", "mlflow", "sklearn", "pandas", "matplotlib", "pyarrow"}


def loaded(program: str, folder: Path) -> set[str]:
    """The heavy libraries in `sys.modules` after a program, whose own output is swallowed."""
    program = (
        f"import contextlib, io, json, sys\nheavy = {HEAVY}\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    {program}\n"
        "print(json.dumps(sorted(heavy & {*sys.modules})))"
    )
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder, env=environment
    )
    return {*json.loads(done.stdout)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("MODEL", config_alone(tmp_path / "tiny")))
    return tmp_path


def test_a_file_is_checked_and_a_sweep_is_driven_with_nothing_heavy(folder: Path) -> None:
    """Later lines of the program import more, so a line counts what the lines before it imported, too."""
    check = "import orchestrator.run, orchestrator.search.stages, orchestrator.search.scheduler\n"
    check += "    from orchestrator.sweepfile.load import load_sweep; load_sweep('sweep.yaml')\n"
    check += "    from orchestrator.run import main; assert main(['sweep.yaml', '--set', 'trainin.epochs=1']) == 2\n"
    check += (
        "    assert not {'optuna', 'torch', 'transformers', 'peft', 'datasets', 'ray', 'mlflow', 'sklearn'} & {*sys.modules}\n"
    )
    check += "    import orchestrator.commands.session, orchestrator.tune.attempts"
    assert not loaded(check, folder) & {"optuna", "torch", "transformers", "peft"}


def test_tables_are_judged_and_what_is_on_record_is_shown_and_taken_with_nothing_heavy(tmp_path: Path) -> None:
    rows = [f"{rank},{seed},{0.8 + 0.01 * rank + 0.003 * seed},{100 * rank}" for rank in range(4) for seed in range(3)]
    (tmp_path / "runs.csv").write_text("\n".join(["rank,seed,accuracy,params", *rows]))
    adapter = write_adapter(tmp_path / "adapter", {"peft_type": "LORA"})
    sizes = {"LoRA r1": (100, over_seeds(81.5, 79.0)), "LoRA r2": (200, over_seeds(82.5, 81.0))}
    record(tmp_path / "runs" / "two", sizes, adapter=adapter)
    calls = [f"main({command.split()})" for command in ("judge runs.csv", "status two", "front two", "take two --to out")]
    assert loaded(f"from orchestrator.commands.app import main; assert [{', '.join(calls)}] == [0] * 4", tmp_path) == set()


def test_the_page_is_made_with_nothing_that_trains(tmp_path: Path) -> None:
    page = "import dashboards.app, dashboards.page, dashboards.store, mlflow; mlflow.MlflowClient"
    assert not loaded(page, tmp_path) & {"torch", "ray", "transformers", "peft"}


@pytest.mark.slow
def test_a_sweep_is_planned_without_optuna(folder: Path) -> None:
    overrides = "'--set', 'search={algorithm: tpe, configurations: 4}'"
    plan = f"from orchestrator.run import main; assert main(['sweep.yaml', '--plan', {overrides}]) == 0"
    assert not loaded(plan, folder) & {"optuna", "ray", "mlflow"}
