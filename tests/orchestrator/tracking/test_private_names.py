"""The private names of MLflow that `orchestrator.tracking.private` uses: with another MLflow this is the first test to fail."""

from __future__ import annotations

import inspect
import re
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import mlflow
from mlflow.artifacts import get_artifact_repository
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from packaging.requirements import Requirement

from orchestrator.tracking import private
from orchestrator.tracking.client import make_sqlite

ROOT = Path(__file__).parents[3]


def test_its_tables_have_the_columns_that_are_corrected(tmp_path: Path) -> None:
    make_sqlite(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        for table, column in private.ARTIFACT_COLUMNS:
            assert column in {name for _, name, *_ in store.execute(f"PRAGMA table_info({table})")}, f"{table}.{column}"


def test_the_monitor_samples_a_run_of_a_store() -> None:
    names = inspect.signature(SystemMetricsMonitor.__init__).parameters.keys()
    assert {"run_id", "sampling_interval", "resume_logging", "tracking_uri"} <= names
    assert callable(SystemMetricsMonitor.start)


def test_artifacts_can_be_deleted(tmp_path: Path) -> None:
    assert list(inspect.signature(ArtifactRepository.delete_artifacts).parameters)[:2] == ["self", "artifact_path"]
    (tmp_path / "check.txt").write_text("ok")
    private.artifact_storage(tmp_path.as_uri(), "sqlite:///none.db").delete_artifacts("check.txt")
    assert not (tmp_path / "check.txt").exists()
    assert "tracking_uri" in inspect.signature(get_artifact_repository).parameters


def test_the_page_reads_its_tags() -> None:
    scripts = (Path(mlflow.__file__).parent / "server" / "js" / "build").rglob("*.js")
    tags = {private.VIEW.removesuffix("."), *private.EXPERIMENT_TAGS}
    for script in scripts:
        text = script.read_text(errors="replace")
        tags = {tag for tag in tags if tag not in text}
        if not tags:
            return
    raise AssertionError(f"MLflow's page does not name {tags}")


def test_no_other_module_names_them() -> None:
    names = re.compile(r"system_metrics|get_artifact_repository|SELECT |UPDATE |sharedViewState\.\"|mlflow\.experimentKind")
    users = {path.name for path in (ROOT / "orchestrator").rglob("*.py") if names.search(path.read_text())}
    assert users == {"private.py"}


def test_the_requirement_allows_no_mlflow_that_may_have_renamed_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "mlflow")
    assert requirement.specifier.contains(mlflow.__version__)
    assert any(each.operator == "<" for each in requirement.specifier)
