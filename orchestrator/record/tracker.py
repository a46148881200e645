"""The record of a sweep in MLflow, written so that it never delays training.

Events go to a journal; a shipper (`orchestrator.record.shipper`) carries them to the tracking store. The shipper also flushes
the journal to the disk: the caller, which drives all trials, never waits for that. The ledger holds every result by then.
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

from craft.methods import shown_method
from craft.results import PREDICTIONS_FOLDER
from craft.words import redact, redacted
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.trial import Trial
from orchestrator.record.folder import SweepFolder
from orchestrator.record.shipper import Shipper, ShipperProcess, count_waiting
from orchestrator.record.tracking_uri import TrackingError, resolve_uri
from orchestrator.state.entry import TrialResult
from orchestrator.tools.journal import Event, Journal, read

log = logging.getLogger(__name__)


OF_A_ROW = frozenset({"step", "time"})
"""Keys of a metrics row that are not metrics: its step, and when it was measured (seconds since 1970) if that is known."""
SHOWN = ("score", "score_low", "score_high", "trainable_parameters")
"""Numbers in the name and the description of a configuration's run."""


class Tracker:
    """Writes the record of one sweep. A folder has one tracker at a time; `close` it.

    Args:
        uri: tracking URI; a relative SQLite path is taken from the current folder.
        sweep_name: the MLflow experiment.
        folder: the sweep's own folder; the journal is written there.
        own_process: a process of its own ships while events come, as a sweep needs it. Otherwise `flush` and `close` ship.

    Raises:
        TrackingError: the URI cannot be used, or the folder's journal belongs to another sweep.
        ValueError: another process tracks into this folder.
    """

    def __init__(self, uri: str, sweep_name: str, folder: Path, *, own_process: bool = False) -> None:
        self.uri = resolve_uri(uri)
        self.folder = folder.resolve()
        self._lock = threading.Lock()
        self._journal = Journal(SweepFolder(self.folder).journal, sync=False)
        self._unwritten: list[Event] = []
        self._last_step: dict[tuple[str, str], int] = {}
        self._open_trials: dict[str, None] = {}
        self._trials: set[str] = set()
        self._configurations: set[str] = set()
        try:
            opened = self._recall(sweep_name)
        except BaseException:
            self._journal.close()
            raise
        self.sweep_id: str = opened["sweep_id"]
        self._process = ShipperProcess(self.folder, self.uri) if own_process else None
        self._shipper = self._process or Shipper(self.folder, self.uri)

    def sweep_started(self, info: Mapping[str, Any]) -> None:
        """Opens or reopens the sweep's run.

        Args:
            info: becomes the run's parameters, flat, and tags where an extension changes it (`mlflow_writer.EXTENDED`).
                `manifest` (a dict) and `sweep_yaml` (text) become artifacts, `origin` tags by MLflow's own names.
        """
        self._write({"kind": "sweep_started", "info": redacted(dict(info))})

    def sweep_underway(self, told: Mapping[str, Any]) -> None:
        """Tags the sweep's run with what its trials do now and the seconds left, until the next call."""
        self._write({"kind": "sweep_underway", "told": redacted(dict(told))})

    def holds(self, key: str) -> bool:
        """Whether the journal knows of the trial. One that was lost or cut does not."""
        return key in self._trials

    def trial_started(self, spec: Trial, params: Mapping[str, Any] | None = None, size: float | None = None) -> None:
        """Opens or reopens the trial's run.

        Args:
            params: adds to, or overrides, the parameters of the spec.
            size: the trainable parameters that the plan counted.
        """
        self._open_trials[spec.key] = None
        self._trials.add(spec.key)
        self._configurations.add(spec.configuration)
        self._write(
            {
                "kind": "trial_started",
                "key": spec.key,
                "configuration": spec.configuration,
                "label": spec.label,
                "task": spec.run.task,
                "seed": spec.run.seed,
                "method": shown_method(spec.run.method, spec.run.parameters),
                "protocol": spec.run.protocol,
                "params": redacted({**flat_parameters(spec.run), **(params or {})}),
                "size": size,
            }
            | {name: value for name in ("tunes", "carried") if (value := getattr(spec, name))}
        )

    def trial_progress(self, key: str, progress: Mapping[str, Any]) -> None:
        """Records the metrics of one evaluation and of the training steps before it.

        Steps that are on record are left out, so a trial that resumes behind its last report repeats nothing.
        """
        at = progress.get("time")
        now = at if isinstance(at, int | float) and at > 1e8 else time.time()
        rows = [dict(point) for point in progress.get("points", ())]
        rows.append({**progress.get("metrics", {}), "step": progress["step"]})
        if "epoch" in progress:
            rows[-1]["epoch"] = progress["epoch"]
        rows = [row for row in (self._new(key, row) for row in rows) if row.keys() - OF_A_ROW]
        if rows:
            event = {"kind": "trial_progress", "key": key, "rows": rows, "total_steps": progress.get("total_steps")}
            self._write(event, now)

    def trial_paused(self, key: str) -> None:
        """Closes the run of a trial that waits for its turn, as interrupted; `trial_started` opens it again."""
        if key in self._open_trials:
            del self._open_trials[key]
            self._write({"kind": "trial_interrupted", "key": key})

    def trial_ended(self, result: TrialResult, adapter: Path | None = None) -> None:
        """Closes the trial's run with final metrics, counts, status and reason.

        The adapter's folder becomes its artifact, and so does the folder of predictions next to it, if there is one.
        """
        self._open_trials.pop(result.key, None)
        row = {**result.counts, "seconds": result.seconds, **result.metrics, "step": result.steps}
        if "search_score" in result.metrics:
            # MLflow shows only the last value of a metric; this one belongs to the weights that were kept.
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
        """Closes a configuration's run with the content of `Summary.tracked`: numbers become metrics, text becomes tags.

        A configuration ends again after trials were added or tried again, its own or those that tuned it. The metrics' step is
        the sum of the trials done, those planned and those of the tuning, so it grows with each; `judged`, beside all others of
        the sweep, is the step behind.
        """
        self._configurations.discard(configuration_id)
        step = int(sum(summary.get(name, 0) for name in ("trials_done", "trials_planned", "tuning_trials", "judged")))
        row = self._new(f"configuration/{configuration_id}", _numbers(summary) | {"step": step})
        self._write(
            {
                "kind": "configuration_ended",
                "key": configuration_id,
                "label": label,
                "params": redacted(dict(params)),
                "row": row,
                "shown": {name: value for name, value in _numbers(summary).items() if name in SHOWN},
                "summary": redacted(_plain(summary)),
            }
        )

    def sweep_ended(self, status: str, summary: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        """Closes the sweep's run.

        Args:
            status: "finished", "failed" or "interrupted". Runs of trials and configurations still open are marked as killed.
            summary: numbers become metrics; `description` the run's description (Markdown); `on_front`, `may_be_on_front` and
                `enough` (lists of configuration ids) and `knee` (one id) tag those configurations and their trials.
            files: become artifacts of the sweep's run.
        """
        events: list[Event] = [{"kind": "trial_interrupted", "key": key} for key in self._open_trials]
        events += [{"kind": "configuration_interrupted", "key": key} for key in sorted(self._configurations)]
        self._open_trials.clear()
        events += [{"kind": "artifact", "key": None, "path": self._relative(path), "to": ""} for path in files]
        events.append({"kind": "sweep_ended", "status": status, "summary": redacted(_plain(summary)), "row": _numbers(summary)})
        self._write_all(events)

    def replayed(self) -> None:
        """Closes the runs that nothing is running any more, and makes the shipper look whether the store has the record."""
        if self._open_trials:
            self.sweep_ended("interrupted", {})
        else:
            self._write({"kind": "replayed"})  # an event makes the shipper connect, which is when it looks

    def add_file(self, path: Path) -> None:
        """Adds an artifact to the sweep's run, also after `sweep_ended`: the page is made from the finished record."""
        self._write({"kind": "artifact", "key": None, "path": self._relative(path), "to": ""})

    @property
    def open_configurations(self) -> frozenset[str]:
        """Configurations whose run is open: `configuration_ended` has not closed it."""
        return frozenset(self._configurations)

    def settle(self, results: Mapping[str, TrialResult], adapters: Mapping[str, Path] | None = None) -> None:
        """Closes the runs of trials that have ended according to the ledger, but not according to the journal.

        That happens when a driver dies after it has written a result and before the tracker has recorded it.
        """
        for key in list(self._open_trials):
            if key in results and results[key].settled:
                self.trial_ended(results[key], (adapters or {}).get(key))

    @property
    def waiting(self) -> int:
        """How many events the store has not taken yet."""
        return count_waiting(SweepFolder(self.folder), self.uri) + len(self._unwritten)

    def flush(self, timeout_s: float) -> int:
        """Ships everything, for at most `timeout_s` seconds; returns how many events still wait."""
        with self._lock:
            self._append([])
        self._shipper.ship(timeout_s)
        return self.waiting

    def close(self, timeout_s: float = 30.0) -> int:
        """Ships for at most `timeout_s` seconds and stops; returns how many events are left in the journal."""
        left = self.flush(timeout_s)
        if self._process is not None:
            self._process.stop()
        self._journal.close()
        return left

    def _write(self, event: Event, at: float | None = None) -> None:
        self._write_all([event], at)

    def _write_all(self, events: list[Event], at: float | None = None) -> None:
        stamp = int((at if at is not None else time.time()) * 1000)
        with self._lock:
            self._append([{**event, "time": stamp} for event in events])

    def _append(self, events: list[Event]) -> None:
        # A full disk must not stop training: events that could not be written wait in memory and go first next time.
        self._unwritten += events
        if self._process is not None:
            self._process.look()
        try:
            self._journal.extend(self._unwritten)
        except OSError as error:
            log.warning("the tracker's journal cannot be written (%s); %d events wait in memory", error, len(self._unwritten))
            return
        self._unwritten = []

    def _new(self, key: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of `row` that are not on record yet: their last recorded step lies before this one."""
        step = int(row["step"])
        fresh: dict[str, Any] = {"step": step} | ({"time": row["time"]} if "time" in row else {})
        for name, value in row.items():
            if name not in OF_A_ROW and isinstance(value, int | float) and step > self._last_step.get((key, name), -1):
                self._last_step[key, name] = step
                fresh[name] = _number(value)
        return fresh

    def _recall(self, sweep_name: str) -> Event:
        """Reads from the journal which steps are recorded and which runs are open; returns its first event."""
        opened: Event | None = None
        for event, _ in read(self._journal.path):
            kind, key = event.get("kind"), event.get("key")
            if kind == "opened":
                opened = event
            elif kind == "trial_started":
                self._open_trials[str(key)] = None
                self._trials.add(str(key))
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
    """JSON has no infinities and no NaN: they travel as text, and the writer makes tags of them."""
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
