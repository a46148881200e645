"""The private names of Ray and MLflow in `tune.private` and `tracking.private`: with other versions this test fails first."""

from __future__ import annotations

import inspect
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType

import mlflow
import pytest
import ray
from mlflow.artifacts import get_artifact_repository
from mlflow.store.artifact.artifact_repo import ArtifactRepository
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

SOURCES = [
    (worker.connect, ["worker.gcs_client = "]),
    (class_cache._ActorClassCache.get, ["ENV_VARS_TO_PROPAGATE"]),
    (Trial.init_local_path, ["if not self.relative_logdir"]),
    (Trial.__init__, ["custom_dirname", "temporary_state"]),
    (_TemporaryTrialState.__init__, ["ray_actor"]),
    (StorageContext.__init__, ["trial_dir_name: ", "current_checkpoint_index: "]),
    (ArtifactRepository.delete_artifacts, ["self, artifact_path"]),
    (get_artifact_repository, ["tracking_uri"]),
]
"""Functions, and what their texts have."""


@pytest.mark.parametrize(("function", "texts"), SOURCES, ids=[function.__qualname__ for function, _ in SOURCES])
def test_a_function_is_as_it_is_used(function: Callable[..., object], texts: list[str]) -> None:
    assert [text for text in texts if text not in inspect.getsource(function)] == []


def test_there_are_the_processes_of_a_cluster_their_environment_and_the_error_of_a_trial() -> None:
    assert of_ray.own_node() is ray._private.worker._global_node
    used = (Node.dead_processes, Node.get_session_dir_path, InnerGcsClient.get_draining_nodes, cloudpickle.load)
    assert all(map(callable, used))
    assert isinstance(class_cache.ENV_VARS_TO_PROPAGATE, set)
    assert isinstance(inspect.getattr_static(Trial, "pickled_error_file"), property)
    place = Path(ray.__file__).parent
    files = ("core/src/ray/raylet/raylet", "core/src/ray/gcs/gcs_server", "_private/node.py")
    content = b"".join((place / file).read_bytes() for file in files)
    assert [name for name in PATIENT_ENVIRONMENT if name.encode() not in content] == []
    loggers = [place.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in of_ray.LOGGERS]
    assert [file for file in loggers if not file.is_file()] == []


def test_the_tables_of_a_store_have_the_columns_that_are_corrected(tmp_path: Path) -> None:
    make_sqlite(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        for table, column in of_mlflow.ARTIFACT_COLUMNS:
            assert column in {name for _, name, *_ in store.execute(f"PRAGMA table_info({table})")}, f"{table}.{column}"


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
MLFLOWS = r"get_artifact_repository|SELECT |UPDATE |sharedViewState\.\"|mlflow\.experimentKind"


@pytest.mark.parametrize(("module", "pattern"), [(of_ray, RAYS), (of_mlflow, MLFLOWS)])
def test_one_module_names_them(module: ModuleType, pattern: str) -> None:
    users = {path for path in (ROOT / "orchestrator").rglob("*.py") if re.search(pattern, path.read_text())}
    assert users == {Path(str(module.__file__))}
