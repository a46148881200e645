"""The names of Ray that are not public, all of them: with another Ray, tests/orchestrator/test_private_names.py fails.

pyproject.toml admits only versions of Ray with which these names were tried.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from ray._private import worker
from ray.tune.execution import class_cache

LOGGERS = ("ray.tune.analysis.experiment_analysis", "ray._private.authentication.authentication_token_setup")
"""Loggers that warn in every run: of each trial, which writes no `result.json`; that a cluster asks for a token."""


def own_node() -> Any:
    """Returns the processes of the cluster that this process has started: `dead_processes`, `get_session_dir_path`."""
    return worker._global_node


def drains(machine: str, timeout_s: float) -> bool:
    """Returns whether a machine, by Ray's id, is to end. Raises errors of many kinds while the cluster's head is away."""
    client: Any = worker.global_worker.gcs_client  # type: ignore[attr-defined]
    return machine in client.get_draining_nodes(timeout=timeout_s)


def keep_environment_here() -> None:
    """Keeps Tune from putting variables, secret keys among them, into each trial's runtime environment, which Ray writes into a
    log that everybody may read. Workers have the environment of their machine."""
    class_cache.ENV_VARS_TO_PROPAGATE.clear()


def continue_folder(trial: Any, checkpoint: int) -> None:
    """Gives a trial of Tune the folder of an earlier one of its name, and its number of the last checkpoint there.

    Tune would take another folder, where nobody looks for its checkpoints, and would number them from 0 again.
    """
    trial.relative_logdir = trial.storage.trial_dir_name = trial.custom_dirname
    trial.storage.current_checkpoint_index = checkpoint


def end_process(trial: Any) -> bool:
    """Kills the process of a trial of Tune; returns whether it has one."""
    actor = trial.temporary_state.ray_actor
    if actor is not None:
        ray.kill(actor)
    return actor is not None


def error_of(trial: Any) -> BaseException | None:
    """Returns what Tune noted of a trial's failure a moment ago.

    From the file it made on this machine: `Trial.get_pickled_error` asks the sweep's storage, which may be what failed, gets
    the file late, and may be written by others.
    """
    try:
        with Path(trial.pickled_error_file).open("rb") as file:
            error: BaseException = ray.cloudpickle.load(file)
            return error
    except Exception:  # no file, or an error of a kind that does not come back out of one
        return None
