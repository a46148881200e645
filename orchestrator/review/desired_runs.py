"""Desired runs of a sweep in MLflow: what each of them should be, as a function of the sweep's State, and which of them a
change of the State has changed (`DesiredRuns`).

The sweep has a run; below it each configuration with a trial that has begun, or that was refused; below these their trials that
have begun. `orchestrator.review.mirror` makes the store equal to them.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from craft.results import PREDICTIONS_FOLDER
from orchestrator.plan.configuration import flatten, text
from orchestrator.plan.trial import Trial, TrialResult
from orchestrator.record.events import Refused
from orchestrator.record.folder import EFFECTIVE_FILE
from orchestrator.record.manifest import effective_text
from orchestrator.record.state import Entry, State, by_configuration, count_phases
from orchestrator.results.answer import answer_of
from orchestrator.results.front import knee
from orchestrator.results.metrics import COLUMNS, SIZE, flat_cells, with_method
from orchestrator.results.summary import Summary, status_of, summarize_entries
from orchestrator.review.front_tables import markdown
from orchestrator.tools.markup import paragraphs, plain
from orchestrator.tools.secrets import redact, redacted
from orchestrator.tracking import desired as names
from orchestrator.tracking.desired import DesiredRun, Place

ENDINGS = {"done": "finished", "failed": "failed", "stopped": "stopped"}


class Verdict:
    """The configurations at the `end` of a session, compared with each other; `members` has those that get a mark, by its
    tag."""

    def __init__(self, end: State) -> None:
        summaries, self.answer = answer_of(end)
        chosen = knee(summaries, end.sweep.objectives)
        self.end = end
        self.summaries = {summary.configuration: summary for summary in summaries}
        self.members = {
            names.ON_FRONT: {row.configuration for row in summaries if row.on_front},
            names.MAY_BE_ON_FRONT: {row.configuration for row in summaries if row.may_be_on_front},
            names.ENOUGH: {row.configuration for row in summaries if row.enough},
            names.KNEE: {chosen.configuration} if chosen else set(),
        }
        self._results = {name: _results(entries) for name, entries in group(end).items()}

    @property
    def description(self) -> str:
        """The answer and the table of configurations, in Markdown."""
        table = markdown([*self.summaries.values()], self.end.sweep.objectives, self.end.sweep.enough.within)
        return f"{self.answer.markdown}\n\n{table}"

    @property
    def numbers(self) -> dict[str, float]:
        assert self.end.ended is not None
        counts = count_phases(self.end.trainings)
        numbers = {f"trials_{name}": counts[status] for name, status in ENDINGS.items()}
        missing, planned = counts.total() - sum(numbers.values()), counts.total()
        return {**numbers, "trials_planned": planned, "trials_missing": missing, "seconds": self.end.ended.seconds}

    def holds_for(self, configuration: str, entries: Sequence[Entry]) -> bool:
        """Returns whether the configuration has the same trials, with the same results, as when it was judged."""
        return configuration in self.summaries and self._results.get(configuration) == _results(entries)


def _results(entries: Iterable[Entry]) -> list[tuple[str, TrialResult | None]]:
    return [(entry.key, entry.result) for entry in entries]


def group(state: State) -> dict[str, list[Entry]]:
    """Returns the trials by configuration: those that the session asks for, or all if it asks for none of them."""
    groups = by_configuration(state.requested)
    return groups | by_configuration(entry for entry in state.entries.values() if entry.trial.configuration not in groups)


RUN_STATUS = {"running": "RUNNING", "failed": "FAILED", "interrupted": "KILLED"}
"""MLflow's statuses; all others are FINISHED. Incomplete or infeasible is no failure."""
EXTENDED = ("tasks", "seeds", "tuning_seeds", "scheduler", "configurations", "trials", "again")
"""What an extension of a sweep changes: tags of its run, because a parameter of MLflow keeps its first value."""
MARKS = (names.ON_FRONT, names.MAY_BE_ON_FRONT, names.ENOUGH, names.KNEE)


def desired_sweep(state: State, verdict: Verdict | None, folder: Path) -> DesiredRun:
    assert state.started is not None
    status, info = state.ended.status if state.ended else "running", describe_file(state)
    extended = {f"{names.PREFIX}{name}": text(info.pop(name)) for name in EXTENDED if name in info}
    underway = ""
    if state.underway is not None:
        report = {"left": state.underway.left, "doing": state.underway.doing, "time": int(1000 * state.underway.time)}
        underway = json.dumps(report, ensure_ascii=False)
    tags = {**state.started.origin, **extended, names.STATUS: status, names.UNDERWAY: underway}
    if verdict is not None:
        tags |= {names.NOTE: verdict.description, names.ANSWER: verdict.answer.text}
    manifest = redacted({**state.started.manifest, "sweep": state.started.sweep})
    texts = {"manifest.json": json.dumps(manifest, indent=2, default=str), EFFECTIVE_FILE: redact(effective_text(state.sweep))}
    return DesiredRun(
        (names.SWEEP_KIND, state.name),
        state.name,
        RUN_STATUS.get(status, "FINISHED"),
        (state.ended or state.started).time,
        tags,
        params=flatten(info),
        metrics=verdict.numbers if verdict else {},
        texts=texts,
        files={Path(file).name: folder / file for file in state.files},
        charts=tuple(Path(file).name for file in state.files if file.endswith(".png")),
    )


def describe_file(state: State) -> dict[str, Any]:
    """Returns what the sweep's run says of its file, in the words of the file."""
    assert state.started is not None
    sweep = state.sweep
    return {
        "model": sweep.model,
        "tasks": ",".join(sweep.tasks),
        "seeds": ",".join(map(str, sweep.reported_seeds)),
        **({"tuning_seeds": ",".join(map(str, sweep.seeds))} if sweep.tunes else {}),
        "objectives": json.dumps(sweep.objectives),
        "enough": sweep.enough.model_dump_json(),
        "algorithm": sweep.search.algorithm,
        "scheduler": sweep.scheduler.name,
        "protocol": sweep.protocol,
        **({"compare": sweep.compare, "tuned": ",".join(sweep.tuned_settings)} if sweep.compare else {}),
        "configurations": state.started.configurations,
        "trials": state.started.trainings,
        "again": state.again,
    }


def desired_refused(event: Refused, sweep: Place) -> DesiredRun:
    tags = _identity(event) | {names.STATUS: "infeasible", names.COMPLETE: "false", names.ERROR: event.reason}
    return DesiredRun(
        (names.CONFIGURATION_KIND, event.configuration),
        short_name(event.method, event.label, event.counts.get(SIZE)),
        "FINISHED",
        event.time,
        tags | {names.NOTE: paragraphs(event.reason)},
        sweep,
        params={"method": event.method} | flatten(event.parameters),
        metrics=event.counts,
    )


def desired_configuration(
    entries: Sequence[Entry], summary: Summary, verdict: Verdict | None, state: State, uri: str
) -> DesiredRun:
    """Returns the run, as it should be, of a configuration. While it runs, its trials alone tell how it does."""
    sweep = (names.SWEEP_KIND, state.name)
    first = entries[0].trial
    status = status_of(summary, entries, state.ended is None)
    tags = _identity(first) | _purpose(first) | _asked(state, entries) | _marks(first.configuration, verdict)
    numbers: dict[str, float] = {}
    if status != "running":
        cells, error = flat_cells(summary), "; ".join(summary.reasons)
        numbers = {name: float(value) for name, value in cells.items() if not isinstance(value, bool | str)}
        texts = {name for name, row in COLUMNS.items() if not row.is_number} | cells.keys() - numbers.keys()
        facts = {f"{names.PREFIX}{name}": text(cells.get(name, "")) for name in texts - {"reasons"}}
        tags = facts | tags | {names.ERROR: error}
        tags[names.NOTE] = describe_configuration(first.configuration, numbers, error, sweep[1], uri)
    return DesiredRun(
        (names.CONFIGURATION_KIND, first.configuration),
        short_name(first.method, first.label, numbers.get(SIZE, first.planned.get(SIZE))),
        RUN_STATUS.get(status, "FINISHED"),
        max(entry.changed for entry in entries if entry.begun),
        tags | {names.STATUS: status},
        sweep,
        params=flatten(summary.parameters) if status != "running" else {},
        metrics=numbers,
        step=sum(entry.result is not None for entry in entries),
    )


def desired_trial(entry: Entry, verdict: Verdict | None, state: State, folder: Path, *, with_adapter: bool) -> DesiredRun:
    trial, result, status = entry.trial, entry.current, entry.status
    tags = _identity(trial) | _purpose(trial) | {names.TRANSFERRED: trial.transferred or ""}
    tags |= {names.TASK: trial.task, names.SEED: str(trial.seed), names.STATUS: status} | _asked(state, [entry])
    # What an earlier try of the trial left there is no longer true.
    tags |= {names.ERROR: "", names.NOTE: ""} | _marks(trial.configuration, verdict)
    files: dict[str, Path] = {}
    if result is not None:
        tags |= _outcome(result)
        if entry.adapter is not None and with_adapter:
            files["adapter"] = folder / entry.adapter
        if entry.adapter is not None and state.sweep.tracking.predictions:
            files[PREDICTIONS_FOLDER] = (folder / entry.adapter).parent / PREDICTIONS_FOLDER
    facts = result.facts if result else {}
    digest = facts.get("data_fingerprint")
    size = (result.counts if result else {}).get(SIZE, trial.planned.get(SIZE))
    return DesiredRun(
        (names.TRIAL_KIND, entry.key),
        f"s{trial.seed} · {short_name(trial.method, trial.label, size)} · {trial.task}",
        RUN_STATUS.get(status, "FINISHED"),
        entry.changed,
        tags,
        (names.CONFIGURATION_KIND, trial.configuration),
        params={**trial.parameters} | ({"total_steps": entry.report.total_steps} if entry.report else {}),
        metrics={**trial.planned, **_final_metrics(entry, result)} if result else {},
        step=result.steps if result else 0,
        files=files,
        data=(trial.task, str(digest)) if digest else None,
    )


def short_name(method: str, label: str, size: float | None = None) -> str:
    """Returns `4,108 · CRAFT 64 qkvo`: trainable parameters first, because MLflow's page cuts names at their end."""
    name = re.sub(r"(?<=\b[a-z]) (?=[a-z]\b)", "", with_method(method, label)).replace(", ", " ")
    return name if size is None else f"{size:,.0f} · {name}"


def _identity(row: Trial | Refused) -> dict[str, str]:
    named = {names.CONFIGURATION: row.configuration, names.LABEL: row.label}
    return named | {names.METHOD: text(row.method), names.PROTOCOL: row.protocol}


def _purpose(trial: Trial) -> dict[str, str]:
    return {names.TUNES: trial.group or "", names.ADDED: trial.added or ""}


def _asked(state: State, entries: Iterable[Entry]) -> dict[str, str]:
    """Returns the tag that says whether the session asks for any of these trials; before it has asked for any, all count."""
    return {names.ASKED: "" if not state.wanted or any(entry.key in state.wanted for entry in entries) else "false"}


def _marks(configuration: str, verdict: Verdict | None) -> dict[str, str]:
    marked = {name: "true" if verdict and configuration in verdict.members[name] else "" for name in MARKS}
    return marked | {names.ON_FRONT: marked[names.ON_FRONT] or "false"}


def describe_configuration(key: str, numbers: Mapping[str, float], error: str, sweep: str, uri: str) -> str:
    lines = [paragraphs(error)] if error else []
    if "score" in numbers:
        store = f" --tracking-uri {shlex.quote(uri)}" if redact(uri) == uri else ""
        command = f"craft-sweeps take {shlex.quote(sweep)} --pick {key} --to adapter{store}"
        lines += [headline(numbers), f"Take its adapter:\n\n    {command}"]
    return "\n\n".join(lines)


def headline(numbers: Mapping[str, float]) -> str:
    """Returns a configuration's score with its interval, and its size, in Markdown."""
    low, high = numbers.get("score_low", math.nan), numbers.get("score_high", math.nan)
    interval = f" ({low:.2f} to {high:.2f})" if low < high else ""
    size = f", {numbers[SIZE]:,.0f} trainable parameters" if SIZE in numbers else ""
    return f"**score {numbers['score']:.2f}**{interval}{size}"


def _outcome(result: TrialResult) -> dict[str, str]:
    tags = {f"{names.FACT}{name}": text(value) for name, value in result.facts.items()}
    said = [f"- {plain(note)}" for note in result.notes]
    if result.error:
        tags[names.ERROR] = result.error
        said.insert(0, paragraphs(result.error))
    return tags | ({names.NOTE: "\n\n".join([f"**{result.status}**", *said])} if said else {})


def _final_metrics(entry: Entry, result: TrialResult) -> dict[str, float]:
    metrics = {**result.counts, "seconds": result.seconds, **result.metrics}
    # The curve of what it reported stays as it is.
    metrics = {name: value for name, value in metrics.items() if entry.last_steps.get(name, -1) < result.steps}
    if "search_score" in result.metrics:
        # MLflow shows only the last value of a metric; this one belongs to the weights that were kept.
        metrics["best_search_score"] = result.metrics["search_score"]
    return metrics


class DesiredRuns:
    """The runs of the sweep in `folder` as they should be; commands in them name the store's address `uri`."""

    def __init__(self, folder: Path, uri: str) -> None:
        self._folder, self._uri = folder, uri
        self._state = State()
        self._verdict: Verdict | None = None
        self._groups: dict[str, list[Entry]] = {}
        self._families: dict[str, str] = {}
        self._inputs: dict[Place, tuple[Any, ...]] = {}

    def update(self, state: State, end: State | None) -> dict[Place, None]:
        """Takes a new state, and returns the runs that are different in it, parents first; `end` ended the last session."""
        if end is not None and (self._verdict is None or end is not self._verdict.end):
            self._verdict = Verdict(end)
        self._state, self._groups = state, group(state)
        self._families = _families(self._groups, state.entries)
        previous, self._inputs = self._inputs, dict(self._read_inputs())
        return {place: None for place, inputs in self._inputs.items() if previous.get(place) != inputs}

    def _read_inputs(self) -> Iterator[tuple[Place, tuple[Any, ...]]]:
        """Yields each run with all that it depends on, parents first."""
        state, verdict, members = self._state, self._verdict, dict[str, list[Entry]]()
        if state.started is not None:
            yield (names.SWEEP_KIND, state.name), (state.started, state.ended, state.underway, state.files, verdict)
        for name, event in state.refused.items():
            yield (names.CONFIGURATION_KIND, name), (event,)
        for name, family in self._families.items():
            members.setdefault(family, []).extend(self._groups[name])
        for name, family in self._families.items():
            if self._has_begun(name):
                entries, over = self._groups[name], state.ended is not None
                status = over and not all(entry.ended for entry in entries), _asked(state, entries)
                yield (names.CONFIGURATION_KIND, name), (verdict, status, members[family])
        for key, entry in state.entries.items():
            if entry.begun:
                yield (names.TRIAL_KIND, key), (verdict, entry, _asked(state, [entry]))

    @property
    def answer(self) -> str:
        """The first line of the sweep's answer when its last session ended, in Markdown; empty without one."""
        return plain(self._verdict.answer.text.partition("\n")[0]) if self._verdict else ""

    def runs(self, places: Iterable[Place]) -> Iterator[DesiredRun]:
        state, verdict, sweep = self._state, self._verdict, (names.SWEEP_KIND, self._state.name)
        places = list(places)
        summaries = self._summarize([key for kind, key in places if kind == names.CONFIGURATION_KIND and self._has_begun(key)])
        sent = self._kept_adapters() if any(kind == names.TRIAL_KIND for kind, _ in places) else ()
        for kind, key in places:
            if kind == names.SWEEP_KIND:
                run = desired_sweep(state, verdict, self._folder)
            elif kind == names.TRIAL_KIND:
                run = desired_trial(state.entries[key], verdict, state, self._folder, with_adapter=key in sent)
            elif key in summaries:
                run = desired_configuration(self._groups[key], summaries[key], verdict, state, self._uri)
            else:
                run = desired_refused(state.refused[key], sweep)
            yield replace(run, tags={**state.sweep.tracking.tags, **run.tags})

    def _kept_adapters(self) -> Container[str]:
        state, verdict, which = self._state, self._verdict, self._state.sweep.tracking.adapters
        if which != "front":
            return state.entries if which == "all" else ()
        best: dict[str, tuple[float, str]] = {}  # of each task
        for key, entry in state.entries.items() if state.ended is None else ():
            if entry.finished is not None and (score := entry.finished.metrics.get("score")) is not None:
                best[entry.trial.task] = max(best.get(entry.trial.task, (-math.inf, "")), (score, key))
        marks = (names.ON_FRONT, names.ENOUGH, names.KNEE)
        marked = set[str]().union(*(verdict.members[mark] for mark in marks)) if verdict else set[str]()
        of_marked = {key for key, entry in state.entries.items() if entry.trial.configuration in marked}
        return of_marked | {key for _, key in best.values()}

    def _has_begun(self, configuration: str) -> bool:
        return any(entry.begun for entry in self._groups.get(configuration, ()))

    def _summarize(self, configurations: Sequence[str]) -> dict[str, Summary]:
        verdict, groups = self._verdict, self._groups
        held = {name: verdict.summaries[name] for name in configurations if verdict and verdict.holds_for(name, groups[name])}
        families = {self._families[name] for name in configurations if name not in held}
        entries = [entry for name, family in self._families.items() if family in families for entry in groups[name]]
        return {summary.configuration: summary for summary in summarize_entries(entries)} | held


def _families(groups: Mapping[str, Sequence[Entry]], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the family of each configuration: those that it was cut from, and the candidates among which its settings were
    chosen. A summary depends on its family alone, whereas the front counts an added seed once it has ended in all families."""
    trained = {name: entries.get(first.trial.training, first).trial for name, (first, *_) in groups.items()}
    return {name: trial.group or trial.configuration for name, trial in trained.items()}
