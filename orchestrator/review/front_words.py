"""Titles, labels and numbers of a front, as tables and pictures show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from craft.methods import METHODS
from craft.methods.whole import BASE_MODEL
from craft.words import format_duration
from orchestrator.results.chances import EXPECTED, LUCK, P_FRONT, P_WITHIN, SURE
from orchestrator.results.control import NORMALIZED, no_better_than_head
from orchestrator.results.front import knee
from orchestrator.results.limits import limit, more_examples
from orchestrator.results.presentation import amount, spread
from orchestrator.results.summary import Summary, shared_metric
from orchestrator.sweepfile.objectives import Direction, Objectives

DIGITS = {"forgetting": 4, NORMALIZED: 1}
"""Digits behind the point of a metric whose differences are small, or whose interval is wide; others have two."""
NAMED = 3
"""The number of configurations that the caption names in a list."""


def ranked(summaries: Sequence[Summary], objectives: Objectives) -> list[Summary]:
    """The rows' order: complete before incomplete; then by the last objective (the cost), better first; then by the first."""
    names = list(objectives.items())[::-1]

    def place(summary: Summary) -> tuple[Any, ...]:
        return (not summary.complete, *(_worse(summary.value(name), direction) for name, direction in names), summary.label)

    return sorted(summaries, key=place)


def caption(summaries: Sequence[Summary], objectives: Objectives) -> str:
    """One line under the table: how many configurations, on the front, incomplete; the knee; the one that is enough; what the
    interval means."""
    front, chosen = [summary for summary in summaries if summary.on_front], knee(summaries, objectives)
    incomplete = sum(not summary.complete and not summary.tunes for summary in summaries)
    parts = [f"● {len(front)} of {len(summaries)} configurations on the front"]
    if incomplete:
        parts.append(f"{incomplete} incomplete, not ranked")
    if tuning := sum(summary.tunes is not None for summary in summaries):
        parts.append(f"{tuning} that only tune, not ranked")
    if budgets := _budgets(summaries):
        parts.append(budgets)
    if at_end := sum(summary.complete and summary.tuning is not None and bool(summary.tuning.at_end) for summary in summaries):
        parts.append(f"for {at_end} the best value is the lowest or highest tried, so a better one may lie beyond")
    if idle := no_better_than_head(summaries):
        named = ", ".join(map(full_label, idle[:NAMED])) + (f" and {len(idle) - NAMED} more" if len(idle) > NAMED else "")
        parts.append(f"no better than no adapter: {named} (try another learning rate, more steps or a larger size)")
    if chosen:
        parts.append(f"knee: {full_label(chosen)}")
    if any(P_WITHIN in summary.counts for summary in summaries):
        parts.append(_enough(summaries))
    if NORMALIZED in columns_of(summaries, objectives):
        parts.append("normalized: 0 is the head alone, 100 full fine-tuning, on each task")
    parts.append(_intervals(summaries))
    examples = {summary.value("examples") for summary in summaries if "examples" in summary.counts}
    chance = {number(summary.value("chance"), 1) for summary in summaries if "chance" in summary.counts}
    if len(examples) == 1:
        parts.append(
            f"scored on {examples.pop():,.0f} examples" + (f", where chance is {chance.pop()}" if len(chance) == 1 else "")
        )
    return "; ".join(parts)


def legend(summaries: Sequence[Summary], objectives: Objectives) -> str:
    """What the chances in the table mean, to be read before it; empty where it shows none."""
    if P_FRONT not in columns_of(summaries, objectives):
        return ""
    where = "new" if all(LUCK in summary.counts for summary in summaries if P_FRONT in summary.counts) else "these"
    return (
        f"P(front): the chance that nothing of at most its cost is better on {where} examples. P(within 1 of best): that "
        "nothing at all is better by more than 1 point."
    )


def _enough(summaries: Sequence[Summary]) -> str:
    """Which configuration the rule takes, or how far the likeliest one is from it."""
    rule = f"whose chance to be within 1 point of the best is at least {SURE:g}"
    if taken := next((summary for summary in summaries if summary.enough), None):
        return f"✓ the smallest {rule}: {full_label(taken)} (expected {number(taken.value(EXPECTED))})"
    likeliest = max(summaries, key=lambda one: one.counts.get(P_WITHIN, -1.0))
    return f"none {rule}; the likeliest is {full_label(likeliest)} ({likeliest.counts[P_WITHIN]:.2f})"


def _intervals(summaries: Sequence[Summary]) -> str:
    """What the intervals are over, and what would narrow them most."""
    complete = [summary for summary in summaries if summary.complete]
    seeds, limits, how = max((summary.score.n for summary in complete), default=0), limit(summaries), more_examples(summaries)
    how = f" ({how})" if how else ""
    if seeds < 2 and not any(sum(summary.sampling) for summary in complete):
        return "one seed: no interval"
    if seeds < 2:
        few = f"; they are few, and more of them would tell more than more seeds{how}" if limits == "examples" else ""
        return f"one seed: the interval is over examples alone, and another seed may differ by more{few}"
    words = "± is the 95 % interval over seeds and examples"
    words += ", of summary seed over examples alone" if any(summary.score.n == 1 for summary in complete) else ""
    if limits == "examples":
        return f"{words}, which more scored examples{how} would narrow more than more seeds"
    return f"{words}, which more seeds would narrow more than more scored examples" if limits else words


def metric_among(summaries: Sequence[Summary]) -> str:
    """The metric that the scores are, where it is the same in all configurations that have one."""
    return shared_metric(summary.metric for summary in summaries if summary.score.n)


def columns_of(summaries: Sequence[Summary], objectives: Objectives) -> list[str]:
    """What the tables show of each configuration: the objectives, and next to the score what is known of it (the normalized
    mean, the number of examples where they differ, the chances of the front)."""
    known = {name for one in summaries for name in (*one.metrics, *one.counts)}
    known -= {"examples"} if len({one.value("examples") for one in summaries if one.complete}) == 1 else set()
    extra = [name for name in (NORMALIZED, "examples", P_FRONT, P_WITHIN) if name in known]
    return [shown for name in objectives for shown in (name, *(extra if name == "score" else ()))]


def _budgets(summaries: Sequence[Summary]) -> str:
    """How many trials tuned each of the complete configurations, and which of these were not tuned; empty if none was."""
    known = [summary for summary in summaries if summary.complete and summary.tuning is not None]
    trials = sorted({one.tuning.trials for one in known if one.tuning is not None and one.tuning.trials})
    if not trials:
        return ""
    fixed = [full_label(one) for one in known if one.tuning is not None and not one.tuning.tuned]
    spent = " to ".join(map(str, dict.fromkeys((trials[0], trials[-1]))))
    seeds = sorted({seed for one in known if one.tuning is not None for seed in one.tuning.seeds})
    of = f" of seed {', '.join(map(str, seeds))}, which is in no score" if seeds else ""
    carried = sum(one.tuning is not None and one.tuning.carried is not None for one in known)
    words = f"each tuned by {spent} trials{of}" + (f", but {carried} by those of another rank" if carried else "")
    return words + (f", but not {', '.join(fixed)}" if fixed else "")


def has_tuning(summaries: Sequence[Summary]) -> bool:
    """Whether the sweep tuned anything, so that each configuration says what its tuning took."""
    return any(summary.tuning is not None and summary.tuning.tuned for summary in summaries)


def tuning(summary: Summary) -> str:
    """What a configuration's tuning chose and took, and which of its numbers are the ends of those tried: `learning_rate
    0.1/0.01, 9 trials, 12 min 03 s, highest learning_rate on rte`; `not tuned`; a dash for one that was cut from another."""
    spent = summary.tuning
    if spent is None:
        return "–"
    if not spent.tuned:
        return "not tuned"
    failed = f" ({spent.failed} failed)" if spent.failed else ""
    took = [f"{spent.trials} trials{failed}", format_duration(spent.seconds), *spent.at_end] if spent.trials else []
    return ", ".join([spent.choice, *took] if spent.choice else took)


def possible(summary: Summary) -> bool:
    """Whether the configuration is not on the front but may be: its chance is not small."""
    return summary.may_be_on_front and not summary.on_front


def full_label(summary: Summary) -> str:
    """The configuration's label, with the method in front unless the label begins with its name or title."""
    row = METHODS.get(summary.method)
    named = (summary.method, row.title if row else summary.method, BASE_MODEL)
    begins = summary.label.lower().startswith(tuple(name.lower() for name in named))
    return summary.label if begins else f"{summary.method} {summary.label}"


def shown(summary: Summary, name: str) -> str:
    """A metric of the configuration as text, with its interval where it has one."""
    value = summary.bounds(name)
    if name not in summary.metrics and not name.startswith("score"):
        return amount(name, value.mean)
    digits = DIGITS.get(name, 2)
    return number(value.mean, digits) + spread(value, digits)


def number(value: float, digits: int = 2) -> str:
    return "–" if math.isnan(value) else f"{round(value, digits) + 0:.{digits}f}"  # + 0: no -0.00


def trials(summary: Summary) -> str:
    """`3/3`, or `2/3, 1 failed` with the first reason; `1/1, only tunes` for a candidate."""
    parts = [f"{summary.finished}/{summary.planned}", *(["only tunes"] if summary.tunes else [])]
    parts += [f"{count} {word}" for count, word in ((summary.failed, "failed"), (summary.stopped, "stopped")) if count]
    text = ", ".join(parts)
    if summary.reasons:
        reason = summary.reasons[0].splitlines()[0]
        text += f": {reason[:57]}…" if len(reason) > 58 else f": {reason}"
    return text


def _worse(value: float, direction: Direction) -> float:
    return math.inf if math.isnan(value) else -value if direction == "maximize" else value


def tasks_of(summaries: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(task for summary in summaries for task in summary.tasks))


def short_task(task: str) -> str:
    return task.rsplit("/", 1)[-1]
