"""What limits how well a sweep tells its configurations apart, the seeds or the scored examples, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from orchestrator.plan.workload import FEW, more_rows
from orchestrator.results.summary import Summary

Limit = Literal["examples", "seeds", ""]


def limit(summaries: Sequence[Summary]) -> Limit:
    """The larger part of the intervals of the complete configurations, by their median; empty where no error of examples is
    known. Where all have one seed, the part of the seeds is not known: then it is the examples if they are few."""
    complete = [one for one in summaries if one.complete]
    seeds = [one for one in complete if one.score.n > 1]
    known = [one for one in seeds if sum(one.sampling) and one.score.high > one.score.low]
    if known:
        shares = [(sum(one.sampling) / (one.score.high - one.score.low)) ** 2 for one in known]
        return "examples" if median(shares) > 0.5 else "seeds"
    if seeds or not complete:
        return ""
    return "examples" if min(one.counts.get("examples", FEW) for one in complete) < FEW else "seeds"


def more_examples(summaries: Sequence[Summary]) -> str:
    """What gives more scored examples; empty where the data has no more."""
    cut = any(one.counts.get("examples") == float(one.parameters.get("eval_examples", -1)) for one in summaries if one.complete)
    return more_rows((task for one in summaries for task in one.tasks), cut)
