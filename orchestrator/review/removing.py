"""Removes a recorded sweep: its folder, its runs in the tracking store, and their artifacts. What stays is said.

    find_removal  -->  Removal: what goes, what stays  -->  (a question)  -->  remove

A removal that breaks off can be repeated: the log, by which a sweep is found, is deleted last.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from craft.words import format_bytes, plural
from orchestrator.record.checkpoints import place_of
from orchestrator.record.folder import SweepFolder
from orchestrator.record.lock import holder_of, one_driver
from orchestrator.record.log import read_state
from orchestrator.record.state import State
from orchestrator.review.past_sweep import NoSuchSweep, find_folder
from orchestrator.sweepfile.settings import default_uri
from orchestrator.tools.secrets import redact
from orchestrator.tracking.tags import SWEEP_ID
from orchestrator.tracking.uri import TrackingError, resolve_uri, sqlite_file


@dataclass(frozen=True)
class Removal:
    """What the removal of a sweep deletes, and what it leaves.

    Attributes:
        folder: its folder; None if only the store has the sweep.
        bytes: of that folder.
        uri: its tracking store; None if that cannot be asked.
        runs: its runs there, as MLflow has them.
        stays: sentences on what is left.
    """

    sweep: str
    folder: Path | None
    bytes: int
    uri: str | None
    runs: Sequence[Any]
    stays: Sequence[str]

    @property
    def goes(self) -> list[str]:
        """Sentences on what is deleted."""
        lines = [f"{self.folder} with checkpoints and adapters, {format_bytes(self.bytes)}"] if self.folder else []
        number = len(self.runs)
        runs = f"{number} {plural(number, 'run')} of {redact(self.uri or '')} with their artifacts, adapters among them"
        return [*lines, *([runs] if number else [])]


def size_of(folder: Path) -> int:
    """Returns the bytes of all files in a folder."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # it has just been deleted
            total += 0 if file.is_symlink() or file.is_dir() else file.stat().st_size
    return total


def find_removal(name: str, tracking_uri: str | None = None, storage: str | None = None) -> Removal:
    """Finds all that belongs to a sweep.

    Raises:
        NoSuchSweep: there is none.
        TrackingError: its store cannot be read, so that its runs would be left.
        ValueError: its driver lives, or may live on another machine.
    """
    try:
        folder = find_folder(name, storage)
    except NoSuchSweep:
        store = resolve_uri(tracking_uri or default_uri())
        file = sqlite_file(store)
        if file is not None and not file.is_file():
            raise
        return _in_store(name, store)
    state = read_state(SweepFolder(folder).record)
    _refuse_driver(folder, state)
    noted = state.sweep.tracking.uri if state.started is not None else ""
    uri = resolve_uri(tracking_uri or noted) if tracking_uri or (noted and "***" not in noted) else None
    client, runs = _runs(uri, state.sweep_id)
    stays = [] if uri else [f"runs in {noted}, whose password is kept nowhere: give --tracking-uri"] if noted else []
    return Removal(state.name, folder, size_of(folder), uri, runs, [*stays, *_left(state, client, uri, runs)])


def _in_store(name: str, uri: str) -> Removal:
    from orchestrator.tracking.reader import StoreReader

    reader = StoreReader(uri)
    run = reader.sweep_run(name)
    if run is None:
        names = ", ".join(reader.sweep_names()) or "none"
        raise NoSuchSweep(f"there is no sweep {name!r} in {redact(uri)}, which has: {names}")
    client, runs = _runs(uri, run.data.tags[SWEEP_ID])
    folder = "the sweep's folder, which is not here, with its checkpoints"
    return Removal(name, None, 0, uri, runs, [folder, *_left(State(), client, uri, runs)])


def _refuse_driver(folder: Path, state: State) -> None:
    holder = holder_of(folder.absolute())
    alive = holder.is_alive if holder is not None else False
    if alive or (alive is None and state.ended is None):
        may = "is" if alive else "may be"
        raise ValueError(
            f"{folder} {may} in use by {holder}. Stop that first (Ctrl-C, or SIGTERM to the process); nothing was removed"
        )


def _runs(uri: str | None, sweep_id: str) -> tuple[Any, list[Any]]:
    """Returns a client of the store, and the sweep's runs in it."""
    file = None if uri is None else sqlite_file(uri)
    if uri is None or (file is not None and not file.is_file()):
        return None, []
    from orchestrator.tracking.client import find_runs
    from orchestrator.tracking.reader import StoreReader

    client = StoreReader(uri).client
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return client, list(find_runs(client, experiments, f"tags.`{SWEEP_ID}` = '{sweep_id}'")) if experiments else []


def _left(state: State, client: Any, uri: str | None, runs: Sequence[Any]) -> list[str]:
    """Returns sentences on what a removal leaves."""
    facts = [str(entry.result.facts.get("adapter") or "") for entry in state.entries.values() if entry.result is not None]
    places = {place.storage for fact in facts if "://" in fact and (place := place_of(fact)) is not None}
    lines = [f"checkpoints and adapters in {place}" for place in sorted(places)]
    if client is not None and runs:
        versions = [version for version in _versions(client) if version.run_id in {run.info.run_id for run in runs}]
        lines += [f"version {version.version} of the registered model {version.name}" for version in versions]
        command = f"mlflow gc --backend-store-uri {redact(uri or '')}"
        lines.append(f"parameters and metrics of the runs, which MLflow marks as deleted, until: {command}")
    return [*lines, "adapters that were taken out, and the caches (craft-sweeps cache)"]


def _versions(client: Any) -> list[Any]:
    versions, token = list[Any](), ""
    while True:
        page = client.search_model_versions(max_results=1000, page_token=token or None)
        versions += page
        if not (token := page.token or ""):
            return versions


def remove(removal: Removal) -> list[str]:
    """Deletes what a removal names; returns sentences on what could not be deleted."""
    failed = []
    if removal.folder is None:
        return _delete_runs(removal)
    with one_driver(removal.folder):
        failed = _delete_runs(removal)
        record = SweepFolder(removal.folder).record
        for path in removal.folder.iterdir():
            if path != record:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        record.unlink()
    shutil.rmtree(removal.folder, ignore_errors=True)  # the lock
    return failed


def _delete_runs(removal: Removal) -> list[str]:
    if removal.uri is None or not removal.runs:
        return []
    from orchestrator.tracking.artifacts import delete_artifacts
    from orchestrator.tracking.client import open_store

    client, failed = open_store(removal.uri), []
    for run in removal.runs:
        failed += delete_artifacts(client, run)
        try:
            client.delete_run(run.info.run_id)
        except Exception as error:  # MLflow, SQLAlchemy and requests each raise their own kinds
            raise TrackingError(f"the tracking store refused to delete run {run.info.run_id}: {redact(str(error))}") from error
    return failed
