"""Reads sweeps out of a tracking store: a `Feed` for each, its log replayed as it grows; answers of trials from artifacts."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from craft.scoring.predictions import Prediction, read_predictions
from dashboards.frames import Frames, TrialRow
from orchestrator.record.log import read_events
from orchestrator.record.state import State, fold
from orchestrator.review.past_sweep import no_such_sweep
from orchestrator.sweepfile.settings import default_uri
from orchestrator.tools.secrets import public_address, redact
from orchestrator.tracking.client import TrackingError, inode_of, is_absent, resolve_uri
from orchestrator.tracking.desired import KEY, STATUS, SWEEP, SWEEP_ID
from orchestrator.tracking.reader import StoreReader, check_exists

if TYPE_CHECKING:
    from mlflow.entities import Run

log = logging.getLogger(__name__)

REST = 20
"""Between two looks pass at least so many times what the last one took: many running trials must not keep a store busy."""


@dataclass(frozen=True)
class SweepEntry:
    """A sweep as the picker lists it. `run` is the sweep's own in the store, which has its log."""

    name: str
    status: str
    run: Run | None = None


class Feed:
    """One sweep, kept up to date.

    Attributes:
        frames: its rows at the last look; empty before the first.
        revision: the bytes of the log that `frames` have, in every process the same; 0 before the first look.
        look_cost: how many seconds the last look for changes took.
        trouble: why it could not be read at the last look; empty if it was.
    """

    def __init__(self, store: Store, name: str, run: Run) -> None:
        self.store, self.name, self.run = store, name, run
        self.frames = Frames(name, State(), run.info.experiment_id)
        self.revision, self.look_cost, self.trouble = 0, 0.0, ""
        self._looked, self._lock = float("-inf"), threading.RLock()

    def wait_s(self, every_s: float) -> float:
        """Returns the seconds between two looks for changes, as things are."""
        return max(every_s, REST * self.look_cost)

    def look(self, every_s: float) -> None:
        """Looks for changes if the last look was long enough ago; what goes wrong is `trouble`."""
        with self._lock:
            if time.monotonic() - self._looked < self.wait_s(every_s):
                return
            try:
                self.refresh()
            except Exception as error:  # a store that is away now may be back at the next look
                reason, cause = redact(str(error)), f"The tracking store cannot be read: {type(error).__name__}"
                self.trouble = reason if isinstance(error, ValueError) else f"{cause}: {reason}"  # a ValueError is a sentence
                log.warning("%s", self.trouble)
            self._looked = time.monotonic()

    def refresh(self) -> bool:
        """Looks for changes now, and returns whether there were any."""
        with self._lock:
            began, path = time.monotonic(), self.store.reader.log(self.run)
            new = [*read_events(path, self.revision)]
            if changed := bool(new) or not self.revision:
                self.frames = self.frames.after(fold((event for event, _ in new), self.frames.state), path)
                self.revision = new[-1][1] if new else 0
            self.look_cost, self.trouble = time.monotonic() - began, ""
            return changed


class Store:
    """A tracking store to read from.

    Args:
        mlflow_url: where MLflow's own page is served, for links to runs; taken from the URI where that is http(s).
        waits: whether a SQLite file may be absent, as before the first sweep; the store then has no sweeps.

    Raises:
        TrackingError: the URI is wrong, or its SQLite file does not exist (MLflow would silently create an empty one).
    """

    def __init__(self, uri: str | None = None, mlflow_url: str | None = None, *, waits: bool = False) -> None:
        self.uri, self.is_default = resolve_uri(uri or default_uri()), uri in (None, default_uri())
        # The page and its file show the address.
        self.shown_uri = redact(self.uri)
        self._feeds: dict[str, Feed] = {}
        self._answers: dict[tuple[str, str], dict[str, list[Prediction]]] = {}
        self._lock = threading.Lock()
        is_server = self.uri.startswith(("http://", "https://"))
        self.mlflow_url = public_address(mlflow_url or (self.uri if is_server else "")).rstrip("/")
        if self.mlflow_url and not self.mlflow_url.startswith(("http://", "https://")):
            raise ValueError(f"--mlflow-url {self.mlflow_url!r} must begin with http:// or https://")
        if not waits:
            check_exists(self.uri)

    @cached_property
    def reader(self) -> StoreReader:
        """The open store. Two that are opened at once read the same."""
        reader = StoreReader(self.uri)
        self._inode = inode_of(self.uri)
        return reader

    def sweeps(self, only: str | None = None) -> list[SweepEntry]:
        """Returns every sweep in the store, newest first; if given, those with this name or id."""
        if is_absent(self.uri):
            return []
        reader = self.reader
        if inode_of(self.uri) != self._inode:
            raise TrackingError(f"{self.shown_uri} is another file than when this page began: start craft-sweeps page again")
        newest: dict[str, SweepEntry] = {}
        for run in sorted(reader.sweep_runs(), key=lambda run: (-(run.info.start_time or 0), run.data.tags[SWEEP])):
            name, status = run.data.tags[SWEEP], run.data.tags.get(STATUS) or str(run.info.status).lower()
            if only in (None, name, run.data.tags[SWEEP_ID]):
                newest.setdefault(name, SweepEntry(name, status, run))
        return [*newest.values()]

    def feed(self, name: str, run: Run | None = None) -> Feed:
        """Returns the feed of one sweep. It is new, and not refreshed yet, if `run`, as last listed, is another than before."""
        if run is None and name not in self._feeds:
            runs = {entry.name: entry.run for entry in self.sweeps()}
            run = runs.get(name)
            if run is None:
                raise no_such_sweep(name, [*runs], self.shown_uri)
        with self._lock:
            if run is not None and (name not in self._feeds or self._feeds[name].run.info.run_id != run.info.run_id):
                self._feeds[name] = Feed(self, name, run)
            return self._feeds[name]

    def run_link(self, experiment_id: str, key: str) -> str | None:
        """Returns the address of MLflow's page with the run that has this key; None if the page's address is not known."""
        if not self.mlflow_url:
            return None
        query = quote(f"tags.`{KEY}` = '{key}'", safe="")
        place = f"#/experiments/{quote(experiment_id, safe='')}/runs"
        # Sorted by date, MLflow folds the run into its parent's row.
        flat = f"orderByKey={quote('metrics.`score`', safe='')}&orderByAsc=false"
        return f"{self.mlflow_url}/{place}?searchFilter={query}&{flat}&workflowType=machine_learning"

    def predictions(self, trial: TrialRow) -> dict[str, list[Prediction]]:
        """Reads the answers of a trial that has ended, by split; none if the store has none of them (yet)."""
        sweep = self._feeds[trial.sweep.name].run
        place = (sweep.info.run_id, trial.entry.key)
        if not self._answers.get(place):
            with tempfile.TemporaryDirectory() as scratch:
                folder = self.reader.fetch_predictions(sweep, trial.entry.key, Path(scratch))
                self._answers[place] = read_predictions(folder)
        return self._answers[place]
