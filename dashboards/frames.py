"""A sweep's state as rows: its configurations and its trials, as the panels read them.

Candidates, whose trials only tune, are no configurations here.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.plan.configuration import flatten
from orchestrator.record.events import Refused, SessionEnded
from orchestrator.record.state import Entry, State, by_configuration
from orchestrator.results.answer import Answer, find_answer
from orchestrator.results.front import judge_state
from orchestrator.results.metrics import flat_cells
from orchestrator.results.summary import Summary, status_of
from orchestrator.review.progress import Progress, is_running, progress
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES, Objectives


@dataclass(frozen=True)
class Row:
    """A configuration. `id` is unique among the sweeps of a page; `state` is that of `status_of`, or `infeasible`."""

    id: str
    sweep: Frames
    state: str
    summary: Summary

    @property
    def label(self) -> str:
        return self.summary.label or self.summary.configuration

    @property
    def method(self) -> str:
        return self.summary.method

    @cached_property
    def parameters(self) -> dict[str, Any]:
        return flatten(self.summary.parameters)

    @cached_property
    def _numbers(self) -> dict[str, float]:
        cells = flat_cells(self.summary).items()
        return {name: float(value) for name, value in cells if not isinstance(value, bool | str) and math.isfinite(value)}

    def value(self, name: str) -> float:
        """Returns a number of COLUMNS, or an end of its interval (`NAME_low`); NaN where it has none."""
        return self._numbers.get(name, math.nan)


@dataclass(frozen=True)
class TrialRow:
    """A trial that has begun. `configuration` is the `id` of its configuration's row."""

    configuration: str
    sweep: Frames
    entry: Entry

    @property
    def facts(self) -> dict[str, Any]:
        return result.facts if (result := self.entry.current) else {}

    def value(self, name: str) -> float:
        """Returns a metric or count of its result, or of its last evaluation; NaN where it has none."""
        result, report = self.entry.current, self.entry.report
        numbers = (result.counts | result.metrics if result else {}).get(name)
        return numbers if numbers is not None else report.metrics.get(name, math.nan) if report else math.nan


@dataclass(frozen=True)
class Frames:
    """One sweep's rows, and the summaries of its configurations by id. `log` is this machine's copy of its log."""

    name: str
    state: State
    experiment_id: str = ""
    log: Path | None = None

    def after(self, state: State, log: Path) -> Frames:
        """Returns the rows of a later state, with this judgement, which takes seconds, if no result has changed."""
        later = replace(self, state=state, log=log)
        if _results(state) == _results(self.state):
            vars(later).update({name: vars(self)[name] for name in ("judged", "answer") if name in vars(self)})
        return later

    def progress(self) -> Progress:
        return progress(self.state, time.time())

    @property
    def is_lost(self) -> bool:
        """Whether its driver is gone without an end, as far as its log says that."""
        return self.state.started is not None and self.state.ended is None and not is_running(self.state, time.time())

    @property
    def present(self) -> State:
        """The state at this moment: of a lost sweep nothing runs, as after an end."""
        end = SessionEnded(status="interrupted", time=self.progress().updated or 0.0)
        return self.state.after(end) if self.is_lost else self.state

    @property
    def folder(self) -> str:
        """The folder in which the sweep was started, and in which the page's commands work; empty if it is not known."""
        return str(self.state.started.manifest.get("folder", "")) if self.state.started is not None else ""

    @property
    def objectives(self) -> Objectives:
        return self.state.sweep.objectives if self.state.started is not None else DEFAULT_OBJECTIVES

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

    def rows(self, prefix: str = "") -> list[Row]:
        """Returns a row for each of `summaries`; `prefix` stands in front of the ids."""
        state = self.present
        trials, is_open = by_configuration(state.requested), state.ended is None
        states = {name: status_of(summary, trials[name], is_open) for name, summary in self.summaries.items() if name in trials}
        return [Row(prefix + name, self, states.get(name, "infeasible"), row) for name, row in self.summaries.items()]

    def trials(self, prefix: str = "") -> list[TrialRow]:
        """Returns a row for each trial that has begun."""
        begun = [entry for entry in self.present.requested if entry.begun]
        return [TrialRow(prefix + entry.trial.configuration, self, entry) for entry in begun]


def _results(state: State) -> tuple[Any, ...]:
    return state.started, state.ended, [(entry.key, entry.trial.label, entry.result) for entry in state.requested]


def _refused(event: Refused) -> Summary:
    names = (event.configuration, event.label, event.method, {"method": event.method, **event.parameters})
    return Summary(*names, {}, {}, dict(event.counts), {}, 0, 0, 0, 0, 0, event.protocol, (event.reason,))
