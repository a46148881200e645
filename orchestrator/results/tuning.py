"""The cost of tuning a configuration: the trials among which its settings were chosen, and their time.

A trial says by `tunes` for which configuration it helps to choose settings: among candidates that differ in nothing but what is
tuned. A configuration without candidates kept the settings that the sweep file gives it, so it was not tuned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from craft.results import METRIC, SEARCHED
from craft.scoring.predictions import SEARCH_CREDITS, read_credits
from orchestrator.plan.configuration import text
from orchestrator.plan.trial import Trial
from orchestrator.plan.tuning import Tried
from orchestrator.record.state import Entry
from orchestrator.results.intervals import sampling_reach
from orchestrator.sweepfile.fair import RATE

Numbers = NDArray[np.float64]
DRAWS = 200, 400
"""Of the candidates' true scores, and for each of the rows."""
FAR = 4.0
"""So many standard errors of a score, the luck of all candidates left out."""
COMMON = 0.62
"""The part of a row's luck that all candidates share: 0.57 on SST-2, 0.73 on QQP (docs/measurements/records/answers.npz)."""


@dataclass(frozen=True)
class Tuning:
    """The budget that the choice of a configuration's settings took.

    Attributes:
        candidates: configurations that it was chosen among, itself included; 1 if it was not tuned, 0 in a sweep that tunes
            none.
        trials: their trainings that have ended; 0 if it was not tuned.
        failed: those of `trials` without a score.
        seconds: the time of `trials`.
        at_end: numbers of this configuration that are the lowest or highest of those tried, such as `highest learning_rate`: a
            better value may lie beyond.
        seeds: those that tuned; they are not reported.
        values: what was chosen, as text by setting and task; empty where the configuration itself says it.
        lucks: by task, the variance of the score, in squared points, by the choice: other rows would have chosen other values.
        transferred: the label of the configuration whose value it has, on the tasks on which it was not tuned itself.
    """

    candidates: int = 0
    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    at_end: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lucks: Mapping[str, float] = field(default_factory=dict)
    transferred: str | None = None

    @property
    def tuned(self) -> bool:
        """Whether there was anything to choose, here or at another rank."""
        return self.candidates > 1 or self.transferred is not None

    @property
    def luck(self) -> float:
        """The variance of the mean over tasks by the choice."""
        return sum(self.lucks.values()) / max(len(self.lucks), 1) ** 2

    @property
    def choice(self) -> str:
        """What was chosen in words, by task in the sweep's order: `learning_rate 0.01/0.003/0.003`, or once where all agree."""
        by_setting = {name: [*by_task.values()] for name, by_task in self.values.items()}
        settings = [f"{name} {'/'.join(row if len({*row}) > 1 else row[:1])}" for name, row in by_setting.items()]
        return ", ".join(settings + ([f"as {self.transferred}"] if self.transferred else []))


Chosen = Mapping[str, Mapping[str, Any]]
"""The parameters that a configuration has, by task."""


def _tuning(trials: Mapping[Any, Sequence[Entry]], size: Any, chosen: Chosen, transferred: str | None) -> Tuning:
    """Returns the tuning of one size of a group, which has a choice of its own and the cost of all.

    Args:
        trials: those of the group by what their adapters are cut to; None has the trainings.
    """
    trained, by_task = trials.get(None, []), dict[str, dict[str, Mapping[str, Any]]]()
    of_size = trials.get(size, trained)
    for trial in (entry.trial for entry in of_size):
        by_task.setdefault(trial.task, {})[trial.configuration] = trial.parameters
    candidates = {task: [*rows.values()] for task, rows in by_task.items()}
    many = len({entry.trial.configuration for entry in trained})
    results = [entry.result for entry in trained if entry.result is not None and many > 1]
    ended = [result for result in results if result.status != "interrupted"]
    return Tuning(
        many,
        len(ended),
        sum(result.status == "failed" for result in ended),
        sum(result.seconds for result in ended),
        ends(candidates, chosen),
        tuple(sorted({entry.trial.seed for entry in trained})),
        _values(varied(max(candidates.values(), key=len)), chosen),
        lucks_of_tuning(of_size),
        transferred,
    )


def tunings_of(entries: Sequence[Entry]) -> dict[str, Tuning]:
    """Returns the tuning of each reported configuration of a sweep that tunes, by its id."""
    trials, reported = {entry.key: entry.trial for entry in entries}, dict[str, dict[str, Trial]]()
    groups = dict[str, dict[Any, list[Entry]]]()
    for trial, entry in ((entry.trial, entry) for entry in entries):
        if trial.group is not None:
            groups.setdefault(trial.group, {}).setdefault(trial.parameters.get("cut_to"), []).append(entry)
        elif trial.is_reported and trial.training in trials:
            reported.setdefault(trial.configuration, {})[trial.task] = trial
    labels = {trial.configuration: trial.label for trial in trials.values() if trial.is_reported}
    tunings = dict[str, Tuning]()
    for name, by_task in reported.items():
        trainings = [trials[trial.training] for trial in by_task.values()]
        group, size = trainings[-1].configuration, [*by_task.values()][-1].parameters.get("cut_to")
        source = next((training.transferred for training in trainings[::-1] if training.transferred), None)
        chosen, label = {task: trial.parameters for task, trial in by_task.items()}, source and labels.get(source, source)
        lucks = {} if source is None else lucks_of_tuning(groups.get(source, {}).get(None, []))
        if group in groups:
            tuning = _tuning(groups[group], size, chosen, label)
            tunings[name] = replace(tuning, lucks={**lucks, **tuning.lucks})
        elif source is not None:
            tunings[name] = Tuning(1, values=_values([RATE], chosen), lucks=lucks, transferred=label)
        elif groups:
            tunings[name] = Tuning(1)
    return tunings


def _values(names: Iterable[str], chosen: Chosen) -> dict[str, dict[str, str]]:
    return {name: {task: text(row.get(name)) for task, row in chosen.items()} for name in names}


def read_tried(entries: Sequence[Entry]) -> Tried:
    """Returns what a candidate has on a task, by its trials with the seeds that tune; a failure unless all finished."""
    results = [entry.finished for entry in entries if entry.finished is not None]
    scores = [result.metrics.get("search_score", math.nan) for result in results]
    if len(results) < len(entries) or not all(map(math.isfinite, scores)):
        return Tried(-math.inf)
    losses = [result.metrics.get("search_loss", math.nan) for result in results]
    credits = [read_credits(result.facts[SEARCH_CREDITS]) for result in results if SEARCH_CREDITS in result.facts]
    return Tried(
        fmean(scores),
        fmean(losses) if all(map(math.isfinite, losses)) else math.inf,
        np.mean(credits, axis=0) if len(credits) == len(results) else None,
    )


def lucks_of_tuning(entries: Sequence[Entry]) -> dict[str, float]:
    """Returns the variance of each task's score by the luck of choosing among candidates; 0 where the numbers of rows are not
    known."""
    tasks: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        tasks.setdefault(entry.trial.task, {}).setdefault(entry.trial.configuration, []).append(entry)
    return {task: _luck_of([*groups.values()]) for task, groups in tasks.items()}


def _luck_of(candidates: Sequence[Sequence[Entry]]) -> float:
    """Returns the luck of choosing among candidates, each with the trials of the seeds that tuned: by their credits or, where
    one has none, by standard errors, because COMMON of the rows' luck is that of all candidates."""
    tried = [one for one in map(read_tried, candidates) if math.isfinite(one.score)]
    facts = next((entry.finished.facts for rows in candidates for entry in rows if entry.finished), {})
    if len(tried) < 2 or SEARCHED not in facts:
        return 0.0
    search, credits = np.array([one.score for one in tried]), [one.credits for one in tried if one.credits is not None]
    if len(credits) == len(tried):
        return luck_of_choice(search, np.array(credits))
    rows, metric = float(facts[SEARCHED]), str(facts.get(METRIC, ""))
    errors = [sum(sampling_reach({"score": score}, rows, metric)) / 2 / 1.96 for score in search]
    return luck_of_choice(search, len(search) * math.sqrt(1 - COMMON) * np.diag(errors))


def luck_of_choice(search: Numbers, credits: Numbers) -> float:
    """Returns the variance, in squared points, of the true score by the luck of the rows that choose among candidates.

    True scores are drawn from the candidates' scores, and for each draw the rows, which choose again. What the rows do to all
    candidates chooses nothing. True scores differ by a share of the variance of the scores, which is unknown: before the scores
    every share is as likely (Daniels 1999). Candidates that are FAR behind are never chosen.

    Args:
        search: `(candidates,)`, their scores on the rows that choose.
        credits: `(candidates, blocks)`, of these rows (`craft.scoring.predictions`).
    """
    many, blocks = credits.shape
    residuals = credits - credits.mean(axis=0)
    residuals -= residuals.mean(axis=1, keepdims=True)
    noise = float((residuals**2).sum()) / max(many - 1, 1) / blocks**2
    near = search >= search.max() - FAR * math.sqrt(noise)
    if near.sum() < 2 or not noise:
        return 0.0
    if not near.all():
        return luck_of_choice(search[near], credits[near])
    shares = (np.arange(50) + 0.5) / 50
    weights = np.sqrt(1 - shares) ** (many - 1) * np.exp((shares - 1) * (many - 1) * search.var(ddof=1) / noise / 2)
    share = float(shares @ weights / weights.sum())
    random = np.random.default_rng(0)
    drawn, again = (random.standard_normal((draws, blocks)) @ residuals.T / blocks for draws in DRAWS)
    true = search.mean() + share * (search - search.mean()) + math.sqrt(share) * drawn
    chosen = (true[:, None] + again).argmax(axis=2)
    return float(np.take_along_axis(true, chosen, axis=1).var(axis=1).mean())


def varied(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the parameters in which candidates differ; their start values follow from these."""
    names = dict.fromkeys(name for row in rows for name in row if name not in ("warm_start", "cut_from"))
    return [name for name in names if len({text(row.get(name)) for row in rows}) > 1]


def ends(candidates: Mapping[str, Sequence[Mapping[str, Any]]], chosen: Chosen) -> tuple[str, ...]:
    """Returns which chosen numbers are the lowest or the highest of all candidates'. Numbers with fewer than three values are
    left out, because each of these is at an end.

    Args:
        candidates: the parameters of each, by task.
        chosen: parameters by task; an end that is not that of every task names its tasks.
    """
    at_end: dict[str, list[str]] = {}
    for task, rows in candidates.items():
        for name in varied(rows):
            values = {value for row in rows if math.isfinite(value := number_of(row.get(name)))}
            for word, end in (("lowest", min), ("highest", max)):
                if len(values) >= 3 and task in chosen and number_of(chosen[task].get(name)) == end(values):
                    at_end.setdefault(f"{word} {name}", []).append(task.rsplit("/", 1)[-1])
    return tuple(end if len(tasks) == len(chosen) else f"{end} on {', '.join(tasks)}" for end, tasks in at_end.items())


def number_of(value: Any) -> float:
    """Returns a setting as a number, NaN if it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan
