"""A configuration's trials summed up: its value on every metric, with intervals, and whether it lies on the front.

This is the shape that everything after training reads: the terminal's table, the files of the front, the
configurations' runs in MLflow. A configuration counts on the front only when every trial planned for it at first has finished.
One with failed, stopped or missing trials is marked incomplete: its score, if it has one, is over the seeds that finished
*every* task, never over fewer tasks, and the seeds that are missing are counted where the score is shown.

Seeds that are added later never make it incomplete. A seed counts once it has ended in all configurations that got it at the
same time, so that all are ranked by the same seeds; where it failed, the configuration keeps those that it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from craft.results import EXAMPLES, METRIC, name_score
from craft.scoring.predictions import CREDITS, read_credits
from craft.tasks.metrics import METRICS
from orchestrator.plan.trial import TrialResult
from orchestrator.record.state import Entry, by_configuration
from orchestrator.results.intervals import Interval, Scores, interval, sampling_reach, suite_interval
from orchestrator.results.metrics import FEWEST, SIZE, column_of
from orchestrator.results.tuning import Tuning, tunings_of

GUESSING, RANGE, UNIT, ROUNDING = "random_guessing", "range", "size_unit", "rounding"
"""Facts of a result: the best score of answers that no input decides; the ends of a score of an unknown metric; what its size
counts; the points between two scores as they were rounded."""
Credits = Mapping[tuple[str, int], NDArray[np.float64]]
"""Credits of blocks of scored examples (`craft.scoring.predictions`) by task and seed."""


@dataclass(frozen=True)
class Summary:
    """One configuration. `metrics` are over tasks and seeds, `tasks` the score's mean of each task over its seeds.

    `scores` holds every finished trial's score by (task, seed); `reasons` the distinct causes of failures. `tunes` is the
    configuration for which this one is a candidate; then it has search scores alone and does not count as complete. `tuning`
    is what the choice of its settings took, in a sweep that tunes; what was cut from an adapter has its tuning. `sampling` is
    how far the interval over the scored examples alone reaches below and above the score, which is in `range`. The count
    `examples` is the fewest that a task was scored on, and `random_guessing` the best score of blind answers. `enough`
    marks the configuration that the rule of `orchestrator.results.front.enough` takes. `unit` is what the size counts, empty
    without sizes. `metric` names what the score is, where that is the same on all tasks. `source` is the id of the
    configuration from whose adapters its own are cut. `planned` and `finished` are the trials by which it is judged; `to_come`
    are trials added later that do not count yet, and `lost` the added seeds that failed or were stopped. `graded` has
    `graded_rows` of each task.
    """

    configuration: str
    label: str
    method: str
    parameters: dict[str, Any]
    metrics: dict[str, Interval]
    tasks: dict[str, Interval]
    counts: dict[str, float]
    scores: Scores
    planned: int
    finished: int
    failed: int
    stopped: int
    seeds: int
    protocol: str = "honest"
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    on_front: bool = False
    may_be_on_front: bool = False
    enough: bool = False
    tunes: str | None = None
    tuning: Tuning = field(default_factory=Tuning)
    sampling: tuple[float, float] = (0.0, 0.0)
    range: tuple[float, float] = (0.0, 100.0)
    unit: str = "parameters"
    metric: str = ""
    rounding: float = 0.0
    source: str | None = None
    to_come: int = 0
    lost: tuple[int, ...] = ()
    credits: Credits = field(default_factory=dict, repr=False, compare=False)
    graded: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def complete(self) -> bool:
        """Whether every planned trial finished and is reported."""
        return self.finished == self.planned > 0 and self.tunes is None

    @property
    def status(self) -> str:
        """How it ended: `finished`, `failed`, `stopped`, or `incomplete` if it has not, or only tunes."""
        return "finished" if self.complete else "failed" if self.failed else "stopped" if self.stopped else "incomplete"

    @property
    def possible(self) -> bool:
        """Whether it is not on the front but may be: its probability is not small."""
        return self.may_be_on_front and not self.on_front

    @property
    def trained(self) -> str:
        """The id of the configuration whose training another seed of it repeats."""
        return self.source or self.configuration

    @property
    def score(self) -> Interval:
        return self.metrics.get("score", interval([]))

    def value(self, name: str) -> float:
        """Returns the value of an objective or any other metric or count, NaN if there is none. `score/TASK` names a task's."""
        return self.bounds(name).mean

    def bounds(self, name: str) -> Interval:
        """Returns the value of a metric or count with its interval. A count is exact, so both ends equal it."""
        if name in self.metrics:
            return self.metrics[name]
        if name in self.counts:
            return Interval(self.counts[name], self.counts[name], self.counts[name], self.finished)
        if name.startswith("score/"):
            return self.tasks.get(name.removeprefix("score/"), interval([]))
        return interval([])


def complete_among(summaries: Iterable[Summary]) -> list[Summary]:
    """Returns the complete configurations that have a score."""
    return [summary for summary in summaries if summary.complete and math.isfinite(summary.score.mean)]


def summarize_entries(entries: Iterable[Entry]) -> list[Summary]:
    """Returns a summary of each configuration, in the order in which configurations first appear."""
    entries = [*entries]
    grouped = by_configuration(entry for entry in entries if entry.trial.serves is None)  # a training for a size is no row
    tuning, configurations = tunings_of(entries), {entry.key: entry.trial.configuration for entry in entries}
    counted = _counted(grouped)
    summaries = {name: _summary(group, counted[name], tuning.get(name, Tuning())) for name, group in grouped.items()}
    trials = {name: group[0].trial for name, group in grouped.items()}
    sources = {name: configurations.get(trial.training) for name, trial in trials.items() if trial.is_cut}
    return [replace(summary, source=sources.get(name)) for name, summary in summaries.items()]


def _counted(groups: Mapping[str, Sequence[Entry]]) -> dict[str, list[Entry]]:
    """Returns the trials by which each configuration is judged: its first ones, and of those that were added later each task
    that has ended in all configurations, and each seed that has, too, and finished in this one. One that was added with a task
    is judged without it as long as the others are."""
    first = {name: min(entry.wave for entry in group) for name, group in groups.items()}
    latest_first = [(name, sorted(group, key=lambda entry: -entry.wave)) for name, group in groups.items()]
    began = {(name, entry.trial.task): entry.wave for name, group in latest_first for entry in group}
    added: dict[tuple[str, tuple[int, str | int]], list[Entry]] = {}
    for name, group in groups.items():
        for entry in group:
            if entry.wave > first[name]:
                new_task = began[name, entry.trial.task] == entry.wave
                part = entry.wave, entry.trial.task if new_task else entry.trial.seed
                added.setdefault((name, part), []).append(entry)
    open_parts = {part for (_, part), entries in added.items() if not all(entry.ended for entry in entries)}
    counted = {}
    for name, group in groups.items():
        own = [entry for entry in group if entry.wave == first[name]]
        counted[name] = [entry for entry in own if (entry.wave, entry.trial.task) not in open_parts] or own
    for (name, part), entries in added.items():
        if part not in open_parts and (isinstance(part[1], str) or all(entry.finished for entry in entries)):
            counted[name] += entries
    for name, entries in counted.items():
        if all(entry.ended and entry.trial.added for entry in entries):  # a whole configuration was added
            failed = {entry.trial.seed for entry in entries if not entry.finished}
            counted[name] = [entry for entry in entries if entry.trial.seed not in failed] or entries
    return counted


def status_of(summary: Summary, entries: Sequence[Entry], open_session: bool) -> str:
    """Returns the status of a configuration: `running`, `waiting` (for further seeds) or `interrupted` while a trial has no
    result, else how it ended."""
    unfinished = [entry for entry in entries if not entry.ended and entry.result is None]
    if any(entry.phase == "running" for entry in entries):
        return "running"
    if not unfinished:
        return summary.status
    if summary.seeds and not (summary.failed or summary.stopped or any(entry.begun for entry in unfinished)):
        return "waiting"  # those that it has are complete
    may_run = open_session and any(entry.phase == "paused" or not entry.begun for entry in unfinished)
    return "running" if may_run else "interrupted"


def _summary(every: list[Entry], entries: list[Entry], tuning: Tuning) -> Summary:
    """Returns the summary of a configuration with these trials, of which `entries` count."""
    ended = [(entry, entry.result) for entry in every if entry.result is not None]
    counted = {entry.key for entry in entries}
    finished = [(entry, result) for entry, result in ended if result.status == "finished" and entry.key in counted]
    beside = [entry for entry in every if entry.key not in counted]
    lost = {entry.trial.seed for entry in beside if entry.ended and not entry.finished}
    first = every[0].trial
    tasks = list(dict.fromkeys(entry.trial.task for entry in entries))
    by_metric: dict[str, dict[tuple[str, int], float]] = {}
    for entry, result in finished:
        for name, value in result.metrics.items():
            if name.startswith("search_") or first.is_reported:
                by_metric.setdefault(name, {})[entry.trial.task, entry.trial.seed] = value
    metrics = {name: suite_interval(scores, tasks) for name, scores in by_metric.items()}
    reported = [(entry.trial.task, result) for entry, result in finished if "score" in result.metrics and first.is_reported]
    scores = by_metric.get("score", {})
    return Summary(
        configuration=first.configuration,
        label=first.label,
        method=first.method,
        parameters=_shared(entries),
        # A metric that only some tasks have (F1, Matthews) has no value for the suite: it is left out, not averaged over fewer.
        metrics={name: value for name, value in metrics.items() if value.n or name == "score"},
        tasks={task: interval(value for (name, _), value in sorted(scores.items()) if name == task) for task in tasks},
        counts=_counts(finished, first.planned) | _examples(reported, len(tasks)),
        sampling=_sampling(reported, len(tasks)),
        range=_range([result.facts for _, result in reported]),
        unit=next((str(result.facts[UNIT]) for _, result in reported if UNIT in result.facts), "parameters"),
        metric=shared_metric(name_score(result.facts) for _, result in reported),
        rounding=max((float(result.facts.get(ROUNDING, 0.0)) for _, result in reported), default=0.0),
        scores=scores,
        planned=len(entries),
        finished=len(finished),
        failed=sum(result.status == "failed" and (entry.ended or result.settled) for entry, result in ended),
        stopped=sum(result.status == "stopped" for _, result in ended),
        seeds=metrics["score"].n if "score" in metrics else 0,
        protocol=first.protocol,
        reasons=tuple(dict.fromkeys(result.error for _, result in ended if result.error and result.status == "failed")),
        notes=tuple(dict.fromkeys(f"{entry.trial.task}: {note}" for entry, result in finished for note in result.notes)),
        tunes=first.group,
        tuning=tuning,
        to_come=sum(entry.trial.seed not in lost for entry in beside),
        lost=tuple(sorted(lost)),
        credits={
            (entry.trial.task, entry.trial.seed): read_credits(result.facts[CREDITS])
            for entry, result in finished
            if result.facts.get(CREDITS) and first.is_reported
        },
        graded={task: graded_rows(result) for task, result in reported},
    )


def graded_rows(result: TrialResult) -> float:
    """Returns how many scored examples are each right or wrong; infinity if they have values."""
    row = METRICS.get(metric := str(result.facts.get(METRIC)))
    values = f"{metric}_error" in result.metrics if row is None else not row.graded
    return math.inf if values else float(result.facts.get(EXAMPLES, math.inf))


def score_step(rows: Sequence[Summary], tasks: Sequence[str]) -> float:
    """Returns the points between two neighbouring means over tasks: what one scored example adds, or the step of rounding."""
    fewest = min((row.graded.get(task, math.inf) for row in rows for task in tasks), default=math.inf)
    return max(100 / fewest / max(1, len(tasks)), *(row.rounding for row in rows))


def _range(facts: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    metrics = [(fact.get(RANGE), METRICS.get(str(fact.get(METRIC)))) for fact in facts]
    ends = [ends or (-100.0 if row and row.signed else 0.0, 100.0) for ends, row in metrics] or [(0.0, 100.0)]
    return min(low for low, _ in ends), max(high for _, high in ends)


def shared_metric(names: Iterable[Any]) -> str:
    """Returns the name of the metric if all scores are of the same one; empty if they differ, or one is not known."""
    distinct = {str(name or "") for name in names}
    return distinct.pop() if len(distinct) == 1 else ""


def metric_among(summaries: Sequence[Summary]) -> str:
    """Returns the metric that the scores are, if it is the same in all configurations that have one."""
    return shared_metric(summary.metric for summary in summaries if summary.score.n)


def _sampling(reported: list[tuple[str, TrialResult]], tasks: int) -> tuple[float, float]:
    """Returns how far the interval over examples reaches below and above the mean over tasks (Zou and Donner 2008).

    A task's reach is the mean over its seeds. The reaches of independent tasks add up in squares, each side separately.
    """
    reaches: dict[str, list[tuple[float, float]]] = {}
    for task, result in reported:
        metric = str(result.facts.get(METRIC) or "")
        reach, row = sampling_reach(result.metrics, float(result.facts.get(EXAMPLES, 0)), metric), METRICS.get(metric)
        if row is not None and row.graded and not row.percent and result.facts.get(CREDITS):
            credits = read_credits(result.facts[CREDITS])  # a rare class decides, which Wilson's interval does not know
            least = 1.96 * float(np.std(credits, ddof=1)) / math.sqrt(len(credits))
            reach = max(reach[0], least), max(reach[1], least)
        reaches.setdefault(task, []).append(reach)
    below, above = np.sqrt(sum((np.mean(rows, axis=0) ** 2 for rows in reaches.values()), np.zeros(2))) / tasks
    return float(below), float(above)


def _examples(reported: list[tuple[str, TrialResult]], tasks: int) -> dict[str, float]:
    examples = [float(result.facts[EXAMPLES]) for _, result in reported if EXAMPLES in result.facts]
    guessing = {task: float(result.facts[GUESSING]) for task, result in reported if GUESSING in result.facts}
    return ({"examples": min(examples)} if examples else {}) | (
        {GUESSING: sum(guessing.values()) / tasks} if len(guessing) == tasks else {}
    )


def _shared(entries: list[Entry]) -> dict[str, Any]:
    rows = [entry.trial.parameters for entry in entries]
    return {
        name: value
        for name, value in rows[0].items()
        if name not in ("task", "seed") and all(row.get(name) == value for row in rows)
    }


def _counts(finished: list[tuple[Entry, TrialResult]], planned: Mapping[str, float]) -> dict[str, float]:
    # The seconds of a cut adapter are those of cutting and scoring it, no training's.
    rows = [
        result.counts | ({"seconds": result.seconds} if result.seconds and not entry.trial.is_cut else {})
        for entry, result in finished
    ]
    counts: dict[str, float] = {}
    for name in dict.fromkeys([*planned, *(name for row in rows for name in row)]):
        values = [row[name] for row in rows if name in row] or [planned[name]]
        counts[name] = float(np.mean(values)) if column_of(name).averaged else float(max(values))
        if name == SIZE and min(values) < max(values):
            counts[FEWEST] = float(min(values))
    return counts
