"""A recorded sweep, read from its folder `runs/NAME`, or from the tracking store by its name.

Both hold the sweep's log and the adapters. A `PastSweep` is these two, whichever place it was read from; commands that read
sweeps know nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from craft.results import PREDICTIONS_FOLDER
from craft.scoring.predictions import Prediction, read_predictions
from craft.trainer.checkpoint import CheckpointCorrupt, verify
from craft.words import list_some, nearest
from orchestrator.record.checkpoints import ADAPTER_FOLDER, Place, newest_whole, place_of
from orchestrator.record.folder import SweepFolder, is_driven, sweeps_in
from orchestrator.record.log import read_state
from orchestrator.record.resume import check_name
from orchestrator.record.state import Entry, State
from orchestrator.results.answer import Answer, find_answer
from orchestrator.results.front import judge_state
from orchestrator.results.summary import Summary
from orchestrator.review.pick import Pick, pick
from orchestrator.review.progress import describe_running, is_running
from orchestrator.sweepfile.mistakes import NothingMeets, shown
from orchestrator.sweepfile.settings import default_uri
from orchestrator.sweepfile.sweep import DEFAULT_STORAGE, Sweep
from orchestrator.tools.secrets import redact
from orchestrator.tracking.client import is_absent, resolve_uri
from orchestrator.tracking.desired import SWEEP
from orchestrator.tracking.reader import StoreReader


class NoSuchSweep(ValueError):
    """No sweep of that name or folder; the message lists those that exist."""


@dataclass(frozen=True)
class PastSweep:
    """A recorded sweep.

    Attributes:
        state: all that its log says, with its effective file.
        where: the folder or store it was read from, for people.
        uri: the tracking store that has its record; None if the address lacks its password.
        fetch: gives a trial's adapter folder, by the trial's key; its second argument is an empty folder for copies.
        fetch_predictions: gives the folder of a trial's predictions likewise; None where they are next to its adapter.
        folder: its folder; None if it was read from a store.
        within: the points within which a configuration is enough, if not those of its file.
    """

    state: State = field(repr=False)
    where: str
    uri: str | None
    fetch: Callable[[str, Path], Path] = field(repr=False)
    fetch_predictions: Callable[[str, Path], Path] | None = field(default=None, repr=False)
    folder: Path | None = None
    within: float | None = None

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def sweep(self) -> Sweep:
        return self.state.sweep

    @cached_property
    def summaries(self) -> list[Summary]:
        """Its configurations; those on the front are marked."""
        return judge_state(self.state)

    @property
    def is_running(self) -> bool:
        """Whether a driver runs it; of a sweep in a store, as far as its log says that."""
        return is_running(self.state, time.time(), None if self.folder is None else is_driven(self.folder))

    @cached_property
    def answer(self) -> Answer:
        """Which configuration is enough, and what to run next; of a running sweep the answer so far."""
        answer = find_answer(self.summaries, self.state)
        if self.within is not None and answer.command and answer.command != self.state.again:
            changes = {**answer.changes, "enough.within": self.within}
            answer = replace(answer, command=f"{answer.command} --within {self.within:g}", changes=changes)
        return answer.running(describe_running(self.state, time.time())) if self.is_running else answer

    def with_within(self, within: float | None) -> PastSweep:
        """Returns the sweep judged by another `enough.within`, in points; itself for None."""
        if within is None:
            return self
        if not 0 < within <= 100:
            raise ValueError(f"--within {within:g}: points of the score, above 0 and at most 100")
        rule = self.sweep.enough.model_copy(update={"within": within})
        return replace(self, state=self.state.judged_by(rule), within=within)

    def pick(self, rule: str) -> Pick:
        """Returns the configuration that a rule, a label or an id selects (`orchestrator.review.pick`)."""
        return pick(rule, self.summaries, self.sweep.objectives, self.sweep.enough, self.answer)

    def trials(self, configuration: str, task: str | None = None) -> list[Entry]:
        """Returns a configuration's own trials, without trainings from which alone a size of it is cut."""
        own = (
            entry for entry in self.state.requested if entry.trial.configuration == configuration and entry.trial.serves is None
        )
        return [entry for entry in own if task in (None, entry.trial.task)]

    def trained(self, summary: Summary) -> Summary:
        """Returns the configuration from whose adapters this one's were cut; itself if it was trained."""
        return next((row for row in self.summaries if row.configuration == summary.source), summary)

    def adapter(self, key: str, scratch: Path) -> Path:
        """Returns the adapter of a finished trial, checked file by file against the seal with which it was written."""
        folder = self.fetch(key, scratch)
        try:
            verify(folder)
        except CheckpointCorrupt as error:
            raise ValueError(f"the adapter of trial {key} is damaged: {error}") from error
        return folder

    def predictions(self, key: str, scratch: Path, adapter: Path | None = None) -> dict[str, list[Prediction]]:
        """Reads a finished trial's answers by split, next to its `adapter` if that was fetched; none where there are none."""
        try:
            if adapter is None and self.fetch_predictions is not None:
                return read_predictions(self.fetch_predictions(key, scratch))
            return read_predictions((adapter or self.fetch(key, scratch)).parent / PREDICTIONS_FOLDER)
        except (ValueError, OSError, EOFError):
            return {}


def find_folder(name: str, storage: str | None = None) -> Path:
    """Returns the folder of the sweep called `name`: a path to it, or a name in `storage` (runs)."""
    parent = Path(storage or DEFAULT_STORAGE)
    for folder in (Path(name), parent / name):
        if SweepFolder(folder).record.is_file():
            return folder
    raise no_such_sweep(name, sweeps_in(parent), f"{parent}/")


def find_sweep(name: str, tracking_uri: str | None = None, storage: str | None = None) -> PastSweep:
    """Finds the sweep called `name`.

    A path to a folder means that folder. A plain name is looked up in the tracking store if one is given, else in the folder
    `storage` (runs), else in the store next to it (mlflow.db).
    """
    path = Path(name)
    if os.sep in name or SweepFolder(path).record.is_file():
        return read_folder(path, tracking_uri)
    folder = Path(storage or DEFAULT_STORAGE) / name
    if tracking_uri is None and SweepFolder(folder).record.is_file():
        return read_folder(folder, None)
    uri, folders = resolve_uri(tracking_uri or default_uri()), [] if tracking_uri else sweeps_in(folder.parent)
    if tracking_uri is None and is_absent(uri):
        raise no_such_sweep(name, folders, f"{folder.parent}/")
    reader, run = find_run(name, uri, folders)
    state, fetch = _begun(read_state(reader.log(run)), redact(uri)), partial(reader.fetch, run)
    return PastSweep(state, redact(uri), uri, fetch, partial(reader.fetch_predictions, run))


def read_folder(folder: Path, tracking_uri: str | None = None) -> PastSweep:
    folder = folder.absolute()
    if not SweepFolder(folder).record.is_file():
        raise no_such_sweep(str(folder), sweeps_in(folder.parent), f"{folder.parent}/")
    state = _begun(read_state(SweepFolder(folder).record), str(folder))
    check_name(folder, state)
    uri = tracking_uri or (None if "***" in state.sweep.tracking.uri else state.sweep.tracking.uri)
    return PastSweep(state, str(folder), uri and resolve_uri(uri), partial(_stored_adapter, folder, state), folder=folder)


def _begun(state: State, where: str) -> State:
    if state.started is None:
        raise NothingMeets(f"{where} has no record of a session yet: run the sweep, or wait until its first trial is prepared")
    return state


def find_run(name: str, uri: str, folders: Sequence[str] = ()) -> tuple[StoreReader, Any]:
    """Returns the reader of the store at a resolved address, and the run of a sweep there. Raises NoSuchSweep without one;
    `folders` are names that were looked for as well."""
    reader = StoreReader(uri)
    run = reader.sweep_run(name)
    if run is None:
        where = f"{redact(uri)} and the folders" if folders else redact(uri)
        raise no_such_sweep(name, sorted({*(stored.data.tags[SWEEP] for stored in reader.sweep_runs()), *folders}), where)
    return reader, run


def _stored_adapter(folder: Path, state: State, key: str, scratch: Path) -> Path:
    """Returns a trial's adapter: from the sweep's folder, which may have been moved, or from the place in its result."""
    entry = state.entries[key]
    noted = entry.result.facts.get("adapter") if entry.result else None
    places = [folder / entry.adapter] if entry.adapter else []
    places += [Path(noted)] if noted and "://" not in noted else []
    if local := next(filter(Path.is_dir, places), None):
        return local
    ray = SweepFolder(folder).ray
    place = (place_of(noted) if noted else None) or Place(str(ray), key, ADAPTER_FOLDER)
    storages = [str(ray)] if ray.is_dir() else []
    if noted and "://" in noted:
        storages.insert(0, place.storage)
    for storage in storages:
        checkpoint, _ = newest_whole(storage, place.key, scratch)
        if checkpoint is not None and (checkpoint / place.inside).is_dir():
            return checkpoint / place.inside
    raise ValueError(
        f"the adapter of trial {key} is neither at {noted or 'a noted place'} nor under {folder}. If the tracking store has "
        "it: give the sweep's name instead of its folder, and --tracking-uri"
    )


def no_such_sweep(name: str, names: list[str], where: str) -> NoSuchSweep:
    """Returns the error for a name that is not among `names`, those of the sweeps in `where`."""
    if not names:
        return NoSuchSweep(
            f"there is no sweep {shown(name)}, and none in {where}. Run one (craft-sweeps run SWEEP.yaml), or say "
            "where it is: its folder (runs/NAME), or its name with --tracking-uri or --storage"
        )
    near = nearest(Path(name).name, names)
    return NoSuchSweep(f"there is no sweep {shown(name)}.{near} In {where}: {list_some(names, 20)}")
