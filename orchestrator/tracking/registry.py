"""Adapters in MLflow's model registry, as models that `mlflow models serve` answers from.

A version consists of the adapter's folder and the name of the module that loads it (`orchestrator.serving`); no object is
pickled. It belongs to its trial's run, its tags say where it comes from, and it gets the aliases it has earned.
Registering the same folder again finds the existing version.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.record.manifest import versions
from orchestrator.tools.secrets import redact
from orchestrator.tracking.artifacts import digest_of, files_in
from orchestrator.tracking.client import has_server, open_store
from orchestrator.tracking.reader import StoreReader
from orchestrator.tracking.store import cut

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

LOADER = "orchestrator.serving"
REQUIRED = ("craft-sweeps", "torch", "transformers", "peft", "safetensors", "datasets", "pandas", "mlflow")
DESCRIPTION_LIMIT = 5000
"""MLflow's, of a version."""
DIGEST_TAG = "craft.folder_sha256"


@dataclass(frozen=True)
class Registered:
    """A version in the registry. `moved` gives, for each alias that pointed to another version before, that version."""

    version: str
    moved: Mapping[str, str]
    new: bool


def find_trial(uri: str, sweep: str, sweep_id: str, key: str) -> Run:
    """Returns a trial's run. The sweep's id finds it: other sweeps of this name may have the same trial."""
    reader = StoreReader(uri)
    run = reader.sweep_run(sweep, sweep_id)
    trial = reader.trial_run(run, key) if run else None
    if trial is None:
        raise ValueError(
            f"{redact(uri)} has no run of trial {key} of sweep {sweep!r}, and a registered model belongs to one. "
            "If the record has not arrived there: craft-sweeps replay runs/NAME; if it is elsewhere: "
            "--tracking-uri"
        )
    return trial


@dataclass(frozen=True)
class Candidate:
    """A folder that is to become a version."""

    folder: Path
    name: str
    pair: bool
    labels: Sequence[str]
    aliases: Sequence[str]
    tags: Mapping[str, str]
    description: str = ""


def register(uri: str, trial: Run, candidate: Candidate) -> Registered:
    """Makes a folder a version of a registered model, which belongs to the run `trial`, in the registry of the store."""
    client, name = open_store(uri), candidate.name
    from mlflow.exceptions import MlflowException

    files = files_in(candidate.folder)
    digest = digest_of({name: file for name, file in files.items() if file.name not in ("README.md", "manifest.json")})
    try:
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        mark = '"' if "'" in name else "'"  # MLflow's filter has no escape
        present = client.search_model_versions(f"name = {mark}{name}{mark}")
        existing = next((str(version.version) for version in present if version.tags.get(DIGEST_TAG) == digest), None)
        number = existing or _new_version(client, trial, replace(candidate, tags={**candidate.tags, DIGEST_TAG: digest}))
        versions = {alias: str(version) for alias, version in (client.get_registered_model(name).aliases or {}).items()}
        moved = {alias: versions[alias] for alias in candidate.aliases if versions.get(alias, number) != number}
        for alias in candidate.aliases:
            if versions.get(alias) != number:
                client.set_registered_model_alias(name, alias, number)
    except MlflowException as error:
        raise ValueError(f"the registry at {redact(uri)} refused {name!r}: {redact(str(error))}") from error
    return Registered(number, moved, new=existing is None)


def _new_version(client: MlflowClient, trial: Run, candidate: Candidate) -> str:
    from mlflow.models import Model, ModelSignature
    from mlflow.pyfunc import save_model
    from mlflow.types import ColSpec, Schema

    inputs = Schema([ColSpec("string", column) for column in (("text", "text_pair") if candidate.pair else ("text",))])
    outputs = Schema([ColSpec("float", label) for label in candidate.labels])
    logged = client.create_logged_model(trial.info.experiment_id, "adapter", trial.info.run_id, tags=dict(candidate.tags))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "model"
            save_model(
                path=str(path),
                loader_module=LOADER,
                data_path=str(candidate.folder),
                pip_requirements=requirements(),
                mlflow_model=Model(
                    artifact_path=logged.artifact_location,
                    run_id=trial.info.run_id,
                    signature=ModelSignature(inputs, outputs),
                    model_uuid=logged.model_id,
                    model_id=logged.model_id,
                ),
            )
            client.log_model_artifacts(logged.model_id, str(path))
        client.finalize_logged_model(logged.model_id, "READY")
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    # A server resolves models:/ itself. For a database MLflow would ask its global store, so a database gets the location.
    source = f"models:/{logged.model_id}" if has_server(client.tracking_uri) else logged.artifact_location
    version: Any = client.create_model_version(
        candidate.name,
        source,
        trial.info.run_id,
        tags=dict(candidate.tags),
        description=cut(candidate.description, DESCRIPTION_LIMIT),
        model_id=logged.model_id,
    )
    return str(version.version)


def requirements() -> list[str]:
    """Returns the packages that a machine which serves needs, at the versions that are installed here."""
    local = versions(REQUIRED)
    return [f"{package}=={local[package].partition('+')[0]}" if package in local else package for package in REQUIRED]
