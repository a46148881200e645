"""The answer of a sweep: which configuration is enough, what is not known yet, and what to run to know it.

    summaries, State  -->  find_answer  -->  Answer  -->  Answer.text, Answer.markdown

`find_answer` is pure. The terminal, the page, the model card and MLflow show what it returns; nothing else says what is enough.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import ConfigDict, computed_field

from craft.words import list_some, percent, plural, points
from orchestrator.record.state import Entry, State
from orchestrator.results.front import HEAD, SEEDS, above_guessing, judge_state, leaders, may_score, not_shown_to_beat_head
from orchestrator.results.intervals import spread
from orchestrator.results.luck import helps_most, limit, rows_help
from orchestrator.results.metrics import EXPECTED, P_ENOUGH, SIZE, amount, full_label, number, sized
from orchestrator.results.probabilities import find_falls
from orchestrator.results.proposal import (
    PASSES,
    Settings,
    describe_step,
    longer,
    other_rates,
    passes_of,
    rate_end,
    settings_of,
    takes,
    trainings_of,
    within_budget,
)
from orchestrator.results.step import LIKELY, Step, describe_price, other_sizes, seconds_of_seed, steps
from orchestrator.results.step import best as best_step
from orchestrator.results.summary import Summary, complete_among
from orchestrator.sweepfile.settings import Enough
from orchestrator.sweepfile.sweep import DEFAULT_STORAGE
from orchestrator.tools.markup import plain

EVALUATIONS = 3
"""The evaluations that show whether a score still rises."""
WORTH = 0.2
"""The probability of settling the answer from which on an action is proposed."""
Kind = Literal["enough", "unsure", "one seed", "means", "random guessing", "head", "unfinished", "failed", "no score"]
REASONS = {
    "enough": "the answer: the smallest that is enough",
    "unsure": "the answer: the likeliest to be enough, which is not decided",
    "one seed": "the answer: the smallest within {within} of the best by one seed, so another seed may say otherwise",
    "means": "the answer: the smallest within {within} of the best by the means; this sweep has no probabilities",
    "head": "the answer: no adapter is shown to be better than none",
}
"""Reasons for taking the configuration of an answer, by its kind."""


@dataclass(frozen=True)
class Answer:
    """Which configuration is enough, what is not known, and what to run to know it."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    kind: Kind
    """`enough`: the configuration is. `unsure`: none is with the wanted probability yet. `one seed`, `means`: there are no
    probabilities, so nothing is known to be enough. `random guessing`: nothing is shown to be above it. `head`: no adapter is
    shown to be better than none. Why there is no answer: `unfinished`: no configuration has finished its trials. `failed`: none
    will. `no score`: the score is no objective."""
    configuration: str
    """The id of the configuration that is enough (`enough`), the likeliest to be (`unsure`), the smallest by the means (`one
    seed`, `means`), the best (`random guessing`), or the control (`head`). Empty without an answer."""
    best: str
    """The id of the configuration with the highest expected score. Empty without an answer."""
    p_better: float | None
    """The probability, from 0 to 1, that any configuration of the sweep is better by more than `within` points. Null where it
    is not known, as with one seed."""
    verdict: str
    """What is known, in sentences."""
    unknown: str = ""
    """What is not known, in sentences. Empty if all is."""
    proposal: str = ""
    """What to run next, and how long that takes. Empty if there is nothing to propose."""
    command: str = ""
    """The command that runs it. Empty if there is none, and while a driver runs the sweep."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """The values of the sweep file that this command changes, by the paths that `--set` takes."""
    p_decides: float | None = None
    """The probability, from 0 to 1, that it says all that is unknown. Null if not known."""
    label: str = ""
    """The name of that configuration for people. Empty without an answer."""
    within: float = 0.0
    """The points of the score below the true best that are allowed."""
    sure: float = 0.0
    """The least probability of that, from 0.5 to 1."""

    def running(self, phrase: str) -> Answer:
        """Returns the answer so far of a sweep that runs: nothing is to be done but to wait."""
        return replace(self, unknown="", proposal=phrase, command="", changes={}, p_decides=None)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The answer as the terminal shows it: what is known, what is not, and a line with the command."""
        return "\n".join(filter(None, (self.verdict, self._rest, self.command and f"  {self.command}")))

    @property
    def markdown(self) -> str:
        return "\n\n".join(filter(None, (plain(self.verdict), plain(self._rest), self.command and f"    {self.command}")))

    @property
    def _rest(self) -> str:
        return " ".join(filter(None, (self.unknown, self.proposal)))


def answer_of(state: State) -> tuple[list[Summary], Answer]:
    return (summaries := judge_state(state)), find_answer(summaries, state)


def find_answer(summaries: Sequence[Summary], state: State) -> Answer:
    reply, rule = _find(summaries, state), state.sweep.enough
    label = next((full_label(row) for row in summaries if row.configuration == reply.configuration), "")
    return replace(reply, label=label, within=rule.within, sure=rule.sure)


def _find(summaries: Sequence[Summary], state: State) -> Answer:
    complete = complete_among(summaries)
    incomplete = [summary for summary in summaries if not summary.complete]
    # What people stopped, or what failed for good, is not continued by the command.
    unfinished = any(not (entry.ended and entry.result and entry.result.settled) for entry in state.requested)
    unfinished = unfinished or any(may_score(row, state) for row in incomplete)
    rest = ("Next: finish the sweep:", state.again) if unfinished and state.again else ("", "")
    if state.sweep.objectives.get("score") != "maximize":
        return Answer("no score", "", "", None, "No answer: the score is no objective of this sweep.", "", *rest)
    if not complete:
        failed = [summary for summary in summaries if summary.failed]
        if failed and not unfinished:
            many = sum(summary.failed for summary in failed)
            verdict = f"No answer: {many} {plural(many, 'trial')} failed{_reason(failed)}, and no configuration is complete."
            return Answer("failed", "", "", None, verdict)
        return Answer("unfinished", "", "", None, "No answer yet: no configuration has finished its trials.", "", *rest)
    if len(complete) == 1 and unfinished and incomplete:
        verdict = f"No answer yet: {full_label(complete[0])} alone has finished its trials."
        return Answer("unfinished", "", "", None, verdict, "", *rest)
    reply = _judge(complete, summaries, state, "among them" if incomplete else "in this sweep")
    # A configuration that is tuned has no trials of its own before one of its candidates is chosen.
    total = len(complete) + len({summary.tunes or summary.configuration for summary in incomplete})
    among = f"Complete: {len(complete)} of {total}. Among these: " if incomplete else ""
    reply = replace(reply, verdict=f"{among}{reply.verdict}{_lost(complete)}")
    if not unfinished:
        return _with_more_steps(reply, complete, state)
    unknown = "Not known: how the others score." if incomplete else "Seeds that have not ended everywhere do not count yet."
    return replace(reply, unknown=unknown, proposal=rest[0], command=rest[1], changes={}, p_decides=None)


def _reason(failed: Sequence[Summary]) -> str:
    reason = next((row.reasons[0] for row in failed if row.reasons), "")
    return f" ({reason.splitlines()[0][:100]})" if reason else ""


def _with_more_steps(reply: Answer, complete: Sequence[Summary], state: State) -> Answer:
    """Returns the answer of a sweep whose best trained for less than a pass, or still rose at its last step, with that said
    first; less than a pass asks for more steps before more seeds."""
    names = {row.trained for row in complete if row.configuration == reply.best}
    trained = [entry for entry in state.trainings if entry.trial.configuration in names and entry.finished and entry.report]
    passes, task = min(((epoch, entry.trial.task) for entry in trained if (epoch := passes_of(entry))), default=(math.inf, ""))
    rising = bool(trained) and all(_still_rose(entry) for entry in trained)
    if not (passes < 1 or rising):
        return reply
    rows = "its rows" if len(state.sweep.task_names) == 1 else f"the rows of {task}"
    how = f"trained for {passes:.2g} of a pass over {rows}" if passes < 1 else ""
    how = " and ".join(filter(None, (how, "still rose at its last step" if rising else "")))
    reply = replace(reply, verdict=f"The best {how}, so more steps may change this. {reply.verdict}")
    if passes >= 1:
        return reply
    changes, seconds = longer(state, passes)
    proposal = f"Next: train for {PASSES} passes, in a sweep of its own{describe_price(seconds / state.pace)}:"
    return _proposing(replace(reply, p_decides=None), proposal, changes, state)


def _still_rose(entry: Entry) -> bool:
    """Returns whether the best of at least EVALUATIONS evaluations of a training was its last one."""
    result, report, every = entry.result, entry.report, entry.trial.parameters.get("evaluate_every")
    if result is None or report is None or entry.trial.parameters.get("select") != "best" or not isinstance(every, int | float):
        return False
    return result.facts.get("best_step") == result.steps and report.epoch > (EVALUATIONS - 0.5) * every


def _proposing(reply: Answer, proposal: str, changes: Settings, state: State) -> Answer:
    """Returns the answer with a proposal, and the command that runs it if the sweep's file may have these changes."""
    if not takes(state, changes):
        return replace(reply, proposal=f"{proposal.rstrip(':.')}.", command="", changes={})
    # A sweep that continues until it is answered needs no setting to do so.
    changes = {key: value for key, value in changes.items() if (key, state.sweep.search.until) != ("search.until", value)}
    folder = state.sweep.folder.absolute()
    place = state.sweep.name if folder.parent == Path(DEFAULT_STORAGE).absolute() else str(folder)
    return replace(reply, proposal=proposal, command=f"craft-sweeps more {shlex.quote(place)}", changes=changes)


def _lost(complete: Sequence[Summary]) -> str:
    # A training is lost once, with all of its cuts, which come before it.
    lost = list({row.trained: row for row in sorted(complete, key=lambda row: row.source is None) if row.lost}.values())
    if not lost:
        return ""
    many = sum(len(summary.lost) for summary in lost)
    named = list_some([full_label(row) + f" (seed {', '.join(map(str, row.lost))})" for row in lost], 3)
    how = f"failed or {'was' if many == 1 else 'were'} stopped{_reason(lost)}"
    return f" {many} added {plural(many, 'seed')} {how}, and what is left counts: {named}."


def _judge(complete: Sequence[Summary], summaries: Sequence[Summary], state: State, scope: str) -> Answer:
    """Returns the answer over complete configurations; its sentences compare "in this sweep" or "among them" (`scope`)."""
    best, chosen = leaders(complete)
    if not above_guessing(complete):
        verdict = (
            f"Nothing {scope} is shown to be above random guessing: the best, {_named(best)}, has {_score(best)}, and "
            f"random guessing {number(best.value('random_guessing'), 1)}. So none of these numbers says which is enough."
        )
        reply = Answer("random guessing", best.configuration, best.configuration, None, verdict)
        return _with_other_rates(reply, complete, best, state)
    idle = {summary.configuration for summary in not_shown_to_beat_head(summaries)}
    # All seeds together may say that the head alone is not enough where the pairs of few show no difference.
    may = [row for row in complete if row.method == HEAD and row.counts.get(P_ENOUGH, 1.0) > 1 - state.sweep.enough.sure]
    head = max(may, key=lambda row: row.value("search_score"), default=None)
    shown = any(row.enough or row.configuration not in idle for row in complete if row.method != HEAD)
    if head is not None and idle and not shown:
        return _with_other_rates(_head_alone(complete, head, best), complete, best, state)
    if not all(P_ENOUGH in summary.counts for summary in complete):
        return _without_probabilities(complete, best, state)
    return _by_probabilities(complete, best, chosen, state, scope)


def _head_alone(complete: Sequence[Summary], head: Summary, best: Summary) -> Answer:
    by_one = " by this one seed" if head.score.n < 2 else ""
    other = f", {_named(best)}, {_score(best)}" if best is not head else ""
    verdict = f"No adapter is shown to be better than none{by_one}: {_named(head)} has {_score(head)}, the best of all{other}."
    better = head.counts.get(P_ENOUGH) and 1 - head.counts[P_ENOUGH]
    return Answer("head", head.configuration, best.configuration, better, verdict + _open_gain(complete, head))


def _open_gain(complete: Sequence[Summary], head: Summary) -> str:
    """Returns a sentence on the gain over the head alone that the intervals of the differences do not rule out."""
    below = head.score.mean - head.score.low
    scores = [row.score for row in complete if row is not head]
    gains = [score.mean - head.score.mean + math.hypot(score.high - score.mean, below) for score in scores]
    gain = max((gain for gain in gains if math.isfinite(gain)), default=math.nan)
    if math.isnan(gain):
        return " No gain is ruled out."
    return f" A gain of {points(max(0.1, float(number(gain, 1))))} is not ruled out."


def _with_other_rates(reply: Answer, complete: Sequence[Summary], best: Summary, state: State) -> Answer:
    """Returns the answer with the next experiment where what was tried did not learn: other rates, before anything else."""
    adapters = [summary for summary in complete if summary.method != HEAD] or [best]
    chosen = max(adapters, key=lambda summary: summary.score.mean)
    rates, settings = other_rates(chosen, state.sweep)
    tried = f" (tried: {rates})" if rates else ""
    unknown = f"Not known: whether other settings learn. Try another learning rate{tried}, more epochs, or a larger size."
    if reply.kind != "head" and limit(complete) == "examples":  # head and adapter share the luck of examples
        unknown += " " + rows_help(complete)
    return _proposing_rates(replace(reply, unknown=unknown), chosen, settings, complete, state)


def _proposing_rates(reply: Answer, chosen: Summary, settings: Settings, complete: Sequence[Summary], state: State) -> Answer:
    """Returns the answer with the proposal of a rate on both sides of those of the chosen configuration's block, if it is known
    which that is."""
    if not settings:
        return reply
    trainings = 2 * chosen.score.n
    seconds = trainings_of(settings, state.sweep, trainings) * seconds_of_seed([chosen.trained], complete)
    proposal = f"Next: run a lower and a higher rate of {full_label(chosen)}{describe_price(seconds / state.pace)}:"
    return _proposing(reply, proposal, within_budget(settings, trainings, state), state)


def _without_probabilities(complete: Sequence[Summary], best: Summary, state: State) -> Answer:
    """Returns the answer where a configuration has one seed: what the means say, and the price of two more seeds."""
    margin = points(state.sweep.enough.within)
    least = best.score.mean - state.sweep.enough.within - 1e-9  # means of equal scores may differ in the last bit
    near = [summary for summary in complete if summary.score.mean >= least]
    small = min(near, key=lambda summary: (summary.value(SIZE), -summary.score.mean))
    single = min(summary.score.n for summary in complete) < 2
    how = "one seed" if single else "the means"
    verdict = f"By {how}: {_named(small)} is the smallest within {margin} of the best: {_score(small)}."
    if small is not best:
        verdict += f" {_compared(best, small, best.score.mean - small.score.mean)}"
    if not single:
        unknown = "Not known: with what probability. It is known where every objective but the score is exact."
        return Answer("means", small.configuration, best.configuration, None, verdict, unknown)
    unknown = "One seed cannot tell whether this is enough: another seed may score differently."
    ends = _at_end(complete, best, state)
    unknown += f" {ends}" if ends else ""
    if limit(complete) == "examples":
        unknown += " " + rows_help(complete)
        return Answer("one seed", small.configuration, best.configuration, None, verdict, unknown)
    missing = max(1, SEEDS - min(summary.score.n for summary in complete))
    names = tuple(dict.fromkeys(row.trained for row in complete))
    step = Step("seeds", names, missing, missing * seconds_of_seed(names, complete))
    reply = Answer("one seed", small.configuration, best.configuration, None, verdict, unknown)
    proposal = f"Next: {describe_step(step, complete, state)} to get probabilities."
    return _proposing(reply, proposal, settings_of(step, complete, state), state)


def _by_probabilities(complete: Sequence[Summary], best: Summary, chosen: Summary, state: State, scope: str) -> Answer:
    rule, better = state.sweep.enough, 1 - chosen.counts[P_ENOUGH]
    verdict, doubt = _verdict(complete, chosen, best, rule, scope), _doubt(complete, chosen, rule)
    possible, larger, observed = steps(
        complete, state.sweep, lambda step: not state.again or takes(state, settings_of(step, complete, state))
    )
    unknown = " ".join(filter(None, (doubt, _at_end(complete, best, state, larger))))
    kind: Kind = "enough" if chosen.enough else "unsure"
    reply = Answer(kind, chosen.configuration, best.configuration, better, verdict, unknown)
    if not doubt and rate_end(best, complete)[0]:  # no size says what the next rate does
        return _proposing_rates(reply, best, other_rates(best, state.sweep)[1], complete, state)
    step = best_step([each for each in possible if doubt or each.kind == "larger"], least=WORTH)
    if doubt and (step is None or step.settles < LIKELY) and helps_most(complete, observed.errors.tolist()) == "examples":
        return replace(reply, proposal=rows_help(complete))
    if doubt and step is None and possible:
        most = percent(max(each.settles for each in possible))
        proposal = f"No more seeds or other size is likely to settle it ({most} at most). A larger `within` asks for less."
        return replace(reply, proposal=proposal)
    if not unknown or step is None:
        return reply
    gain = "would most likely settle it" if step.settles >= LIKELY else f"may settle it ({percent(step.settles)})"
    proposal = f"Next: {describe_step(step, complete, state)}, which {gain}."
    return _proposing(replace(reply, p_decides=step.settles), proposal, settings_of(step, complete, state), state)


def _verdict(complete: Sequence[Summary], chosen: Summary, best: Summary, rule: Enough, scope: str) -> str:
    margin, probability = points(rule.within), chosen.counts[P_ENOUGH]
    if not chosen.enough:
        likely = f"is the likeliest to be within {margin} of the best ({percent(probability)})"
        return f"Not decided: {_named(chosen)} {likely}: {_score(chosen)}."
    verdict = (
        f"Enough: {_named(chosen)}: {_score(chosen)}. The probability that anything {scope} is better by more than {margin} "
    )
    verdict += f"is {percent(1 - probability)}."
    if best is not chosen:
        verdict += f" {_compared(best, chosen, best.counts[EXPECTED] - chosen.counts[EXPECTED])}"
    far, many = find_falls(complete, 2 * rule.within)  # seeds far behind the others of their configuration
    if far and chosen.configuration not in far:
        seeds = [fall for falls in far.values() for fall in falls]
        verdict += f" {len(seeds)} of {many} seeds fell by {points(round(fmean(seeds)))}; {chosen.score.n} seeds of "
        verdict += f"{full_label(chosen)} cannot show that it will not."
    return verdict


def _doubt(complete: Sequence[Summary], chosen: Summary, rule: Enough) -> str:
    """Returns why no configuration is enough yet, or which smaller ones may also be enough; empty if none may."""
    if not chosen.enough and chosen.counts[P_ENOUGH] >= rule.sure:
        few = f"{chosen.score.n} {plural(chosen.score.n, 'seed')} {'does' if chosen.score.n == 1 else 'do'}"
        return f"Not known: whether it is enough: {few} not show how seeds spread, {SEEDS} do."
    if not chosen.enough:
        return f"Not known: which one is enough with a probability of {percent(rule.sure)}."
    smaller = [summary for summary in complete if summary.value(SIZE) < chosen.value(SIZE)]
    doubtful = [summary for summary in smaller if summary.counts[P_ENOUGH] > 1 - rule.sure]
    if not doubtful:
        return ""
    likeliest = max(doubtful, key=lambda summary: summary.counts[P_ENOUGH])
    more = f", or any of {len(doubtful) - 1} more" if len(doubtful) > 1 else ""
    return f"Not known: whether {_named(likeliest)} is also enough ({percent(likeliest.counts[P_ENOUGH])}){more}."


def _at_end(complete: Sequence[Summary], best: Summary, state: State, larger: float | None = None) -> str:
    """Returns sentences on the ends of what was tried, at which the best is.

    Args:
        larger: the probability that a larger size is better by more than `within`, None without one. It is too rough to be
            shown: what it calls 25 % is true in 15 %. The next learning rate diverges as often as it gains.
    """
    sure = larger is not None and larger <= 1 - state.sweep.enough.sure
    largest = not sure and any(step.kind == "larger" for step in other_sizes(complete, best, best))
    ends = ["largest size" if largest else "", rate_end(best, complete)[0]]
    return " ".join(f"The best has the {end} tried, so one beyond may be better." for end in ends if end)


def _compared(best: Summary, small: Summary, gap: float) -> str:
    size, other, more = best.value(SIZE), small.value(SIZE), points(float(number(gap, 1)))
    if not size > other:
        return f"The best is {_named(best)}."
    ratio = size / other if other else math.inf
    times = "twice" if round(ratio, 1) == 2 else f"{ratio:{'.0f' if ratio >= 10 else '.2g'}} times"
    many = "as many parameters" if best.unit == "parameters" else f"the {best.unit}"
    uses = f"uses {times} {many} for" if other else "scores"
    if round(ratio, 1) == 1:
        uses = f"uses slightly more {best.unit} for"
    return f"The best, {full_label(best)} ({amount(SIZE, size)}), {uses} {more} more."


def _named(summary: Summary) -> str:
    return full_label(summary) + sized(summary)


def _score(summary: Summary) -> str:
    return number(summary.score.mean, 1) + spread(summary.score, 1)
