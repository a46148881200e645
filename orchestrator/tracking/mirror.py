"""`Mirror`: makes a sweep's runs in MLflow equal to its State, and keeps them so while its log grows.

    log.jsonl --> LogFollower (State) --> DesiredRuns (what each run should be) --difference--> SweepStore --> MLflow

It remembers nothing on disk. When it connects it reads the sweep's runs in the store, folds the whole log, and sends what the
store lacks. Then it looks again only at runs that a new event changes. So a crash between two requests, a store that was away
and one that was emptied need no rule of their own.

A value that the store refuses is set aside and never holds up others. The next session offers it again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from craft.results import PREDICTIONS_FOLDER
from orchestrator.desired.run import DesiredRun, Place
from orchestrator.desired.runs import KINDS, DesiredRuns, LogFollower
from orchestrator.desired.verdict import Describe
from orchestrator.desired.views import address, links, saved_views
from orchestrator.record.folder import SweepFolder
from orchestrator.results.tags import SWEEP_KIND, TRIAL_KIND, digest_tag
from orchestrator.state.events import SessionStarted
from orchestrator.state.state import State
from orchestrator.tools.secrets import redact
from orchestrator.tracking.artifacts import LogPieces, digest_source, upload
from orchestrator.tracking.client import is_lost, is_missing, is_refusal
from orchestrator.tracking.difference import differences
from orchestrator.tracking.store import Item, Rows, StoredRun, SweepStore

log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
TRIES = 7
LOOK, VIEWS, LOG = ("", "look"), ("", "views"), ("", "log")
"""What a step does besides the runs."""


class NotKept(Exception):
    """A store, or a proxy before it, has answered without an error, and lacks what was sent."""


class Mirror:
    """The runs of the sweep in `folder`, in the store at the resolved `uri`.

    Args:
        describe: makes the description of the sweep's run.
        lost: whether the driver is gone, so that a session which the log leaves open was interrupted.
        log_every: seconds between two looks at what the store lacks of the log itself, while a session runs.

    Attributes:
        stuck: how often the same request has failed in a row for each of the runs that were to be changed; 0 if one went ahead.
        offset: how much of the log the store has, in bytes, but for what it refused.
    """

    def __init__(
        self, folder: Path, uri: str, describe: Describe = lambda *_: "", *, lost: bool = False, log_every: float = 0.0
    ) -> None:
        self._folder, self._uri, self._describe, self._lost = SweepFolder(folder.resolve()), uri, describe, lost
        self._log_every = log_every
        self.store: SweepStore | None = None
        self._disconnect()

    def _disconnect(self) -> None:
        """Forgets everything, so that the next step reads store and log from their starts."""
        self.store, self.offset = None, 0
        self._log = LogFollower(self._folder.record)
        self._desired = DesiredRuns(self._folder.path, self._uri, self._describe)
        self._dirty: dict[Place, None] = {}
        self._uncertain: set[Place] = set()
        self._failures: Counter[Place] = Counter()
        self._tries: Counter[Place] = Counter()
        self.stuck = 0
        self._aside: set[tuple[Any, ...]] = set()
        self._described: tuple[SessionStarted | None, State | None] = None, None
        self._files: tuple[str, ...] = ()
        self._next_look = self._next_log = 0.0
        self._pieces = LogPieces(self._folder.record)

    @property
    def refused(self) -> int:
        """The number of values and files that the store refused in this session."""
        return len(self._aside)

    @property
    def page(self) -> str | None:
        """The place of the front's saved view below the address of MLflow's server."""
        return address(self.store.experiment, self._log.state.sweep_id) if self.store else None

    @property
    def sweep_run(self) -> StoredRun | None:
        """The sweep's own run in the store."""
        return self.store.runs.get(self._sweep) if self.store else None

    @property
    def _sweep(self) -> Place:
        return SWEEP_KIND, self._log.state.name

    def step(self) -> None:
        """Reads new events, and makes the runs that they change equal.

        Raises:
            Exception: the store's, while it is away; the next step continues.
        """
        self._log.read()
        self.stuck = 0
        if self._lost:
            self._log.close()
        state = self._log.state
        if state.started is None:
            return
        try:
            if self.store is None:
                self.store = SweepStore(self._uri, state.name, state.sweep_id)
            store = self.store
            self._later(LOOK, store, lambda: self._look(store))
            self._dirty |= self._desired.update(state, self._log.end)
            if self._described[0] is not state.started or self._described[1] is not self._log.end:
                self._later(VIEWS, store, lambda: self._describe_sweep(store, state))
            tried = list[Place]()
            self._later(LOG, store, lambda: self._send_log(store, state))
            for desired in self._desired.runs(sorted(self._dirty, key=lambda place: KINDS.index(place[0]))):
                if desired.parent not in self._dirty:
                    self._try(desired, store)
                    tried.append(desired.place)
            if not self._dirty:
                self._later(LOG, store, lambda: self._send_log(store, state))
            self.stuck = min(map(self._tries.__getitem__, tried)) if tried else max(self._tries[VIEWS], self._tries[LOG])
        except Exception as error:
            if is_missing(error):
                log.warning("the tracking store has lost runs of this sweep, and gets the whole record again")
                self._disconnect()
            raise
        if not self._dirty and VIEWS not in self._tries and self._pieces.end == self._log.offset:
            self.offset = self._log.offset

    def _later(self, place: Place, store: SweepStore, act: Callable[[], None]) -> None:
        """Does what may as well be done in the next step, if the store answers and does not do it now.

        Raises:
            Exception: the store is away, or has lost the run.
        """
        try:
            act()
        except Exception as error:  # stores, their drivers and the network have errors of their own
            if is_missing(error) or not store.answers():
                raise
            self._tries[place] += 1
        else:
            self._tries.pop(place, None)

    def _send_log(self, store: SweepStore, state: State) -> None:
        """Sends what the store lacks of the log itself, at once when a session has ended."""
        run, is_due = self.sweep_run, state.ended is not None or time.monotonic() >= self._next_log
        if run is None or self._pieces.end == self._log.offset or not is_due:
            return
        try:
            self._pieces.send(store.client, run.id, self._log.offset)
        except Exception as error:
            if not is_refusal(error):
                raise
            self._set_aside((self._sweep, "log"), error)
        self._pieces.end, self._next_log = self._log.offset, time.monotonic() + self._log_every

    def _look(self, store: SweepStore) -> None:
        """Asks the store now and then whether it still has the sweep."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            if self.sweep_run is not None:
                store.check_there(self.sweep_run)

    def _describe_sweep(self, store: SweepStore, state: State) -> None:
        """Gives the experiment the sweep's saved views and answer. When a session begins, offers again what was refused."""
        if state.started is not self._described[0]:
            self._aside.clear()
        views = saved_views(state.sweep, state.sweep_id, int(1000 * state.opened))
        try:
            store.show(views, self._desired.answer, links(store.experiment, state.sweep_id))
        except Exception as error:
            if not is_refusal(error):
                raise
            self._set_aside((self._sweep, "views"), error)
        self._described = state.started, self._log.end

    def _try(self, desired: DesiredRun, store: SweepStore) -> None:
        """Makes a run equal, or leaves it for the next step.

        Raises:
            Exception: the store is away, or has lost the run.
        """
        place, done_before = desired.place, store.done
        try:
            self._make_equal(desired, store)
        except Exception as error:  # stores, their drivers and the network have errors of their own
            # The store may have done a request whose answer was lost: look before the next try.
            is_looking = place in self._uncertain
            self._uncertain.add(place)
            if is_refusal(error) or is_missing(error):
                run = store.runs.get(place) or self.sweep_run
                if run is None and is_missing(error):
                    raise
                if run is not None:
                    store.check_there(run)
            else:
                if not store.answers():
                    raise
                if store.done > done_before and not isinstance(error, NotKept):  # not the request that failed the last time
                    self._tries[place] = self._failures[place] = 0
                self._tries[place] += 1
                # A request that was lost on the way says nothing about the run, and neither does one that reads.
                self._failures[place] += not (is_lost(error) or is_looking)
                if self._failures[place] <= TRIES:
                    return
            self._set_aside((place,), error)
        else:
            self._aside.discard((place,))
        for places in (self._dirty, self._failures, self._tries):
            places.pop(place, None)

    def _make_equal(self, desired: DesiredRun, store: SweepStore) -> None:
        place = desired.place
        if place in self._uncertain:
            store.look_again(place)
            self._uncertain.discard(place)
        above = store.runs.get(desired.parent) if desired.parent else None
        parent = above.id if above else None
        run = store.runs.get(place)
        if run is None:
            assert self._log.state.started is not None
            began = self._log.began.get(place[1], desired.ended)
            run = store.create(place, desired.name, began, self._log.state.started.origin)
        stubborn = self._failures[place] >= TRIES

        def refuse(item: Item, error: Exception) -> None:
            self._set_aside((place, item.key, item.value), error)

        rows = self._log.rows.get(place[1], []) if place[0] == TRIAL_KIND else []
        sent = store.done
        if self._lost:
            store.read_points(run, rows)
        store.send(run, self._lacking(desired, rows, run, parent), refuse, stubborn)
        if place[0] == TRIAL_KIND:
            self._log.rows.pop(place[1], None)
        if desired.data is not None:
            store.add_data(run, *desired.data)
        ended = int(1000 * desired.ended)
        if desired.status != run.status or (run.status != "RUNNING" and run.ended != ended):
            store.set_status(run, desired.status, ended)
        self._upload(desired, run, store)
        if self._lost and store.done > sent:
            store.read_again(run, rows)
            if missing := len(self._lacking(desired, rows, run, parent)):
                self._log.rows[place[1]] = rows
                raise NotKept(f"the store has taken {missing} values without an error and has not kept them")

    def _lacking(self, desired: DesiredRun, rows: Rows, run: StoredRun, parent: str | None) -> list[Item]:
        """Returns what the store lacks of a run and has not refused."""
        items = differences(desired, rows, run, parent)
        return [item for item in items if (desired.place, item.key, item.value) not in self._aside]

    def _upload(self, desired: DesiredRun, run: StoredRun, store: SweepStore) -> None:
        """Uploads the artifacts that the store lacks. A trial's never change; those of the sweep do when a session ends."""
        is_sweep = desired.place == self._sweep
        sources: dict[str, Path | str] = {**desired.texts, **desired.files}
        for name, source in sources.items():
            tag, item = digest_tag(name), (desired.place, name)
            if isinstance(source, Path):
                stored = tag in run.tags and not (is_sweep and self._files is not self._log.state.files)
                if stored or (name == PREDICTIONS_FOLDER and not source.is_dir()):
                    continue
            try:
                digest = digest_source(source)
                if run.tags.get(tag) != digest:
                    upload(store.client, run.id, name, source)
                    store.client.set_tag(run.id, tag, digest)
                    run.tags[tag] = digest
                    store.done += 1
            except Exception as error:
                if not is_refusal(error):
                    raise
                self._set_aside(item, error)
            else:
                self._aside.discard(item)
        if is_sweep:
            self._files = self._log.state.files

    def _set_aside(self, item: tuple[Any, ...], error: Exception) -> None:
        if item not in self._aside:
            self._aside.add(item)
            (kind, key), *value = item
            reason = redact(f"{type(error).__name__}: {error}")[:1000]
            log.error("the tracking store refuses %s: %s", " ".join([kind, key, *(str(part)[:100] for part in value)]), reason)
