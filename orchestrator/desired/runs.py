"""`DesiredRuns`: the runs of a sweep as they should be, and which of them a change of its State has changed; and `LogFollower`,
which folds the log as it grows, with what the runs need and State does not keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.desired.run import (
    Describe,
    DesiredRun,
    Place,
    Verdict,
    desired_configuration,
    desired_refused,
    desired_sweep,
    desired_trial,
    group,
)
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.results.tags import CONFIGURATION_KIND, SWEEP_KIND, TRIAL_KIND
from orchestrator.state.entry import Entry
from orchestrator.state.events import Event, Opened, Reported, SessionEnded, Started
from orchestrator.state.log import read_events
from orchestrator.state.state import State, new_rows
from orchestrator.tools.markup import plain


class LogFollower:
    """The log at `path`, read up to byte `offset`.

    Attributes:
        end: the state in which the last session that has ended was left.
        began: when the sweep, each configuration and each trial first started, by name, id and key, in seconds since 1970.
        rows: rows of metrics that a trial reported, each with its time, in order; the sender removes them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        self.state = State()
        self.end: State | None = None
        self.began: dict[str, float] = {}
        self.rows: dict[str, list[tuple[float, dict[str, Any]]]] = {}
        self._last = 0.0

    def read(self) -> None:
        """Reads the events that are new."""
        for event, offset in read_events(self._path, self.offset):
            self._fold(event)
            self.offset = offset

    def close(self) -> None:
        """Takes a session that the log leaves open for interrupted: its driver is gone."""
        if self.state.started is not None and self.state.ended is None:
            self._fold(SessionEnded(status="interrupted", time=self._last))

    def _fold(self, event: Event) -> None:
        if isinstance(event, Reported) and (entry := self.state.entries.get(event.key)):
            rows = new_rows(entry, event.rows)
            if rows and rows[-1]["step"] == event.rows[-1]["step"]:
                rows[-1]["epoch"] = event.epoch
            self.rows.setdefault(event.key, []).extend((row.get("time", event.time), row) for row in rows)
        elif isinstance(event, Started):
            for entry in map(self.state.entries.get, event.keys):
                for name in (entry.trial.configuration, entry.key) if entry else ():
                    self.began.setdefault(name, event.time)
        elif isinstance(event, Opened):
            self.began[event.sweep] = event.time
        self.state, self._last = self.state.after(event), event.time
        if isinstance(event, SessionEnded):
            self.end = self.state


KINDS = (SWEEP_KIND, CONFIGURATION_KIND, TRIAL_KIND)
"""From parents to children."""
OWN = ("started", "ended", "underway", "files")
"""What the sweep's own run shows of the State."""


class DesiredRuns:
    """The desired runs of one sweep. `describe` makes the description of the sweep's run; others name the store's address."""

    def __init__(self, folder: Path, uri: str, describe: Describe) -> None:
        self._folder, self._uri, self._describe = folder, uri, describe
        self._state = State()
        self._end: State | None = None
        self._verdict: Verdict | None = None
        self._groups: dict[str, list[Entry]] = {}
        self._families: dict[str, str] = {}

    def update(self, state: State, end: State | None) -> dict[Place, None]:
        """Takes a new state, and returns the runs that are different in it, parents first.

        Args:
            end: the state in which the last session was left; it is judged once.
        """
        previous, groups = self._state, self._groups
        self._state, self._groups = state, group(state)
        self._families = _families(self._groups, state.entries)
        entries = previous.entries
        if end is not None and end is not self._end:
            self._end, self._verdict = end, Verdict.of(end, self._describe)
            entries = {}  # each run is marked
        switched = previous.wanted.keys() ^ state.wanted.keys() if state.wanted else frozenset[str]()
        changed = [entry for key, entry in state.entries.items() if entries.get(key) is not entry or key in switched]
        touched = {self._families[entry.trial.configuration] for entry in changed}
        for name, members in self._groups.items():
            if len(groups.get(name, ())) != len(members) or (previous.ended is not state.ended and _has_left(members)):
                touched.add(self._families[name])
        configurations = [name for name, family in self._families.items() if family in touched and self._has_begun(name)]
        configurations += [name for name, event in state.refused.items() if previous.refused.get(name) is not event]
        trials = [entry.key for entry in changed if entry.begun]
        sweep_changed = any(getattr(state, name) is not getattr(previous, name) for name in OWN) and state.started is not None
        keys = ([state.name] if sweep_changed else [], configurations, trials)
        return {(kind, key): None for kind, listed in zip(KINDS, keys, strict=True) for key in listed}

    @property
    def answer(self) -> str:
        """The sweep's answer when its last session ended, in Markdown; empty without one."""
        return plain(self._verdict.answer.partition("\n")[0]) if self._verdict else ""

    def runs(self, places: Iterable[Place]) -> Iterator[DesiredRun]:
        """Yields the runs as they should be."""
        state, verdict, sweep = self._state, self._verdict, (SWEEP_KIND, self._state.name)
        places = list(places)
        summaries = self._summarize([key for kind, key in places if kind == CONFIGURATION_KIND and self._has_begun(key)])
        for kind, key in places:
            if kind == SWEEP_KIND:
                yield desired_sweep(state, verdict, self._folder)
            elif kind == TRIAL_KIND:
                yield desired_trial(state.entries[key], verdict, state, self._folder)
            elif key in summaries:
                yield desired_configuration(self._groups[key], summaries[key], verdict, state, self._uri)
            else:
                yield desired_refused(state.refused[key], sweep)

    def _has_begun(self, configuration: str) -> bool:
        return any(entry.begun for entry in self._groups.get(configuration, ()))

    def _summarize(self, configurations: Iterable[str]) -> dict[str, Summary]:
        """Returns summaries: as they were judged, where that holds."""
        summaries: dict[str, Summary] = {}
        families = set()
        for name in configurations:
            if self._verdict is not None and self._verdict.holds_for(name, self._groups[name]):
                summaries[name] = self._verdict.summaries[name]
            else:
                families.add(self._families[name])
        related = [name for name, family in self._families.items() if family in families]
        entries = [entry for name in related for entry in self._groups[name]]
        return {summary.configuration: summary for summary in summarize_entries(entries)} | summaries


def _families(groups: Mapping[str, Sequence[Entry]], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the family of each configuration: those that it was cut from, and the candidates among which its settings were
    chosen. A summary depends on its family alone."""
    families = {}
    for configuration, (first, *_) in groups.items():
        source = entries.get(first.trial.training, first)
        families[configuration] = source.trial.group or source.trial.configuration
    return families


def _has_left(entries: Iterable[Entry]) -> bool:
    return not all(entry.ended for entry in entries)
