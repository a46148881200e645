"""`list` and `remove`: the sweeps of a folder or store, and what the removal of one deletes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse
from urllib.request import url2pathname

from pydantic import Field

from craft.words import format_bytes
from orchestrator.record.folder import sweeps_in
from orchestrator.record.log import read_state
from orchestrator.results.report import Count, Number, Part, Report
from orchestrator.review.past_sweep import DEFAULT_STORAGE
from orchestrator.review.progress import is_recent, read_status, status_of
from orchestrator.review.removing import Removal, size_of
from orchestrator.review.status import Progress
from orchestrator.tools.secrets import redact
from orchestrator.tracking.uri import resolve_uri

STATES = {"lost": "interrupted", "empty": "nothing yet"}


class SweepPart(Part):
    """A sweep."""

    sweep: str = Field(description="Its name.")
    place: str = Field(description="Its folder, or its run in the store.")
    phase: str = Field(description="As in the report `status`; `unreadable` if its log cannot be read.")
    done: int = Field(description="Trainings that have finished.")
    trainings: int = Field(description="All trainings, as far as they are known.")
    answer: str = Field(description="What is known, in sentences. Empty before any configuration is complete.")
    bytes: Count = Field(description="What its folder takes, or its artifacts on this machine. Null if they are elsewhere.")
    updated: Number = Field(description="The time of its last event. Null for none.")

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line in a table for people."""
        size = "" if self.bytes is None else format_bytes(self.bytes)
        return self.sweep, STATES.get(self.phase, self.phase), f"{self.done}/{self.trainings}", size, self.answer

    @classmethod
    def of(cls, report: Progress, place: str, size: int | None, phase: str) -> SweepPart:
        answer = "" if report.answer is None else report.answer.verdict
        most, done = report.trainings_planned or report.trainings.total, report.trainings.finished
        return cls(sweep=report.sweep, place=place, phase=phase, done=done, trainings=most, answer=answer, bytes=size,
                   updated=report.updated)  # fmt: skip


class ListReport(Report):
    """The sweeps of a folder or a store."""

    report: Literal["list"] = Field("list", description="The kind of this report.")
    place: str = Field(description="The folder, or the address of the store.")
    sweeps: list[SweepPart] = Field(description="Its sweeps, by name.")


class RemoveReport(Report):
    """What the removal of a sweep deletes, or has deleted."""

    report: Literal["remove"] = Field("remove", description="The kind of this report.")
    sweep: str = Field(description="The name of the sweep.")
    removed: bool = Field(description="Whether it was done; not without --yes.")
    goes: list[str] = Field(description="What is deleted, in sentences.")
    stays: list[str] = Field(description="What is left, in sentences.")
    failed: list[str] = Field(description="What could not be deleted, in sentences.")

    @classmethod
    def of(cls, removal: Removal, *, removed: bool, failed: list[str]) -> RemoveReport:
        return cls(sweep=removal.sweep, removed=removed, goes=removal.goes, stays=[*removal.stays], failed=failed)


def list_sweeps(tracking_uri: str | None = None, storage: str | None = None) -> ListReport:
    """Returns the sweeps of a store if its address is given, else those of the folder `storage` (runs)."""
    if tracking_uri is not None:
        uri = resolve_uri(tracking_uri)
        return ListReport(place=redact(uri), sweeps=[*_of_store(uri)])
    folder = Path(storage or DEFAULT_STORAGE)
    return ListReport(place=str(folder), sweeps=[_of_folder(folder / name) for name in sweeps_in(folder)])


def _of_folder(folder: Path) -> SweepPart:
    size = size_of(folder)
    try:
        report = read_status(folder)
    except (ValueError, OSError) as error:  # damaged, or of another version: the others are still listed
        return _unreadable(folder.name, str(folder), str(error), size)
    return SweepPart.of(report, str(folder), size, report.phase)


def _of_store(uri: str) -> Iterator[SweepPart]:
    from orchestrator.tracking.reader import StoreReader
    from orchestrator.tracking.tags import SWEEP

    reader = StoreReader(uri)
    for run in sorted(reader.sweep_runs(), key=lambda run: (run.data.tags[SWEEP], run.info.start_time)):
        name, place = run.data.tags[SWEEP], f"run {run.info.run_id}"
        root = urlparse(reader.client.get_experiment(run.info.experiment_id).artifact_location or "")
        local = Path(url2pathname(root.path)) if root.scheme == "file" else None
        size = None if local is None else size_of(local)
        try:
            state = read_state(reader.log(run))
        except (ValueError, OSError) as error:
            yield _unreadable(name, place, str(error), size)
            continue
        report = status_of(state, Path(name), None, time.time())
        # A store has no driver that could be asked.
        yield SweepPart.of(report, place, size, "running" if is_recent(state, time.time()) else report.phase)


def _unreadable(name: str, place: str, why: str, size: int | None) -> SweepPart:
    text = redact(why.splitlines()[0] if why else "")
    return SweepPart(sweep=name, place=place, phase="unreadable", done=0, trainings=0, answer=text, bytes=size, updated=None)
