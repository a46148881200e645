"""What to run next: the action from which the answer gains most certainty for a minute of training.

    certainty    the chance that the configuration called the smallest that is enough is that one in truth
    actions      more seeds of all; a larger size; a smaller size

Each action is tried on the posterior (`orchestrator.results.chances.Evidence`): a truth is drawn from it, the trials that the
action would add are drawn from that truth, and the posterior is computed again with them. A size that nobody tried continues
its method's curve. Rates have no such curve: the next rate on a grid is as likely to diverge as to gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.results.posterior import UNTRIED, Evidence, Numbers
from orchestrator.sweepfile.settings import Enough

Kind = Literal["seeds", "larger", "smaller"]
MORE_SEEDS = (1, 2, 3, 5)
DRAWS = 200
LARGE = 1000
"""From so many configurations on nothing is proposed: it would take minutes to weigh."""
LEAST_GAIN, LIKELY = 0.02, 0.7
"""An action is worth a sentence if it is expected to add so much certainty, or has this chance to decide."""


@dataclass(frozen=True)
class Action:
    """Something to run.

    Attributes:
        more: the seeds that it adds, for each configuration.
        seconds: its training time, all machines together.
        gain: the certainty that it is expected to add.
        decides: the chance that the answer is complete afterwards.
    """

    kind: Kind
    more: tuple[int, ...]
    seconds: float
    gain: float = 0.0
    decides: float = 0.0


@dataclass(frozen=True)
class Untried:
    """A configuration that could be tried, with its parameters and the seconds of one seed. `base` and `next_one` are
    the places of the configuration that it continues and of the next one of its method (`Evidence.beyond`)."""

    kind: Kind
    size: float
    seconds: float
    base: int
    next_one: int | None


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


def certainty(scores: Numbers, size: Numbers, within: float) -> float:
    """Returns how often, over draws, the smallest configuration that is enough is the one that it is most often."""
    order = np.argsort(size, kind="stable")
    ordered = scores[:, order]
    smallest = (ordered >= ordered.max(axis=1, keepdims=True) - within).argmax(axis=1)
    return float(np.bincount(smallest).max()) / len(scores)


def is_decided(scores: Numbers, evidence: Evidence, rule: Enough, least_seeds: int) -> bool:
    """Returns whether one configuration is enough with the chance `sure`, and every smaller one is not with the same chance."""
    chances = (scores >= scores.max(axis=1, keepdims=True) - rule.within).mean(axis=0)
    order = np.argsort(evidence.size, kind="stable")
    sure = [place for place in order if chances[place] >= rule.sure and evidence.seeds[place] >= least_seeds]
    return bool(sure) and all(
        chances[place] <= 1 - rule.sure for place in order if evidence.size[place] < evidence.size[sure[0]]
    )


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
    """Returns the action with its expected gain and the chance that it decides among the first `tried` configurations."""
    random = np.random.default_rng(0)
    before = certainty(evidence.draw(), evidence.size, rule.within)
    after, decided = [], []
    for foreseen in foresee(evidence, action.more, random):
        scores = foreseen.draw(DRAWS)
        after.append(certainty(scores, foreseen.size, rule.within))
        compared = slice(tried) if action.kind == "seeds" else slice(None)
        part = replace(foreseen, size=foreseen.size[compared], seeds=foreseen.seeds[compared])
        decided.append(is_decided(scores[:, compared], part, rule, least_seeds))
    return replace(action, gain=float(np.mean(after)) - before, decides=float(np.mean(decided)))


def propose(
    evidence: Evidence, untried: Sequence[Untried], seconds: float, rule: Enough, least_seeds: int
) -> tuple[Action | None, NDArray[np.float64]]:
    """Returns the action with the largest expected gain for its time, None if none gains; and the chance of each untried
    configuration to be better by more than `within` than all that were tried.

    Args:
        seconds: the training time of one more seed of all configurations.
    """
    tried, extended = len(evidence.size), with_untried(evidence, untried)
    scores = extended.draw()
    better = (scores[:, tried:] > scores[:, :tried].max(axis=1, keepdims=True) + rule.within).mean(axis=0)
    few = int(max(evidence.seeds))
    actions = [Action("seeds", (count,) * tried + (0,) * len(untried), count * seconds) for count in MORE_SEEDS]
    decided = is_decided(scores[:, :tried], evidence, rule, least_seeds)  # then more seeds would say nothing new
    actions = [action for action in actions if not decided and few + max(action.more) >= least_seeds]
    for place, candidate in enumerate(untried):
        if candidate.kind == "larger" and better[place] <= 1 - rule.sure:
            continue
        more = np.zeros(len(extended.size), dtype=int)
        more[tried + place] = few
        actions.append(Action(candidate.kind, tuple(more.tolist()), few * candidate.seconds))
    if tried > LARGE:
        return None, better
    weighed = [weigh(action, extended, tried, rule, least_seeds) for action in actions]
    worth = [action for action in weighed if action.gain >= LEAST_GAIN or action.decides >= LIKELY]
    timed = all(math.isfinite(action.seconds) for action in actions)  # else a training is the price, whatever its time
    # A proposal that would most likely leave the answer open is the last to be made.
    best = max(
        worth,
        key=lambda action: (
            action.decides >= LIKELY,
            max(action.gain, LEAST_GAIN) / max(action.seconds if timed else sum(action.more), 1e-9),
        ),
        default=None,
    )
    return best, better
