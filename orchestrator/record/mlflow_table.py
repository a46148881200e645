"""`RunTable`: the runs of one sweep in the tracking store, each found before it is made, so that each is there once."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.record.mlflow_client import find_runs, make_sqlite, quiet_mlflow
from orchestrator.record.mlflow_run import NAME_LIMIT, TAG_LIMIT, StoredRun, cut
from orchestrator.record.tracking_uri import sqlite_file
from orchestrator.tools.journal import Event

log = logging.getLogger(__name__)

ORIGIN = ("mlflow.user", "mlflow.source.")
NOTE, RUN_NAME, VIEW = "mlflow.note.content", "mlflow.runName", "mlflow.sharedViewState."


class RunTable:
    """The runs of a sweep by (kind, key): kind is `sweep`, `configuration` or `trial`.

    Args:
        uri: resolved tracking URI; a SQLite file and the sweep's experiment are made if absent. Where no server keeps
            artifacts, they go into `mlartifacts` next to that file, or in the current folder.
    """

    def __init__(self, uri: str, sweep: str, sweep_id: str) -> None:
        quiet_mlflow()
        from mlflow import MlflowClient

        self.uri, self._sweep, self._sweep_id = uri, sweep, sweep_id
        file = sqlite_file(uri)
        if file is not None:
            make_sqlite(file)
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        home = file.parent if file is not None else Path.cwd()
        self.experiment = self._find_experiment(None if uri.startswith("http") else home / "mlartifacts")
        self.runs: dict[tuple[str, str], StoredRun] = {}
        self._uncertain = False
        self._search(f"tags.`craft.sweep_id` = '{self._sweep_id}'")

    def ensure(
        self, kind: str, key: str, name: str, event: Event, *, parent: str | None, tags: Mapping[str, str], reopen: bool = True
    ) -> StoredRun:
        """The run of that kind and key. It is made if absent, and set to running again if it had ended and `reopen` is set.

        Args:
            name: what MLflow shows for a run that is made.
            event: its time becomes the start of a run that is made.
            parent: the run's parent, by MLflow's id.
        """
        run = self.runs.get((kind, key)) or (self._find(kind, key) if self._uncertain else None)
        tags = {name: cut(value, TAG_LIMIT) for name, value in tags.items()}
        if parent:
            tags["mlflow.parentRunId"] = parent
        if run is None:
            owner = self.runs.get(("sweep", self._sweep))
            tags |= {name: value for name, value in (owner.tags if owner else {}).items() if name.startswith(ORIGIN)}
            tags |= {"craft.kind": kind, "craft.key": key, "craft.sweep": self._sweep, "craft.sweep_id": self._sweep_id}
            tags |= {"craft.status": "running"} | ({} if kind == "sweep" else {"craft.on_front": "false"})
            made = self.client.create_run(self.experiment, event["time"], tags, run_name=cut(name, NAME_LIMIT))
            run = StoredRun(made.info.run_id, tags=dict(tags))
        elif reopen:
            if run.status != "RUNNING":
                self.client.update_run(run.id, status="RUNNING")
                run.status = "RUNNING"
            run.add_tags({**tags, "craft.status": "running"})
        self.runs[kind, key] = run
        return run

    def end(self, run: StoredRun, status: str, time: int) -> None:
        """Sends what waits for the run, then closes it with MLflow's `status`."""
        run.flush(self.client)
        self.client.set_terminated(run.id, status, time)
        run.status = status

    def show(self, views: Mapping[str, str], line: str) -> None:
        """Gives the experiment saved views, by their keys, and `line` at the end of its description; what is there stays."""
        known = self.client.get_experiment(self.experiment).tags
        tags = {f"{VIEW}{key}": view for key, view in views.items()}
        if line not in (note := known.get(NOTE, "")):
            self.client.set_experiment_tag(self.experiment, NOTE, f"{note}\n\n{line}".strip())
        for name in tags.keys() - known.keys():
            self.client.set_experiment_tag(self.experiment, name, tags[name])

    def rename(self, run: StoredRun, name: str) -> None:
        """Gives a run the name `name`, unless it has it."""
        if run.tags.get(RUN_NAME) != (name := cut(name, NAME_LIMIT)):
            self.client.update_run(run.id, name=name)
            run.tags[RUN_NAME] = name

    def finish(self) -> None:
        """Sends what waits for any run at the end of a batch of events; the table then knows every run that the store has."""
        for run in self.runs.values():
            run.flush(self.client)
        self._uncertain = False

    def reconnect(self) -> bool:
        """Drops what waits after an error; says whether the store answers at the moment."""
        # The store may have carried out a request whose answer was lost: from now on, look before making a run.
        self._uncertain = True
        for run in self.runs.values():
            run.forget()
        try:
            self.client.search_experiments(max_results=1)
        except Exception as error:  # whatever the reason is, the store does not answer now
            log.debug("the tracking store does not answer: %s", type(error).__name__)
            return False
        return True

    def _find_experiment(self, artifact_root: Path | None) -> str:
        known = self.client.get_experiment_by_name(self._sweep)
        if known is None:
            location = None
            if artifact_root is not None:
                location = (artifact_root.resolve() / (re.sub(r"[^\w\-]", "_", self._sweep) or "_")).as_uri()
            # This tag makes MLflow's page show parameters and metrics instead of traces.
            tags = {"mlflow.experimentKind": "custom_model_development"}
            return self.client.create_experiment(self._sweep, artifact_location=location, tags=tags)
        if known.lifecycle_stage == "deleted":
            self.client.restore_experiment(known.experiment_id)
        return known.experiment_id

    def _find(self, kind: str, key: str) -> StoredRun | None:
        self._search(f"tags.`craft.sweep_id` = '{self._sweep_id}' and tags.`craft.key` = '{key.replace(chr(39), '')}'")
        return self.runs.get((kind, key))

    def _search(self, query: str) -> None:
        """Learns the sweep's runs that match. A lost request that is carried out late makes a second run of a key: the older
        run stays, the other one is deleted."""
        for run in find_runs(self.client, self.experiment, query):
            place = run.data.tags.get("craft.kind", ""), run.data.tags.get("craft.key", "")
            known = self.runs.get(place)
            if known is None:
                self.runs[place] = StoredRun.of(run)
            elif known.id != run.info.run_id:
                self.client.delete_run(run.info.run_id)
