"""The record of a sweep in MLflow, written so that it never delays training.

Events go to a journal on disk; a thread (`orchestrator.record.shipper`) carries them to the tracking store.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from craft.results import PREDICTIONS_FOLDER
from craft.words import redact, redacted
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.record.folder import SweepFolder
from orchestrator.record.shipper import Shipper
from orchestrator.record.tracking_uri import TrackingError, resolve_uri, sqlite_file
from orchestrator.tools.journal import Event, Journal, read

log = logging.getLogger(__name__)


OF_A_ROW = frozenset({"step", "time"})
"""What of a row of metrics is no metric: its step, and when it was measured (seconds since 1970) where that is known."""


class Tracker:
    """One sweep's writer. Use one at a time for a folder; `close` it.

    Args:
        uri: tracking URI; a relative SQLite path is taken from the current folder.
        sweep_name: the MLflow experiment.
        folder: the sweep's own folder, where the journal lies.
        artifact_root: where artifacts go when no server decides it; beside the SQLite file if absent.

    Raises:
        TrackingError: the URI cannot be used, or the folder's journal belongs to another sweep.
        JournalBusy: another process tracks into this folder.
    """

    def __init__(self, uri: str, sweep_name: str, folder: Path, *, artifact_root: Path | None = None) -> None:
        self.uri = resolve_uri(uri)
        self.folder = folder.resolve()
        self._lock = threading.Lock()
        self._journal = Journal(SweepFolder(self.folder).journal)
        self._unwritten: list[Event] = []
        self._last_step: dict[tuple[str, str], int] = {}
        self._open_trials: dict[str, None] = {}
        self._configurations: set[str] = set()
        try:
            opened = self._recall(sweep_name)
        except BaseException:
            self._journal.close()
            raise
        self.sweep_id: str = opened["sweep_id"]
        file = sqlite_file(self.uri)
        root = artifact_root or (file.parent if file else Path.cwd()) / "mlartifacts"
        self._shipper = Shipper(self.folder, self.uri, opened, root)
        self._shipper.start()

    def sweep_started(self, info: Mapping[str, Any]) -> None:
        """Open (or reopen) the sweep's run. `info` becomes its parameters, flat; `manifest` (a dict) and `sweep_yaml` (text)
        in it become artifacts."""
        self._write({"kind": "sweep_started", "info": redacted(dict(info))})

    def trial_started(self, spec: TrialSpec, params: Mapping[str, Any] | None = None) -> None:
        """Open the trial's run, or reopen it where it has one. `params` adds to, or overrides, what the spec says of itself."""
        self._open_trials[spec.key] = None
        self._configurations.add(spec.configuration)
        self._write(
            {
                "kind": "trial_started",
                "key": spec.key,
                "configuration": spec.configuration,
                "label": spec.label,
                "task": spec.run.task,
                "seed": spec.run.seed,
                "method": spec.run.method,
                "protocol": spec.run.protocol,
                "params": redacted({**flat_parameters(spec.run), **(params or {})}),
            }
        )

    def trial_progress(self, key: str, progress: Mapping[str, Any]) -> None:
        """Metrics of one evaluation, and the training points before it. A step that is already recorded is left out, so a
        trial that resumes behind its last report repeats nothing."""
        at = progress.get("time")
        now = at if isinstance(at, int | float) and at > 1e8 else time.time()
        rows = [dict(point) for point in progress.get("points", ())]
        rows.append({**progress.get("metrics", {}), "step": progress["step"]})
        if "epoch" in progress:
            rows[-1]["epoch"] = progress["epoch"]
        rows = [row for row in (self._new(key, row) for row in rows) if row.keys() - OF_A_ROW]
        if rows:
            self._write({"kind": "trial_progress", "key": key, "rows": rows, "total_steps": progress.get("total_steps")}, now)

    def trial_paused(self, key: str) -> None:
        """The trial waits for its turn: its run is closed as interrupted, and opened again when it goes on."""
        if key in self._open_trials:
            del self._open_trials[key]
            self._write({"kind": "trial_interrupted", "key": key})

    def trial_ended(self, result: TrialResult, adapter: Path | None = None) -> None:
        """Close the trial's run: final metrics, counts, status and reason; the adapter's folder becomes its artifact, and the
        folder of answers beside it, where there is one."""
        self._open_trials.pop(result.key, None)
        row = {**result.counts, "seconds": result.seconds, **result.metrics, "step": result.steps}
        if "search_score" in result.metrics:
            # That of the weights that were taken: MLflow shows of a metric by step only the last.
            row["best_search_score"] = result.metrics["search_score"]
        row = self._new(result.key, row)
        content = redacted(result.to_json()) | {"metrics": {}, "counts": {}}
        events = [{"kind": "trial_ended", "key": result.key, "row": row, "result": content}]
        if adapter is not None:
            events.append({"kind": "artifact", "key": result.key, "path": self._relative(adapter), "to": "adapter"})
            answers = adapter.parent / PREDICTIONS_FOLDER
            if answers.is_dir():
                events.append(
                    {"kind": "artifact", "key": result.key, "path": self._relative(answers), "to": PREDICTIONS_FOLDER}
                )
        self._write_all(events)

    def configuration_ended(
        self, configuration_id: str, label: str, params: Mapping[str, Any], summary: Mapping[str, Any]
    ) -> None:
        """Close a configuration's run with what `Summary.tracked` says of it: numbers become metrics, text becomes tags.

        A configuration ends again when trials were added or tried again. The metrics' step is the number of trials done and
        planned together, which grows with either.
        """
        self._configurations.discard(configuration_id)
        step = int(summary.get("trials_done", 0) + summary.get("trials_planned", 0))
        row = self._new(f"configuration/{configuration_id}", _numbers(summary) | {"step": step})
        self._write(
            {
                "kind": "configuration_ended",
                "key": configuration_id,
                "label": label,
                "params": redacted(dict(params)),
                "row": row,
                "summary": redacted(_plain(summary)),
            }
        )

    def sweep_ended(self, status: str, summary: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        """Close the sweep's run.

        Args:
            status: "finished", "failed" or "interrupted". Runs of trials and configurations still open are marked as killed.
            summary: numbers become metrics; `description` the run's description (Markdown); `on_front` and
                `may_be_on_front` (lists of configuration ids) and `knee` (one id) tag those configurations and their trials.
            files: what becomes the sweep run's artifacts.
        """
        events: list[Event] = [{"kind": "trial_interrupted", "key": key} for key in self._open_trials]
        events += [{"kind": "configuration_interrupted", "key": key} for key in sorted(self._configurations)]
        self._open_trials.clear()
        events += [{"kind": "artifact", "key": None, "path": self._relative(path), "to": ""} for path in files]
        events.append({"kind": "sweep_ended", "status": status, "summary": redacted(_plain(summary)), "row": _numbers(summary)})
        self._write_all(events)

    def add_file(self, path: Path) -> None:
        """One more artifact of the sweep's run, also after `sweep_ended` (the page, which is made from the finished record)."""
        self._write({"kind": "artifact", "key": None, "path": self._relative(path), "to": ""})

    @property
    def open_configurations(self) -> frozenset[str]:
        """Configurations with a run that nobody has closed with `configuration_ended`."""
        return frozenset(self._configurations)

    def settle(self, results: Mapping[str, TrialResult], adapters: Mapping[str, Path] | None = None) -> None:
        """After a restart: close the runs of trials that are over by the ledger but were cut off before the tracker heard it.

        Args:
            results: what the ledger holds, by trial key; results that are not settled are passed over.
            adapters: adapter folders by trial key, as far as they are known.
        """
        for key in list(self._open_trials):
            if key in results and results[key].settled:
                self.trial_ended(results[key], (adapters or {}).get(key))

    def flush(self, timeout_s: float) -> int:
        """Wait until everything is shipped, at most `timeout_s` seconds; returns how many events still wait."""
        with self._lock:
            self._append([])
        return self._shipper.drain(timeout_s) + len(self._unwritten)

    def close(self, timeout_s: float = 30.0) -> int:
        """Ship what can be shipped in `timeout_s` seconds and stop; returns how many events are left in the journal."""
        left = self.flush(timeout_s)
        self._shipper.stop()
        self._journal.close()
        return left

    def _write(self, event: Event, at: float | None = None) -> None:
        self._write_all([event], at)

    def _write_all(self, events: list[Event], at: float | None = None) -> None:
        stamp = int((at if at is not None else time.time()) * 1000)
        with self._lock:
            self._append([{**event, "time": stamp} for event in events])

    def _append(self, events: list[Event]) -> None:
        # A full disk must not stop training: what could not be written waits in memory and goes first the next time.
        self._unwritten += events
        try:
            self._journal.extend(self._unwritten)
        except OSError as error:
            log.warning("the tracker's journal cannot be written (%s); %d events wait in memory", error, len(self._unwritten))
            return
        self._shipper.added(len(self._unwritten))
        self._unwritten = []

    def _new(self, key: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """The part of `row` that is not recorded yet: metrics whose last recorded step lies before this one."""
        step = int(row["step"])
        fresh: dict[str, Any] = {"step": step} | ({"time": row["time"]} if "time" in row else {})
        for name, value in row.items():
            if name not in OF_A_ROW and isinstance(value, int | float) and step > self._last_step.get((key, name), -1):
                self._last_step[key, name] = step
                fresh[name] = _number(value)
        return fresh

    def _recall(self, sweep_name: str) -> Event:
        """Read the journal of earlier attempts: which steps are recorded, which runs are open. Returns its first event."""
        opened: Event | None = None
        for event, _ in read(self._journal.path):
            kind, key = event.get("kind"), event.get("key")
            if kind == "opened":
                opened = event
            elif kind == "trial_started":
                self._open_trials[str(key)] = None
                self._configurations.add(event["configuration"])
            elif kind in ("trial_ended", "trial_interrupted"):
                self._open_trials.pop(str(key), None)
            elif kind in ("configuration_ended", "configuration_interrupted"):
                self._configurations.discard(str(key))
            owner = f"configuration/{key}" if kind == "configuration_ended" else str(key)
            for row in event.get("rows") or [event.get("row") or {}]:
                for name in row:
                    self._last_step[owner, name] = max(int(row.get("step", 0)), self._last_step.get((owner, name), -1))
        if opened is None:
            opened = {"kind": "opened", "sweep": sweep_name, "sweep_id": uuid.uuid4().hex, "uri": redact(self.uri)}
            self._journal.append({**opened, "time": int(time.time() * 1000)})
        if opened["sweep"] != sweep_name:
            raise TrackingError(f"{self.folder} holds the journal of sweep {opened['sweep']!r}, not of {sweep_name!r}")
        return opened

    def _relative(self, path: Path) -> str:
        path = path.resolve()
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)


def _number(value: float) -> float | str:
    """JSON has no infinities and no NaN: those travel as text, and the writer makes a tag of them."""
    return value if math.isfinite(value) else str(value)


def _numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: float(value)
        for name, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _plain(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | str | list) else list(value) if isinstance(value, tuple | set) else str(value)
        for name, value in summary.items()
        if isinstance(value, bool) or not isinstance(value, int | float)
    }
