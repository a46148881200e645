"""The private names of Ray that `orchestrator.tune.private` uses: with another Ray this is the first test to fail."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
import ray
from packaging.requirements import Requirement
from ray import cloudpickle
from ray._private import worker
from ray._private.node import Node
from ray._raylet import InnerGcsClient
from ray.train._internal.storage import StorageContext
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial
from ray.tune.experiment.trial import _TemporaryTrialState

from orchestrator.tune import private

ROOT = Path(__file__).parents[3]


def test_a_started_cluster_has_its_processes() -> None:
    assert hasattr(worker, "_global_node")
    assert private.own_node() is worker._global_node
    for name in ("dead_processes", "get_session_dir_path"):
        assert callable(getattr(Node, name))


def test_the_head_says_which_machines_drain() -> None:
    assert "worker.gcs_client = " in inspect.getsource(worker.connect)
    assert callable(InnerGcsClient.get_draining_nodes)


def test_the_environment_of_trials_can_be_kept() -> None:
    assert isinstance(class_cache.ENV_VARS_TO_PROPAGATE, set)


def test_a_trial_can_continue_the_folder_of_another() -> None:
    assert "if not self.relative_logdir" in inspect.getsource(Trial.init_local_path)
    assert "custom_dirname" in inspect.getsource(Trial.__init__)
    assert {"trial_dir_name", "current_checkpoint_index"} <= inspect.signature(StorageContext.__init__).parameters.keys()


def test_a_trial_has_its_process_and_its_error() -> None:
    assert "ray_actor" in inspect.getsource(_TemporaryTrialState.__init__)
    assert "temporary_state" in inspect.getsource(Trial.__init__)
    assert isinstance(inspect.getattr_static(Trial, "pickled_error_file"), property)
    assert callable(cloudpickle.load)


@pytest.mark.parametrize("name", private.LOGGERS)
def test_the_loggers_that_are_silenced_are_modules(name: str) -> None:
    assert Path(ray.__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py").is_file()


def test_no_other_module_names_them() -> None:
    names = re.compile(
        r"\bray\._|\bray\.[\w.]*\._|_raylet|_global_node|class_cache|temporary_state|relative_logdir|pickled_error"
    )
    users = {path.name for path in (ROOT / "orchestrator").rglob("*.py") if names.search(path.read_text())}
    assert users == {"private.py"}


def test_the_requirement_allows_no_ray_that_may_have_renamed_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "ray")
    assert requirement.specifier.contains(ray.__version__)
    assert any(each.operator == "<" for each in requirement.specifier)
