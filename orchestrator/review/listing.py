"""`list` and `remove`: the sweeps of a folder or store, and what the removal of one deletes.

    find_removal  -->  Removal: what goes, what stays  -->  (a question)  -->  remove

A removal that breaks off can be repeated: the log, by which a sweep is found, is deleted last.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, computed_field

from craft.words import format_bytes, plural
from orchestrator.record.checkpoints import place_of
from orchestrator.record.folder import SILENT_SECONDS, SweepFolder, holder_of, is_driven, one_driver, sweeps_in
from orchestrator.record.log import read_state
from orchestrator.record.resume import copied_from
from orchestrator.record.state import State
from orchestrator.results.report import Count, Number, Part, Report
from orchestrator.review.past_sweep import NoSuchSweep, find_folder, find_run
from orchestrator.review.progress import Progress, is_running, progress_of, read_status
from orchestrator.sweepfile.settings import default_uri
from orchestrator.sweepfile.sweep import DEFAULT_STORAGE
from orchestrator.tools.secrets import redact
from orchestrator.tracking.artifacts import delete_artifacts, log_copy
from orchestrator.tracking.client import TrackingError, find_all, find_runs, is_absent, open_store, resolve_uri
from orchestrator.tracking.desired import SWEEP, SWEEP_ID
from orchestrator.tracking.reader import StoreReader

STATES = {"lost": "interrupted", "empty": "nothing yet"}


class SweepPart(Part):
    """A sweep."""

    sweep: str = Field(description="Its name.")
    place: str = Field(description="Its folder, or its run in the store.")
    phase: str = Field(description="As in the report `status`; `unreadable` if its log cannot be read.")
    done: int = Field(description="Trainings that have finished.")
    trainings: int = Field(description="All trainings, as far as they are known.")
    answer: str = Field(description="What is known, in sentences. Empty before any configuration is complete.")
    bytes: Count = Field(description="What its folder takes. Null in a store, whose experiments may be of several sweeps.")
    updated: Number = Field(description="The time of its last event. Null for none.")

    @property
    def cells(self) -> tuple[str, ...]:
        size = "" if self.bytes is None else format_bytes(self.bytes)
        return self.sweep, STATES.get(self.phase, self.phase), f"{self.done}/{self.trainings}", size, self.answer


class ListReport(Report):
    """The sweeps of a folder or a store."""

    report: Literal["list"] = Field("list", description="The kind of this report.")
    place: str = Field(description="The folder, or the address of the store.")
    sweeps: list[SweepPart] = Field(description="Its sweeps, by name.")


def list_sweeps(tracking_uri: str | None = None, storage: str | None = None) -> ListReport:
    """Returns the sweeps of a store if its address is given, else those of the folder `storage` (runs)."""
    if tracking_uri is not None:
        reader = StoreReader(uri := resolve_uri(tracking_uri))
        runs = sorted(reader.sweep_runs(), key=lambda run: (run.data.tags[SWEEP], run.info.start_time))
        return ListReport(place=redact(uri), sweeps=[_of_run(run, reader) for run in runs])
    folder = Path(storage or DEFAULT_STORAGE)
    folders = (folder / name for name in sweeps_in(folder))
    parts = [_part(path.name, str(path), size_of(path), partial(read_status, path)) for path in folders]
    return ListReport(place=str(folder), sweeps=parts)


def _of_run(run: Any, reader: StoreReader) -> SweepPart:
    name = run.data.tags[SWEEP]

    def read() -> Progress:
        return progress_of(read_state(reader.log(run)), Path(name), None, time.time(), alive=None)

    return _part(name, f"run {run.info.run_id}", None, read)


def _part(name: str, place: str, size: int | None, read: Callable[[], Progress]) -> SweepPart:
    try:
        report = read()
    except (ValueError, OSError) as error:  # damaged, or of another version: the others are still listed
        answer = redact(str(error).partition("\n")[0])
        return SweepPart(
            sweep=name, place=place, phase="unreadable", done=0, trainings=0, answer=answer, bytes=size, updated=None
        )
    return SweepPart.fill(
        report,
        place=place,
        done=report.trainings.finished,
        trainings=report.trainings_planned or report.trainings.total,
        answer="" if report.answer is None else report.answer.verdict,
        bytes=size,
    )


class Removal(Report):
    """What the removal of a sweep deletes, or has deleted."""

    report: Literal["remove"] = Field("remove", description="The kind of this report.")
    sweep: str = Field(description="The name of the sweep.")
    removed: bool = Field(False, description="Whether it was done; not without --yes.")
    stays: list[str] = Field(description="What is left, in sentences.")
    failed: list[str] = Field([], description="What could not be deleted, in sentences.")
    folder: Path | None = Field(None, exclude=True, description="Its folder. None if only the store has the sweep.")
    bytes: int = Field(0, exclude=True, description="Those of that folder.")
    uri: str | None = Field(exclude=True, description="Its tracking store. None if that cannot be asked.")
    runs: Sequence[Any] = Field(exclude=True, description="Its runs there, as MLflow has them.")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def goes(self) -> list[str]:
        """What is deleted, in sentences."""
        lines = [f"{self.folder} with checkpoints and adapters, {format_bytes(self.bytes)}"] if self.folder else []
        number = len(self.runs)
        runs = f"{number} {plural(number, 'run')} of {redact(self.uri or '')} with their artifacts, adapters among them"
        return [*lines, *([runs] if number else [])]


def size_of(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # it has just been deleted
            total += 0 if file.is_symlink() or file.is_dir() else file.stat().st_size
    return total


def find_removal(name: str, tracking_uri: str | None = None, storage: str | None = None) -> Removal:
    """Finds all that belongs to a sweep. Raises ValueError if its driver lives, or may live on another machine."""
    try:
        folder = find_folder(name, storage)
    except NoSuchSweep:
        uri = resolve_uri(tracking_uri or default_uri())
        if is_absent(uri):
            raise
        reader, run = find_run(name, uri)
        state = _state_of(run, reader)
        if is_running(state, time.time()):
            raise ValueError(
                f"{name} may be in use: its log in {redact(uri)} grew in the last {SILENT_SECONDS / 60:.0f} minutes. Stop its "
                "driver first, or wait; nothing was removed"
            ) from None
        runs = _runs(uri, run.data.tags[SWEEP_ID])
        stays = ["the sweep's folder, which is not here, with its checkpoints", *_left(state, uri, runs)]
        return Removal(sweep=name, uri=uri, runs=runs, stays=stays)
    if is_driven(folder):
        raise ValueError(
            f"{folder} is in use by {holder_of(folder.absolute())}. Stop that first (Ctrl-C, or SIGTERM to it), or wait "
            f"{SILENT_SECONDS / 60:.0f} min if its machine is gone; nothing was removed"
        )
    state = read_state(SweepFolder(folder).record)
    noted = state.sweep.tracking.uri if state.started is not None else ""
    store = resolve_uri(tracking_uri or noted) if tracking_uri or (noted and "***" not in noted) else None
    if tracking_uri and store and Path(name).name == name != str(folder) and not is_absent(store):
        other = StoreReader(store).sweep_run(name)
        if other is not None and other.data.tags[SWEEP_ID] != state.sweep_id:
            raise ValueError(
                f"{name} in {redact(store)} is another sweep than {folder}. Give {folder} to remove that one; to remove "
                "the one in the store, call this in another folder. Nothing was removed"
            )
    runs = _runs(store, state.sweep_id)
    stays = [] if store else [f"runs in {noted}, whose password is kept nowhere: give --tracking-uri"] if noted else []
    if (original := copied_from(folder.absolute(), state)) is not None:
        runs, stays = [], [f"runs in {redact(store or noted)}, which are those of {original}"]
    stays += _left(state, store, runs)
    return Removal(sweep=state.name, folder=folder, bytes=size_of(folder), uri=store, runs=runs, stays=stays)


def _state_of(run: Any, reader: StoreReader) -> State:
    try:
        return read_state(reader.log(run))
    except (ValueError, OSError):  # a sweep whose log is damaged or gone can be removed
        return State()


def _runs(uri: str | None, sweep_id: str) -> list[Any]:
    if uri is None or is_absent(uri):
        return []
    return list(find_runs(StoreReader(uri).client, f"tags.`{SWEEP_ID}` = '{sweep_id}'"))


def _left(state: State, uri: str | None, runs: Sequence[Any]) -> list[str]:
    facts = [str(entry.result.facts.get("adapter") or "") for entry in state.entries.values() if entry.result is not None]
    places = {place.storage for fact in facts if "://" in fact and (place := place_of(fact)) is not None}
    lines = [f"checkpoints and adapters in {place}" for place in sorted(places)]
    if uri is not None and runs:
        every, ids = find_all(open_store(uri).search_model_versions, max_results=1000), {run.info.run_id for run in runs}
        versions = [version for version in every if version.run_id in ids]
        lines += [f"version {version.version} of the registered model {version.name}" for version in versions]
        command = f"mlflow gc --backend-store-uri {redact(uri)}"
        lines.append(f"parameters and metrics of the runs, which MLflow marks as deleted, until: {command}")
    return [*lines, "adapters that were taken out, and the caches (CRAFT_CACHE_DIR, ~/.cache/craft)"]


def remove(removal: Removal) -> list[str]:
    """Deletes what a removal names; returns sentences on what could not be deleted."""
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
    client, failed = open_store(removal.uri), []
    for run in removal.runs:
        log_copy(run.data.tags[SWEEP_ID]).unlink(missing_ok=True)
        failed += delete_artifacts(client, run)
        try:
            client.delete_run(run.info.run_id)
        except Exception as error:  # MLflow, SQLAlchemy and requests each raise their own kinds
            raise TrackingError(f"the tracking store refused to delete run {run.info.run_id}: {redact(str(error))}") from error
    return failed
