"""Desired runs of a sweep in MLflow: what each of them should be, as a function of the sweep's State.

The sweep has a run; below it each configuration with a trial that has begun, or that was refused; below these their trials that
have begun. `orchestrator.review.mirror` makes the store equal to them.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from craft.results import PREDICTIONS_FOLDER
from orchestrator.plan.configuration import flatten, text
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Refused
from orchestrator.record.folder import EFFECTIVE_FILE
from orchestrator.record.manifest import effective_text
from orchestrator.record.state import Entry, State, by_configuration
from orchestrator.results.answer import answer_of
from orchestrator.results.front import knee
from orchestrator.results.metrics import COLUMNS, SIZE, flat_cells, with_method
from orchestrator.results.summary import Summary, status_of
from orchestrator.review.front_tables import markdown
from orchestrator.tools.markup import paragraphs, plain
from orchestrator.tools.secrets import redact, redacted
from orchestrator.tracking import desired as names
from orchestrator.tracking.desired import DesiredRun, Place

ENDINGS = {"done": "finished", "failed": "failed", "stopped": "stopped"}


@dataclass(frozen=True)
class Verdict:
    """The configurations at the end of a session, compared with each other.

    Attributes:
        members: ids of the configurations that get a mark, by its tag.
    """

    entries: Mapping[str, Sequence[Entry]]
    summaries: Mapping[str, Summary]
    members: Mapping[str, frozenset[str]]
    knee: str
    description: str
    answer: str
    numbers: Mapping[str, float]

    @classmethod
    def of(cls, state: State) -> Verdict:
        """Judges a state in which a session has ended."""
        objectives = state.sweep.objectives
        summaries, answer = answer_of(state)
        table = markdown(summaries, objectives, state.sweep.enough.within)
        chosen = knee(summaries, objectives)
        members = {
            tag: frozenset(row.configuration for row in summaries if getattr(row, tag.removeprefix(names.PREFIX)))
            for tag in (names.ON_FRONT, names.MAY_BE_ON_FRONT, names.ENOUGH)
        } | {names.KNEE: frozenset([chosen.configuration] if chosen else [])}
        return cls(
            group(state),
            {summary.configuration: summary for summary in summaries},
            members,
            chosen.configuration if chosen else "",
            "\n\n".join((answer.markdown, table)),
            answer.text,
            _closing_numbers(state),
        )

    def holds_for(self, configuration: str, entries: Sequence[Entry]) -> bool:
        """Returns whether the configuration has the same trials, with the same results, as when it was judged."""
        judged = self.entries.get(configuration, ())
        same = (old.key == new.key and old.result is new.result for old, new in zip(judged, entries, strict=False))
        return configuration in self.summaries and len(judged) == len(entries) and all(same)


def group(state: State) -> dict[str, list[Entry]]:
    """Returns the trials by configuration: those that the session asks for, or all if it asks for none of them."""
    groups = by_configuration(state.requested)
    return groups | by_configuration(entry for entry in state.entries.values() if entry.trial.configuration not in groups)


def _closing_numbers(state: State) -> dict[str, float]:
    assert state.ended is not None
    trained = state.trainings
    ended: list[str] = [entry.result.status for entry in trained if entry.result is not None]
    numbers = {f"trials_{name}": ended.count(status) for name, status in ENDINGS.items()}
    missing = len(trained) - sum(numbers.values())
    return {"trials_planned": len(trained), **numbers, "trials_missing": missing, "seconds": state.ended.seconds}


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
        tags |= {names.KNEE: verdict.knee, names.NOTE: verdict.description, names.ANSWER: verdict.answer}
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
    tags = _identity(event.configuration, event.label, event.method, event.protocol)
    tags |= {names.STATUS: "infeasible", names.COMPLETE: "false", names.ERROR: event.reason}
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
    tags = _identity(first.configuration, first.label, first.method, first.protocol) | _asked(state, entries)
    tags |= ({names.TUNES: first.group} if first.group else {}) | ({names.ADDED: first.added} if first.added else {})
    tags |= _marks(first.configuration, verdict)
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
    result = entry.result if entry.phase != "running" else None
    status = result.status if result else "running" if entry.phase == "running" else "interrupted"
    trial = entry.trial
    tags = _identity(trial.configuration, trial.label, trial.method, trial.protocol)
    tags |= {names.TASK: trial.task, names.SEED: str(trial.seed), names.STATUS: status} | _asked(state, [entry])
    tags |= {names.TUNES: trial.group} if trial.group else {}
    tags |= ({names.TRANSFERRED: trial.transferred} if trial.transferred else {}) | (
        {names.ADDED: trial.added} if trial.added else {}
    )
    # What an earlier try of the trial left there is no longer true.
    tags |= {names.ERROR: "", names.NOTES: "", names.NOTE: ""} | _marks(trial.configuration, verdict)
    files: dict[str, Path] = {}
    if result is not None:
        tags |= _outcome(result)
        if entry.adapter is not None and with_adapter:
            files["adapter"] = folder / entry.adapter
        if entry.adapter is not None and state.sweep.tracking.predictions:
            files[PREDICTIONS_FOLDER] = (folder / entry.adapter).parent / PREDICTIONS_FOLDER
    facts = result.facts if result else {}
    digest = facts.get("data_fingerprint") or facts.get("fingerprint")
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


def _identity(configuration: str, label: str, method: str, protocol: str) -> dict[str, str]:
    values = (configuration, label, text(method), protocol)
    return dict(zip((names.CONFIGURATION, names.LABEL, names.METHOD, names.PROTOCOL), values, strict=True))


def _asked(state: State, entries: Iterable[Entry]) -> dict[str, str]:
    """Returns the tag that says whether the session asks for any of these trials; before it has asked for any, all count."""
    return {names.ASKED: "" if not state.wanted or any(entry.key in state.wanted for entry in entries) else "false"}


def _marks(configuration: str, verdict: Verdict | None) -> dict[str, str]:
    members = verdict.members if verdict else {}
    marked = {name: "true" if configuration in members.get(name, ()) else "" for name in MARKS}
    return marked | {names.ON_FRONT: marked[names.ON_FRONT] or "false"}


def describe_configuration(key: str, numbers: Mapping[str, float], error: str, sweep: str, uri: str) -> str:
    """Returns a configuration's score, and the command that takes its adapter."""
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
    if result.notes:
        tags[names.NOTES] = "\n".join(result.notes)
    return tags | ({names.NOTE: "\n\n".join([f"**{result.status}**", *said])} if said else {})


def _final_metrics(entry: Entry, result: TrialResult) -> dict[str, float]:
    metrics = {**result.counts, "seconds": result.seconds, **result.metrics}
    # The curve of what it reported stays as it is.
    metrics = {name: value for name, value in metrics.items() if entry.last_steps.get(name, -1) < result.steps}
    if "search_score" in result.metrics:
        # MLflow shows only the last value of a metric; this one belongs to the weights that were kept.
        metrics["best_search_score"] = result.metrics["search_score"]
    return metrics
