"""Reads runs of the tracking store: a trial's as an entry, a configuration's as a summary.

`orchestrator.pictures.picture` writes trials, and `Summary.tracked` says what is written of a configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from craft.results import Counts
from orchestrator.results import tags as names
from orchestrator.results.intervals import Interval
from orchestrator.results.summary import Summary
from orchestrator.results.tuning import Tuning
from orchestrator.state.entry import Entry, Status, TrialResult
from orchestrator.sweepfile.objectives import PLANNED_METRICS

COUNTS = {*PLANNED_METRICS, *(field.name for field in fields(Counts))}
OF_TRAINING = {"seconds", "epoch", "train_loss", "learning_rate", "best_search_score"}
"""Metrics that describe a run's training and are not part of its result."""
STATUSES = ("finished", "failed", "stopped", "interrupted")


def read_entry(tags: Mapping[str, str], params: Mapping[str, Any], metrics: Mapping[str, float], status: str = "") -> Entry:
    """Returns the trial whose run has these tags, parameters and last metrics.

    Args:
        status: how it ended, if its tags do not say it.
    """
    key, status = tags.get(names.KEY, ""), tags.get(names.STATUS) or status
    counts = {name: value for name, value in metrics.items() if name in COUNTS}
    result = None
    if status in STATUSES:
        scores = {name: value for name, value in metrics.items() if name not in COUNTS | OF_TRAINING}
        notes = tags.get(names.NOTES)
        result = TrialResult(
            key=key,
            status=cast(Status, status),
            metrics={name: value for name, value in scores.items() if not name.startswith("system/")},
            counts=counts,
            seconds=metrics.get("seconds", math.nan),
            error=tags.get(names.ERROR),
            notes=notes.splitlines() if notes else [],
            facts={name.removeprefix(names.FACT): value for name, value in tags.items() if name.startswith(names.FACT)},
        )
    return Entry(
        key=key,
        configuration=tags.get(names.CONFIGURATION, ""),
        label=tags.get(names.LABEL) or tags.get(names.RUN_NAME, ""),
        method=tags.get(names.METHOD, "?"),
        task=tags.get(names.TASK, "?"),
        seed=int(tags.get(names.SEED, "0")),
        protocol=tags.get(names.PROTOCOL, ""),
        parameters={name: value for name, value in params.items() if name != "total_steps"},
        result=result,
        tunes=tags.get(names.TUNES),
        carried=tags.get(names.CARRIED),
        planned=counts,
    )


def read_summary(tags: Mapping[str, str], params: Mapping[str, Any], metrics: Mapping[str, float]) -> Summary:
    """Returns the configuration whose run has these tags, parameters and metrics: the inverse of `Summary.tracked`, without the
    scores of its trials."""
    counts = dict(metrics)
    score, low, high = (counts.pop(name, math.nan) for name in ("score", "score_low", "score_high"))
    planned, finished, failed, stopped, seeds = (
        int(counts.pop(name, 0)) for name in ("trials_planned", "trials_done", "trials_failed", "trials_stopped", "seeds_done")
    )
    by_task = {name: counts.pop(name) for name in list(counts) if name.startswith("score/")}
    trials, seconds = counts.get("tuning_trials"), counts.get("tuning_seconds", 0.0)
    tuned = bool(trials) or tags.get(names.TUNED) == "true"
    tuning = Tuning(2 if tuned else 1, int(trials or 0), seconds=seconds, recorded=tags.get(names.TUNED_TO, ""))
    error = tags.get(names.ERROR)
    return Summary(
        configuration=tags.get(names.CONFIGURATION) or tags.get(names.KEY, ""),
        label=tags.get(names.LABEL) or tags.get(names.RUN_NAME, ""),
        method=tags.get(names.METHOD, "?"),
        parameters=dict(params),
        metrics={"score": Interval(score, low, high, seeds)},
        tasks={name.removeprefix("score/"): Interval(value, math.nan, math.nan, seeds) for name, value in by_task.items()},
        counts=counts,
        scores={},
        planned=planned,
        finished=finished,
        failed=failed,
        stopped=stopped,
        seeds=seeds,
        protocol=tags.get(names.PROTOCOL, ""),
        reasons=(error,) if error else (),
        tunes=tags.get(names.TUNES),
        tuning=tuning if tuned or trials is not None else None,
    )
