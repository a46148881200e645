"""Reads sweeps out of MLflow: the one place of this package that talks to it.

A `Store` stands for a tracking URI and hands out a `Feed` for each sweep in it. Everything that the store returns is reduced at
once to plain `RunRow`s; `frames.py` makes tables of them.

Metric histories are heavy and one panel alone asks for them: `Store.curves` keeps those of runs that have ended.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from craft.results import PREDICTIONS_FOLDER
from craft.scoring.predictions import Prediction, read_predictions
from craft.words import hide_address, nearest, public_address, redact
from dashboards.feed import Feed, Wanted
from dashboards.frames import NAN, RunRow
from orchestrator.results.tags import STATUS, SWEEP

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

DEFAULT_URI = "sqlite:///mlflow.db"
PAGE = 500  # runs in one answer: MLflow takes more than 1 ms a run, so a page shows its first points after about a second


class DashboardError(ValueError):
    """A mistake that the user can correct: the message says what was given, what there is, and what to do."""


@dataclass(frozen=True)
class SweepEntry:
    """A sweep as the picker lists it. Times in milliseconds since 1970, None while unknown."""

    name: str
    experiment_id: str
    run_id: str
    status: str
    started: int | None


class Store:
    """A tracking store to read from.

    Args:
        uri: MLflow's tracking URI; `sqlite:///mlflow.db` (in the current folder) if None.
        mlflow_url: where MLflow's own page is served, for links to runs; taken from the URI where that is http(s).

    Raises:
        DashboardError: the SQLite file of `uri` does not exist (MLflow would silently create an empty one).
    """

    def __init__(self, uri: str | None = None, mlflow_url: str | None = None) -> None:
        self.uri = hide_address(uri or DEFAULT_URI)
        # The page and its file show the address.
        self.shown_uri = redact(self.uri)
        self._client: MlflowClient | None = None
        self._feeds: dict[str, Feed] = {}
        self._curves: dict[tuple[str, str], tuple[Any, list[tuple[int, float]]]] = {}
        self._answers: dict[str, dict[str, list[Prediction]]] = {}
        self._lock = threading.Lock()
        is_server = self.uri.startswith(("http://", "https://"))
        self.mlflow_url = (mlflow_url or (public_address(self.uri) if is_server else "")).rstrip("/")
        if self.mlflow_url and not self.mlflow_url.startswith(("http://", "https://")):
            raise DashboardError(f"--mlflow-url {mlflow_url!r} must begin with http:// or https://")
        path = Path(self.uri.removeprefix("sqlite:///")).absolute() if self.uri.startswith("sqlite:///") else None
        if path is not None and not path.is_file():
            raise DashboardError(
                f"there is no tracking store at {path}: run a sweep there first (craft-sweeps run SWEEP.yaml), "
                "or say where it is with --tracking-uri (sqlite:////folder/mlflow.db, http://host:5000)"
            )

    def hide(self, error: object) -> str:
        """Returns the text of an error, without passwords."""
        return redact(str(error))

    @property
    def client(self) -> MlflowClient:
        with self._lock:
            if self._client is None:
                from mlflow import MlflowClient

                self._client = MlflowClient(self.uri)
            return self._client

    def pages(self, experiment_id: str | Sequence[str], wanted: Wanted) -> Iterator[list[RunRow]]:
        """Yields the wanted runs of an experiment, a page at a time."""
        ids = [experiment_id] if isinstance(experiment_id, str) else list(experiment_id)
        if not ids:
            return
        for query in wanted.filters():
            token: str | None = None
            while True:
                page = self.client.search_runs(ids, query, max_results=PAGE, page_token=token)
                yield [_row(run) for run in page]
                token = page.token
                if not token:
                    break

    def search(self, experiment_id: str | Sequence[str], wanted: Wanted) -> list[RunRow]:
        return [row for page in self.pages(experiment_id, wanted) for row in page]

    def _experiments(self) -> dict[str, str]:
        return {experiment.experiment_id: experiment.name for experiment in self.client.search_experiments()}

    def sweeps(self) -> list[SweepEntry]:
        """Returns every sweep in the store, newest first."""
        try:
            experiments = self._experiments()
            rows = self.search(list(experiments), Wanted(kind="sweep"))
        except Exception as error:  # MLflow, SQLAlchemy, sqlite3 and requests each raise their own kinds
            raise DashboardError(
                f"cannot read the tracking store {self.shown_uri!r}: {type(error).__name__}: {self.hide(error)}"
            ) from error
        newest: dict[str, SweepEntry] = {}
        for row in sorted(rows, key=lambda row: row.started or 0):
            name = row.tags.get(SWEEP) or experiments[row.experiment_id]
            status = row.tags.get(STATUS) or row.status.lower()
            newest[name] = SweepEntry(name, row.experiment_id, row.run_id, status, row.started)
        return sorted(newest.values(), key=lambda entry: (-(entry.started or 0), entry.name))

    def feed(self, name: str) -> Feed:
        """Returns the feed of one sweep, which is not refreshed yet if it is new."""
        if name not in self._feeds:
            entries = {entry.name: entry for entry in self.sweeps()}
            if name not in entries:
                raise DashboardError(_no_such_sweep(name, entries, self.shown_uri))
            with self._lock:
                self._feeds.setdefault(name, Feed(self, name, entries[name].experiment_id))
        return self._feeds[name]

    def run_link(self, experiment_id: str, run_id: str) -> str | None:
        """Returns the address of a run on MLflow's page, among models and not among agents; None if the page's address is not
        known."""
        if not self.mlflow_url:
            return None
        run = f"experiments/{quote(experiment_id, safe='')}/runs/{quote(run_id, safe='')}"
        return f"{self.mlflow_url}/#/{run}?workflowType=machine_learning"

    def curves(self, runs: Iterable[tuple[str, Any]], metric: str) -> dict[str, list[tuple[int, float]]]:
        """Histories of one metric: run id -> [(step, value), ...] in order of steps.

        `runs` are pairs of a run id and a marker; a history is fetched again when its marker has changed.
        """
        wanted = dict(runs)
        missing = [run for run, marker in wanted.items() if self._curves.get((run, metric), (None,))[0] != marker]
        if missing:
            client = self.client
            with ThreadPoolExecutor(max_workers=8 if self.uri.startswith("http") else 1) as pool:
                histories = pool.map(lambda run: client.get_metric_history(run, metric), missing)
                for run, history in zip(missing, histories, strict=True):
                    by_step = {point.step: point.value for point in sorted(history, key=lambda point: point.timestamp)}
                    self._curves[run, metric] = (wanted[run], sorted(by_step.items()))
        return {run: self._curves[run, metric][1] for run in wanted}

    def predictions(self, run_id: str) -> dict[str, list[Prediction]]:
        """Reads the answers of a trial that has ended, by split; none if the store has none of them (yet)."""
        if not self._answers.get(run_id) and self.client.list_artifacts(run_id, PREDICTIONS_FOLDER):
            with tempfile.TemporaryDirectory() as scratch:
                folder = self.client.download_artifacts(run_id, PREDICTIONS_FOLDER, scratch)
                self._answers[run_id] = read_predictions(Path(folder))
        return self._answers.get(run_id, {})


def _row(run: Run) -> RunRow:
    info, data = run.info, run.data
    return RunRow(
        run_id=info.run_id,
        experiment_id=info.experiment_id,
        status=str(info.status),
        started=info.start_time,
        ended=info.end_time,
        tags=dict(data.tags),
        params=dict(data.params),
        metrics={key: NAN if value != value else value for key, value in data.metrics.items()},
    )


def _no_such_sweep(name: str, entries: Iterable[str], uri: str) -> str:
    names = list(entries)
    if not names:
        return f"there is no sweep {name!r}: the tracking store {uri!r} holds none yet (craft-sweeps run SWEEP.yaml)"
    shown = ", ".join(map(repr, names[:20]))
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"there is no sweep {name!r} in {uri!r}.{nearest(name, names)} It holds {shown}{more}"
