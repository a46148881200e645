"""The words above and below the table of a front."""

from __future__ import annotations

from collections.abc import Sequence

from craft.words import plural, points
from orchestrator.judging.control import above_guessing, no_better_than_head
from orchestrator.judging.front import knee
from orchestrator.judging.limits import limit, more_examples
from orchestrator.results.metrics import LUCK, NORMALIZED, P_FRONT, SIZE, number
from orchestrator.results.summary import Summary
from orchestrator.results.table import front_metrics, full_label
from orchestrator.sweepfile.objectives import Objectives

NAMED = 3
"""The number of configurations that the caption names in a list."""


def caption(summaries: Sequence[Summary], objectives: Objectives) -> str:
    """Returns one line for under the table: the numbers of configurations, of those on the front and of incomplete ones; the
    knee; the meaning of the interval. The answer (`orchestrator.judging.answer`) follows it."""
    front, chosen = [summary for summary in summaries if summary.on_front], knee(summaries, objectives)
    incomplete = sum(not summary.complete and not summary.tunes for summary in summaries)
    parts = [f"● {len(front)} of {len(summaries)} {plural(len(summaries), 'configuration')} on the front"]
    if incomplete:
        parts.append(f"{incomplete} incomplete, not ranked")
    if tuning := sum(summary.tunes is not None for summary in summaries):
        parts.append(f"{tuning} only for tuning, not ranked")
    if budgets := _budgets(summaries):
        parts.append(budgets)
    if at_end := sum(summary.complete and summary.tuning is not None and bool(summary.tuning.at_end) for summary in summaries):
        parts.append(f"for {at_end} the best value is the lowest or highest tried, so a better one may lie beyond")
    if idle := no_better_than_head(summaries):
        named = ", ".join(map(full_label, idle[:NAMED])) + (f" and {len(idle) - NAMED} more" if len(idle) > NAMED else "")
        parts.append(f"no better than no adapter: {named} (try another learning rate, more steps or a larger size)")
    if chosen and above_guessing([summary for summary in summaries if summary.complete]):
        parts.append(f"knee: {full_label(chosen)}")
    if NORMALIZED in front_metrics(summaries, objectives):
        parts.append("normalized: 0 is the head alone, 100 full fine-tuning, on each task")
    parts.append(_intervals(summaries))
    examples = {summary.value("examples") for summary in summaries if "examples" in summary.counts}
    chance = {number(summary.value("random_guessing"), 1) for summary in summaries if "random_guessing" in summary.counts}
    if len(examples) == 1:
        guessing = f", where random guessing has {chance.pop()}" if len(chance) == 1 else ""
        parts.append(f"scored on {examples.pop():,.0f} examples{guessing}")
    return "; ".join(parts)


def legend(summaries: Sequence[Summary], objectives: Objectives, within: float) -> str:
    """Returns the meaning of the probabilities in the table, to be read before it; empty if it shows none."""
    if P_FRONT not in front_metrics(summaries, objectives):
        return ""
    where = "new" if all(LUCK in summary.counts for summary in summaries if P_FRONT in summary.counts) else "these"
    rivals = "of this size or smaller" if {*objectives} == {"score", SIZE} else "that costs no more"
    return (
        f"P(front): the probability that no configuration {rivals} does better on {where} examples. P(enough): the probability "
        f"that no configuration at all is better by more than {points(within)}."
    )


def _intervals(summaries: Sequence[Summary]) -> str:
    """Returns what the intervals are over, and what would narrow them most."""
    complete = [summary for summary in summaries if summary.complete]
    seeds, limits, how = max((summary.score.n for summary in complete), default=0), limit(summaries), more_examples(summaries)
    how = f" ({how})" if how else ""
    if seeds < 2 and not any(sum(summary.sampling) for summary in complete):
        return "one seed: no interval"
    if seeds < 2:
        few = f"; more scored examples{how} would narrow it more than more seeds" if limits == "examples" else ""
        return f"one seed: the interval is over examples alone, and another seed may differ by more{few}"
    text = "± is the 95 % interval over seeds and examples"
    text += ", of one seed over examples alone" if any(summary.score.n == 1 for summary in complete) else ""
    if limits == "examples":
        return f"{text}; more scored examples{how} would narrow it more than more seeds"
    return f"{text}; more seeds would narrow it more than more scored examples" if limits else text


def _budgets(summaries: Sequence[Summary]) -> str:
    """Returns the number of trials that tuned each complete configuration, and the configurations that were not tuned; empty if
    none was."""
    tuned = [summary for summary in summaries if summary.complete and summary.tuning is not None]
    trials = sorted({summary.tuning.trials for summary in tuned if summary.tuning is not None and summary.tuning.trials})
    if not trials:
        return ""
    fixed = [full_label(summary) for summary in tuned if summary.tuning is not None and not summary.tuning.tuned]
    spent = " to ".join(map(str, dict.fromkeys((trials[0], trials[-1]))))
    seeds = sorted({seed for summary in tuned if summary.tuning is not None for seed in summary.tuning.seeds})
    of = f" of seed {', '.join(map(str, seeds))}, which is in no score" if seeds else ""
    transferred = sum(summary.tuning is not None and summary.tuning.transferred is not None for summary in tuned)
    text = f"each tuned by {spent} trials{of}" + (f", but {transferred} by those of another rank" if transferred else "")
    return text + (f", but not {', '.join(fixed)}" if fixed else "")
