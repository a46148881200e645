"""Reads a recorded sweep from MLflow: the copy of its log, and adapters and predictions of its trials.

If a store has two sweeps of one name (two folders, one store), the newer one is read.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from craft.results import PREDICTIONS_FOLDER
from orchestrator.record.checkpoints import ADAPTER_FOLDER
from orchestrator.tracking import desired as names
from orchestrator.tracking.artifacts import fetch_log
from orchestrator.tracking.client import TrackingError, explained, find_runs, is_absent, open_store, sqlite_file

if TYPE_CHECKING:
    from mlflow.entities import Run

ID = re.compile(r"[0-9a-f]{32}")
SWEEPS = f"tags.`{names.KIND}` = '{names.SWEEP_KIND}'"


def check_exists(uri: str) -> None:
    """Raises TrackingError if there is no store at a resolved URI."""
    if is_absent(uri):
        raise TrackingError(
            f"there is no tracking store at {sqlite_file(uri)}: run a sweep there first (craft-sweeps run SWEEP.yaml), or say "
            "where it is with --tracking-uri (sqlite:////folder/mlflow.db, http://host:5000)"
        )


class StoreReader:
    """Reads sweeps from the store at a resolved URI. Each method raises TrackingError if the store cannot be read."""

    def __init__(self, uri: str) -> None:
        check_exists(uri)
        self._explained = partial(explained, uri, "cannot be read")
        with self._explained():
            self.client = open_store(uri)
            self.client.search_experiments(max_results=1)

    def sweep_runs(self) -> list[Run]:
        """Returns the sweeps' own runs, but for those whose tags somebody has changed: an id names a file in the cache."""
        with self._explained():
            runs = [(run, run.data.tags) for run in find_runs(self.client, SWEEPS)]
        return [run for run, tags in runs if tags.get(names.SWEEP) and ID.fullmatch(tags.get(names.SWEEP_ID, ""))]

    def sweep_run(self, name: str, sweep_id: str | None = None) -> Run | None:
        """Returns the sweep's own run, the newest of that name if no id is given."""
        own = [(run, run.data.tags) for run in self.sweep_runs()]
        runs = [run for run, tags in own if tags[names.SWEEP] == name and sweep_id in (None, tags[names.SWEEP_ID])]
        return max(runs, key=lambda run: run.info.start_time, default=None)

    def trial_run(self, sweep: Run, key: str) -> Run | None:
        trials = f"tags.`{names.SWEEP_ID}` = '{sweep.data.tags[names.SWEEP_ID]}' and tags.`{names.KIND}` = '{names.TRIAL_KIND}'"
        query = f"{trials} and tags.`{names.KEY}` = '{key.replace(chr(39), '')}'"
        with self._explained():
            return next(find_runs(self.client, query, sweep.info.experiment_id), None)

    def log(self, sweep: Run) -> Path:
        tags = sweep.data.tags
        with self._explained():
            return fetch_log(self.client, sweep.info.run_id, tags[names.SWEEP], tags[names.SWEEP_ID])

    def fetch(self, sweep: Run, key: str, scratch: Path) -> Path:
        """Copies a trial's adapter, and its predictions, into folders in `scratch`; returns the adapter's."""
        try:
            run = self.trial_run(sweep, key)
            if run is None:
                raise FileNotFoundError(f"it has no run of trial {key}")
            self._copy(run, PREDICTIONS_FOLDER, scratch)
            if not self._copy(run, ADAPTER_FOLDER, scratch):
                raise FileNotFoundError(f"its run {run.info.run_id} has no adapter")
            return scratch / ADAPTER_FOLDER
        except Exception as error:
            raise TrackingError(
                f"the adapter of trial {key} is not available from the tracking store ({type(error).__name__}). A sweep file "
                "with `tracking: {adapters: front}` or `none` does not send all; its folder has them: give runs/NAME in place "
                "of the name. If it should have arrived: craft-sweeps replay runs/NAME"
            ) from error

    def fetch_predictions(self, sweep: Run, key: str, scratch: Path) -> Path:
        """Copies a trial's predictions into a folder in `scratch`, and returns that; it is not there if the store has none."""
        run = self.trial_run(sweep, key)
        with self._explained():
            if run is not None:
                self._copy(run, PREDICTIONS_FOLDER, scratch)
        return scratch / PREDICTIONS_FOLDER

    def _copy(self, run: Run, name: str, scratch: Path) -> bool:
        """Copies a folder of a run's artifacts into `scratch`; returns whether the store has it."""
        scratch.mkdir(parents=True, exist_ok=True)
        if present := bool(self.client.list_artifacts(run.info.run_id, name)):
            self.client.download_artifacts(run.info.run_id, name, str(scratch))
        return present
