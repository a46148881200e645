"""`DesiredRuns`: the runs of a sweep in MLflow as they should be, and which of them a change of its State has changed;
and the saved views of MLflow's own page.

The page reads a saved view from the experiment's tag `mlflow.sharedViewState.KEY` and opens it at `?viewStateShareKey=KEY`. The
names in a view are the page's own (MLflow 3.17, `ExperimentPageUIState`). Its scatter has no logarithmic axis. Cut sizes are
runs, not LoggedModels of their training's run: the page of models has no search and no saved views, so no front.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from craft.methods import METHODS
from craft.settings import TrainingSettings
from orchestrator.record.state import Entry, State
from orchestrator.results.metrics import P_ENOUGH, P_FRONT, SIZE
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.review.desired_run import (
    Verdict,
    desired_configuration,
    desired_refused,
    desired_sweep,
    desired_trial,
    group,
)
from orchestrator.sweepfile.fair import RATE
from orchestrator.sweepfile.space.blocks import OWN_KEYS
from orchestrator.tools.markup import plain
from orchestrator.tracking import desired as names
from orchestrator.tracking.desired import CONFIGURATION_KIND, KINDS, SWEEP_KIND, TRIAL_KIND, DesiredRun, Place

SCORE = "score"

SCATTER = {"type": "SCATTER", "xaxis": {"key": SIZE, "type": "METRIC"}, "yaxis": {"key": SCORE, "type": "METRIC"}}

CURVES = [{"type": "LINE", "metricKey": name, "selectedMetricKeys": [name]} for name in ("search_score", "train_loss")]

FIXED = {"attributes.`Run Name`": 225, "runDateAndNestInfo": 100}
"""The first columns, which the page always shows, and their widths: score and size are in sight next to the page's own panel on
a screen of 1,440 pixels."""


def address(experiment: str, sweep_id: str, kind: str = "front", mode: str = "") -> str:
    """Returns the place of a saved view below the address of MLflow's server."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={kind}-{sweep_id[:8]}{mode}"


def links(*ids: str) -> str:
    """Returns links to the views of a sweep; `ids` are those of experiment and sweep."""
    places = {"the front": ("front",), "its charts": ("front", "&compareRunsMode=CHART"), "all trials": ("trials",)}
    return ", ".join(f"[{name}]({address(*ids, *place)})" for name, place in places.items())


def shared_parameters(space: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the method and the other parameters in a sweep file's space that all configurations have, in the file's order.

    MLflow's parallel coordinates show the runs that have all axes, and methods differ in the name of their rank.
    """
    rows = [METHODS.get(str(block.get("method"))) for block in space]
    absent = {*OWN_KEYS, *([RATE] if any(row and not row.adapts for row in rows) else [])}
    names = dict.fromkeys(name for block in space for name in block if name not in absent)
    return [name for name in names if name in TrainingSettings.model_fields or all(name in block for block in space)]


def saved_views(state: State) -> dict[str, str]:
    """Returns the views of a sweep by their keys: its configurations by the first objective, and its trials."""
    sweep, sweep_id, began = state.sweep, state.sweep_id, int(1000 * state.opened)
    objectives, tasks = sweep.objectives, sweep.tasks
    numbers = dict.fromkeys((SCORE, SIZE, "score_low", "score_high", P_FRONT, P_ENOUGH, *objectives))
    marks = (names.ON_FRONT, names.ENOUGH, names.STATUS)
    front = [*(f"metrics.`{name}`" for name in numbers), *(f"tags.`{name}`" for name in marks)]
    trials = [f"tags.`{name}`" for name in (names.TASK, names.SEED)]
    trials += [f"metrics.`{name}`" for name in (SCORE, "best_search_score", SIZE)]
    trials += ["params.`learning_rate`", f"tags.`{names.STATUS}`"]
    first, direction = next(iter(objectives.items()), (SCORE, "maximize"))
    parallel = {"type": "PARALLEL", "selectedParams": shared_parameters(sweep.space), "selectedMetrics": [SIZE, SCORE]}
    # The page makes a chart of every metric: in the sections after the first, which are folded.
    section, *folded = dict.fromkeys(["Score and parameters", *(f"score/{task}".rpartition("/")[0] for task in tasks)])
    sections = [{"uuid": section, "name": section, "display": True, "columns": 1}]
    sections += [{"uuid": name, "name": name, "display": False} for name in (*folded, "Model metrics", "System metrics")]

    def view(name: str, query: str, columns: list[str], charts: list[dict[str, Any]]) -> str:
        state = {
            "searchFilter": f"tags.`{names.SWEEP_ID}` = '{sweep_id}' and tags.`{names.KIND}` = {query}",
            "orderByKey": f"metrics.`{first}`",
            "orderByAsc": direction == "minimize",
            "selectedColumns": columns,
            "columnOrder": [*FIXED, *columns],
            "columnWidths": FIXED | {column: max(85, 10 + 7 * len(column.partition(".")[2])) for column in columns},
            "runsHiddenMode": "SHOW_ALL",
            "compareRunCharts": [{"uuid": f"{n}", "metricSectionId": section, **chart} for n, chart in enumerate(charts)],
            "compareRunSections": sections,
            "isAccordionReordered": True,
        }
        named = f"{sweep.name}: {name} ({time.strftime('%Y-%m-%d %H:%M', time.gmtime(began / 1000))})"
        return json.dumps({"name": named, "createdAt": began, "state": json.dumps(state)})

    return {
        f"front-{sweep_id[:8]}": view(
            "the front", f"'configuration' and tags.`{names.TUNES}` IS NULL", front, [SCATTER, parallel]
        ),
        f"trials-{sweep_id[:8]}": view("all trials", "'trial'", trials, [SCATTER, *CURVES]),
    }


OWN = ("started", "ended", "underway", "files")
"""What the sweep's own run shows of the State."""


class DesiredRuns:
    """The runs of the sweep in `folder` as they should be; commands in them name the store's address `uri`."""

    def __init__(self, folder: Path, uri: str) -> None:
        self._folder, self._uri = folder, uri
        self._state = State()
        self._end: State | None = None
        self._verdict: Verdict | None = None
        self._groups: dict[str, list[Entry]] = {}
        self._families: dict[str, str] = {}

    def update(self, state: State, end: State | None) -> dict[Place, None]:
        """Takes a new state, and returns the runs that are different in it, parents first; `end` ended the last session."""
        previous, groups = self._state, self._groups
        self._state, self._groups = state, group(state)
        self._families = _families(self._groups, state.entries)
        entries = previous.entries
        if end is not None and end is not self._end:
            self._end, self._verdict = end, Verdict.of(end)
            entries = {}  # each run is marked
        switched = previous.wanted.keys() ^ state.wanted.keys() if state.wanted else frozenset[str]()
        changed = [entry for key, entry in state.entries.items() if entries.get(key) is not entry or key in switched]
        touched = {self._families[entry.trial.configuration] for entry in changed}
        for name, members in self._groups.items():
            left = previous.ended is not state.ended and not all(entry.ended for entry in members)
            if left or len(groups.get(name, ())) != len(members):
                touched.add(self._families[name])
        configurations = [name for name, family in self._families.items() if family in touched and self._has_begun(name)]
        configurations += [name for name, event in state.refused.items() if previous.refused.get(name) is not event]
        trials = [entry.key for entry in changed if entry.begun]
        sweep_changed = any(getattr(state, name) is not getattr(previous, name) for name in OWN) and state.started is not None
        keys = ([state.name] if sweep_changed else [], configurations, trials)
        return {(kind, key): None for kind, listed in zip(KINDS, keys, strict=True) for key in listed}

    @property
    def answer(self) -> str:
        """The sweep's answer when its last session ended, in Markdown; empty without one."""
        return plain(self._verdict.answer.partition("\n")[0]) if self._verdict else ""

    def runs(self, places: Iterable[Place]) -> Iterator[DesiredRun]:
        state, verdict, sweep = self._state, self._verdict, (SWEEP_KIND, self._state.name)
        places = list(places)
        summaries = self._summarize([key for kind, key in places if kind == CONFIGURATION_KIND and self._has_begun(key)])
        sent = self._kept_adapters() if any(kind == TRIAL_KIND for kind, _ in places) else ()
        for kind, key in places:
            if kind == SWEEP_KIND:
                run = desired_sweep(state, verdict, self._folder)
            elif kind == TRIAL_KIND:
                run = desired_trial(state.entries[key], verdict, state, self._folder, with_adapter=key in sent)
            elif key in summaries:
                run = desired_configuration(self._groups[key], summaries[key], verdict, state, self._uri)
            else:
                run = desired_refused(state.refused[key], sweep)
            yield replace(run, tags={**state.sweep.tracking.tags, **run.tags})

    def _kept_adapters(self) -> Container[str]:
        state, which = self._state, self._state.sweep.tracking.adapters
        if which != "front":
            return state.entries if which == "all" else ()
        members = self._verdict.members if self._verdict else {}
        marked = frozenset[str]().union(*(members.get(mark, ()) for mark in (names.ON_FRONT, names.ENOUGH, names.KNEE)))
        best: dict[str, tuple[float, str]] = {}  # of each task
        for key, entry in state.entries.items() if state.ended is None else ():
            if entry.finished is not None:
                score = float(entry.finished.metrics.get("score", -math.inf))
                best[entry.trial.task] = max(best.get(entry.trial.task, (-math.inf, "")), (score, key))
        of_marked = {key for key, entry in state.entries.items() if entry.trial.configuration in marked}
        return of_marked | {key for _, key in best.values()}

    def _has_begun(self, configuration: str) -> bool:
        return any(entry.begun for entry in self._groups.get(configuration, ()))

    def _summarize(self, configurations: Iterable[str]) -> dict[str, Summary]:
        summaries: dict[str, Summary] = {}
        families = set()
        for name in configurations:
            if self._verdict is not None and self._verdict.holds_for(name, self._groups[name]):
                summaries[name] = self._verdict.summaries[name]
            else:
                families.add(self._families[name])
        related = [name for name, family in self._families.items() if family in families]
        entries = [entry for name in related for entry in self._groups[name]]
        return {summary.configuration: summary for summary in summarize_entries(entries)} | summaries


def _families(groups: Mapping[str, Sequence[Entry]], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the family of each configuration: those that it was cut from, and the candidates among which its settings were
    chosen. A summary depends on its family alone, whereas the front counts an added seed once it has ended in all families."""
    families = {}
    for configuration, (first, *_) in groups.items():
        source = entries.get(first.trial.training, first)
        families[configuration] = source.trial.group or source.trial.configuration
    return families
