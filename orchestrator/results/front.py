"""The one rule for a sweep's front: which configurations are on it, which may be on it, and which one is the knee.

`mark_front` decides by the means. The terminal's table, the files of the front, the tags in the tracking store, the page and
`craft-sweeps take --pick knee` all have its marks, by the objectives of the sweep. An objective is either the score, which has
an interval over seeds, or a count (parameters, bytes, seconds), which is exact.

The control of a comparison is the task head alone (`method: head`): a method that adapts anything must beat it. The normalized
mean weighs tasks equally: on each, 0 is no adapter and 100 is full fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.record.state import State
from orchestrator.results.intervals import by_seed, compare, suite_interval
from orchestrator.results.metrics import EXPECTED, NORMALIZED, P_ENOUGH, P_FRONT, SIZE, column_of
from orchestrator.results.probabilities import with_probabilities
from orchestrator.results.summary import Summary, score_step, summarize_entries
from orchestrator.sweepfile.settings import Direction, Enough, Objectives

Points = NDArray[np.float64]
Mask = NDArray[np.bool_]
HEAD, FULL = "head", "full"


def not_shown_to_beat_head(summaries: Sequence[Summary]) -> list[Summary]:
    """Returns the complete configurations that are not shown to be better than the head alone; empty if that did not run.

    Compared are the scores of the tasks and seeds that both have, with the head of the best search score. A configuration
    that has no interval counts if its mean is no better.
    """
    control = _best(summaries, HEAD)
    if control is None:
        return []
    return [summary for summary in summaries if summary.complete and summary.method != HEAD and not _better(summary, control)]


def above_guessing(complete: Sequence[Summary]) -> bool:
    """Returns whether any trial is shown to be above blind answers; True where their score is not known.

    Of n trials without any skill the luckiest is above a 95 % interval's end far more often than one is, so the intervals over
    the scored examples are those of Bonferroni. The s-th seed that was asked for counts as s² seeds: what one seed shows no
    further seed takes back, and all together err less than twice as often as one. How seeds spread is not asked: no seed has
    skill by luck.
    """
    from scipy.special import ndtri

    return any("random_guessing" not in summary.counts for summary in complete) or any(
        scores[seed] + float(ndtri(0.025 / len(complete) / place**2) / ndtri(0.975)) * summary.sampling[0]
        > summary.value("random_guessing")
        for summary in complete
        for scores in [by_seed(summary.scores, summary.tasks)]
        for place, seed in enumerate((seed for seed in dict.fromkeys(seed for _, seed in summary.scores) if seed in scores), 1)
    )


def with_normalized(summaries: Sequence[Summary]) -> list[Summary]:
    """Returns the summaries with the metric `normalized` added if, on every task, full is shown to be better than head.

    The ends of the scale are the means of these two; of several configurations, of the one with the best search score.
    """
    head, full = _best(summaries, HEAD), _best(summaries, FULL)
    if head is None or full is None or head.tasks.keys() != full.tasks.keys():
        return list(summaries)
    if not all(_better(full, head, task) for task in head.tasks):
        return list(summaries)
    low = {task: value.mean for task, value in head.tasks.items()}
    wide = {task: full.tasks[task].mean - value for task, value in low.items()}
    scaled_summaries = []
    for summary in summaries:
        scores = [(key, score) for key, score in summary.scores.items() if key[0] in low]  # one added later may have more tasks
        scaled = {(task, seed): 100 * (score - low[task]) / wide[task] for (task, seed), score in scores}
        scaled_summaries.append(replace(summary, metrics=summary.metrics | {NORMALIZED: suite_interval(scaled, low)}))
    return scaled_summaries


def _better(summary: Summary, control: Summary, task: str | None = None) -> bool:
    scores = {key: score for key, score in summary.scores.items() if task in (None, key[0])}
    shared = {task for task, _ in scores.keys() & control.scores.keys()}
    difference = compare(scores, control.scores, rounding=score_step((summary, control), [*shared])).difference
    return difference.mean > 0 and not difference.low <= 0


def _best(summaries: Sequence[Summary], method: str) -> Summary | None:
    complete = [summary for summary in summaries if summary.complete and summary.method == method]
    return max(complete, key=lambda summary: summary.value("search_score"), default=None)


SEEDS = 3
"""The fewest seeds of a configuration that is called enough."""
POSSIBLE = 0.05
"""The probability of the front from which on a configuration is one that may be on it."""


def judge_state(state: State) -> list[Summary]:
    """Returns the configurations that a sweep asks for, judged by its file."""
    return mark_front(summarize_entries(state.requested), state.sweep.objectives, state.sweep.enough)


def mark_front(summaries: Sequence[Summary], objectives: Objectives, rule: Enough | None = None) -> list[Summary]:
    """Returns the summaries with `on_front` set by the means, which leaves incomplete ones out, and `may_be_on_front`.

    Candidates whose tuned configuration is there are left out: it says what they took. All get their normalized mean, their
    moderated intervals and their probabilities; the one that is `enough` is marked.
    """
    names = {summary.configuration for summary in summaries}
    summaries = [summary for summary in summaries if summary.tunes not in names]
    summaries = with_probabilities(summaries, objectives, rule)
    complete, chosen = [summary for summary in summaries if summary.complete], enough_of(summaries, rule)
    mask = pareto_front(_points(complete, objectives), list(objectives.values()))
    front = {summary.configuration for summary, member in zip(complete, mask, strict=True) if member}
    return with_normalized(
        [
            replace(
                summary,
                on_front=(member := summary.configuration in front),
                may_be_on_front=member or summary.value(P_FRONT) >= POSSIBLE,
                enough=summary.configuration == chosen,
            )
            for summary in summaries
        ]
    )


def enough_of(summaries: Sequence[Summary], rule: Enough | None = None) -> str | None:
    """Returns the id of the smallest configuration that is enough, of equal sizes the likeliest; None without one.

    Seeds spread differently from configuration to configuration, and two of them do not show it: what they called 0.88 was true
    in 0.62. A configuration therefore needs SEEDS of them. Where nothing is above random guessing, nothing is enough.
    """
    sure = [
        (summary.value(SIZE), -summary.counts[P_ENOUGH], summary.configuration)
        for summary in summaries
        if summary.score.n >= SEEDS and summary.counts.get(P_ENOUGH, 0.0) >= (rule or Enough()).sure
    ]
    return min(sure)[2] if sure and above_guessing([summary for summary in summaries if summary.complete]) else None


def leaders(complete: Sequence[Summary]) -> tuple[Summary, Summary]:
    """Returns the configuration with the highest expected score, and the one that is enough or, without one, is the likeliest
    to be; of equal ones the smaller."""
    best = max(complete, key=lambda row: (row.counts.get(EXPECTED, row.score.mean), -row.value(SIZE)))
    return best, max(complete, key=lambda row: (row.enough, row.counts.get(P_ENOUGH, 0.0), -row.value(SIZE)))


def may_score(summary: Summary, state: State) -> bool:
    """Returns whether an incomplete configuration, or the one that it helps to choose, may still get its score: on each task a
    candidate has finished."""
    if summary.finished + summary.failed + summary.stopped < summary.planned:
        return True
    candidates: dict[str, dict[str, bool]] = {}
    for entry in state.requested if summary.tunes is not None else ():
        if entry.trial.group == summary.tunes:
            finished, name = candidates.setdefault(entry.trial.task, {}), entry.trial.configuration
            finished[name] = finished.get(name, True) and entry.finished is not None
    return bool(candidates) and all(any(finished.values()) for finished in candidates.values())


def knee(summaries: Sequence[Summary], objectives: Objectives) -> Summary | None:
    """Returns the knee of the summaries that are marked `on_front`, whatever their order; None if there is none, there are not
    two objectives, or nothing is above random guessing. Costs are compared by their logarithms."""
    # Of equal candidates the one with the first id is chosen.
    front = sorted((summary for summary in summaries if summary.on_front), key=lambda summary: summary.configuration)
    if len(objectives) != 2 or not above_guessing([summary for summary in summaries if summary.complete]):
        return None
    points = _points(front, objectives)
    log = [column_of(name).log and bool(points[:, place].any()) for place, name in enumerate(objectives)]
    place = pareto_knee(log_axes(points, log), list(objectives.values()))
    return None if place is None else front[place]


def _points(summaries: Sequence[Summary], objectives: Objectives) -> Points:
    return np.array([[summary.value(name) for name in objectives] for summary in summaries])


def axes(objectives: Objectives) -> tuple[str, str]:
    """Returns the two metrics over which a front is drawn: the last objective (across) and the first (up). A single one has
    trainable parameters across."""
    names = list(objectives)
    return names[-1] if len(names) > 1 else SIZE, names[0]


def pareto_front(points: ArrayLike, directions: Sequence[Direction]) -> Mask:
    """Returns which points, `(n, m)` with a column for each objective, no other point dominates.

    A point dominates another when it is no worse in every objective and better in one, so equal points are all on the front. A
    point with NaN or an infinity takes no part.
    """
    # Means of the same numbers in another order differ in the last bit; that must not put a dominated point on the front.
    costs = np.round(_costs(points, directions), 9)
    mask = np.zeros(len(costs), dtype=bool)
    finite = np.flatnonzero(np.isfinite(costs).all(axis=1))
    unique, where = np.unique(costs[finite], axis=0, return_inverse=True)
    front = np.zeros(len(unique), dtype=bool)
    for row, candidate in enumerate(unique):  # in lexicographic order, so only an earlier row can dominate a later one
        front[row] = not (unique[:row][front[:row]] <= candidate).all(axis=1).any()
    mask[finite] = front[where.reshape(-1)]
    return mask


def pareto_knee(points: ArrayLike, directions: Sequence[Direction]) -> int | None:
    """Returns the index of the knee: the front point that is farthest beyond the straight line between the front's two ends.
    None where no point is finite.

    Both objectives are scaled so that the front spans 0 to 1 (pass parameters through `log_axes` first); the line joins the
    front's best point in one objective to its best in the other. With fewer than three distinct points on the front, or none
    beyond the line, the answer is the end that is best in the first objective. Ties go to the lower index.
    """
    costs = _costs(points, directions)
    members = np.flatnonzero(pareto_front(points, directions))
    if not members.size:
        return None
    members = members[np.argsort(costs[members, 0], kind="stable")]
    spans = costs[members]
    spread = np.ptp(spans, axis=0)
    if (spread == 0).any():
        return int(members[0])
    unit = (spans - spans.min(axis=0)) / spread
    # The ends lie at (0, 1) and (1, 0): beyond the line between them is where the scaled costs add up to less than 1.
    gain = 1.0 - unit.sum(axis=1)
    return int(members[np.argmax(gain)]) if gain.max() > 1e-12 else int(members[0])


def log_axes(points: ArrayLike, log: Sequence[bool]) -> Points:
    """Returns `points` with log10 of the columns marked in `log`; a value there that is not positive becomes NaN."""
    values = np.array(points, dtype=float, ndmin=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(values)
    return np.where(log, np.where(np.isfinite(logs), logs, np.nan), values)


def _costs(points: ArrayLike, directions: Sequence[Direction]) -> Points:
    signs = [-1.0 if direction == "maximize" else 1.0 for direction in directions]
    return np.asarray(points, dtype=float).reshape(-1, len(signs)) * signs
