"""What to run next: the action that is likeliest to decide the answer for a minute of training.

    decided      one configuration is enough, by the three seeds that the rule asks for, and no smaller one may be
    actions      more seeds of those whose scores decide; a larger size; a smaller size

Each action is tried on the posterior (`orchestrator.results.probabilities.Evidence`): a truth is drawn from it, the trials
that the action would add are drawn from that truth, and the posterior is computed again with them. A size that nobody tried
continues its method's curve. Rates have no such curve: the next rate on a grid is as likely to diverge as to gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.results.posterior import UNTRIED, Evidence, Numbers
from orchestrator.sweepfile.settings import Enough

Kind = Literal["seeds", "larger", "smaller"]
MORE_SEEDS = (1, 2, 3, 5, 8)
DRAWS = 200
LARGE = 1000
"""From so many configurations on nothing is proposed: it would take minutes to weigh."""
LEAST_PROBABILITY, LIKELY = 0.1, 0.7
"""The probabilities of deciding from which on an action is worth its time, and most likely decides."""


@dataclass(frozen=True)
class Action:
    """Something to run.

    Attributes:
        more: the seeds that it adds, for each configuration.
        seconds: its training time, all machines together.
        decides: the probability that the answer is complete afterwards.
    """

    kind: Kind
    more: tuple[int, ...]
    seconds: float
    decides: float = 0.0


@dataclass(frozen=True)
class Untried:
    """A configuration that could be tried, with its parameters and the seconds of one seed. `base` and `next_one` are
    the places of the configuration that it continues and of the next one of its method (`Evidence.beyond`). `allowed` says
    whether the sweep can run it."""

    kind: Kind
    size: float
    seconds: float
    base: int
    next_one: int | None
    allowed: bool = True


def with_untried(evidence: Evidence, untried: Sequence[Untried]) -> Evidence:
    """Returns the evidence with configurations at its end of which there is no trial."""
    many = len(untried)

    def extended(values: Numbers, new: float) -> Numbers:
        return np.concatenate([values, np.full(many, new)])

    return replace(
        evidence,
        means=extended(evidence.means, float(evidence.means.mean())),
        errors=extended(evidence.errors, UNTRIED),
        freedom=extended(evidence.freedom, float(evidence.freedom.mean())),
        seeds=np.concatenate([evidence.seeds, np.zeros(many, dtype=int)]),
        size=np.concatenate([evidence.size, [candidate.size for candidate in untried]]),
        luck=extended(evidence.luck, float(np.median(evidence.luck))),
        beyond=tuple((candidate.base, candidate.next_one) for candidate in untried),
    )


def is_decided(scores: Numbers, evidence: Evidence, rule: Enough, least_seeds: int) -> bool:
    """Returns whether one configuration is enough with the probability `sure`, and each smaller one with at most 1 - `sure`."""
    probabilities = (scores >= scores.max(axis=1, keepdims=True) - rule.within).mean(axis=0)
    order = np.argsort(evidence.size, kind="stable")
    sure = [place for place in order if probabilities[place] >= rule.sure and evidence.seeds[place] >= least_seeds]
    return bool(sure) and all(
        probabilities[place] <= 1 - rule.sure for place in order if evidence.size[place] < evidence.size[sure[0]]
    )


def in_doubt(scores: Numbers, size: Numbers, rule: Enough) -> NDArray[np.int_]:
    """Returns the places of the configurations whose scores decide: the one that is enough, or is the likeliest to be, smaller
    ones that may be, and those that may be the best."""
    probabilities = (scores >= scores.max(axis=1, keepdims=True) - rule.within).mean(axis=0)
    sure = np.flatnonzero(probabilities >= rule.sure)
    chosen = min(sure, key=lambda place: size[place]) if len(sure) else probabilities.argmax()
    smaller = (size < size[chosen]) & (probabilities > 1 - rule.sure)
    best = np.bincount(scores.argmax(axis=1), minlength=len(size)) / len(scores)
    return np.flatnonzero(smaller | (best >= LEAST_PROBABILITY) | (np.arange(len(size)) == chosen))


def foresee(evidence: Evidence, more: Sequence[int], random: np.random.Generator) -> Iterator[Evidence]:
    """Yields what the evidence may be after so many more seeds of each configuration, for truths drawn from the posterior."""
    added = np.asarray(more)
    tried = evidence.seeds > 0
    one_seed = np.where(tried, evidence.errors * evidence.seeds, 0.0)
    one_seed = np.where(tried, one_seed, one_seed[tried].mean())
    share = evidence.luck / np.maximum(evidence.luck + evidence.errors, 1e-12)
    truths = max(20, min(60, 2000 // len(added)))
    for truth in random.permutation(evidence.draw() * evidence.sign)[:truths]:
        # A part of what separates mean and truth is the luck of the examples, which further seeds have, too.
        luck = share * np.where(tried, evidence.means - truth, 0.0)
        luck = luck + random.standard_normal(len(truth)) * np.sqrt(evidence.luck * (1 - share))
        fresh = truth + luck + random.standard_normal(len(truth)) * np.sqrt(one_seed / np.maximum(added, 1))
        total = evidence.seeds + added
        means = np.where(added > 0, (evidence.seeds * evidence.means + added * fresh) / np.maximum(total, 1), evidence.means)
        errors = np.where(total > 0, one_seed / np.maximum(total, 1), UNTRIED)
        yield replace(evidence, means=means, errors=errors, seeds=total)


def weigh(action: Action, evidence: Evidence, tried: int, rule: Enough, least_seeds: int) -> Action:
    """Returns the action with the probability that it decides among the first `tried` configurations."""
    compared, decided = slice(tried) if action.kind == "seeds" else slice(None), list[bool]()
    for foreseen in foresee(evidence, action.more, np.random.default_rng(0)):
        part = replace(foreseen, size=foreseen.size[compared], seeds=foreseen.seeds[compared])
        decided.append(is_decided(foreseen.draw(DRAWS)[:, compared], part, rule, least_seeds))
    return replace(action, decides=float(np.mean(decided)))


def propose(
    evidence: Evidence,
    untried: Sequence[Untried],
    trained: Sequence[str],
    seconds: Mapping[str, float],
    rule: Enough,
    least_seeds: int,
    most_seeds: int,
) -> tuple[list[Action], NDArray[np.float64]]:
    """Returns what may be run next, weighed; and the probability of each untried configuration to be better by more than
    `within` than all that were tried.

    Args:
        trained: by place, the training that another seed would repeat; sizes of one training share it.
        seconds: the time of one seed of each training.
        most_seeds: the most that some configurations get, where not all do.
    """
    tried, extended = len(evidence.size), with_untried(evidence, untried)
    scores = extended.draw()
    better = (scores[:, tried:] > scores[:, :tried].max(axis=1, keepdims=True) + rule.within).mean(axis=0)
    few, actions = int(max(evidence.seeds)), list[Action]()
    shown = evidence.draw()  # the draws of the probabilities that people see
    again = {trained[place] for place in in_doubt(shown, evidence.size, rule)}
    chosen = np.array([name in again for name in trained] + [False] * len(untried), dtype=int)
    if not is_decided(shown, evidence, rule, least_seeds):  # else more seeds would say nothing new
        counts = [count for count in MORE_SEEDS if max(evidence.seeds[chosen[:tried] > 0]) + count >= least_seeds]
        if not chosen[:tried].all():  # seeds of some are added by `search.until`, which has a limit
            counts = [count for count in counts if max(evidence.seeds[chosen[:tried] > 0]) + count <= most_seeds]
        price = sum(seconds[name] for name in again)
        actions = [Action("seeds", tuple((count * chosen).tolist()), count * price) for count in counts]
    for place, candidate in enumerate(untried):
        if not candidate.allowed or (candidate.kind == "larger" and better[place] <= 1 - rule.sure):
            continue
        more = np.zeros(len(extended.size), dtype=int)
        more[tried + place] = few
        actions.append(Action(candidate.kind, tuple(more.tolist()), few * candidate.seconds))
    if tried > LARGE:
        return [], better
    return [weigh(action, extended, tried, rule, least_seeds) for action in actions], better


def soonest(actions: Sequence[Action], seconds: float = math.inf, least: float = LEAST_PROBABILITY) -> Action | None:
    """Returns the action that is likeliest to decide for its time; None if none of at most so many seconds has the probability
    `least`."""
    worth = [action for action in actions if action.decides >= least and not action.seconds > seconds]
    return max(worth, key=lambda action: action.decides / price_of(action, actions), default=None)


def price_of(action: Action, actions: Sequence[Action]) -> float:
    """Returns the seconds of an action; its number of trainings where the time of any is not known."""
    timed = all(math.isfinite(action.seconds) for action in actions)
    return max(action.seconds if timed else sum(action.more), 1e-9)
