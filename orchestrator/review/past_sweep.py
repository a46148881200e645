"""A recorded sweep, read from its folder `runs/NAME`, or from the tracking store by its name.

Both hold the effective sweep file, every trial with how it ended, and the adapters. A `PastSweep` is these three, whichever
place it was read from; commands that read sweeps know nothing else. A
folder has the log (`orchestrator.state`); in the store each trial is a run (`orchestrator.tracking.reader`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from craft.results import PREDICTIONS_FOLDER
from craft.scoring.predictions import Prediction, read_predictions
from craft.tasks import SUITES
from craft.trainer.checkpoint import CheckpointCorrupt, verify
from craft.words import nearest, redact
from orchestrator.record.checkpoints import ADAPTER_FOLDER, Place, newest_whole, place_of
from orchestrator.record.folder import SweepFolder, sweeps_in
from orchestrator.record.resume import check_name
from orchestrator.results.answer import Answer, find_answer
from orchestrator.results.experiments import Terms, pace_of
from orchestrator.results.front import mark_front
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.state.entry import Entry
from orchestrator.state.log import read_state
from orchestrator.state.state import State
from orchestrator.sweepfile.mistakes import shown
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES, Objectives
from orchestrator.sweepfile.settings import Enough
from orchestrator.tracking.uri import resolve_uri, sqlite_file

DEFAULT_URI, DEFAULT_STORAGE = "sqlite:///mlflow.db", "runs"


class NoSuchSweep(ValueError):
    """No sweep of that name or folder; the message lists those that exist."""


@dataclass(frozen=True)
class SweepTerms:
    """The settings of a sweep file that give its numbers their meaning.

    They are read as data and not as a sweep to run, so the user's own files that it names need not be here.
    """

    name: str
    model: str
    revision: str | None
    protocol: str
    task_names: tuple[str, ...]
    seeds: tuple[int, ...]
    objectives: Objectives
    enough: Enough
    generation: Mapping[str, Any]
    uri: str
    further_seeds: tuple[int, ...] = ()
    tunes: bool = False


@dataclass(frozen=True)
class PastSweep:
    """A recorded sweep with its trials.

    Attributes:
        sweep: the terms of its effective file.
        where: the folder or store it was read from, for people.
        uri: the tracking store that has its record; None if the address lacks its password.
        entries: every trial that the sweep asks for: each configuration on each task with each seed.
        fetch: gives a trial's adapter folder, by the trial's key; its second argument is an empty folder for copies.
        state: all that its log says; None if it was read from a store.
    """

    sweep: SweepTerms
    where: str
    uri: str | None
    entries: tuple[Entry, ...]
    fetch: Callable[[str, Path], Path] = field(repr=False)
    state: State | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.sweep.name

    @property
    def folder(self) -> Path | None:
        """Its folder; None if it was read from a store."""
        return None if self.state is None else Path(self.where)

    @cached_property
    def summaries(self) -> list[Summary]:
        """Its configurations; those on the front are marked."""
        return mark_front(summarize_entries(self.entries), self.sweep.objectives, self.sweep.enough)

    @cached_property
    def answer(self) -> Answer | None:
        """Which configuration is enough, and what to run next; None if none is complete."""
        started = self.state.started if self.state is not None else None
        terms = Terms.of(started.info, pace_of(self.state)) if self.state is not None and started is not None else Terms()
        return find_answer(self.summaries, self.sweep.objectives, replace(terms, rule=self.sweep.enough))

    def with_within(self, within: float | None) -> PastSweep:
        """Returns the sweep judged by another `enough.within`, in points; itself for None.

        Raises:
            ValueError: `within` is not above 0 and at most 100.
        """
        if within is None:
            return self
        if not 0 < within <= 100:
            raise ValueError(f"--within {within:g}: points of the score, above 0 and at most 100")
        return replace(self, sweep=replace(self.sweep, enough=self.sweep.enough.model_copy(update={"within": within})))

    def trials(self, configuration: str, task: str | None = None) -> list[Entry]:
        """Returns a configuration's trials, on all tasks or one."""
        return [entry for entry in self.entries if entry.configuration == configuration and task in (None, entry.task)]

    def trained(self, summary: Summary) -> Summary:
        """Returns the configuration from whose adapters this one's were cut; itself if it was trained."""
        sources = {entry.source for entry in self.trials(summary.configuration) if not entry.is_trained}
        return next((summary for summary in self.summaries if sources & {*summary.keys}), summary)

    def adapter(self, key: str, scratch: Path) -> Path:
        """Returns the adapter of a finished trial, checked file by file against the seal with which it was written.

        Args:
            scratch: gets a copy if the adapter is not on this machine.
        """
        folder = self.fetch(key, scratch)
        try:
            verify(folder)
        except CheckpointCorrupt as error:
            raise ValueError(f"the adapter of trial {key} is damaged: {error}") from error
        return folder

    def predictions(self, key: str, scratch: Path) -> dict[str, list[Prediction]]:
        """Reads a finished trial's answers by split; none where they are not to be found."""
        try:
            return read_predictions(self.fetch(key, scratch).parent / PREDICTIONS_FOLDER)
        except (ValueError, OSError, EOFError):
            return {}


def find_folder(name: str, storage: str | None = None) -> Path:
    """Returns the folder of the sweep called `name`: a path to it, or a name in `storage` (runs).

    Raises:
        NoSuchSweep: there is none.
    """
    parent = Path(storage or DEFAULT_STORAGE)
    for folder in (Path(name), parent / name):
        if SweepFolder(folder).effective.is_file():
            return folder
    raise _no_such_sweep(name, sweeps_in(parent), f"{parent}/")


def find_sweep(name: str, tracking_uri: str | None = None, storage: str | None = None) -> PastSweep:
    """Finds the sweep called `name`.

    A path to a folder means that folder. A plain name is looked up in the tracking store if one is given, else in the folder
    `storage` (runs), else in the store next to it (mlflow.db).

    Raises:
        NoSuchSweep: there is none.
        TrackingError: the store cannot be read.
        ValueError: the sweep file cannot be read.
    """
    path = Path(name)
    if os.sep in name or SweepFolder(path).effective.is_file():
        return read_folder(path, tracking_uri)
    folder = Path(storage or DEFAULT_STORAGE) / name
    if tracking_uri is None and SweepFolder(folder).effective.is_file():
        return read_folder(folder, None)
    uri = resolve_uri(tracking_uri or DEFAULT_URI)
    file = sqlite_file(uri)
    if tracking_uri is None and file is not None and not file.exists():
        raise _no_such_sweep(name, sweeps_in(folder.parent), f"{folder.parent}/")
    return _read_store(name, uri, [] if tracking_uri else sweeps_in(folder.parent))


def read_folder(folder: Path, tracking_uri: str | None = None) -> PastSweep:
    """Reads the sweep in a folder.

    Args:
        tracking_uri: the sweep's store, if it is not the one in the sweep's file.
    """
    folder = folder.absolute()
    if not SweepFolder(folder).effective.is_file():
        raise _no_such_sweep(str(folder), sweeps_in(folder.parent), f"{folder.parent}/")
    sweep = read_terms(SweepFolder(folder).effective)
    state = read_state(SweepFolder(folder).record)
    check_name(folder, sweep.name, state)
    uri = tracking_uri or (None if "***@" in sweep.uri else sweep.uri)

    def fetch(key: str, scratch: Path) -> Path:
        return _stored_adapter(folder, state.entries[key], scratch)

    return PastSweep(sweep, str(folder), uri and resolve_uri(uri), tuple(state.asked_for), fetch, state)


def read_terms(file: Path) -> SweepTerms:
    """Reads the terms from an effective sweep file, in which every default is written out."""
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        own = (settings.get("data") or {}).get("custom") or {}
        replication = settings.get("replication") or {}
        tasks: list[str] = []
        for name in settings["tasks"]:
            tasks += [f"custom/{task}" for task in own] if name == "custom" else SUITES.get(name, (name,))
        return SweepTerms(
            name=str(settings["name"]),
            model=str(settings["model"]),
            revision=settings.get("revision"),
            protocol=settings.get("protocol", "honest"),
            task_names=tuple(dict.fromkeys(tasks)),
            seeds=tuple(settings["seeds"]),
            objectives=settings.get("objectives", DEFAULT_OBJECTIVES),
            enough=Enough.model_validate(settings.get("enough") or {}),
            generation=(settings.get("data") or {}).get("generation") or {},
            uri=(settings.get("tracking") or {}).get("uri", DEFAULT_URI),
            further_seeds=tuple(replication.get("seeds", ())),
            tunes=replication.get("choose") == "best",
        )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no effective sweep file: {' '.join(str(error).split())}") from error


def _read_store(name: str, uri: str, folders: list[str]) -> PastSweep:
    from orchestrator.tracking.reader import StoreReader

    reader = StoreReader(uri)
    stored = reader.sweep(name)
    if stored is None:
        where = f"{redact(uri)} and the folders" if folders else redact(uri)
        raise _no_such_sweep(name, sorted({*reader.sweep_names(), *folders}), where)
    sweep = read_terms(stored.sweep_file)
    return PastSweep(sweep, redact(uri), uri, _whole(sweep, stored.entries), stored.fetch)


def _whole(sweep: SweepTerms, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Returns the trials that the sweep's file asks for now, including those that never began."""
    by_configuration: dict[str, dict[tuple[str, int], Entry]] = {}
    for entry in entries:
        by_configuration.setdefault(entry.configuration, {})[entry.task, entry.seed] = entry
    wanted = []
    for trials in by_configuration.values():
        first = next(iter(trials.values()))
        recorded_seeds = {seed for _, seed in trials}
        if first.tunes:  # which of them tune on which task is known while the sweep runs
            wanted += [trial for trial in trials.values() if trial.seed in sweep.seeds and trial.task in sweep.task_names]
            continue
        seeds = [*sweep.seeds, *(seed for seed in sweep.further_seeds if seed in recorded_seeds)]
        if sweep.tunes:
            seeds = [*sweep.further_seeds]
        for task in sweep.task_names:
            for seed in seeds:
                missing = replace(first, key="", task=task, seed=seed, result=None)
                wanted.append(trials.get((task, seed), missing))
    return tuple(wanted)


def _stored_adapter(folder: Path, entry: Entry, scratch: Path) -> Path:
    """Returns a trial's adapter: from the sweep's folder, which may have been moved, or from the place in its result."""
    key, noted = entry.key, entry.result.facts.get("adapter") if entry.result else None
    places = [folder / entry.adapter] if entry.adapter else []
    places += [Path(noted)] if noted and "://" not in noted else []
    for local in [*places, SweepFolder(folder).adapters / key / ADAPTER_FOLDER]:
        if local.is_dir():
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


def _no_such_sweep(name: str, names: list[str], where: str) -> NoSuchSweep:
    if not names:
        return NoSuchSweep(
            f"there is no sweep {shown(name)}, and none in {where}. Run one (craft-sweeps run SWEEP.yaml), or say "
            "where it is: its folder (runs/NAME), or its name with --tracking-uri or --storage"
        )
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return NoSuchSweep(f"there is no sweep {shown(name)}.{nearest(Path(name).name, names)} In {where}: {listed}")
