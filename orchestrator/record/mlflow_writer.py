"""Journal events as MLflow runs: sweep run > configuration runs > trial runs, each there once however often it is written.

    event  -->  MlflowWriter (which run, which words)  -->  RunTable (finds or makes runs)  -->  StoredRun (sends in batches)

Writing an event twice is harmless: a run is found by its tags `craft.kind`, `craft.key` and `craft.sweep_id` before it is made;
a metric point carries the event's own time, and the same (key, time, step, value) is one row in the store; a parameter that the
store has is not sent again; a folder of artifacts that the store has is not uploaded again.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from craft.words import paragraphs, plain, redact
from orchestrator.plan.parameters import flatten, text
from orchestrator.record.artifacts import store_json, store_path
from orchestrator.record.folder import EFFECTIVE_FILE
from orchestrator.record.mlflow_run import StoredRun, short_name, trial_name, with_pictures
from orchestrator.record.mlflow_table import NOTE, RunTable
from orchestrator.record.mlflow_views import SIZE, address, links, saved_views
from orchestrator.tools.journal import Event

log = logging.getLogger(__name__)

RUN_STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
OF_ONE_TRY = ("craft.error", "craft.notes", NOTE)
EXTENDED = ("tasks", "seeds", "tuning_seeds", "scheduler", "configurations", "trials")
"""What an extension of a sweep changes: tags of its run, because a parameter of MLflow keeps its first value."""


class MlflowWriter:
    """Writes the events of one sweep's journal to the store at `uri`.

    Args:
        uri: resolved tracking URI.
        opened: the journal's first event (`sweep`, `sweep_id`, `time`).
        folder: what relative paths in events are relative to.
    """

    def __init__(self, uri: str, opened: Event, folder: Path) -> None:
        self._sweep, self._sweep_id, self._folder = str(opened["sweep"]), str(opened["sweep_id"]), folder
        self._began = int(opened["time"])
        self._table = RunTable(uri, self._sweep, self._sweep_id)

    @property
    def page(self) -> str:
        """The place of the front's saved view below the address of MLflow's server."""
        return address(self._table.experiment, self._sweep_id)

    @property
    def knows_sweep(self) -> bool:
        """Whether the store has this sweep's own run."""
        return ("sweep", self._sweep) in self._table.runs

    def watch_machine(self, uri: str) -> bool:
        """Starts MLflow's own samples of this machine, a minute each, in the sweep's run; False while the store has none."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        if self.knows_sweep:
            run_id = self._table.runs["sweep", self._sweep].id
            SystemMetricsMonitor(run_id, sampling_interval=60, resume_logging=True, tracking_uri=uri).start()
        return self.knows_sweep

    def write(self, events: Iterable[Event]) -> None:
        """Brings the store up to these events. Raises whatever the store raises; the same events can then be written again."""
        for event in events:
            handle = getattr(self, f"_on_{event.get('kind')}", None)
            if handle is not None:
                handle(event)
        self._table.finish()

    def reconnect(self) -> bool:
        """Forgets what was under way after an error; says whether the store answers at the moment."""
        return self._table.reconnect()

    def _on_sweep_started(self, event: Event) -> None:
        info = dict(event["info"])
        tags = info.pop("origin", {}) | {f"craft.{name}": text(info.pop(name)) for name in EXTENDED if name in info}
        run = self._table.ensure("sweep", self._sweep, self._sweep, event, parent=None, tags=tags)
        for name, artifact in (("manifest", "manifest.json"), ("sweep_yaml", EFFECTIVE_FILE)):
            if info.get(name):
                store_json(self._table.client, run.id, info.pop(name), artifact)
        run.add_params(flatten(info))
        run.flush(self._table.client)  # the runs that follow take user and source from it
        tasks = tags.get("craft.tasks", "").split(",")
        views = saved_views(self._sweep, self._sweep_id, tasks, json.loads(info.get("objectives", "{}")), self._began)
        self._table.show(views, links(self._sweep, self._table.experiment, self._sweep_id))

    def _on_sweep_underway(self, event: Event) -> None:
        run = self._table.runs.get(("sweep", self._sweep))
        if run is not None:
            run.add_tags({"craft.underway": json.dumps(event["told"] | {"time": event["time"]}, ensure_ascii=False)})

    def _on_trial_started(self, event: Event) -> None:
        shared = {f"craft.{name}": text(event[name]) for name in ("configuration", "method", "protocol", "label")}
        shared |= {"craft.tunes": event["tunes"]} if "tunes" in event else {}
        configuration = self._configuration(event["configuration"], event["label"], event["method"], event, shared)
        tags = shared | {f"craft.{name}": text(event[name]) for name in ("task", "seed", "carried") if name in event}
        name = trial_name(tags, event.get("size"))
        run = self._table.ensure("trial", event["key"], name, event, parent=configuration.id, tags=tags)
        run.add_params(event["params"])

    def _on_trial_progress(self, event: Event) -> None:
        run = self._table.runs.get(("trial", event["key"]))
        if run is None:
            log.warning("progress of trial %s, which has no run: left out", event["key"])
            return
        for row in event["rows"]:
            run.add_metrics(row, event["time"])
        if event.get("total_steps"):
            run.add_params({"total_steps": event["total_steps"]})

    def _on_trial_ended(self, event: Event) -> None:
        run = self._table.runs.get(("trial", event["key"]))
        if run is None:
            log.warning("end of trial %s, which has no run: left out", event["key"])
            return
        result = event["result"]
        run.add_metrics(event["row"], event["time"])
        if SIZE in event["row"]:
            self._table.rename(run, trial_name(run.tags, float(event["row"][SIZE])))
        tags = {"craft.status": result["status"]}
        tags.update({f"craft.fact.{name}": text(value) for name, value in result.get("facts", {}).items()})
        said = [f"- {plain(note)}" for note in result.get("notes", [])]
        if result.get("error"):
            tags["craft.error"] = result["error"]
            said.insert(0, paragraphs(result["error"]))
        if result.get("notes"):
            tags["craft.notes"] = "\n".join(result["notes"])
        if said:
            tags[NOTE] = "\n\n".join([f"**{result['status']}**", *said])
        # What an earlier try of the trial left there is no longer true.
        tags |= {name: "" for name in OF_ONE_TRY if name in run.tags and name not in tags}
        run.add_tags(tags)
        run.send_inputs(self._table.client, result.get("facts", {}))
        self._table.end(run, RUN_STATUS[result["status"]], event["time"])

    def _on_trial_interrupted(self, event: Event) -> None:
        self._interrupted("trial", event)

    def _on_configuration_interrupted(self, event: Event) -> None:
        self._interrupted("configuration", event)

    def _on_configuration_ended(self, event: Event) -> None:
        method = text(event["params"].get("method", ""))
        run = self._configuration(event["key"], event["label"], method, event, {"craft.label": event["label"]})
        self._table.rename(run, short_name(method, event["label"], event["shown"].get(SIZE)))
        params = flatten(event["params"])
        run.add_params(params | {name: "differs between trials" for name in run.params if name not in params})
        run.add_metrics(event["row"], event["time"])
        summary = event["summary"]
        complete = summary.get("complete", True) in (True, "true", "True")
        tags = {f"craft.{name}": text(value) for name, value in summary.items() if not isinstance(value, list)}
        status = summary.get("status", "finished" if complete else "incomplete")
        run.add_tags(tags | {"craft.status": status, NOTE: self._described(event)})
        # Incomplete or infeasible is no failure; which of them it is stands in the tag.
        self._table.end(run, RUN_STATUS.get(status, "FINISHED"), event["time"])

    def _on_artifact(self, event: Event) -> None:
        run = self._table.runs.get(("trial", event["key"]) if event["key"] else ("sweep", self._sweep))
        if run is None:
            log.warning("artifact %s belongs to no run: left out", event["path"])
            return
        path = self._folder / event["path"]
        tag = f"craft.{event['to']}_sha256"
        digest = store_path(self._table.client, run.id, path, event["to"], run.tags.get(tag))
        if event["to"]:
            run.add_tags({tag: digest})

    def _on_sweep_ended(self, event: Event) -> None:
        run = self._table.ensure("sweep", self._sweep, self._sweep, event, parent=None, tags={}, reopen=False)
        summary = dict(event["summary"])
        run.add_metrics(event["row"] | {"step": 0}, event["time"])
        if "description" in summary:
            pictures = [one.path for one in self._table.client.list_artifacts(run.id) if one.path.endswith(".png")]
            run.add_tags({NOTE: with_pictures(summary.pop("description"), run.id, pictures)})
        marked = ("on_front", "may_be_on_front", "enough")
        marks = {name: set(summary.pop(name)) for name in marked if isinstance(summary.get(name), list)}
        if summary.get("knee"):
            marks["knee"] = {summary["knee"]}
        for name, members in marks.items():
            self._mark(f"craft.{name}", members)
        tags = {f"craft.{name}": text(value) for name, value in summary.items()}
        run.add_tags(tags | {"craft.underway": "", "craft.status": event["status"]})
        self._table.end(run, RUN_STATUS.get(event["status"], "FAILED"), event["time"])

    def _interrupted(self, kind: str, event: Event) -> None:
        run = self._table.runs.get((kind, event["key"]))
        if run is not None and run.status == "RUNNING":
            run.add_tags({"craft.status": "interrupted"})
            self._table.end(run, "KILLED", event["time"])

    def _described(self, event: Event) -> str:
        """The description of a configuration's run: its score, and the command that takes its adapter."""
        shown, error, uri = event["shown"], event["summary"].get("error"), self._table.uri
        lines = [paragraphs(error)] if error else []
        if "score" in shown:
            low, high = shown.get("score_low"), shown.get("score_high")
            interval = "" if low is None or low == high else f" ({low:.2f} to {high:.2f})"
            size = f", {shown[SIZE]:,.0f} trainable parameters" if SIZE in shown else ""
            store = f" --tracking-uri {shlex.quote(uri)}" if redact(uri) == uri else ""
            command = f"python -m orchestrator.adapters {shlex.quote(self._sweep)} --pick {event['key']} --to adapter{store}"
            lines += [f"**score {shown['score']:.2f}**{interval}{size}", f"Take its adapter:\n\n    {command}"]
        return "\n\n".join(lines)

    def _configuration(self, key: str, label: str, method: str, event: Event, tags: Mapping[str, str]) -> StoredRun:
        known = self._table.runs.get(("configuration", key))
        if known is not None and event["kind"] == "trial_started" and known.status == "RUNNING":
            return known
        parent = self._table.ensure("sweep", self._sweep, self._sweep, event, parent=None, tags={}, reopen=False).id
        full = {"craft.configuration": key, **tags}
        name = short_name(method, label, event.get("size"))
        return self._table.ensure("configuration", key, name, event, parent=parent, tags=full)

    def _mark(self, tag: str, members: set[str]) -> None:
        """Sets `tag` to true on the configurations in `members` and on their trials, and to false on the others."""
        for (kind, _), run in self._table.runs.items():
            if kind != "sweep":
                value = "true" if run.tags.get("craft.configuration") in members else "false"
                if value == "true" or tag in run.tags:
                    run.add_tags({tag: value})
