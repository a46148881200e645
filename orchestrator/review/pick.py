"""Rules that pick a configuration to take home, and one of its trials, with a sentence that says why.

The front shows reported scores. Choosing among many configurations by those would make the reported score of the chosen one too
good to be true. So `best` and `under` go by the search score, which training was allowed to see, and so does the choice of a
seed: the reported score of the choice stays honest. `answer` is the configuration that the sweep's answer names; `knee` and
`enough` name what the table marks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from craft.words import list_some, nearest, plural, points
from orchestrator.results.answer import REASONS, Answer
from orchestrator.results.front import SEEDS, above_guessing, enough_of, knee
from orchestrator.results.metrics import P_ENOUGH, SIZE, full_label, label_of, number
from orchestrator.results.probabilities import with_probabilities
from orchestrator.results.summary import Entry, Summary
from orchestrator.review.front_tables import describe_trials
from orchestrator.sweepfile.mistakes import NothingMeets, shown
from orchestrator.sweepfile.settings import Enough, Objectives

SEARCH = "search_score"
RULES = ("answer", "enough", "knee", "best", "smallest-within:1", "under:70000")


@dataclass(frozen=True)
class Pick:
    """A configuration and the sentence that says why it is this one."""

    summary: Summary
    reason: str


def pick(
    rule: str,
    summaries: Sequence[Summary],
    objectives: Objectives,
    enough: Enough | None = None,
    answer: Answer | None = None,
) -> Pick:
    """Returns the configuration that `rule` selects (`craft-sweeps take --help` has the rules)."""
    name, _, amount = rule.partition(":")
    enough = enough or Enough()
    if rule == "answer":
        return _answered(summaries, enough, answer)
    if rule == "enough":
        if not any(P_ENOUGH in row.counts for row in _complete(summaries)):
            raise NothingMeets("nothing is known to be enough, because there are no probabilities: --pick answer, or best")
        return _smallest_within(summaries, objectives, enough)
    if name == "smallest-within":
        return _smallest_within(summaries, objectives, enough.model_copy(update={"within": _amount(rule, amount)}))
    if name == "under":
        return _under(_complete(summaries), _amount(rule, amount))
    if rule == "best":
        complete = _complete(summaries)
        best = _best(complete)
        return Pick(
            best, f"the best mean search score ({_score(best)}) of {len(complete)} {plural(len(complete), 'configuration')}"
        )
    if rule == "knee":
        _above_guessing(summaries)
        chosen = knee(summaries, objectives)
        if chosen is None:
            raise NothingMeets(
                f"only a front of two objectives has a knee; this sweep's objectives are {', '.join(objectives)}: --pick best"
            )
        axes = " against ".join("size" if name == SIZE else label_of(name) for name in objectives)
        return Pick(chosen, f"the knee of the front of {axes} (reported scores)")
    return _named(rule, summaries)


def titles(summaries: Sequence[Summary], objectives: Objectives, enough: Enough | None = None) -> dict[str, str]:
    """Returns ids of configurations by the alias they earn: `champion`, `knee` if there is one, and `enough` for ✓ alone."""
    aliases = {"champion": "best", "knee": "knee"} | ({"enough": "enough"} if any(row.enough for row in summaries) else {})
    aliased = {}
    for alias, rule in aliases.items():
        try:
            aliased[alias] = pick(rule, summaries, objectives, enough).summary.configuration
        except NothingMeets:
            continue
    return aliased


def choose_seed(entries: Sequence[Entry], seed: int | None) -> tuple[Entry, str]:
    """Returns the trial to take among those of one configuration on one task, and the reason.

    Under the honest protocol it is the trial with the best search score, which is not the reported score. Under the customary
    protocol the search saw the reported split itself, so it is the trial in the middle, whose score is typical.
    """
    finished = [entry for entry in entries if entry.finished]
    if not finished:
        raise NothingMeets(f"{entries[0].trial.label} has no finished trial on {entries[0].trial.task}")
    if seed is not None:
        for entry in finished:
            if entry.trial.seed == seed:
                return entry, f"seed {seed}, as asked"
        listed = ", ".join(str(entry.trial.seed) for entry in sorted(finished, key=lambda entry: entry.trial.seed))
        raise NothingMeets(
            f"{entries[0].trial.label} has no finished trial with seed {seed} on {entries[0].trial.task}; finished: {listed}"
        )
    ordered = sorted(finished, key=lambda entry: (-_search(entry), entry.trial.seed))
    if len(ordered) == 1:
        return ordered[0], f"seed {ordered[0].trial.seed}, the only one that has finished"
    if ordered[0].trial.protocol == "customary":
        middle = ordered[len(ordered) // 2]
        place = f"seed {middle.trial.seed}, the middle one of {len(ordered)}"
        return middle, f"{place} (the search saw the reported split: none was chosen by it)"
    best = ordered[0]
    return best, f"seed {best.trial.seed}, the best search score ({number(_search(best))}) of {len(ordered)} seeds"


def _answered(summaries: Sequence[Summary], enough: Enough, answer: Answer | None) -> Pick:
    if answer is None or answer.kind not in REASONS:
        raise NothingMeets(f"{answer.verdict if answer else 'There is no answer.'} Name a configuration, or --pick best")
    reason = REASONS[answer.kind].format(within=points(enough.within))
    return Pick(next(row for row in summaries if row.configuration == answer.configuration), reason)


def _smallest_within(summaries: Sequence[Summary], objectives: Objectives, enough: Enough) -> Pick:
    margin = points(enough.within)
    candidates, judged = _above_guessing(summaries), with_probabilities(summaries, objectives, enough)
    probabilities = {row.configuration: row.counts[P_ENOUGH] for row in judged if P_ENOUGH in row.counts}
    if not probabilities:
        best = _best(candidates)
        close = [summary for summary in candidates if summary.value(SEARCH) >= best.value(SEARCH) - enough.within]
        chosen = min(close, key=lambda summary: (summary.value(SIZE), -summary.value(SEARCH), summary.label))
        reason = f"the smallest whose mean search score is within {margin} of the best ({_score(best)})"
        single = max(summary.score.n for summary in candidates) < 2
        return Pick(chosen, f"{reason}; {'with one seed there are' if single else 'this sweep has'} no probabilities")
    by_id = {summary.configuration: summary for summary in summaries}
    rule = f"to be within {margin} of the best"
    if (smallest := enough_of(judged, enough)) is None:
        likeliest = max(probabilities, key=lambda name: probabilities[name])
        raise NothingMeets(
            f"no configuration has a probability of {enough.sure:g} {rule}, with {SEEDS} seeds; the likeliest is "
            f"{full_label(by_id[likeliest])} ({probabilities[likeliest]:.2f}). Name it, take more points, or --pick best"
        )
    reason = f"the smallest whose probability {rule} is at least {enough.sure:g}: P = {probabilities[smallest]:.2f}"
    return Pick(by_id[smallest], reason)


def _under(candidates: Sequence[Summary], limit: float) -> Pick:
    small = [summary for summary in candidates if summary.value(SIZE) <= limit]
    if not small:
        least = min(candidates, key=lambda summary: summary.value(SIZE))
        raise NothingMeets(
            f"no complete configuration has at most {limit:,.0f} trainable parameters; the smallest is {full_label(least)} "
            f"with {least.value(SIZE):,.0f}"
        )
    best = _best(small)
    return Pick(best, f"the best mean search score ({_score(best)}) with at most {limit:,.0f} trainable parameters")


def _named(name: str, summaries: Sequence[Summary]) -> Pick:
    asked = _plain(name)
    exact = [
        summary for summary in summaries if asked in (summary.configuration, _plain(summary.label), _plain(full_label(summary)))
    ]
    matches = exact or [summary for summary in summaries if len(asked) >= 4 and summary.configuration.startswith(asked)]
    matches = matches or [summary for summary in summaries if asked and asked in _plain(full_label(summary))]
    if len(matches) > 1:  # a part of a label that its cuts have, too, means the trained one
        matches = [summary for summary in matches if summary.source is None] or matches
    if len(matches) > 1:
        listed = ", ".join(f"{summary.configuration} ({full_label(summary)})" for summary in matches[:8])
        raise ValueError(f"--pick {shown(name)} means several configurations: {listed}. Give one's id")
    if not matches:
        names = [text for summary in summaries for text in (full_label(summary), summary.configuration)]
        near = nearest(name, [*RULES, *names])
        listed = list_some([f"{summary.configuration} ({full_label(summary)})" for summary in summaries], 8)
        raise ValueError(
            f"--pick {shown(name)} is no rule and no configuration.{near} Rules: answer, enough, knee, best, "
            f"smallest-within:POINTS, under:PARAMETERS. Configurations: {listed or 'none'}"
        )
    if not matches[0].finished:
        raise NothingMeets(f"{full_label(matches[0])} has no finished trial ({describe_trials(matches[0])})")
    note = "" if matches[0].complete else f"; it is incomplete: {describe_trials(matches[0])} trials"
    return Pick(matches[0], f"named by you{note}")


def _complete(summaries: Sequence[Summary]) -> list[Summary]:
    complete = [summary for summary in summaries if summary.complete and math.isfinite(summary.value(SEARCH))]
    if not complete:
        stand = "; ".join(f"{full_label(summary)}: {describe_trials(summary)}" for summary in summaries[:5])
        raise NothingMeets(
            f"no configuration has finished all trials, and only complete ones are ranked ({stand or 'none has begun'}). "
            "Finish the sweep (--resume), or name a configuration that has finished trials"
        )
    return complete


def _above_guessing(summaries: Sequence[Summary]) -> list[Summary]:
    if not above_guessing(complete := _complete(summaries)):
        raise NothingMeets("nothing in this sweep is shown to be above random guessing: name one, or --pick best")
    return complete


def _best(candidates: Sequence[Summary]) -> Summary:
    return min(candidates, key=lambda summary: (-summary.value(SEARCH), summary.value(SIZE), summary.label))


def _score(summary: Summary) -> str:
    return number(summary.value(SEARCH))


def _search(entry: Entry) -> float:
    value = entry.result.metrics.get(SEARCH, -math.inf) if entry.result else -math.inf
    return value if math.isfinite(value) else -math.inf


def _amount(rule: str, amount: str) -> float:
    try:
        value = float(amount.replace("_", "").replace(",", ""))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"--pick {shown(rule)}: after the colon comes a number from 0, as in smallest-within:0.5 or under:70000"
        )
    return value


def _plain(text: str) -> str:
    # The label's middle dots are hard to type.
    return " ".join(text.lower().replace("·", ".").split())
