"""Reads a recorded sweep from MLflow: its file, its trials and their adapters, as `orchestrator.pictures` has them.

Commands that look back read a sweep whole and once; the dashboards have their own reader, which follows a running sweep. If a
store has two sweeps of one name (two folders, one store), the newer one is read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from craft.results import PREDICTIONS_FOLDER
from craft.words import redact
from orchestrator.record.folder import EFFECTIVE_FILE
from orchestrator.results import tags as names
from orchestrator.results.records import read_entry
from orchestrator.state.entry import Entry
from orchestrator.tracking.client import find_runs, open_store
from orchestrator.tracking.uri import TrackingError, sqlite_file

if TYPE_CHECKING:
    from mlflow.entities import Run

SWEEPS = f"tags.`{names.KIND}` = '{names.SWEEP_KIND}'"


@dataclass(frozen=True)
class StoredSweep:
    """A sweep in the store: `fetch(key, scratch)` copies a trial's adapter, and its predictions, into folders in `scratch`."""

    sweep_file: Path
    entries: list[Entry]
    fetch: Callable[[str, Path], Path]


class StoreReader:
    """Reads sweeps from the store at a resolved URI."""

    def __init__(self, uri: str) -> None:
        file = sqlite_file(uri)
        if file is not None and not file.is_file():
            # MLflow would make an empty store there.
            raise TrackingError(
                f"there is no tracking store at {file}; say where it is by --tracking-uri sqlite:////PATH/mlflow.db"
            )
        try:
            self.client = open_store(uri)
            self._experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
        except Exception as error:  # MLflow, SQLAlchemy and requests each raise their own kinds
            reason = redact(" ".join(str(error).split()))[:300]
            raise TrackingError(
                f"the tracking store {redact(uri)} cannot be read ({type(error).__name__}: {reason})"
            ) from error
        self._scratch = tempfile.TemporaryDirectory(prefix="craft-record-")

    def sweep_names(self) -> list[str]:
        """Returns the names of the sweeps in the store."""
        return sorted({run.data.tags[names.SWEEP] for run in find_runs(self.client, self._experiments, SWEEPS)})

    def sweep_run(self, name: str) -> Run | None:
        """Returns the sweep's own run, the newest of that name."""
        runs = [run for run in find_runs(self.client, self._experiments, SWEEPS) if run.data.tags[names.SWEEP] == name]
        return max(runs, key=lambda run: run.info.start_time, default=None)

    def trial_runs(self, sweep: Run) -> dict[str, Run]:
        """Returns the sweep's trials by key."""
        query = f"tags.`{names.SWEEP_ID}` = '{sweep.data.tags[names.SWEEP_ID]}' and tags.`{names.KIND}` = '{names.TRIAL_KIND}'"
        return {run.data.tags[names.KEY]: run for run in find_runs(self.client, [sweep.info.experiment_id], query)}

    def sweep(self, name: str) -> StoredSweep | None:
        """Returns the sweep called `name`, or None."""
        sweep = self.sweep_run(name)
        if sweep is None:
            return None
        trials = self.trial_runs(sweep)
        try:
            file = Path(self.client.download_artifacts(sweep.info.run_id, EFFECTIVE_FILE, self._scratch.name))
        except Exception as error:
            raise TrackingError(
                f"sweep {name!r}: its {EFFECTIVE_FILE} is not among its artifacts ({type(error).__name__})"
            ) from error

        def fetch(key: str, scratch: Path) -> Path:
            return self._fetch(trials[key], scratch)

        asked_for = [run for run in trials.values() if run.data.tags.get(names.ASKED) != "false"]
        return StoredSweep(file, [self._entry(run) for run in asked_for], fetch)

    def _entry(self, run: Run) -> Entry:
        entry, last = read_entry(run.data.tags, run.data.params, run.data.metrics), run.data.params.get("total_steps")
        best = entry.result.facts.get("best_step") if entry.result else None
        if entry.result is None or best in (None, last) or "search_score" not in entry.result.metrics:
            return entry
        # The run's last search score does not belong to the weights that were kept.
        metrics = entry.result.metrics | self._at_step(run.info.run_id, int(str(best)))
        return replace(entry, result=replace(entry.result, metrics=metrics))

    def _at_step(self, run_id: str, step: int) -> dict[str, float]:
        history = self.client.get_metric_history(run_id, "search_score")
        values = [point.value for point in history if point.step == step]
        return {"search_score": values[-1]} if values else {}

    def _fetch(self, run: Run, scratch: Path) -> Path:
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            if any(item.path == PREDICTIONS_FOLDER for item in self.client.list_artifacts(run.info.run_id)):
                self.client.download_artifacts(run.info.run_id, PREDICTIONS_FOLDER, str(scratch))
            return Path(self.client.download_artifacts(run.info.run_id, "adapter", str(scratch)))
        except Exception as error:
            key = run.data.tags[names.KEY]
            raise TrackingError(
                f"the adapter of trial {key} is not available from the tracking store ({type(error).__name__}). If it did not "
                "arrive there: craft-sweeps replay runs/NAME; or give the sweep's folder runs/NAME instead "
                "of its name"
            ) from error
