"""The private names of Ray and MLflow in `tune.private` and `tracking.private`: with other versions this test fails first."""

from __future__ import annotations

import inspect
import re
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from types import ModuleType

import mlflow
import pytest
import ray
from mlflow.artifacts import get_artifact_repository
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from packaging.requirements import Requirement
from ray import cloudpickle
from ray._private import worker
from ray._private.node import Node
from ray._raylet import InnerGcsClient
from ray.train._internal.storage import StorageContext
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial
from ray.tune.experiment.trial import _TemporaryTrialState

from orchestrator.tracking import private as of_mlflow
from orchestrator.tracking.client import make_sqlite
from orchestrator.tune import private as of_ray
from orchestrator.tune.cluster import PATIENT_ENVIRONMENT
from tests.orchestrator.stand_in import ROOT


def names(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_a_started_cluster_has_its_processes_and_says_which_machines_drain() -> None:
    assert of_ray.own_node() is worker._global_node
    for name in ("dead_processes", "get_session_dir_path"):
        assert callable(getattr(Node, name))
    assert "worker.gcs_client = " in inspect.getsource(worker.connect)
    assert callable(InnerGcsClient.get_draining_nodes)


def test_the_environment_of_trials_and_of_the_clusters_processes_is_read() -> None:
    assert isinstance(class_cache.ENV_VARS_TO_PROPAGATE, set)
    assert "ENV_VARS_TO_PROPAGATE" in inspect.getsource(class_cache._ActorClassCache.get)
    place = Path(ray.__file__).parent
    files = ("core/src/ray/raylet/raylet", "core/src/ray/gcs/gcs_server", "_private/node.py")
    content = b"".join((place / file).read_bytes() for file in files)
    assert [name for name in PATIENT_ENVIRONMENT if name.encode() not in content] == []
    loggers = [place.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in of_ray.LOGGERS]
    assert [file for file in loggers if not file.is_file()] == []


def test_a_trial_continues_the_folder_of_another_and_has_its_process_and_its_error() -> None:
    assert "if not self.relative_logdir" in inspect.getsource(Trial.init_local_path)
    assert all(name in inspect.getsource(Trial.__init__) for name in ("custom_dirname", "temporary_state"))
    assert {"trial_dir_name", "current_checkpoint_index"} <= {*names(StorageContext.__init__)}
    assert "ray_actor" in inspect.getsource(_TemporaryTrialState.__init__)
    assert isinstance(inspect.getattr_static(Trial, "pickled_error_file"), property)
    assert callable(cloudpickle.load)


def test_the_tables_of_a_store_have_the_columns_that_are_corrected(tmp_path: Path) -> None:
    make_sqlite(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        for table, column in of_mlflow.ARTIFACT_COLUMNS:
            assert column in {name for _, name, *_ in store.execute(f"PRAGMA table_info({table})")}, f"{table}.{column}"


def test_a_run_is_sampled_and_its_artifacts_can_be_deleted(tmp_path: Path) -> None:
    assert {"run_id", "sampling_interval", "resume_logging", "tracking_uri"} <= {*names(SystemMetricsMonitor.__init__)}
    assert callable(SystemMetricsMonitor.start)
    assert names(ArtifactRepository.delete_artifacts)[:2] == ["self", "artifact_path"]
    assert "tracking_uri" in names(get_artifact_repository)
    (tmp_path / "check.txt").write_text("ok")
    of_mlflow.artifact_storage(tmp_path.as_uri(), "sqlite:///none.db").delete_artifacts("check.txt")
    assert not (tmp_path / "check.txt").exists()


def test_mlflows_page_reads_its_tags() -> None:
    scripts = (Path(mlflow.__file__).parent / "server" / "js" / "build").rglob("*.js")
    tags = {of_mlflow.VIEW.removesuffix("."), *of_mlflow.EXPERIMENT_TAGS}
    for script in scripts:
        text = script.read_text(errors="replace")
        tags = {tag for tag in tags if tag not in text}
        if not tags:
            return
    raise AssertionError(f"MLflow's page does not name {tags}")


RAYS = r"\bray\._|\bray\.[\w.]*\._|_raylet|_global_node|class_cache|temporary_state|relative_logdir|pickled_error"
MLFLOWS = r"system_metrics|get_artifact_repository|SELECT |UPDATE |sharedViewState\.\"|mlflow\.experimentKind"


@pytest.mark.parametrize(("module", "library", "pattern"), [(of_ray, ray, RAYS), (of_mlflow, mlflow, MLFLOWS)])
def test_one_module_names_them_and_the_requirement_has_an_upper_bound(
    module: ModuleType, library: ModuleType, pattern: str
) -> None:
    users = {path for path in (ROOT / "orchestrator").rglob("*.py") if re.search(pattern, path.read_text())}
    assert users == {Path(str(module.__file__))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = (each for each in map(Requirement, project["dependencies"]) if each.name == library.__name__)
    assert requirement.specifier.contains(library.__version__)
    assert any(each.operator == "<" for each in requirement.specifier)
