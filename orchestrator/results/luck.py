"""The part of a score's luck with the scored examples that another seed would not change, from stored credits.

    score of configuration c with seed s  =  true score + luck(c) + luck(c, s) + ...

What examples do to all configurations cancels between them. `luck(c, s)` is drawn again with each seed, so it is in the
variance between seeds. `luck(c)` is shared by all seeds of a configuration: no number of seeds shows it, but the credits of the
blocks of examples (`craft.scoring.predictions`) do, because each block is a sample of its own. With one seed both are in it.

`limit` says whether seeds or scored examples limit how well a sweep separates its configurations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal

import numpy as np

from craft.scoring.predictions import Numbers, draw_luck
from orchestrator.plan.work import FEW, more_rows
from orchestrator.results.summary import Credits, Summary

CLEAR = 2.0
"""The standard errors by which a configuration's own luck must be above that of the rest to count."""


def shared_variance(credits: Numbers) -> float:
    """Estimates the variance, in squared points, of the mean over seeds by luck that all seeds share; for one seed, by all its
    luck. The estimate is free of bias, so it may be below 0.

    Args:
        credits: `(seeds, blocks)` of one configuration on one task, less what examples do to all; or differences of two.
    """
    return float(shared_parts(credits).sum())


def shared_parts(credits: Numbers) -> Numbers:
    """Returns the part of each block in the `shared_variance` of credits, `(blocks,)`."""
    seeds, blocks = credits.shape
    residuals = credits - credits.mean(axis=1, keepdims=True)
    mean = residuals.mean(axis=0)
    parts = mean**2
    if seeds > 1:
        parts = parts - ((residuals - mean) ** 2).sum(axis=0) / (seeds - 1) / seeds
    return parts / (blocks - 1) / blocks


def luck(summaries: Sequence[Summary], by_all: bool = False) -> Numbers | None:
    """Returns the `shared_variance` of each configuration, without the effect of the examples on all of them, `(n,)`; None if
    one lacks credits. One configuration's own estimate is uncertain, so all have the mean. Only what clearly has more, by CLEAR
    standard errors, has its own and is not in the mean, as a head alone, which answers quite otherwise than adapters. Equal
    answers do not show that there is no difference, so each has the error of half a row, as in `draw_luck`.

    Args:
        by_all: the variance of the mean over seeds by all its luck, also by what each seed draws again.
    """
    if len(summaries) < 2 or not all(summary.credits.keys() == summary.scores.keys() for summary in summaries):
        return None
    # One seed does not show which part of its luck another seed would share.
    places = [place for place, summary in enumerate(summaries) if summary.score.n > 1]
    places = places if len(places) > 1 else [*range(len(summaries))]
    rests, errors, halves, many = np.zeros(len(places)), np.zeros(len(places)), 0.0, len(places)
    tasks = list(summaries[0].tasks)
    for task in tasks:
        tables = [by_seed(summaries[place].credits, task) for place in places]
        tables = [table.mean(axis=0, keepdims=True) for table in tables] if by_all else tables
        if len({table.shape[1:] for table in tables}) > 1:
            return None  # scored on different rows
        seeds = min(len(table) for table in tables)
        left = np.array([table[:seeds] for table in tables])
        parts = np.array([shared_parts(table) for table in left - left.mean(axis=0)])
        rests += parts.sum(axis=1)
        errors += parts.shape[1] * parts.var(axis=1)
        halves += (100 / summaries[0].graded.get(task, math.inf)) ** 2 / 2
    # A rest has 1 - 2 / n of its own luck and 1 / n² of everybody's; of two, both have half of both.
    scale = many / (many - 2) if many > 2 else 0.0
    own = (rests - rests.sum() / many / (many - 1)) * scale if scale else np.full(many, rests.sum())
    more = own > max(0.0, float(np.median(own))) + CLEAR * np.sqrt(errors) * scale
    mean = max(0.0, float(own[~more].mean()))
    values = np.full(len(summaries), mean)
    values[places] = np.where(more, own, mean)
    return (values + halves) / len(tasks) ** 2


def difference(first: Credits, second: Credits, graded: Mapping[str, float]) -> tuple[float, float] | None:
    """Returns how far the 95 % interval of the difference of two configurations reaches below and above it by luck that all
    seeds share, over the tasks and seeds of both, as an audit has it (`draw_luck`); None without credits.

    Args:
        graded: `orchestrator.results.summary.graded_rows` of each task.
    """
    keys = first.keys() & second.keys()
    tasks = {task for task, _ in keys}
    if not keys or any(first[key].shape != second[key].shape for key in keys):
        return None
    gaps, reaches = {key: first[key] - second[key] for key in keys}, []
    for task in tasks:
        table = by_seed(gaps, task)
        mean, shared = table.mean(axis=0), max(0.0, shared_variance(table))
        draws = draw_luck(mean * math.sqrt(shared / (shared_variance(mean[None]) or 1.0)), graded.get(task, math.inf))
        reaches.append(np.quantile(draws, [0.025, 0.975]))
    below, above = np.sqrt(np.square(reaches).sum(axis=0)) / len(tasks)
    return float(below), float(above)


def luck_of_both(first: Summary, second: Summary, tasks: Sequence[str]) -> float:
    """Returns the variance of the difference of two means over `tasks` by the luck of both choices. Two sizes of one training
    have one choice, which cancels."""
    if first.trained == second.trained and first.tuning.values == second.tuning.values:
        return 0.0
    lucks = [row.tuning.lucks.get(task, 0.0) for row in (first, second) for task in tasks]
    return sum(lucks) / max(len(tasks), 1) ** 2


def by_seed(credits: Credits, task: str) -> Numbers:
    """Returns the credits on one task, `(seeds, blocks)`."""
    return np.array([values for (name, _), values in sorted(credits.items(), key=lambda row: row[0]) if name == task])


Limit = Literal["examples", "seeds", ""]


def limit(complete: Sequence[Summary]) -> Limit:
    """Returns the larger part of the intervals of complete configurations, by their median; empty if no error of examples
    can be reduced. If all have one seed, the part of the seeds is not known: then it is the examples if they are few."""
    seeds = [summary for summary in complete if summary.score.n > 1]
    narrowable = [summary for summary in seeds if sum(summary.sampling) and summary.score.high > summary.score.low]
    if narrowable:
        shares = [(sum(summary.sampling) / (summary.score.high - summary.score.low)) ** 2 for summary in narrowable]
        return "examples" if median(shares) > 0.5 else "seeds"
    if seeds:
        return ""
    return "examples" if min(summary.counts.get("examples", FEW) for summary in complete) < FEW else "seeds"


def helps_most(complete: Sequence[Summary], errors: Iterable[float]) -> Limit:
    """Returns whether twice the examples or twice the seeds would take more from the errors of differences; without credits,
    `limit`.

    Args:
        errors: the variance of each mean over seeds. What examples do to all configurations is in no difference.
    """
    examples = luck(complete, by_all=True)
    if examples is None:
        return limit(complete)
    return "examples" if np.median(examples) > median(errors) else "seeds"


def rows_help(complete: Sequence[Summary]) -> str:
    """Returns the advice where the examples are the limit, with how to get more of them if the data has more."""
    cut = any(row.counts.get("examples") == float(row.parameters.get("eval_examples", -1)) for row in complete)
    how = more_rows((task for row in complete for task in row.tasks), cut)
    return f"More scored examples{f' ({how})' if how else ''} would help most; more seeds would help less."
