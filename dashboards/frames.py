"""A sweep's state as tables: one DataFrame of configurations and one of trials.

Columns are flat and prefixed so that nothing collides (`learning_rate` is a parameter and also a metric by step):

===============  ====================================================================================================
configurations   id, sweep, experiment_id, label, method, protocol, state, reason, stopped; `p.<parameter>`; `m.<metric>`
                 (`m.score`, `m.score_low`, `m.score/<task>`, `m.trainable_parameters`)
trials           run, key, sweep, configuration, label, method, task, seed, protocol, state, reason, changed; `p.*`, `m.*`;
                 `tunes`: its scores only chose settings for another configuration
===============  ====================================================================================================

A configuration's `state` is `done` when it is complete, whatever seeds it got later. `partial` (some trials still run) and
`incomplete` (some failed or were stopped) have a value over the trials that finished; no front uses it. Without a value it is
`running`, `failed`, `stopped` (early; none failed), `interrupted` or `infeasible`. Candidates, whose trials only tune, are no
configurations here. A configuration has a `Summary` next to its row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from craft.results import name_score
from craft.scoring.credits import CREDITS, graded_rows
from orchestrator.judging.answer import Answer, find_answer
from orchestrator.judging.front import Verdict, judge_state, judge_summaries
from orchestrator.plan.parameters import flatten
from orchestrator.results.metrics import flat_cells
from orchestrator.results.summary import Summary, status_of
from orchestrator.review.progress import progress
from orchestrator.review.status import Progress
from orchestrator.state.entry import Entry
from orchestrator.state.events import Refused
from orchestrator.state.state import State
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES, Objectives
from orchestrator.sweepfile.settings import Enough

IDENTITY = ("sweep", "label", "method", "protocol", "state", "reason")


@dataclass(frozen=True)
class Frames:
    """One sweep's tables, and the summaries of its configurations by id."""

    name: str
    state: State
    experiment_id: str = ""

    def after(self, state: State) -> Frames:
        """Returns the tables of a later state, with this judgement, which takes seconds, if no result has changed."""
        later = replace(self, state=state)
        if _results(state) == _results(self.state):
            vars(later).update({name: vars(self)[name] for name in ("judged", "answer") if name in vars(self)})
        return later

    @property
    def status(self) -> str:
        """`running`, `finished`, `failed` or `interrupted`."""
        return "running" if self.state.ended is None else self.state.ended.status

    def progress(self) -> Progress:
        """Returns how far the sweep is at this moment, as far as its log has it."""
        return progress(self.state, time.time())

    @property
    def folder(self) -> str:
        """The folder in which the sweep was started, and in which the page's commands work; empty if it is not known."""
        return str(self.state.started.manifest.get("folder", "")) if self.state.started is not None else ""

    @property
    def objectives(self) -> Objectives:
        """The sweep's objectives in order."""
        return self.state.sweep.objectives if self.state.started is not None else DEFAULT_OBJECTIVES

    @property
    def rule(self) -> Enough:
        """The rule that says what is enough."""
        return self.state.sweep.enough if self.state.started is not None else Enough()

    @cached_property
    def judged(self) -> list[Summary]:
        """The sweep's configurations, judged; candidates of a group that is not decided yet are among them."""
        return judge_state(self.state) if self.state.started is not None else []

    @cached_property
    def answer(self) -> Answer | None:
        """The sweep's answer so far; None before a session has begun."""
        return find_answer(self.judged, self.state) if self.state.started is not None else None

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """The configurations with a trial that has begun, and those that were refused, by id."""
        begun = {entry.trial.configuration for entry in self.state.requested if entry.begun}
        summaries = [summary for summary in self.judged if summary.configuration in begun and summary.tunes is None]
        refused = map(_refused, self.state.refused.values())
        return {summary.configuration: summary for summary in (*summaries, *refused)}

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """A row for each of `summaries`."""
        trials: dict[str, list[Entry]] = {}
        for entry in self.state.requested:
            trials.setdefault(entry.trial.configuration, []).append(entry)
        rows = [self._row(summary, trials.get(name, [])) for name, summary in self.summaries.items()]
        columns = [*IDENTITY, "id", "experiment_id", "stopped"]
        return pd.DataFrame.from_records(rows, columns=None if rows else columns)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row for each trial that has begun."""
        rows = [self._trial(entry) for entry in self.state.requested if entry.begun]
        columns = [*IDENTITY, "run", "key", "configuration", "task", "seed", "tunes", "credits", "graded"]
        return pd.DataFrame.from_records(rows, columns=None if rows else columns)

    @cached_property
    def done(self) -> list[Summary]:
        """The configurations that have ended with a score."""
        return [self.summaries[name] for name in self.configurations.loc[self.configurations["state"] == "done", "id"]]

    @cached_property
    def verdict(self) -> Verdict:
        """Which configurations are on the front, which may be on it, and which one is the knee."""
        return judge_summaries(self.done, self.objectives)

    @property
    def enough(self) -> str | None:
        """The id of the smallest configuration that is enough."""
        return next((summary.configuration for summary in self.done if summary.enough), None)

    def _row(self, summary: Summary, trials: list[Entry]) -> dict[str, Any]:
        state = _state(summary, trials, self.state) if trials else "infeasible"
        numbers = {name: value for name, value in flat_cells(summary).items() if not isinstance(value, bool | str)}
        return {
            **_named(self.name, summary.label or summary.configuration, summary.method, summary.protocol, state),
            "reason": "; ".join(summary.reasons),
            "id": summary.configuration,
            "experiment_id": self.experiment_id,
            "stopped": summary.stopped,
            **_parameters(flatten(summary.parameters)),
            **_metrics(numbers),
        }

    def _trial(self, entry: Entry) -> dict[str, Any]:
        result = entry.result if entry.phase != "running" else None
        state = result.status if result else "running" if entry.phase == "running" else "interrupted"
        metrics = {**entry.trial.planned, **(entry.report.metrics if entry.report else {})}
        metrics |= {**result.counts, "seconds": result.seconds, **result.metrics} if result else {}
        facts = result.facts if result else {}
        return {
            **_named(self.name, entry.trial.label, entry.trial.method, entry.trial.protocol, state),
            "reason": (result.error if result else None) or "",
            "run": f"{self.state.sweep_id}/{entry.key}",
            "key": entry.key,
            "configuration": entry.trial.configuration,
            "task": entry.trial.task,
            "seed": entry.trial.seed,
            "tunes": not entry.trial.is_reported,
            "metric": name_score(facts),
            "phases": facts.get("phases"),
            "credits": facts.get(CREDITS, ""),
            "graded": graded_rows(facts),
            "changed": entry.changed,
            **_parameters(entry.trial.parameters),
            **_metrics(metrics),
        }


def _results(state: State) -> tuple[Any, ...]:
    return state.started, state.ended, [(entry.key, entry.trial.label, entry.result) for entry in state.requested]


def _named(sweep: str, label: str, method: str, protocol: str, state: str) -> dict[str, Any]:
    return {"sweep": sweep, "label": label, "method": method, "protocol": protocol, "state": state}


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {f"p.{name}": value for name, value in parameters.items()}


def _metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"m.{name}": float(value) if math.isfinite(value) else math.nan for name, value in metrics.items()}


def _refused(event: Refused) -> Summary:
    """Returns the summary of a configuration that breaks a constraint."""
    names = (event.configuration, event.label, event.method, {"method": event.method, **event.parameters})
    return Summary(*names, {}, {}, dict(event.counts), {}, 0, 0, 0, 0, 0, event.protocol, (event.reason,))


def _state(summary: Summary, trials: Iterable[Entry], sweep: State) -> str:
    status, scored = status_of(summary, [*trials], sweep.ended is None), math.isfinite(summary.score.mean)
    if summary.complete:
        return "done" if scored else "failed"
    if status in ("incomplete", "stopped", "failed"):
        return "incomplete" if scored else "failed" if status == "incomplete" else status
    if status == "running":
        return "partial" if scored else "failed" if summary.failed == summary.planned else "running"
    return status if scored or status == "interrupted" else "running"
