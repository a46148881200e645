"""`Mirror`: makes a sweep's runs in MLflow equal to its State, and keeps them so while its log grows.

    log.jsonl --> LogFollower (State) --> DesiredRuns (what each run should be) --difference--> SweepStore --> MLflow

It remembers nothing on disk. When it connects it reads the sweep's runs in the store, replays the whole log, and sends what the
store lacks. Then it looks again only at runs that a new event changes. So a crash between two requests, a store that was away
and one that was emptied need no rule of their own. A run that does not become equal is looked up and tried again in the next
step. A value that the store refuses is set aside and never holds up others. The next session offers it again.

A running sweep starts this module as a process of its own (`orchestrator.tracking.follower.Follower`): `python -m
orchestrator.review.mirror FOLDER`. The process is niced, and ignores SIGTERM and SIGHUP. A store that does not answer is asked
again without end, with growing delays; meanwhile the log holds all. `craft-sweeps replay` does the same once, without a running
sweep.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from craft.plugins import load_inherited
from craft.results import PREDICTIONS_FOLDER
from orchestrator.record.events import SessionStarted
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import DamagedLog
from orchestrator.record.state import State
from orchestrator.review.desired_runs import DesiredRuns
from orchestrator.review.saved_views import address, links, saved_views
from orchestrator.tools.quiet import LOG_FORMAT, Lossy
from orchestrator.tools.secrets import redact
from orchestrator.tools.signals import SIGNALS
from orchestrator.tracking import desired as names
from orchestrator.tracking.artifacts import LogPieces, digest_source, upload
from orchestrator.tracking.client import is_missing, is_refusal
from orchestrator.tracking.desired import KINDS, DesiredRun, LogFollower, Place
from orchestrator.tracking.follower import PAUSES_S, Lacks, Sent, count_events, pause
from orchestrator.tracking.store import StoredRun, SweepStore, differences

log = logging.getLogger("orchestrator.review.mirror")

STEP_S, LOG_EVERY_S = 0.5, 2.0
NICENESS = 10
REPLAYS = 3
"""So often a replay reads the whole store to find nothing missing any more."""
LOOK_EVERY_S = 30.0
TRIES = 10
"""So often a store that answers may fail to take the same thing before this is set aside."""
LOG, VIEWS = ("log", ""), ("views", "")
"""What is sent besides the runs."""
Failed = tuple[tuple[Any, ...], Exception]
"""What the store has not taken, by its place, its name and value, and the store's error."""


class Mirror:
    """The runs of the sweep in `folder`, in the store at the resolved `uri`.

    Args:
        lost: whether the driver is gone, so that a session which the log leaves open was interrupted, and points may be
            missing between others.
        log_every: seconds between two looks at what the store lacks of the log itself, while a session runs.

    Attributes:
        stuck: how many steps in a row have changed nothing in the store, though it lacks something.
        offset: how much of the log the store has, in bytes, but for what it refused.
    """

    def __init__(self, folder: Path, uri: str, *, lost: bool = False, log_every: float = 0.0) -> None:
        self._folder, self._uri, self._lost = SweepFolder(folder.resolve()), uri, lost
        self._log_every = log_every
        self.store: SweepStore | None = None
        self._disconnect()

    def _disconnect(self) -> None:
        """Forgets everything, so that the next step reads store and log from their starts."""
        self.store, self.offset, self.stuck = None, 0, 0
        self._log = LogFollower(self._folder.record)
        self._desired = DesiredRuns(self._folder.path, self._uri)
        self._dirty: dict[Place, int | None] = {}  # how often it failed in vain; None before it has failed
        self._aside: set[tuple[Any, ...]] = set()
        self._described: tuple[SessionStarted | None, State | None] = None, None
        self._next_look = self._next_log = 0.0
        self._pieces = LogPieces(self._folder.record)

    @property
    def refused(self) -> int:
        return len(self._aside)

    @property
    def page(self) -> str | None:
        """The place of the front's saved view below the address of MLflow's server."""
        return address(self.store.experiment, self._log.state.sweep_id) if self.store else None

    @property
    def sweep_run(self) -> StoredRun | None:
        return self.store.runs.get(self._sweep) if self.store else None

    @property
    def _sweep(self) -> Place:
        return names.SWEEP_KIND, self._log.state.name

    def step(self) -> None:
        """Reads new events, and makes the runs that they change equal. Raises the store's errors while it is away."""
        self._log.read()
        if self._lost:
            self._log.close()
        if self._log.state.started is None:
            return
        try:
            if self.store is None:
                state = self._log.state
                self.store = SweepStore(self._uri, state.name, state.sweep_id, state.sweep.tracking.experiment)
            store, done = self.store, self.store.done
            self._find_dirty(store)
            places = sorted((place for place in self._dirty if place[0] in KINDS), key=lambda place: KINDS.index(place[0]))
            for desired in self._desired.runs(places):
                if desired.parent not in self._dirty:
                    self._try(desired.place, store, partial(self._make_equal, desired, store))
            for place in (LOG, VIEWS) if self.sweep_run is not None else ():
                if place in self._dirty:
                    self._try(place, store, partial(self._send, place, store))
            self.stuck = self.stuck + 1 if self._dirty and store.done == done else 0
        except Exception as error:
            if is_missing(error):
                log.warning("the tracking store has lost runs of this sweep, and gets the whole record again")
                self._disconnect()
            raise
        if not self._dirty and self._pieces.end == self._log.offset:
            self.offset = self._log.offset

    def _find_dirty(self, store: SweepStore) -> None:
        """Notes what is to be made equal, and asks the store now and then whether it still has the sweep."""
        state = self._log.state
        for place in self._desired.update(state, self._log.end):
            self._dirty.setdefault(place, None)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            if self.sweep_run is not None:
                store.check_there(self.sweep_run)
        started, end = self._described
        if started is not state.started:
            self._aside.clear()
        if started is not state.started or end is not self._log.end:
            self._described = state.started, self._log.end
            self._dirty.setdefault(VIEWS, None)
        if self._pieces.end != self._log.offset and (state.ended is not None or time.monotonic() >= self._next_log):
            self._dirty.setdefault(LOG, None)

    def _try(self, place: Place, store: SweepStore, send: Callable[[], list[Failed]]) -> None:
        """Makes something equal, sets aside what the store does not take, or leaves it to the next step; raises the store's
        error if it is away, or has lost the run."""
        done, tries = store.done, self._dirty[place]
        give_up = tries is not None and tries >= TRIES
        try:
            if tries is not None and place[0] in KINDS:  # the store may have done a request whose answer was lost
                store.look_again(place)
            failed = send()
            self._aside.discard((place,))
        except Exception as error:  # stores, their drivers and the network have errors of their own
            run, failed = store.runs.get(place) or self.sweep_run, [((place,), error)]
            self._dirty[place] = tries or 0  # of a store that is away, too: it may have done a part
            if is_refusal(error) or is_missing(error):
                if run is None and is_missing(error):
                    raise
                if run is not None:
                    store.check_there(run)
                give_up = True
            elif not store.answers():
                raise
        remaining = [item for item, cause in failed if not (give_up or is_refusal(cause))]
        for item, cause in failed:
            if item not in remaining:
                self._set_aside(item, cause)
        if remaining:
            self._dirty[place] = 0 if tries is None or store.done > done else tries + 1
            return
        if place == LOG:
            self._pieces.end = self._log.offset
        elif place[0] == names.TRIAL_KIND:
            self._log.rows.pop(place[1], None)
        del self._dirty[place]

    def _make_equal(self, desired: DesiredRun, store: SweepStore) -> list[Failed]:
        """Sends what the store lacks of a run; returns what it has not taken."""
        place = desired.place
        above = store.runs.get(desired.parent) if desired.parent else None
        run = store.runs.get(place)
        if run is None:
            assert self._log.state.started is not None
            began = self._log.began.get(place[1], desired.ended)
            run = store.create(place, desired.name, began, self._log.state.started.origin)
        rows = self._log.rows.get(place[1], []) if place[0] == names.TRIAL_KIND else []
        if self._lost or self._dirty[place] is not None:  # the store may have a later point without an earlier one
            store.read_points(run, rows)
        items = differences(desired, rows, run, above.id if above else None)
        sent = store.send(run, [item for item in items if (place, item.key, item.value) not in self._aside])
        failed: list[Failed] = [((place, item.key, item.value), error) for item, error in sent]
        if desired.data is not None and (data := (place, "data", desired.data[1])) not in self._aside:
            try:
                store.add_data(run, *desired.data)
            except Exception as error:  # a server may lack or forbid this: the run still ends, and gets its adapter
                if is_missing(error) or is_refusal(error):
                    store.check_there(run)
                elif not store.answers():
                    raise
                failed.append((data, error))
        ended = int(1000 * desired.ended)
        if desired.status != run.status or (run.status != "RUNNING" and run.ended != ended):
            store.set_status(run, desired.status, ended)
        self._upload(desired, run, store)
        return failed

    def _send(self, place: Place, store: SweepStore) -> list[Failed]:
        """Sends what the store lacks of the log itself, or the sweep's saved views and answer."""
        if place == VIEWS:
            state = self._log.state
            store.show(saved_views(state), self._desired.answer, links(store.experiment, state.sweep_id))
        elif self.sweep_run is not None:
            self._pieces.send(store.client, self.sweep_run.id, self._log.offset)
            self._next_log = time.monotonic() + self._log_every
        return []

    def _upload(self, desired: DesiredRun, run: StoredRun, store: SweepStore) -> None:
        """Uploads the artifacts that the store lacks. A trial's never change; those of the sweep do when a session ends."""
        sources: dict[str, Path | str] = {**desired.texts, **desired.files}
        for name, source in sources.items():
            tag, item = f"{names.PREFIX}{name}_sha256", (desired.place, name)
            stored = tag in run.tags and isinstance(source, Path) and desired.place != self._sweep
            if stored or (name == PREDICTIONS_FOLDER and isinstance(source, Path) and not source.is_dir()):
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

    def _set_aside(self, item: tuple[Any, ...], error: Exception) -> None:
        if item not in self._aside:
            self._aside.add(item)
            (kind, key), *value = item
            reason = redact(f"{type(error).__name__}: {error}")[:1000]
            log.error("the tracking store refuses %s: %s", " ".join([kind, key, *(str(part)[:100] for part in value)]), reason)


def follow(folder: Path) -> None:
    """Follows the log, for the store whose address comes by standard input, until the input ends."""
    os.nice(NICENESS)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    uri = sys.stdin.readline().strip()

    def end_with_driver() -> None:
        sys.stdin.read()
        os._exit(0)  # nothing to tidy: the next process reads what the store has

    threading.Thread(target=end_with_driver, daemon=True).start()
    mirror = Mirror(folder, uri, log_every=LOG_EVERY_S)
    for _ in _steps(mirror):
        _write_report(mirror, SweepFolder(folder), uri)
        if mirror.store is not None and mirror.store.replaced:
            return  # the driver starts another process, which opens the new file
        time.sleep(STEP_S)  # events gather meanwhile


def replay(folder: Path, uri: str, timeout_s: float) -> Lacks:
    """Makes the store at the resolved `uri` equal to the log of a sweep that nothing runs; returns what it lacks.

    What was sent is read back: a proxy may have answered without an error, and sent nothing on.
    """
    end, record = time.monotonic() + timeout_s, SweepFolder(folder).record
    for _ in range(REPLAYS):
        mirror = Mirror(folder, uri, lost=True)
        for _ in _steps(mirror, timeout_s, (DamagedLog,)):
            if mirror.offset >= record.stat().st_size or time.monotonic() >= end:
                break
        not_kept = mirror.store.done if mirror.store else 0
        if not not_kept or time.monotonic() >= end:
            not_kept = 0
            break
    _write_report(mirror, SweepFolder(folder), uri)
    return Lacks(count_events(record, mirror.offset) + not_kept, mirror.refused)


def _steps(mirror: Mirror, longest: float = PAUSES_S[-1], fatal: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Takes steps without end, with growing delays while the store is away. Raises only the errors that are `fatal`."""
    failures = 0
    while True:
        try:
            mirror.step()
            failures, tries = 0, mirror.stuck
        except fatal:
            raise
        except Exception as error:  # no error of a store, its driver or the network may end the record
            failures = tries = failures + 1
            if failures == 1 and isinstance(error, DamagedLog):
                log.error("%s Until then the store gets nothing more of this sweep.", error)
            elif failures == 1:
                reason = redact(f"{type(error).__name__}: {error}".strip().splitlines()[0])[:300]
                log.warning("tracking store: %s; training continues, and the store gets the rest later", reason)
        if tries:
            time.sleep(min(longest, pause(tries - 1) * random.uniform(0.75, 1.25)))
        yield


def _write_report(mirror: Mirror, folder: SweepFolder, uri: str) -> None:
    if mirror.store is None:
        return
    report = json.dumps(asdict(Sent(redact(uri), mirror.offset, mirror.refused, mirror.page)))
    aside = folder.tracking.with_name(f".{folder.tracking.name}.{os.getpid()}")
    try:
        if not folder.tracking.exists() or folder.tracking.read_text(encoding="utf-8") != report:
            aside.write_text(report, encoding="utf-8")
            aside.replace(folder.tracking)
    except OSError as error:
        log.warning("%s cannot be written: %s", folder.tracking, error)


if __name__ == "__main__":
    sys.stdout = sys.stderr = Lossy(2)
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)
    load_inherited()
    follow(Path(sys.argv[1]))
