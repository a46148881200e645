"""Runs as tables: those of the store, turned into one DataFrame of configurations and one of trials.

Columns are flat and prefixed so that nothing collides (`learning_rate` is a parameter and also a metric by step):

===============  ====================================================================================================
configurations   id, sweep, run_id, experiment_id, label, method, protocol, state, started, ended, trials, finished, failed,
                 stopped; `p.<parameter>`; `m.<metric>` (`m.score`, `m.score_low`, `m.score/<task>`, `m.trainable_parameters`)
trials           run_id, key, sweep, configuration, label, method, task, seed, protocol, state, reason, started, ended; `p.*`,
                 `m.*`; `tunes`: its scores only chose settings for another configuration
===============  ====================================================================================================

A configuration's `state` is `done` when all its trials have finished and the store has its summary. `partial` (some trials
still run), `waiting` (for seeds that the sweep got later) and `incomplete` (some failed or were stopped) have a value over the
trials that finished; no front uses it. Without a value it is `running`, `failed`, `stopped` (early; none failed), `interrupted`
or `infeasible`. Its `stopped` counts trials, also those that never started because another one was stopped. Candidates, whose
trials only tune, are no configurations here.
A configuration has a `Summary` next to its row: the recorded one where its run has ended, before that one of its trials so far.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from craft.results import METRIC
from craft.scoring.credits import CREDITS
from orchestrator.results import tags
from orchestrator.results.front import (
    DEFAULT_OBJECTIVES,
    Enough,
    Objectives,
    Verdict,
    enough_of,
    judge_summaries,
)
from orchestrator.results.records import read_entry, read_summary
from orchestrator.results.summary import Summary, summarize_entries

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
    """One sweep's tables, and the summaries of its configurations by id. `sweep` is its own run, None before there is one."""

    name: str
    experiment_id: str
    sweep: RunRow | None
    configurations: pd.DataFrame
    trials: pd.DataFrame
    summaries: Mapping[str, Summary] = field(default_factory=dict)

    @property
    def objectives(self) -> Objectives:
        """The sweep's objectives in order, as its run has them on record; the default ones for records without them."""
        text = self.sweep.params.get("objectives") if self.sweep else None
        return json.loads(text) if text else DEFAULT_OBJECTIVES

    @property
    def rule(self) -> Enough:
        """What is enough, as the sweep's run has it on record."""
        tagged, params = (self.sweep.tags, self.sweep.params) if self.sweep else ({}, {})
        return Enough.model_validate_json(tagged.get(f"{tags.NOW}enough") or params.get("enough") or "{}")

    @cached_property
    def done(self) -> list[Summary]:
        """The configurations that have ended with a score."""
        ended = self.configurations[self.configurations["state"] == "done"]
        return [self.summaries[identity] for identity in ended["id"]]

    @cached_property
    def verdict(self) -> Verdict:
        """Which configurations are on the front, which may be on it, and which one is the knee."""
        return judge_summaries(self.done, self.objectives)

    @cached_property
    def enough(self) -> str | None:
        """The id of the smallest configuration that is enough."""
        return enough_of(self.done, self.rule)


@lru_cache(maxsize=1 << 14)  # a sweep repeats few values in thousands of runs
def typed(text: str) -> Any:
    """Returns a parameter as a whole number, a number, a truth value, or the text itself.

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
    """Sorts a sweep's runs by kind and builds its tables. Runs without a `craft.kind` tag are foreign and left out, and so is
    what the sweep file does not ask for any more."""
    kinds: dict[str, list[RunRow]] = {tags.SWEEP_KIND: [], tags.CONFIGURATION_KIND: [], tags.TRIAL_KIND: []}
    for row in rows:
        if (kind := row.tags.get(tags.KIND, "")) in kinds and row.tags.get(tags.ASKED) != "false":
            kinds[kind].append(row)
    sweep = max(kinds[tags.SWEEP_KIND], key=lambda row: row.started or 0, default=None)
    if sweep is not None:  # an experiment may have an older sweep of this name
        its = sweep.tags.get(tags.SWEEP_ID)
        kinds = {kind: [row for row in some if row.tags.get(tags.SWEEP_ID) == its] for kind, some in kinds.items()}
    frame, summaries = _configurations(name, experiment_id, kinds[tags.CONFIGURATION_KIND], kinds[tags.TRIAL_KIND])
    return Frames(name, experiment_id, sweep, frame, _trials(name, kinds[tags.TRIAL_KIND]), summaries)


def _identify(row: RunRow, name: str) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "sweep": name,
        "label": row.tags.get(tags.LABEL) or row.tags.get(tags.RUN_NAME, ""),
        "method": row.tags.get(tags.METHOD, "?"),
        "protocol": row.tags.get(tags.PROTOCOL, ""),
        "reason": row.tags.get(tags.ERROR) or "",
        "started": row.started,
        "ended": row.ended,
    }


def _params(row: RunRow) -> dict[str, Any]:
    return {f"p.{key}": typed(value) for key, value in row.params.items()}


def _metrics(row: RunRow) -> dict[str, float]:
    # the store cannot hold infinity and writes 1.8e308 instead
    return {key: float(value) if abs(value) < 1e300 else np.nan for key, value in row.metrics.items()}


def _columns(metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"m.{key}": value for key, value in metrics.items()}


def _trial_state(row: RunRow) -> str:
    state = row.tags.get(tags.STATUS, "")
    return state if state in TRIAL_STATES else STATES.get(row.status, "running")


def _trials(name: str, rows: list[RunRow]) -> pd.DataFrame:
    records = [
        {
            **_identify(row, name),
            "key": row.tags.get(tags.KEY, row.run_id),
            "configuration": row.tags.get(tags.CONFIGURATION, ""),
            "task": row.tags.get(tags.TASK, "?"),
            "seed": typed(row.tags.get(tags.SEED, "0")),
            "tunes": bool(row.tags.get(tags.TUNES)),
            "state": _trial_state(row),
            "metric": row.tags.get(f"{tags.FACT}{METRIC}", ""),
            "phases": row.tags.get(f"{tags.FACT}phases", ""),
            "credits": row.tags.get(f"{tags.FACT}{CREDITS}", ""),
            **_params(row),
            **_columns(_metrics(row)),
        }
        for row in rows
    ]
    columns = [*IDENTITY, "key", "configuration", "task", "seed", "tunes", "credits"]
    frame = pd.DataFrame.from_records(records, columns=None if records else columns)
    return frame.sort_values(["started", "run_id"], ignore_index=True) if records else frame


def _configurations(
    name: str, experiment_id: str, rows: list[RunRow], trials: list[RunRow]
) -> tuple[pd.DataFrame, dict[str, Summary]]:
    members: dict[str, list[RunRow]] = {}
    for row in sorted(trials, key=lambda row: (row.started or 0, row.run_id)):
        if not row.tags.get(tags.TUNES):
            members.setdefault(row.tags.get(tags.CONFIGURATION, ""), []).append(row)
    records: dict[str, dict[str, Any]] = {}
    summaries: dict[str, Summary] = {}
    for row in sorted((row for row in rows if not row.tags.get(tags.TUNES)), key=lambda row: row.started or 0):
        identity = row.tags.get(tags.CONFIGURATION) or row.tags.get(tags.KEY) or row.run_id
        metrics, tally = _metrics(row), _count(members.get(identity, ()))
        summaries[identity] = _with_counts(read_summary(row.tags, row.params, metrics), tally)
        state = _configuration_state(row, metrics, tally)
        records[identity] = {**_identify(row, name), "state": state, **_params(row), **_columns(metrics)}
    open_ = [identity for identity in members if records.get(identity, {"state": "running"})["state"] == "running"]
    for summary in _summarize([row for identity in open_ for row in members[identity]]):
        identity, rows = summary.configuration, members[summary.configuration]
        values = {f"m.{name}": value for name, value in summary.tracked().items() if isinstance(value, float)}
        first = {column: value for column, value in _params(rows[0]).items() if column not in ("p.task", "p.seed")}
        state = "partial" if math.isfinite(summary.score.mean) else "failed" if summary.failed == len(rows) else "running"
        record = records.get(identity, {**_identify(rows[0], name), "reason": "", "ended": None})
        records[identity] = {**first, **values, **record, "state": state}
        summaries[identity] = summary
    for identity, record in records.items():
        summary = summaries[identity]
        record |= {"id": identity, "experiment_id": experiment_id, "label": record["label"] or identity}
        record |= {
            "trials": summary.planned,
            "finished": summary.finished,
            "failed": summary.failed,
            "stopped": summary.stopped,
        }
    columns = [*IDENTITY, "id", "experiment_id", "trials", "finished", "failed", "stopped"]
    return pd.DataFrame.from_records(list(records.values()), columns=None if records else columns), summaries


def _count(trials: Sequence[RunRow]) -> Counter[str]:
    return Counter(map(_trial_state, trials)) + Counter(trials=len(trials))


def _with_counts(summary: Summary, tally: Counter[str]) -> Summary:
    """Adds what the trials' own runs say: trials that end after the configuration's run was written."""
    return replace(
        summary,
        planned=max(summary.planned, tally["trials"]),
        finished=tally["finished"] or summary.finished,
        failed=tally["failed"] or summary.failed,
        stopped=max(summary.stopped, tally["stopped"]),
    )


def _summarize(trials: Sequence[RunRow]) -> list[Summary]:
    """Summarizes the configurations of trials; a count that no trial has measured yet is that of the first one's run."""
    return summarize_entries(read_entry(row.tags, row.params, _metrics(row), _trial_state(row)) for row in trials)


def _configuration_state(row: RunRow, metrics: Mapping[str, float], tally: Mapping[str, int]) -> str:
    status = row.tags.get(tags.STATUS, "")
    if status in ("infeasible", "dropped"):
        return "infeasible"
    scored = math.isfinite(metrics.get("score", np.nan))
    if status == "finished" or (not status and row.status == "FINISHED"):
        return "done" if scored else "failed"
    if status in ("incomplete", "stopped", "failed"):
        return "incomplete" if scored else "failed" if status == "incomplete" else status
    if status in ("waiting", "interrupted"):
        return status if scored or status == "interrupted" else "running"
    if row.status == "FAILED" or (tally["trials"] and tally["failed"] == tally["trials"] and row.status != "RUNNING"):
        return "failed"
    return "running" if row.status == "RUNNING" else "interrupted"
