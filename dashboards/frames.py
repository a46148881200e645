"""Runs as tables: what the tracker wrote, turned into one DataFrame of configurations and one of trials.

Columns are flat and prefixed so that nothing collides (`learning_rate` is a parameter and also a metric by step):

===============  ====================================================================================================
configurations   id, sweep, run_id, experiment_id, label, method, protocol, state, started, ended, trials, finished, failed,
                 stopped; `p.<parameter>`; `m.<metric>` (`m.score`, `m.score_low`, `m.score/<task>`, `m.trainable_parameters`)
trials           run_id, key, sweep, configuration, label, method, task, seed, protocol, state, reason, started, ended; `p.*`,
                 `m.*`; `tunes`: its scores only chose settings for another configuration
===============  ====================================================================================================

A configuration's `state` is `done` when all its trials have finished and the tracker has summed them up. `partial` (some trials
still run), `waiting` (for seeds that the sweep got later) and `incomplete` (some failed or were stopped) have a value over the
trials that finished; no front uses it. Without a value it is `running`, `failed`, `stopped` (early; none failed), `interrupted`
or `infeasible`. Its `stopped` counts trials, also those that never started because another one was stopped. Candidates, whose
trials only tune, are no configurations here.
Values that the tracker wrote are never recomputed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from craft.results import METRIC
from orchestrator.results.front import Objectives, recorded_objectives

IDENTITY = ("sweep", "run_id", "label", "method", "protocol", "state", "reason", "started", "ended")
TRIAL_STATES = ("finished", "failed", "stopped", "running", "interrupted")
NAN = float("nan")  # one object for all readers: a row read again then equals itself
STATES = {"FINISHED": "finished", "RUNNING": "running", "SCHEDULED": "running", "FAILED": "failed", "KILLED": "stopped"}


@dataclass(frozen=True)
class RunRow:
    """One MLflow run as plain data. Times in milliseconds since 1970."""

    run_id: str
    experiment_id: str
    status: str
    started: int | None
    ended: int | None
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Frames:
    """One sweep's tables. `sweep` is the sweep's own run, None while the tracker has not opened it."""

    name: str
    experiment_id: str
    sweep: RunRow | None
    configurations: pd.DataFrame
    trials: pd.DataFrame

    @property
    def objectives(self) -> Objectives:
        """The sweep's objectives in order, as its run has them on record; the default ones for records without them."""
        return recorded_objectives(self.sweep.params.get("objectives") if self.sweep else None)


@lru_cache(maxsize=1 << 14)  # a sweep repeats few values in thousands of runs
def typed(text: str) -> Any:
    """A parameter as the value it was: whole number, number, truth value, or the text itself.

    >>> typed("64"), typed("3e-4"), typed("True"), typed("all,64,64"), typed("None")
    (64, 0.0003, True, 'all,64,64', None)
    """
    if text in ("True", "true"):
        return True
    if text in ("False", "false"):
        return False
    if text in ("None", "null"):
        return None
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        # 1_000 and nan are numbers to Python, but they were written as text
        if "_" not in text and np.isfinite(value):
            return value
    return text


def build_frames(name: str, experiment_id: str, rows: Iterable[RunRow]) -> Frames:
    """Sorts a sweep's runs by kind and builds its tables. Runs without a `craft.kind` tag are foreign and left out."""
    kinds: dict[str, list[RunRow]] = {"sweep": [], "configuration": [], "trial": []}
    for row in rows:
        kind = row.tags.get("craft.kind", "")
        if kind in kinds:
            kinds[kind].append(row)
    sweep = max(kinds["sweep"], key=lambda row: row.started or 0, default=None)
    trials = _trials(name, kinds["trial"])
    return Frames(name, experiment_id, sweep, _configurations(name, experiment_id, kinds["configuration"], trials), trials)


def _values(row: RunRow) -> dict[str, Any]:
    flat: dict[str, Any] = {f"p.{key}": typed(value) for key, value in row.params.items()}
    for key, value in row.metrics.items():
        # the store cannot hold infinity and writes 1.8e308 instead
        flat[f"m.{key}"] = float(value) if abs(value) < 1e300 else np.nan
    return flat


def _trial_state(row: RunRow) -> str:
    state = row.tags.get("craft.status", "")
    return state if state in TRIAL_STATES else STATES.get(row.status, "running")


def _trials(name: str, rows: list[RunRow]) -> pd.DataFrame:
    records = [
        {
            "run_id": row.run_id,
            "key": row.tags.get("craft.key", row.run_id),
            "sweep": name,
            "configuration": row.tags.get("craft.configuration", ""),
            "label": row.tags.get("craft.label") or row.tags.get("mlflow.runName", ""),
            "method": row.tags.get("craft.method", "?"),
            "task": row.tags.get("craft.task", "?"),
            "seed": typed(row.tags.get("craft.seed", "0")),
            "protocol": row.tags.get("craft.protocol", ""),
            "tunes": bool(row.tags.get("craft.tunes")),
            "state": _trial_state(row),
            "reason": row.tags.get("craft.error") or row.tags.get("craft.reason") or "",
            "started": row.started,
            "ended": row.ended,
            "metric": row.tags.get(f"craft.fact.{METRIC}", ""),
            "phases": row.tags.get("craft.fact.phases", ""),
            **_values(row),
        }
        for row in rows
    ]
    columns = [*IDENTITY, "key", "configuration", "task", "seed", "tunes"]
    frame = pd.DataFrame.from_records(records, columns=None if records else columns)
    return frame.sort_values(["started", "run_id"], ignore_index=True) if records else frame


def _configurations(name: str, experiment_id: str, rows: list[RunRow], trials: pd.DataFrame) -> pd.DataFrame:
    trials = trials[~trials["tunes"].astype(bool)]
    counts = _trial_counts(trials)
    known: dict[str, dict[str, Any]] = {}
    for row in sorted((row for row in rows if not row.tags.get("craft.tunes")), key=lambda row: row.started or 0):
        identity = row.tags.get("craft.configuration") or row.tags.get("craft.key") or row.run_id
        values = _values(row)
        status = row.tags.get("craft.status", "")
        tally = counts.get(identity, {})
        known[identity] = {
            "id": identity,
            "sweep": name,
            "run_id": row.run_id,
            "experiment_id": experiment_id,
            "label": row.tags.get("craft.label") or row.tags.get("mlflow.runName") or identity,
            "method": row.tags.get("craft.method", "?"),
            "protocol": row.tags.get("craft.protocol", ""),
            "state": _configuration_state(status, row, values, tally),
            "reason": row.tags.get("craft.error") or row.tags.get("craft.reason") or "",
            "started": row.started,
            "ended": row.ended,
            "tuned_to": row.tags.get("craft.tuned_to", ""),
            **tally,
            **values,
        }
    if not trials.empty:
        summed_up = [identity for identity, record in known.items() if record["state"] not in ("running", "partial")]
        for key, group in trials[~trials["configuration"].isin(summed_up)].groupby("configuration", sort=False):
            identity = str(key)
            record = known.get(identity)
            summary = _so_far(identity, group, name, experiment_id)
            known[identity] = {**summary, **(record or {}), **_scores_of(summary, record)}
    columns = [*IDENTITY, "id", "experiment_id", "trials", "finished", "failed", "stopped"]
    for record in known.values():
        planned = record.get("m.trials_planned", 0)
        record["trials"] = max(record.get("trials", 0), 0 if np.isnan(planned) else int(planned))
        stopped = record.get("m.trials_stopped", 0)
        record["stopped"] = max(record.get("stopped", 0), 0 if np.isnan(stopped) else int(stopped))
    frame = pd.DataFrame.from_records(list(known.values()), columns=None if known else columns)
    for column in ("trials", "finished", "failed", "stopped"):
        frame[column] = frame[column].fillna(0).astype(int) if column in frame else 0
    return frame


def _configuration_state(status: str, row: RunRow, values: dict[str, Any], tally: dict[str, int]) -> str:
    if status in ("infeasible", "dropped"):
        return "infeasible"
    scored = bool(np.isfinite(values.get("m.score", np.nan)))
    if status == "finished" or (not status and row.status == "FINISHED"):
        return "done" if scored else "failed"
    if status in ("incomplete", "stopped", "failed"):
        return "incomplete" if scored else "failed" if status == "incomplete" else status
    if status in ("waiting", "interrupted"):
        return status if scored or status == "interrupted" else "running"
    if row.status == "FAILED" or (tally and tally["failed"] == tally["trials"] and row.status != "RUNNING"):
        return "failed"
    return "running" if row.status == "RUNNING" else "interrupted"


def _trial_counts(trials: pd.DataFrame) -> dict[str, dict[str, int]]:
    if trials.empty:
        return {}
    table = pd.crosstab(trials["configuration"], trials["state"])
    table = table.reindex(columns=["finished", "failed", "stopped", "running"], fill_value=0)
    return {
        str(identity): {"trials": int(sum(row)), "finished": int(row[0]), "failed": int(row[1]), "stopped": int(row[2])}
        for identity, row in zip(table.index, table.to_numpy(), strict=True)
    }


def _so_far(identity: str, group: pd.DataFrame, name: str, experiment_id: str) -> dict[str, Any]:
    """A configuration's record before the tracker sums it up: over its trials, the mean over tasks of the mean over seeds."""
    first = group.iloc[0]
    record: dict[str, Any] = {"id": identity, "sweep": name, "run_id": first["run_id"], "experiment_id": experiment_id}
    record |= {"label": first["label"] or identity, "method": first["method"], "protocol": first["protocol"], "reason": ""}
    record |= {"started": group["started"].min(), "ended": None}
    record |= {
        column: first[column] for column in group.columns if column.startswith("p.") and column not in ("p.task", "p.seed")
    }
    states = group["state"]
    record |= {"trials": len(group)} | {state: int((states == state).sum()) for state in ("finished", "failed", "stopped")}
    record["state"] = "failed" if (states == "failed").all() else "running"
    scored = group[states == "finished"]
    if "m.score" in scored and scored["m.score"].notna().any():
        by_task = scored.groupby("task")["m.score"].mean()
        record["state"] = "partial"
        record["m.score"] = float(by_task.mean())
        if len(by_task) > 1:
            record |= {f"m.score/{task}": float(value) for task, value in by_task.items()}
    measured = group[[name for name in group.columns if str(name).startswith("m.") and name != "m.score"]].mean()
    record |= {str(name): float(value) for name, value in measured.dropna().items()}
    return record


def _scores_of(summary: dict[str, Any], record: dict[str, Any] | None) -> dict[str, Any]:
    """The state, and the metrics its own run lacks, of a configuration whose run is still open: both come from its trials."""
    if record is None:
        return {}
    return {key: value for key, value in summary.items() if key == "state" or (key.startswith("m.") and key not in record)}
