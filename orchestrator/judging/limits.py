"""Says whether seeds or scored examples limit how well a sweep separates its configurations, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from orchestrator.judging.luck import luck
from orchestrator.plan.workload import FEW, more_rows
from orchestrator.results.summary import Summary

Limit = Literal["examples", "seeds", ""]


def limit(summaries: Sequence[Summary]) -> Limit:
    """Returns the larger part of the intervals of the complete configurations, by their median; empty if no error of examples
    can be reduced. If all have one seed, the part of the seeds is not known: then it is the examples if they are few."""
    complete = [summary for summary in summaries if summary.complete]
    seeds = [summary for summary in complete if summary.score.n > 1]
    narrowable = [summary for summary in seeds if sum(summary.sampling) and summary.score.high > summary.score.low]
    if narrowable:
        shares = [(sum(summary.sampling) / (summary.score.high - summary.score.low)) ** 2 for summary in narrowable]
        return "examples" if median(shares) > 0.5 else "seeds"
    if seeds or not complete:
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
    return "examples" if examples > median(errors) else "seeds"


def more_examples(summaries: Sequence[Summary]) -> str:
    """Returns how to get more scored examples; empty if the data has no more."""
    cut = any(
        summary.counts.get("examples") == float(summary.parameters.get("eval_examples", -1))
        for summary in summaries
        if summary.complete
    )
    return more_rows((task for summary in summaries for task in summary.tasks), cut)


def rows_help(summaries: Sequence[Summary]) -> str:
    """Returns the advice where the examples are the limit."""
    how = more_examples(summaries)
    return f"More scored examples{f' ({how})' if how else ''} would help most; more seeds would help less."
