"""The stopping rule against its definition in docs/search-rules.md, written out over all reports so far.

The curves are random, with uneven evaluations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from orchestrator.search.judge import Decision, Rule
from orchestrator.search.rivals import Entrant
from orchestrator.search.stopping import Halving

Report = tuple[Entrant, float, float]


def rivals_of(entrant: Entrant, reports: Sequence[Report]) -> dict[str, dict[float, float]]:
    """The curves so far of all that may be held against a trial: same task, same seed, no larger in any cost."""
    found: dict[str, dict[float, float]] = {}
    for other, epoch, score in reports:
        smaller = all(one <= own for one, own in zip(other.costs, entrant.costs, strict=True))
        if other.group == entrant.group and smaller:
            found.setdefault(other.key, {})[epoch] = score
    return found


def halving_stops(rule: Halving, reports: Sequence[Report], stopped: dict[str, float]) -> bool:
    """Whether the last of `reports` is the trial's first at a rung, beaten there, and not among the best `factor`-th: those
    that are better and those that are as good and went on."""
    entrant, epoch, score = reports[-1]
    rungs = [rule.grace * rule.factor**power for power in range(20) if rule.grace * rule.factor**power <= epoch + 1e-9]
    own = [at for other, at, _ in reports[:-1] if other.key == entrant.key]
    if not rungs or any(at >= rungs[-1] - 1e-9 for at in own):
        return False
    there: dict[str, float] = {}
    for key, curve in rivals_of(entrant, reports).items():
        come = [at for at in curve if at >= rungs[-1] - 1e-9]
        if come and key != entrant.key:
            first = next(at for other, at, _ in reports if other.key == key and at >= rungs[-1] - 1e-9)
            there[key] = curve[first]
    stay = max(1, math.floor((len(there) + 1) / rule.factor))
    ended_here = {key for key, at in stopped.items() if at < rungs[-1] * rule.factor - 1e-9}
    if not any(other > score for other in there.values()):
        return False
    return sum(other > score or (other == score and key not in ended_here) for key, other in there.items()) >= stay


def judge(
    rule: Rule, waiting: Mapping[Entrant, Sequence[tuple[float, float]]], draw: random.Random
) -> Iterator[tuple[bool, list[Report]]]:
    """Trials report in a random order until they end or are stopped; what the rule says each time, and all reports so far."""
    left = {entrant: list(curve) for entrant, curve in waiting.items()}
    reports: list[Report] = []
    while left:
        entrant = draw.choice(list(left))
        epoch, score = left[entrant].pop(0)
        reports.append((entrant, epoch, score))
        stop = rule.report(entrant, epoch, score) is Decision.STOP
        yield stop, reports
        if stop or not left[entrant]:
            del left[entrant]


def random_curves(draw: random.Random) -> dict[Entrant, list[tuple[float, float]]]:
    curves = {}
    for number in range(60):
        entrant = Entrant(
            f"k{number}", f"c{number}", (draw.choice("ab"), draw.choice([0, 1])), (draw.choice([1.0, 2.0, 3.0]), 1.0)
        )
        step = draw.choice([0.5, 0.5, 0.5, 0.75])
        # Few distinct scores, so that there are ties.
        curves[entrant] = [(step * place, float(draw.randrange(50, 60))) for place in range(1, 9)]
    return curves


@pytest.mark.parametrize("seed", range(3))
def test_halving_is_what_it_is_said_to_be(seed: int) -> None:
    draw = random.Random(seed)
    rule = Halving(0.5, 2 + seed)
    said: list[bool] = []
    stopped: dict[str, float] = {}  # at which epoch
    for stop, reports in judge(rule, random_curves(draw), draw):
        assert stop == halving_stops(rule, reports, stopped), reports[-1]
        stopped |= {reports[-1][0].key: reports[-1][1]} if stop else {}
        said.append(stop)
    assert 0 < sum(said) < len(said)
