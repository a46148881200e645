"""Journal events as MLflow runs: sweep run > configuration runs > trial runs, each there once however often it is written.

What makes repeating harmless: a run is found by its tags `craft.kind`, `craft.key` and `craft.sweep_id` before it is made; a
metric point carries the event's own time, and the same (key, time, step, value) is one row in the store; parameters that are
there are not written again; an artifact that is there, byte for byte, is not uploaded again. MLflow's own retries of requests
are off, because a request that was carried out but whose answer was lost would be carried out twice;
`orchestrator.record.shipper` repeats instead, after looking.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.plan.parameters import flatten, text
from orchestrator.record.artifacts import store_json, store_path
from orchestrator.record.folder import EFFECTIVE_FILE
from orchestrator.record.mlflow_text import NAME_LIMIT, PARAM_LIMIT, TAG_LIMIT, cut, named, stored_name, with_pictures
from orchestrator.record.tracking_uri import sqlite_file
from orchestrator.tools.escaping import paragraphs, plain
from orchestrator.tools.journal import Event

if TYPE_CHECKING:
    from mlflow.entities import Metric

log = logging.getLogger(__name__)

METRICS_A_BATCH, OTHERS_A_BATCH = 1000, 100
RUN_STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE", "MALFORMED_REQUEST")
MISSING = "RESOURCE_DOES_NOT_EXIST"


@dataclass
class _Run:
    """What is known of a run in the store, and what waits for the next batch to it."""

    id: str
    status: str = "RUNNING"
    artifact_uri: str = ""
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[Metric] = field(default_factory=list)
    new_params: dict[str, str] = field(default_factory=dict)
    new_tags: dict[str, str] = field(default_factory=dict)


class MlflowWriter:
    """Writes the events of one sweep's journal to the store at `uri`.

    Args:
        uri: resolved tracking URI.
        opened: the journal's first event (`sweep`, `sweep_id`, `time`).
        folder: what relative paths in events are relative to.
        artifact_root: folder of artifacts for stores that are no server.
    """

    def __init__(self, uri: str, opened: Event, folder: Path, artifact_root: Path | None) -> None:
        quiet_mlflow()
        from mlflow import MlflowClient

        self._sweep, self._sweep_id, self._folder = str(opened["sweep"]), str(opened["sweep_id"]), folder
        file = sqlite_file(uri)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._experiment = self._find_experiment(None if uri.startswith("http") else artifact_root)
        self._runs: dict[tuple[str, str], _Run] = {}
        self._uncertain = False
        self._load()

    @property
    def knows_sweep(self) -> bool:
        """Whether the store has this sweep's own run."""
        return ("sweep", self._sweep) in self._runs

    def write(self, events: Iterable[Event]) -> None:
        """Bring the store up to these events. Raises whatever the store raises; then the same events can be written again."""
        for event in events:
            handle = getattr(self, f"_on_{event.get('kind')}", None)
            if handle is not None:
                handle(event)
        self._flush()
        self._uncertain = False

    def reconnect(self) -> bool:
        """Forget what was under way after an error; says whether the store answers at the moment."""
        # A request whose answer was lost may have been carried out: from now on look before making anything.
        self._uncertain = True
        for run in self._runs.values():
            run.metrics, run.new_params, run.new_tags = [], {}, {}
        try:
            self._client.search_experiments(max_results=1)
        except Exception as error:  # any reason is the same answer: not now
            log.debug("the tracking store does not answer: %s", type(error).__name__)
            return False
        return True

    def _on_sweep_started(self, event: Event) -> None:
        run = self._ensure("sweep", self._sweep, self._sweep, event, parent=None, tags={})
        info = dict(event["info"])
        for name, artifact in (("manifest", "manifest.json"), ("sweep_yaml", EFFECTIVE_FILE)):
            if info.get(name):
                store_json(self._client, run.id, info.pop(name), artifact)
        self._params(run, flatten(info))

    def _on_trial_started(self, event: Event) -> None:
        shared = {f"craft.{name}": text(event[name]) for name in ("configuration", "method", "protocol", "label")}
        configuration = self._configuration(event["configuration"], event["label"], event["method"], event, shared)
        label = named(event["method"], event["label"])
        name = f"{label} · {event['task']} · seed {event['seed']}"
        tags = shared | {"craft.task": text(event["task"]), "craft.seed": text(event["seed"])}
        run = self._ensure("trial", event["key"], name, event, parent=configuration.id, tags=tags)
        self._params(run, event["params"])

    def _on_trial_progress(self, event: Event) -> None:
        run = self._runs.get(("trial", event["key"]))
        if run is None:
            log.warning("progress of trial %s, which has no run: left out", event["key"])
            return
        for row in event["rows"]:
            self._metrics(run, row, event["time"])
        if event.get("total_steps"):
            self._params(run, {"total_steps": event["total_steps"]})

    def _on_trial_ended(self, event: Event) -> None:
        run = self._runs.get(("trial", event["key"]))
        if run is None:
            log.warning("end of trial %s, which has no run: left out", event["key"])
            return
        result = event["result"]
        self._metrics(run, event["row"], event["time"])
        tags = {"craft.status": result["status"]}
        tags.update({f"craft.fact.{name}": text(value) for name, value in result.get("facts", {}).items()})
        told = [f"- {plain(note)}" for note in result.get("notes", [])]
        if result.get("error"):
            tags["craft.error"] = result["error"]
            told.insert(0, paragraphs(result["error"]))
        if result.get("notes"):
            tags["craft.notes"] = "\n".join(result["notes"])
        if told:
            tags["mlflow.note.content"] = "\n\n".join([f"**{result['status']}**", *told])
        self._tags(run, tags)
        self._inputs(run, result.get("facts", {}))
        self._end(run, RUN_STATUS[result["status"]], event["time"])

    def _on_trial_interrupted(self, event: Event) -> None:
        self._interrupted("trial", event)

    def _on_configuration_interrupted(self, event: Event) -> None:
        self._interrupted("configuration", event)

    def _on_configuration_ended(self, event: Event) -> None:
        method = text(event["params"].get("method", ""))
        run = self._configuration(event["key"], event["label"], method, event, {"craft.label": event["label"]})
        self._params(run, flatten(event["params"]))
        self._metrics(run, event["row"], event["time"])
        summary = event["summary"]
        complete = summary.get("complete", True) in (True, "true", "True")
        tags = {f"craft.{name}": text(value) for name, value in summary.items() if not isinstance(value, list)}
        status = summary.get("status", "finished" if complete else "incomplete")
        self._tags(run, tags | {"craft.status": status})
        # Incomplete or infeasible is no failure; which of them it is stands in the tag.
        self._end(run, RUN_STATUS.get(status, "FINISHED"), event["time"])

    def _on_artifact(self, event: Event) -> None:
        self._flush()
        run = self._runs.get(("trial", event["key"]) if event["key"] else ("sweep", self._sweep))
        if run is None:
            log.warning("artifact %s belongs to no run: left out", event["path"])
            return
        path = self._folder / event["path"]
        digest = store_path(self._client, run.id, run.artifact_uri, path, event["to"])
        if event["to"]:
            self._tags(run, {f"craft.{event['to']}_sha256": digest})

    def _on_sweep_ended(self, event: Event) -> None:
        run = self._ensure("sweep", self._sweep, self._sweep, event, parent=None, tags={}, reopen=False)
        summary = dict(event["summary"])
        self._metrics(run, event["row"] | {"step": 0}, event["time"])
        if "description" in summary:
            pictures = [one.path for one in self._client.list_artifacts(run.id) if one.path.endswith(".png")]
            self._tags(run, {"mlflow.note.content": with_pictures(summary.pop("description"), run.id, pictures)})
        marks = {
            name: set(summary.pop(name)) for name in ("on_front", "may_be_on_front") if isinstance(summary.get(name), list)
        }
        if summary.get("knee"):
            marks["knee"] = {summary["knee"]}
        for name, members in marks.items():
            self._mark(f"craft.{name}", members)
        self._tags(run, {f"craft.{name}": text(value) for name, value in summary.items()} | {"craft.status": event["status"]})
        self._end(run, RUN_STATUS.get(event["status"], "FAILED"), event["time"])

    def _interrupted(self, kind: str, event: Event) -> None:
        run = self._runs.get((kind, event["key"]))
        if run is not None and run.status == "RUNNING":
            self._tags(run, {"craft.status": "interrupted"})
            self._end(run, "KILLED", event["time"])

    def _configuration(self, key: str, label: str, method: str, event: Event, tags: Mapping[str, str]) -> _Run:
        known = self._runs.get(("configuration", key))
        if known is not None and event["kind"] == "trial_started" and known.status == "RUNNING":
            return known
        parent = self._ensure("sweep", self._sweep, self._sweep, event, parent=None, tags={}, reopen=False).id
        full = {"craft.configuration": key, **tags}
        return self._ensure("configuration", key, named(method, label), event, parent=parent, tags=full)

    def _ensure(
        self, kind: str, key: str, name: str, event: Event, *, parent: str | None, tags: Mapping[str, str], reopen: bool = True
    ) -> _Run:
        """The run of that kind and key: made if absent, set running again if it had ended."""
        run = self._runs.get((kind, key)) or (self._find(kind, key) if self._uncertain else None)
        tags = {name: cut(value, TAG_LIMIT) for name, value in tags.items()}
        if parent:
            tags["mlflow.parentRunId"] = parent
        if run is None:
            tags |= {"craft.kind": kind, "craft.key": key, "craft.sweep": self._sweep, "craft.sweep_id": self._sweep_id}
            tags |= {"craft.status": "running"} | ({} if kind == "sweep" else {"craft.on_front": "false"})
            made = self._client.create_run(self._experiment, event["time"], tags, run_name=cut(name, NAME_LIMIT))
            run = _Run(made.info.run_id, artifact_uri=made.info.artifact_uri, tags=dict(tags))
        elif reopen:
            if run.status != "RUNNING":
                self._client.update_run(run.id, status="RUNNING")
                run.status = "RUNNING"
            self._tags(run, {**tags, "craft.status": "running"})
        self._runs[kind, key] = run
        return run

    def _params(self, run: _Run, params: Mapping[str, Any]) -> None:
        for name, value in params.items():
            if value is None:
                continue
            name, content = stored_name(name), cut(text(value), PARAM_LIMIT)
            known = run.params.get(name, run.new_params.get(name))
            if known is None:
                run.new_params[name] = content
            elif known != content:
                # A run's parameter cannot change in MLflow; an extended sweep's newest value is told beside the first.
                self._tags(run, {f"craft.now.{name}": content})

    def _metrics(self, run: _Run, row: Mapping[str, Any], time: int) -> None:
        from mlflow.entities import Metric

        time = int(1000 * row["time"]) if "time" in row else time
        for name, value in row.items():
            if name in ("step", "time"):
                continue
            name = stored_name(name)
            number = float(value)
            if math.isfinite(number):
                run.metrics.append(Metric(name, number, time, int(row["step"])))
            elif f"craft.nonfinite.{name}" not in run.tags | run.new_tags:
                self._tags(run, {f"craft.nonfinite.{name}": f"{number} at step {row['step']}"})

    def _tags(self, run: _Run, tags: Mapping[str, str]) -> None:
        for name, value in tags.items():
            name, value = stored_name(name), cut(value, TAG_LIMIT)
            if run.tags.get(name) != value:
                run.new_tags[name] = value
            else:
                run.new_tags.pop(name, None)

    def _inputs(self, run: _Run, facts: Mapping[str, Any]) -> None:
        """The task's data as an MLflow dataset, named by task and told apart by fingerprint."""
        digest = facts.get("data_fingerprint") or facts.get("fingerprint")
        if not digest:
            return
        from mlflow.entities import Dataset, DatasetInput, InputTag

        name = cut(run.tags.get("craft.task", "data"), NAME_LIMIT)
        dataset = Dataset(name, str(digest)[:36], source_type="code", source=f'{{"task": "{stored_name(name)}"}}')
        inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])]
        self._client.log_inputs(run.id, inputs)

    def _mark(self, tag: str, members: set[str]) -> None:
        """Set `tag` to true on the configurations in `members` and on their trials, and to false on the others."""
        for (kind, _), run in self._runs.items():
            if kind != "sweep":
                value = "true" if run.tags.get("craft.configuration") in members else "false"
                if value == "true" or tag in run.tags:
                    self._tags(run, {tag: value})

    def _end(self, run: _Run, status: str, time: int) -> None:
        self._flush_run(run)
        self._client.set_terminated(run.id, status, time)
        run.status = status

    def _flush(self) -> None:
        for run in self._runs.values():
            self._flush_run(run)

    def _flush_run(self, run: _Run) -> None:
        from mlflow.entities import Param, RunTag

        while run.metrics:
            self._client.log_batch(run.id, metrics=run.metrics[:METRICS_A_BATCH])
            del run.metrics[:METRICS_A_BATCH]
        for start in range(0, max(len(run.new_params), len(run.new_tags)), OTHERS_A_BATCH):
            params = dict(list(run.new_params.items())[start : start + OTHERS_A_BATCH])
            tags = dict(list(run.new_tags.items())[start : start + OTHERS_A_BATCH])
            self._client.log_batch(
                run.id,
                params=[Param(name, value) for name, value in params.items()],
                tags=[RunTag(name, value) for name, value in tags.items()],
            )
            run.params |= params
            run.tags |= tags
        run.new_params, run.new_tags = {}, {}

    def _find_experiment(self, artifact_root: Path | None) -> str:
        known = self._client.get_experiment_by_name(self._sweep)
        if known is None:
            location = None
            if artifact_root is not None:
                location = (artifact_root.resolve() / (re.sub(r"[^\w\-]", "_", self._sweep) or "_")).as_uri()
            # by which MLflow's page knows to show parameters and metrics, not traces
            tags = {"mlflow.experimentKind": "custom_model_development"}
            return self._client.create_experiment(self._sweep, artifact_location=location, tags=tags)
        if known.lifecycle_stage == "deleted":
            self._client.restore_experiment(known.experiment_id)
        return known.experiment_id

    def _load(self) -> None:
        self._search(f"tags.`craft.sweep_id` = '{self._sweep_id}'")

    def _find(self, kind: str, key: str) -> _Run | None:
        self._search(f"tags.`craft.sweep_id` = '{self._sweep_id}' and tags.`craft.key` = '{key.replace(chr(39), '')}'")
        return self._runs.get((kind, key))

    def _search(self, query: str) -> None:
        """Learn the sweep's runs that match. Of two runs of one key (a lost answer, carried out late) the older one stays."""
        page: str | None = None
        while True:
            found = self._client.search_runs(
                [self._experiment], query, max_results=1000, order_by=["attributes.start_time ASC"], page_token=page
            )
            for run in found:
                place = run.data.tags.get("craft.kind", ""), run.data.tags.get("craft.key", "")
                known = self._runs.get(place)
                if known is not None and known.id != run.info.run_id:
                    self._client.delete_run(run.info.run_id)
                elif known is None:
                    self._runs[place] = _Run(
                        run.info.run_id, run.info.status, run.info.artifact_uri, dict(run.data.params), dict(run.data.tags)
                    )
            page = found.token
            if not page:
                return


def is_refusal(error: Exception) -> bool:
    """Whether trying again cannot help: the store understood and said no, or the event itself is unfit."""
    code = getattr(error, "error_code", None)
    return code in REFUSALS or isinstance(error, KeyError | TypeError | ValueError | FileNotFoundError)


def is_lost(error: BaseException) -> bool:
    """Whether the request or its answer was lost on the way to a server, as told from what a server answered."""
    from requests import RequestException

    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, RequestException):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def is_missing(error: Exception) -> bool:
    """Whether the store lost, or somebody deleted, a run that was there."""
    return getattr(error, "error_code", None) == MISSING


def quiet_mlflow() -> None:
    """Keep MLflow's and Alembic's messages off the screen, its telemetry off the network, its own retries out of the way."""
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
